"""`tf.types.experimental`."""

from typing import Any

from replicax.execution import Function
from replicax.tf._missing import refuse
from replicax.tf.types.experimental import distributed

__all__ = ["GenericFunction", "TensorLike", "distributed"]

TensorLike = Any
"""Anything that converts to a tensor, for annotations."""
GenericFunction = Function

__getattr__ = refuse("tf.types.experimental", {"ConcreteFunction": "`jax.stages.Compiled`"})
