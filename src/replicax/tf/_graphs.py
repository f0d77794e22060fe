"""TensorFlow's graph-control functions, which have little to do here.

Ops run, or are traced, in the order in which they are called. So control dependencies always hold, and
nothing needs to be grouped.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

from replicax._jax import outside_of_traces

__all__ = ["control_dependencies", "group", "init_scope", "no_op"]


@contextlib.contextmanager
def control_dependencies(control_inputs: Any) -> Iterator[None]:
    """A `with` block without effect: ops already run in the order in which they are called.

    >>> from replicax import tf
    >>> v = tf.Variable(1.0)
    >>> with tf.control_dependencies([v.assign_add(1.0)]):
    ...     float(v)
    2.0
    """
    yield


@contextlib.contextmanager
def init_scope() -> Iterator[None]:
    """A `with` block in which ops run immediately, even while a function is traced.

    Traced values have no concrete value there. A variable reads as its value from before the call.

    >>> from replicax import tf
    >>> @tf.function
    ... def step():
    ...     with tf.init_scope():
    ...         print(tf.executing_eagerly())
    >>> tf.executing_eagerly()
    True
    """
    with outside_of_traces():
        yield


def group(*inputs: Any, name: str | None = None) -> None:
    """Do nothing: all inputs have run already."""


def no_op(name: str | None = None) -> None:
    """Do nothing."""
