"""TensorFlow's functions that control a graph, and what they mean without one.

Operations run, or are traced, in the order of the calls. So dependencies are always met, and nothing needs
to be grouped.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

from replicax._jax import outside_of_traces

__all__ = ["control_dependencies", "group", "init_scope", "no_op"]


@contextlib.contextmanager
def control_dependencies(control_inputs: Any) -> Iterator[None]:
    """A `with` block without effect: what was called before happens before.

    >>> from replicax import tf
    >>> v = tf.Variable(1.0)
    >>> with tf.control_dependencies([v.assign_add(1.0)]):
    ...     float(v)
    2.0
    """
    yield


@contextlib.contextmanager
def init_scope() -> Iterator[None]:
    """A `with` block in which operations run at once, also while a function is traced.

    Traced values have no number there. A variable that is read there gives its value before the function.

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
    """Nothing: what was called has happened."""


def no_op(name: str | None = None) -> None:
    """Nothing."""
