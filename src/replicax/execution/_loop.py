"""A function that is given a distributed dataset: a loop in Python around compiled replica functions.

A program can't read a dataset: Python reads every batch. So such a function is not traced. It runs as plain
Python, and each `strategy.run` in it is compiled, the first time and then again only for something new.
Functions that are defined inside the loop, a new object each time, count as the same one as long as their
code and what they refer to is the same.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import logging
import types
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple, final

from replicax.variables import EagerFrame, use_frame

__all__ = ["Loop"]

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
        """No replica functions so far."""
        self._name = name
        self._compile = compile_function
        self._compiled: dict[Any, _Known] = {}
        self._versions: Counter[Any] = Counter()

    def __call__(self, fn: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        """Call the looping function."""
        with use_frame(EagerFrame(loop=self)):
            return fn(*args, **kwargs)

    @contextlib.contextmanager
    def compiling(self, fn: Callable[..., Any]) -> Iterator[Any]:
        """A `with` block for a call of a replica function in its compiled form, if it has one."""
        found = self._find(fn)
        yield None if found is None else found.compiled
        if found is not None:
            # What tracing changed (a list that the function appends to) must not make it another function.
            kept: list[Any] = []
            self._compiled.setdefault(_identity(fn, frozenset(), kept), found._replace(kept=kept))

    def _find(self, fn: Callable[..., Any]) -> _Known | None:
        kept: list[Any] = []
        key = _identity(fn, frozenset(), kept)
        found = self._compiled.get(key)
        if found is None:
            code = _code(fn)
            self._versions[code] += 1
            if self._versions[code] > _MOST_VERSIONS:
                self._warn(fn, self._versions[code])
                return None
            newest = _Newest(fn)
            found = self._compiled[key] = _Known(newest, self._compile(newest), kept)
        found.newest.fn = fn
        return found

    def _warn(self, fn: Any, version: int) -> None:
        if version == _MOST_VERSIONS + 1:
            _logger.warning(
                "%s runs %r, which refers to something else each time, so it is no longer compiled. Pass "
                "what changes from step to step with `args`.",
                self._name,
                getattr(fn, "__qualname__", fn),
            )


@final
class _Newest:
    """A replica function, as it was given last: when it is traced again, what that one refers to counts."""

    def __init__(self, fn: Callable[..., Any]) -> None:
        functools.update_wrapper(self, fn)
        self.fn = fn

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.fn(*args, **kwargs)


class _Known(NamedTuple):
    """A compiled replica function, and what its key names by `id`, which must not be used for others."""

    newest: _Newest
    compiled: Any
    kept: list[Any]


def _code(fn: Any) -> Any:
    """What all versions of a function have in common."""
    while isinstance(fn, functools.partial):
        fn = fn.func
    return getattr(fn, "__code__", type(fn))


def _identity(thing: Any, seen: frozenset[int], kept: list[Any]) -> Any:
    """Equal for functions that are the same code and refer to the same things.

    Numbers and strings are compared by value, also in lists, tuples, sets and dicts; anything else is the
    same while it is the same object, which goes into `kept`, so that its `id` is not used again.
    """
    if id(thing) in seen:
        return "itself"
    seen = seen | {id(thing)}
    if isinstance(thing, types.MethodType):
        return (_identity(thing.__func__, seen, kept), _identity(thing.__self__, seen, kept))
    if isinstance(thing, functools.partial):
        parts = [thing.func, *thing.args, *thing.keywords.values()]
        return (tuple(thing.keywords), *(_identity(part, seen, kept) for part in parts))
    if isinstance(thing, types.FunctionType):
        cells = [_contents(cell) for cell in thing.__closure__ or ()]
        surroundings = [*cells, *(thing.__defaults__ or ()), *(thing.__kwdefaults__ or {}).values()]
        return (
            thing.__code__,
            *(_identity(part, seen, kept) for part in surroundings),
            *(_global_identity(value, seen, kept) for value in _globals(thing)),
        )
    if isinstance(thing, _VALUES):
        return (type(thing), thing)
    kept.append(thing)
    if isinstance(thing, dict):
        items = [part for item in thing.items() for part in item]
        return (id(thing), *(_identity(part, seen, kept) for part in items))
    if isinstance(thing, list | tuple | set | frozenset):
        return (id(thing), *(_identity(part, seen, kept) for part in thing))
    return id(thing)


def _global_identity(thing: Any, seen: frozenset[int], kept: list[Any]) -> Any:
    """`_identity`, but of a function only which one it is: one global leads to all others."""
    if callable(thing):
        kept.append(thing)
        return id(thing)
    return _identity(thing, seen, kept)


def _globals(fn: types.FunctionType) -> list[Any]:
    """The values of the global names that a function, or one defined inside of it, uses."""
    return [fn.__globals__[name] for name in _names(fn.__code__) if name in fn.__globals__]


@functools.lru_cache(maxsize=1024)
def _names(code: types.CodeType) -> tuple[str, ...]:
    inner = [_names(const) for const in code.co_consts if isinstance(const, types.CodeType)]
    return tuple(dict.fromkeys((*code.co_names, *itertools.chain(*inner))))


def _contents(cell: Any) -> Any:
    try:
        return cell.cell_contents
    except ValueError:  # a name that is not bound yet
        return cell
