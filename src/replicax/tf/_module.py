"""`tf.Module`: an object that finds its own variables; and `tf.device`, `tf.name_scope`."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterator
from typing import Any

import jax

from replicax.topology import find_device
from replicax.variables import Variable

__all__ = ["Module", "device", "name_scope"]


class Module:
    """A base class that finds variables in attributes, lists, dicts and other modules.

    >>> from replicax import tf
    >>> class Dense(tf.Module):
    ...     def __init__(self, size):
    ...         super().__init__(name="dense")
    ...         self.kernel = tf.Variable(tf.zeros([size, size]), name="kernel")
    ...         self.steps = tf.Variable(0, trainable=False)
    >>> dense = Dense(2)
    >>> [v.name for v in dense.trainable_variables], len(dense.variables)
    (['kernel:0'], 2)
    """

    def __init__(self, name: str | None = None) -> None:
        """By default, the name is the class's in lower case."""
        self._name = name or type(self).__name__.lower()

    @property
    def name(self) -> str:
        """The name that its ops have in profiles."""
        return self._name

    @property
    def name_scope(self) -> Any:
        """A `with` block whose ops have the module's name in profiles."""
        return name_scope(self.name)

    @classmethod
    def with_name_scope(cls, method: Any) -> Any:
        """A decorator that runs a method in the module's `name_scope`."""

        @functools.wraps(method)
        def in_scope(self: Module, *args: Any, **kwargs: Any) -> Any:
            with self.name_scope:
                return method(self, *args, **kwargs)

        return in_scope

    @property
    def variables(self) -> tuple[Variable, ...]:
        """All variables, including those of submodules; attributes are sorted by name."""
        return tuple(found for found in _inside(self, set()) if isinstance(found, Variable))

    @property
    def trainable_variables(self) -> tuple[Variable, ...]:
        """The variables that optimizers should update."""
        return tuple(variable for variable in self.variables if variable.trainable)

    @property
    def non_trainable_variables(self) -> tuple[Variable, ...]:
        """The variables that optimizers should not update."""
        return tuple(variable for variable in self.variables if not variable.trainable)

    @property
    def submodules(self) -> tuple[Module, ...]:
        """The modules inside this one."""
        return tuple(
            found for found in _inside(self, set()) if isinstance(found, Module) and found is not self
        )


def _inside(thing: Any, seen: set[int]) -> Iterator[Any]:
    """Variables and modules in `thing`, each once."""
    if id(thing) in seen:
        return
    seen.add(id(thing))
    if isinstance(thing, Variable):
        yield thing
        return
    parts: list[Any] = []
    if isinstance(thing, Module):
        yield thing
        parts = [value for _, value in sorted(vars(thing).items())]
    elif isinstance(thing, dict):
        parts = [thing[key] for key in sorted(thing, key=str)]
    elif isinstance(thing, list | tuple):
        parts = list(thing)
    for part in parts:
        yield from _inside(part, seen)


@contextlib.contextmanager
def device(device_name: Any) -> Iterator[None]:
    """A `with` block that places new arrays on a device; None leaves the choice to JAX.

    Inside a strategy, the strategy decides about placement.

    >>> from replicax import tf
    >>> with tf.device("/cpu:1"):
    ...     x = tf.constant(1.0)
    >>> x.device == jax.devices("cpu")[1]
    True
    """
    if device_name is None:
        yield
        return
    with jax.default_device(find_device(device_name)):
        yield


def name_scope(name: str) -> Any:
    """A `with` block whose ops have `name` in profiles."""
    return jax.named_scope(name)
