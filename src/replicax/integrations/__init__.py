"""Integrations with Flax, Equinox, Keras and Ray, all optional. Import the one that you use.

The Keras integration needs no import: it installs itself when a program imports both Replicax and Keras.
"""
