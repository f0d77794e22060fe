"""Other libraries under strategies. Each is optional: import the integration that you use.

The Keras integration needs no import: it is installed when a program imports both Replicax and Keras.
"""
