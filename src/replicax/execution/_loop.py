"""A function that is given a distributed dataset: a loop in Python around compiled replica functions.

No program can hold a dataset: every batch is read by Python. So such a function is not traced. It runs as
it is, and each `strategy.run` in it is compiled, the first time and then again only for something new.
Functions that are defined inside the loop, a new object each time, count as the same one as long as their
code and what they refer to is the same.
"""

from __future__ import annotations

import logging
import types
from collections import Counter
from collections.abc import Callable
from contextvars import ContextVar
from typing import Any, final

__all__ = ["Loop", "current_loop"]

_MOST_VERSIONS = 4
_VALUES = bool | int | float | complex | str | bytes | None

_logger = logging.getLogger("replicax")


@final
class Loop:
    """The replica functions that one looping function runs.

    Args:
        name: of the looping function, for messages.
        compile_function: makes a compiled function of a plain one.
    """

    def __init__(self, name: str, compile_function: Callable[[Any], Any]) -> None:
        """No replica functions yet."""
        self._name = name
        self._compile = compile_function
        self._compiled: dict[Any, Any] = {}
        self._versions: Counter[Any] = Counter()

    def __call__(self, fn: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        """Call the looping function."""
        token = current_loop.set(self)
        try:
            return fn(*args, **kwargs)
        finally:
            current_loop.reset(token)

    def compiled(self, fn: Callable[..., Any]) -> Any:
        """The compiled form of a replica function; None if it is another one each time."""
        key = _identity(fn, frozenset())
        if key not in self._compiled:
            code = getattr(fn, "__code__", None)
            self._versions[code] += code is not None
            if self._versions[code] > _MOST_VERSIONS:
                self._warn(fn, self._versions[code])
                return None
            self._compiled[key] = self._compile(fn)
        return self._compiled[key]

    def _warn(self, fn: Any, version: int) -> None:
        if version == _MOST_VERSIONS + 1:
            _logger.warning(
                "%s runs %r, which refers to something else each time, so it is no longer compiled. Pass "
                "what changes from step to step with `args`.",
                self._name,
                getattr(fn, "__qualname__", fn),
            )


current_loop: ContextVar[Loop | None] = ContextVar("replicax_loop", default=None)
"""The looping function that Python is in; it may be in a trace as well."""


def _identity(thing: Any, seen: frozenset[int]) -> Any:
    """Equal for functions that are the same code with the same surroundings."""
    if id(thing) in seen:
        return "itself"
    seen = seen | {id(thing)}
    if isinstance(thing, types.MethodType):
        return (_identity(thing.__func__, seen), id(thing.__self__))
    if isinstance(thing, types.FunctionType):
        cells = [_contents(cell) for cell in thing.__closure__ or ()]
        surroundings = [*cells, *(thing.__defaults__ or ()), *(thing.__kwdefaults__ or {}).values()]
        return (thing.__code__, *(_identity(part, seen) for part in surroundings))
    return (type(thing), thing) if isinstance(thing, _VALUES) else id(thing)


def _contents(cell: Any) -> Any:
    try:
        return cell.cell_contents
    except ValueError:  # a name that is not bound yet
        return cell
