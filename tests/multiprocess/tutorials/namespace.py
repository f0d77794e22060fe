"""`tf`, which is the only thing that differs between the libraries: `replicax.tf` or `tensorflow`."""

import importlib
import os

os.environ.setdefault("KERAS_BACKEND", os.environ.get("TUTORIAL_BACKEND", "jax"))
tf = importlib.import_module(os.environ.get("TUTORIAL_LIBRARY", "replicax.tf"))
