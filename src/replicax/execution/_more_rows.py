"""Calling a replica function with abstract values and more rows of its padded batches.

This shows which values have one row per row of a batch (`contexts/_examples.py`). The call has no side
effects: its frame is discarded, it creates no variables, and `print` and `breakpoint` do nothing.
"""

from __future__ import annotations

import builtins
import contextlib
import sys
import threading
import weakref
from collections.abc import Callable, Iterator
from typing import Any, final

import jax

from replicax._jax import fresh_traces
from replicax.contexts import Context, Incomplete, Padding, Record, StrategyProtocol, enter
from replicax.execution._program import EagerCallNeeded, ProgramFrame, ReplicaFrame
from replicax.topology import ReplicaMesh
from replicax.values import Mirrored, PerReplica, batch_numbers, find_masks, flatten, is_array
from replicax.variables import Frame

__all__ = ["Call"]

_Run = Callable[[StrategyProtocol, Callable[..., Any], Any, Any, Frame, Padding], Any]


@final
class Call:
    """A call of a replica function, without the values of its arguments.

    Args:
        strategy: runs the replicas.
        fn: the replica function.
        args: its positional arguments, some of them padded batches.
        kwargs: its keyword arguments.
    """

    def __init__(self, strategy: StrategyProtocol, fn: Callable[..., Any], args: Any, kwargs: Any) -> None:
        self.masks = find_masks((args, kwargs))
        leaves, self._treedef = flatten((args, kwargs))
        self._strategy, self._fn = strategy, fn
        self._batches = batch_numbers(leaves, self.masks)
        self._arguments = [_Argument(leaf, strategy) for leaf in leaves]
        self._mask_arguments = [_Argument(mask, strategy) for mask in self.masks]
        self.doubts = {
            leaf.uniform.shape[0]: leaf.doubt
            for leaf in leaves
            if isinstance(leaf, PerReplica) and leaf.doubt and leaf.uniform is not None
        }

    @property
    def signature(self) -> Any:
        """What distinguishes this call from others in the same step."""
        return tuple(argument.key for argument in self._arguments), len(self.masks)

    def with_more_rows(self, batches: frozenset[int], frame: Frame, run: _Run) -> Record:
        """Call the function with twice as many rows in some of its padded `batches`."""
        known = _records_of(self._fn)
        key = (id(self._strategy.mesh), self.signature, tuple(self._batches), batches)
        if known is not None and key in known:
            return known[key]
        record = self._record(batches, frame, run)
        if known is not None:
            known[key] = record
        return record

    def _record(self, batches: frozenset[int], frame: Frame, run: _Run) -> Record:
        record = Record()
        times = [2 if batch in batches else 1 for batch in self._batches]
        mask_times = [2 if i in batches else 1 for i in range(len(self.masks))]

        def call(arrays: list[Any], mask_arrays: list[Any]) -> None:
            self._call(arrays, mask_arrays, record, frame, run)

        arrays = [argument.arrays(n) for argument, n in zip(self._arguments, times, strict=True)]
        masks = [mask.arrays(n) for mask, n in zip(self._mask_arguments, mask_times, strict=True)]
        with _quietly():
            try:
                jax.eval_shape(call, arrays, masks)
            except EagerCallNeeded as error:
                raise Incomplete from error
        return record

    def _call(
        self, arrays: list[Any], mask_arrays: list[Any], record: Record, outer: Frame, run: _Run
    ) -> None:
        strategy = self._strategy
        program = ProgramFrame(None, fresh=True, is_scratch=True)
        is_inside = isinstance(outer, ReplicaFrame)
        frame: Frame = ReplicaFrame(program, strategy.mesh, {}) if is_inside else program
        masks = [m.rebuilt(a) for m, a in zip(self._mask_arguments, mask_arrays, strict=True)]
        leaves = [argument.rebuilt(a) for argument, a in zip(self._arguments, arrays, strict=True)]
        for i, batch in enumerate(self._batches):
            if batch is not None:
                leaves[i] = leaves[i].with_mask(masks[batch])
        args, kwargs = self._treedef.unflatten(leaves)
        padding = Padding(masks, record=record)
        with enter(Context(strategy, frame=frame)), contextlib.ExitStack() as tokens:
            program.on_write = lambda: tokens.enter_context(fresh_traces())
            program.on_write()
            padding.mark(run(strategy, self._fn, args, kwargs, frame, padding), strategy.mesh)


