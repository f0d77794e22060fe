"""Other libraries under strategies, each optional: import the one that you use.

Keras' integration is installed by itself when a program imports both Replicax and Keras.
"""
