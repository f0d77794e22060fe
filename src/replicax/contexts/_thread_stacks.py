"""Thread-local stacks of other libraries.

While a Linen module runs, it is on a thread-local stack, where the modules that it creates find their
parent. An eager replica that waits inside a module must not leave its modules there for the next replica.
"""

from __future__ import annotations

import functools
import sys
import threading
from collections.abc import Iterator
from types import ModuleType
from typing import Any, final

__all__ = ["ThreadStacks"]

_MODULES = ("flax.linen.module",)


@final
class ThreadStacks:
    """A snapshot of these stacks, for the libraries that have been imported."""

    __slots__ = ("_saved",)

    def __init__(self) -> None:
        self._saved = [(stack, tuple(stack)) for stack in _stacks()]

    def restore(self) -> None:
        """Restore the saved contents."""
        for stack, contents in self._saved:
            stack[:] = contents


def _stacks() -> Iterator[list[Any]]:
    for name in _MODULES:
        module = sys.modules.get(name)
        for thread_state in () if module is None else _thread_states(module):
            yield from (value for value in vars(thread_state).values() if isinstance(value, list))


@functools.cache
def _thread_states(module: ModuleType) -> tuple[threading.local, ...]:
    return tuple(value for value in vars(module).values() if isinstance(value, threading.local))