@final
class _Argument:
    """An argument without its arrays; `rebuilt` takes others in their place."""

    def __init__(self, leaf: Any, strategy: StrategyProtocol) -> None:
        self._shapes: list[jax.ShapeDtypeStruct] = []
        self._rebuild: Callable[..., Any] = lambda: leaf
        self._constant = leaf if isinstance(leaf, bool | int | float | str | None) else id(leaf)
        mesh = strategy.mesh
        if isinstance(leaf, PerReplica):
            self._take_per_replica(leaf, mesh)
        elif isinstance(leaf, Mirrored):
            self._take([leaf.whole], lambda whole: Mirrored.from_whole(whole, mesh))
        elif isinstance(leaf, jax.Array):
            self._take([leaf], lambda array: array)

    def _take(self, arrays: list[Any], rebuild: Callable[..., Any]) -> None:
        self._shapes = [jax.ShapeDtypeStruct(array.shape, array.dtype) for array in arrays]
        self._rebuild, self._constant = rebuild, None

    def _take_per_replica(self, leaf: PerReplica, mesh: ReplicaMesh) -> None:
        if leaf.is_local:
            self._take([leaf.select(0)], lambda array: PerReplica.from_local(array, mesh))
        elif leaf.uniform is not None:
            array, scalar = leaf.to_global(mesh)
            self._take([array], lambda array: PerReplica.from_global(array, mesh, scalar=scalar))
        elif all(map(is_array, leaf.components)):
            self._take(list(leaf.components), lambda *parts: PerReplica(parts, mesh=mesh))

    @property
    def key(self) -> Any:
        return self._constant, tuple((shape.shape, shape.dtype) for shape in self._shapes)

    def arrays(self, times: int) -> list[jax.ShapeDtypeStruct]:
        """The abstract arrays, with `times` times as many rows."""
        if times == 1:
            return self._shapes
        return [jax.ShapeDtypeStruct((times * s.shape[0], *s.shape[1:]), s.dtype) for s in self._shapes]

    def rebuilt(self, arrays: list[Any]) -> Any:
        return self._rebuild(*arrays)


_known: weakref.WeakKeyDictionary[Any, dict[Any, Record]] = weakref.WeakKeyDictionary()


def _records_of(fn: Any) -> dict[Any, Record] | None:
    """The cached records of a function; None for methods, which are new objects each time."""
    return _known.setdefault(fn, {}) if isinstance(fn, type(_records_of)) else None


# Silence.

_silent: set[int] = set()
_silencing = threading.Lock()
_real: dict[str, Any] = {}


@contextlib.contextmanager
def _quietly() -> Iterator[None]:
    """A `with` block in which `print` and `breakpoint` do nothing in this thread."""
    me = threading.get_ident()
    if me in _silent:
        yield
        return
    with _silencing:
        if not _silent:
            _real.update(print=builtins.print, hook=sys.breakpointhook)
            builtins.print, sys.breakpointhook = _print, _break
        _silent.add(me)
    try:
        yield
    finally:
        with _silencing:
            _silent.discard(me)
            if not _silent:
                builtins.print, sys.breakpointhook = _real["print"], _real["hook"]


def _print(*args: Any, **kwargs: Any) -> None:
    if threading.get_ident() not in _silent or kwargs.get("file") is not None:
        _real["print"](*args, **kwargs)


def _break(*args: Any, **kwargs: Any) -> Any:
    if threading.get_ident() not in _silent:
        return _real["hook"](*args, **kwargs)
    return None
