"""A function that loops over a distributed dataset in Python and runs compiled replica functions.

A compiled program can't read a dataset, so such a function is not traced. It runs as plain Python, and each
`strategy.run` in it is compiled. A function defined inside the loop is a new object in each iteration; its
compiled form is reused as long as its code and everything it refers to stay the same.
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
    """The compiled replica functions of one looping function.

    Args:
        name: the name of the looping function, for messages.
        compile_function: compiles a plain function.
    """

    def __init__(self, name: str, compile_function: Callable[[Any], Any]) -> None:
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
        """A `with` block for a call of a replica function; yields its compiled form, or None."""
        found = self._find(fn)
        num_calls = 0 if found is None else found.newest.num_calls
        yield None if found is None else found.compiled
        if found is not None and found.newest.num_calls > num_calls:
            # Tracing may change what the function refers to (a list that it appends to): add that key too.
            alive: list[Any] = []
            self._compiled.setdefault(_identity(fn, frozenset(), alive), found._replace(alive=alive))

    def _find(self, fn: Callable[..., Any]) -> _Known | None:
        alive: list[Any] = []
        key = _identity(fn, frozenset(), alive)
        found = self._compiled.get(key)
        if found is None:
            code = _code(fn)
            self._versions[code] += 1
            if self._versions[code] > _MOST_VERSIONS:
                self._warn(fn, self._versions[code])
                return None
            newest = _Newest(fn)
            found = self._compiled[key] = _Known(newest, self._compile(newest), alive)
        found.newest.fn = fn
        return found

    def _warn(self, fn: Any, version: int) -> None:
        if version == _MOST_VERSIONS + 1:
            _logger.warning(
                "%s runs %r, which refers to something different in each step, so it now runs eagerly. "
                "Pass what changes from step to step in `args`.",
                self._name,
                getattr(fn, "__qualname__", fn),
            )


@final
class _Newest:
    """Calls the newest version of a replica function, in case it is traced again."""

    def __init__(self, fn: Callable[..., Any]) -> None:
        functools.update_wrapper(self, fn)
        self.fn = fn
        self.num_calls = 0

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        self.num_calls += 1
        return self.fn(*args, **kwargs)


class _Known(NamedTuple):
    """A compiled replica function, and the objects whose `id`s are in its key: they must not be reused."""

    newest: _Newest
    compiled: Any
    alive: list[Any]


def _code(fn: Any) -> Any:
    """The code object, which all versions of a function share."""
    while isinstance(fn, functools.partial):
        fn = fn.func
    return getattr(fn, "__code__", type(fn))


def _identity(thing: Any, seen: frozenset[int], alive: list[Any]) -> Any:
    """A key that is equal for functions with the same code that refer to the same things.

    Numbers and strings are compared by value, even in lists, tuples, sets and dicts. Everything else is
    compared by `id`; the objects are added to `alive`, so that no other object gets the same `id`.
    """
    if id(thing) in seen:
        return "itself"
    seen = seen | {id(thing)}
    if isinstance(thing, types.MethodType):
        return (_identity(thing.__func__, seen, alive), _identity(thing.__self__, seen, alive))
    if isinstance(thing, functools.partial):
        parts = [thing.func, *thing.args, *thing.keywords.values()]
        return (tuple(thing.keywords), *(_identity(part, seen, alive) for part in parts))
    if isinstance(thing, types.FunctionType):
        cells = [_contents(cell) for cell in thing.__closure__ or ()]
        surroundings = [*cells, *(thing.__defaults__ or ()), *(thing.__kwdefaults__ or {}).values()]
        return (
            thing.__code__,
            *(_identity(part, seen, alive) for part in surroundings),
            *(_global_identity(value, seen, alive) for value in _globals(thing)),
        )
    if isinstance(thing, _VALUES):
        return (type(thing), thing)
    alive.append(thing)
    if isinstance(thing, dict):
        items = [part for item in thing.items() for part in item]
        return (id(thing), *(_identity(part, seen, alive) for part in items))
    if isinstance(thing, list | tuple | set | frozenset):
        return (id(thing), *(_identity(part, seen, alive) for part in thing))
    return id(thing)


def _global_identity(thing: Any, seen: frozenset[int], alive: list[Any]) -> Any:
    """`_identity`, but functions are compared by `id`: following their globals would never end."""
    if callable(thing):
        alive.append(thing)
        return id(thing)
    return _identity(thing, seen, alive)


def _globals(fn: types.FunctionType) -> list[Any]:
    """The values of the globals that a function uses, including the functions defined inside it."""
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
