"""`tf`: the only import in which these programs differ from TensorFlow's."""

import os

os.environ.setdefault("KERAS_BACKEND", "jax")
from replicax import tf

__all__ = ["tf"]
