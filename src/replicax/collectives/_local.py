"""What one replica computes in a collective, in the SPMD program that all replicas share.

Each class is a small frozen recipe: called with the name of a mapped axis and this replica's values, it
returns the combined values. One recipe serves eager reductions (`jit(shard_map(recipe))`), compiled steps
(called inline) and steps traced replica by replica (under `vmap`). It is hashable, so it is also the cache
key of its compiled program.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Sequence
from typing import Any, Protocol, final

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from replicax.collectives._early_sums import current_early_sums
from replicax.collectives._options import CommunicationImplementation, CommunicationOptions
from replicax.types import ReduceOp

__all__ = ["STACK_AXIS", "AllGather", "AllReduce", "FirstReplica", "OneDeviceReduce", "Recipe", "Spread"]

# On CPU XLA runs a rendezvous for each all-reduce, and Gloo sends several messages, so values below
# _ALONE_BYTES are reduced together in packs of up to _PACK_BYTES. Larger values are bound by memory:
# copying them into a pack would cost more than it saves.
_ALONE_BYTES = 1 << 22
_PACK_BYTES = 1 << 26
# Many parts, or parts of up to this size, are concatenated into a pack; a few large parts are written into
# it one by one. XLA on CPU fuses the computation of up to eight parts into the copy, which makes it slow.
_SMALL_BYTES = 1 << 18
_MAX_FUSED_PARTS = 8

# The axis of a recipe that is mapped over stacked components instead of devices. It has its own name,
# because such a stack may be reduced inside a program that maps the replica axis.
STACK_AXIS = "replica_stack"


class Recipe(Protocol):
    """What a replica computes from its own values and those of the other replicas on `axis`."""

    def __call__(self, axis: str, *values: Any) -> Sequence[Any]:
        """Combine `values` with the other replicas'."""
        ...


@final
@dataclasses.dataclass(frozen=True)
class AllReduce:
    """The sum or mean of each value over all replicas, in packs."""

    op: ReduceOp
    platform: str
    options: CommunicationOptions
    hierarchical: bool = False
    num_packs: int | None = None

    def __str__(self) -> str:
        """What processes must agree on."""
        algorithm = "hierarchical" if self.hierarchical else self.options.implementation.name
        packs = [f"num_packs={self.num_packs}"] if self.num_packs is not None else []
        packs += [f"bytes_per_pack={self.options.bytes_per_pack}"] if self.options.bytes_per_pack else []
        return " ".join(["all-reduce", self.op.name, algorithm, *packs]).removesuffix(" AUTO")

    def __call__(self, axis: str, *values: Any) -> list[Any]:
        """Reduce `values`, small ones of one dtype together."""
        arrays = [self._wide_enough(jnp.asarray(value)) for value in values]
        # Empty values are not packed. jaxlib 0.11.2 crashes if a program with an all-reduce returns such an
        # argument unchanged.
        sums = [array if array.size else jnp.zeros_like(array) for array in arrays]
        for pack in self._packs(arrays):
            totals = self._sum_packed([arrays[i] for i in pack], axis)
            for i, total in zip(pack, totals, strict=True):
                sums[i] = total
        results = [self.of_sum(total, lax.axis_size(axis)) for total in sums]
        return [_narrowed(result, value) for result, value in zip(results, values, strict=True)]

    @property
    def unpacked(self) -> AllReduce:
        """This recipe without packs, unless the user chose them.

        A program with packs takes three times as long to compile. Between the devices of one process, the
        packs of an eager reduction do not make up for that: handling the values in Python takes longer.
        """
        return dataclasses.replace(self, num_packs=0) if self._packs_by_default else self

    @property
    def _packs_by_default(self) -> bool:
        return self.num_packs is None and not self.options.bytes_per_pack

    def of_sum(self, total: Any, count: int) -> Any:
        """The result for `count` values with the sum `total`."""
        return _mean(total, count) if self.op is ReduceOp.MEAN else total

    def _wide_enough(self, array: Any) -> Any:
        return _for_mean(array) if self.op is ReduceOp.MEAN else array

    def _sum_packed(self, arrays: Sequence[Any], axis: str) -> list[Any]:
        early = current_early_sums() if self._may_add_scalars(arrays[0]) else None
        if early is None:
            return _reduce_packed(arrays, lambda pack: self._sum(pack, axis))
        scalars = early.pending(arrays[0].dtype)
        totals = _reduce_packed([*arrays, *scalars], lambda pack: self._sum(pack, axis))
        early.record(scalars, totals[len(arrays) :])
        return totals[: len(arrays)]

    def _sum(self, array: Any, axis: str) -> Any:
        if self.hierarchical:
            return _hierarchical_sum(array, axis)
        if self.options.implementation is CommunicationImplementation.RING:
            return _ring_sum(array, axis)
        return lax.psum(array, axis)

    def _packs(self, arrays: Sequence[Any]) -> list[list[int]]:
        by_dtype: dict[Any, list[int]] = {}
        for i, array in enumerate(arrays):
            if array.size:
                by_dtype.setdefault(array.dtype, []).append(i)
        packs: list[list[int]] = []
        for indices in by_dtype.values():
            sizes = [_num_bytes(arrays[i]) for i in indices]
            alone, limit = self._limits(sizes)
            packs += _fill(indices, sizes, alone, limit)
        return packs

    def _limits(self, sizes: Sequence[int]) -> tuple[int, int]:
        """The size from which a value is reduced separately, and the largest size of a pack."""
        if self.num_packs is not None:
            limit = math.ceil(sum(sizes) / self.num_packs) if self.num_packs else 0
        elif self.options.bytes_per_pack:
            limit = self.options.bytes_per_pack
        else:
            return (_ALONE_BYTES, _PACK_BYTES) if self.platform == "cpu" else (0, 0)
        return limit, limit

    def _may_add_scalars(self, first: Any) -> bool:
        """Whether a pack that starts with `first` may include scalars of `EarlySums`.

        Not if the user chose the packs, or if `first` is so large that it is reduced separately.
        """
        return self._packs_by_default and self.platform == "cpu" and _num_bytes(first) < _ALONE_BYTES


def _num_bytes(array: Any) -> int:
    return array.size * array.dtype.itemsize


def _fill(indices: Sequence[int], sizes: Sequence[int], alone: int, limit: int) -> list[list[int]]:
    """Group values below `alone` bytes into packs of up to `limit` bytes; larger ones are not packed."""
    packs: list[list[int]] = []
    open_pack: list[int] | None = None
    room = 0
    for index, size in zip(indices, sizes, strict=True):
        if size >= alone:
            packs.append([index])
        elif open_pack is not None and size <= room:
            open_pack.append(index)
            room -= size
        else:
            open_pack = [index]
            packs.append(open_pack)
            room = limit - size
    return packs


def _reduce_packed(arrays: Sequence[Any], reduce: Callable[[Any], Any]) -> list[Any]:
    if len(arrays) == 1:
        return [reduce(arrays[0])]
    # The largest goes first: there it is aligned, and XLA on CPU writes it with several threads.
    order = sorted(range(len(arrays)), key=lambda i: -arrays[i].size)
    offsets = _opaque_offsets([arrays[i].size for i in order])
    buffer = reduce(_join([arrays[i].reshape(-1) for i in order], offsets))
    results: list[Any] = [None] * len(arrays)
    for i, offset in zip(order, offsets, strict=True):
        results[i] = lax.dynamic_slice(buffer, (offset,), (arrays[i].size,)).reshape(arrays[i].shape)
    return results


def _opaque_offsets(sizes: Sequence[int]) -> list[Any]:
    """Where parts of these `sizes` begin, as values that XLA does not know at compile time.

    XLA on CPU compiles identical kernels once. With constant offsets, each kernel that reads or writes a
    part would be different, and compiling 300 of them takes ten times as long. Each offset is the first of
    two numbers, because XLA bakes scalars into the kernel.
    """
    starts = np.cumsum([0, *sizes[:-1]], dtype=np.uint32)
    pairs = lax.optimization_barrier([np.array([start, 0], np.uint32) for start in starts])
    return [lax.squeeze(lax.slice(pair, (0,), (1,)), (0,)) for pair in pairs]


def _join(parts: Sequence[Any], offsets: Sequence[Any]) -> Any:
    """Concatenate `parts` without letting XLA on CPU fuse their computation into the copy (slow)."""
    if len(parts) > _MAX_FUSED_PARTS or all(_num_bytes(part) <= _SMALL_BYTES for part in parts):
        return jnp.concatenate(lax.optimization_barrier(parts))
    # A barrier before large parts costs more than it saves, so update a buffer in place.
    buffer = jnp.zeros((sum(part.size for part in parts),), parts[0].dtype)
    for part, offset in zip(parts, offsets, strict=True):
        buffer = lax.dynamic_update_slice(buffer, part, (offset,))
    return buffer


def _for_mean(array: Any) -> Any:
    """`array` in a dtype that can hold the sum that a mean is computed from."""
    if jnp.issubdtype(array.dtype, jnp.integer):
        return array.astype(jnp.float32 if array.dtype.itemsize >= 4 else jnp.int32)
    return array.astype(jnp.float32) if array.dtype == jnp.float16 else array


def _narrowed(result: Any, value: Any) -> Any:
    """Convert a result back to float16 if the value had that dtype."""
    return result.astype(jnp.float16) if jnp.result_type(value) == jnp.float16 else result


def _mean(total: Any, count: int) -> Any:
    if jnp.issubdtype(total.dtype, jnp.inexact):
        return total / jnp.asarray(count, total.dtype)
    return total.astype(jnp.float32) / count


def _hierarchical_sum(array: Any, axis: str) -> Any:
    """Sum within groups, then across them: the second stage has fewer participants."""
    count = lax.axis_size(axis)
    if axis == STACK_AXIS:
        return lax.psum(array, axis)  # one device holds all values
    group = max(d for d in range(1, math.isqrt(count) + 1) if count % d == 0)
    if group == 1:
        return lax.psum(array, axis)
    within = [list(range(i, i + group)) for i in range(0, count, group)]
    across = [list(range(i, count, group)) for i in range(group)]
    array = lax.psum(array, axis, axis_index_groups=within)
    return lax.psum(array, axis, axis_index_groups=across)


def _ring_sum(array: Any, axis: str) -> Any:
    """Reduce-scatter, then all-gather; in each step every replica passes a chunk to the next one."""
    count, me = lax.axis_size(axis), lax.axis_index(axis)
    ring = [(i, (i + 1) % count) for i in range(count)]
    flat = array.reshape(-1)
    chunks = jnp.pad(flat, (0, -flat.size % count)).reshape(count, -1)
    passing = chunks[me]
    for step in range(count - 1):
        passing = lax.ppermute(passing, axis, ring) + chunks[(me - step - 1) % count]
    result = chunks.at[(me + 1) % count].set(passing)
    for step in range(count - 1):
        passing = lax.ppermute(passing, axis, ring)
        result = result.at[(me - step) % count].set(passing)
    return result.reshape(-1)[: flat.size].reshape(array.shape)


@final
@dataclasses.dataclass(frozen=True)
class OneDeviceReduce:
    """Gather every value, accumulate on one replica in replica order, and broadcast the result."""

    op: ReduceOp
    replica: int
    accumulate: Callable[[Sequence[Any]], Any] | None = None

    def __str__(self) -> str:
        return f"reduction {self.op.name} on replica {self.replica}"

    def __call__(self, axis: str, *values: Any) -> list[Any]:
        """Reduce each of `values`."""
        return [self._reduce(jnp.asarray(value), axis) for value in values]

    def _reduce(self, value: Any, axis: str) -> Any:
        if self.op is ReduceOp.MEAN and self.accumulate is None:
            return _narrowed(self._combine(_for_mean(value), axis), value)
        return self._combine(value, axis)

    def of_equal(self, value: Any, count: int) -> Any:
        """The result if `count` replicas have the same value, without communication."""
        assert self.accumulate is not None
        total = self.accumulate([value] * count)
        return _mean(jnp.asarray(total), count) if self.op is ReduceOp.MEAN else total

    def _combine(self, value: Any, axis: str) -> Any:
        gathered = lax.all_gather(value, axis)

        def total() -> Any:
            parts = [gathered[i] for i in range(gathered.shape[0])]
            return self.accumulate(parts) if self.accumulate else sum(parts[1:], parts[0])

        shape = jax.eval_shape(total)
        mine = lax.axis_index(axis) == self.replica
        result = lax.cond(mine, total, lambda: jnp.zeros(shape.shape, shape.dtype))
        result = lax.psum(result, axis)
        return _mean(result, lax.axis_size(axis)) if self.op is ReduceOp.MEAN else result


@final
@dataclasses.dataclass(frozen=True)
class AllGather:
    """Each value concatenated over the replicas along `dimension`; None stacks on a new axis 0."""

    dimension: int | None

    def __str__(self) -> str:
        return f"all-gather along axis {'0, new' if self.dimension is None else self.dimension}"

    def __call__(self, axis: str, *values: Any) -> list[Any]:
        """Gather each of `values`."""
        if self.dimension is None:
            return [lax.all_gather(jnp.asarray(value), axis) for value in values]
        return [
            lax.all_gather(jnp.asarray(value), axis, axis=self.dimension, tiled=True) for value in values
        ]


@final
@dataclasses.dataclass(frozen=True)
class FirstReplica:
    """The first replica's value, on all replicas."""

    def __str__(self) -> str:
        return "broadcast from replica 0"

    def __call__(self, axis: str, *values: Any) -> list[Any]:
        """Broadcast each of `values` from replica 0."""
        return [_from_first(jnp.asarray(value), axis) for value in values]


def _from_first(value: Any, axis: str) -> Any:
    kept = jnp.where(lax.axis_index(axis) == 0, value, jnp.zeros_like(value))
    if value.dtype == jnp.bool_:
        return lax.psum(kept.astype(jnp.int32), axis).astype(jnp.bool_)
    return lax.psum(kept, axis)


@final
@dataclasses.dataclass(frozen=True)
class Spread:
    """Each replica's part of one value: all of it, or a share such that the shares add up to it.

    Shares are equal; a remainder goes to the first replicas, so that the sum is exact.
    """

    divide: bool

    def __call__(self, axis: str, *values: Any) -> list[Any]:
        """This replica's part of each of `values`."""
        return [self._part(jnp.asarray(value), axis) if self.divide else value for value in values]

    def _part(self, value: Any, axis: str) -> Any:
        count, me = lax.axis_size(axis), lax.axis_index(axis)
        if jnp.iscomplexobj(value):  # rounded like two floats; complex products round differently
            return lax.complex(*(_float_share(x, count, me) for x in (value.real, value.imag)))
        if jnp.issubdtype(value.dtype, jnp.inexact):
            return _float_share(value, count, me)
        # Small integer dtypes may be too small for the number of replicas, and some do not promote to any
        # other dtype.
        wide = value if value.dtype.itemsize >= 4 else value.astype(jnp.int32)
        extra = me.astype(wide.dtype) < wide % count
        return (wide // count + extra.astype(wide.dtype)).astype(value.dtype)


def _float_share(value: Any, count: int, replica: Any) -> Any:
    """Equal shares of `value`, except that the first one makes up the difference to the exact sum.

    A share is rounded to the spacing of floats near `value`. All shares and their partial sums are then
    multiples of that spacing, so adding them up is exact in any order.
    """
    share = value / jnp.asarray(count, value.dtype)
    rounded = (share + value) - value
    share = jnp.where(jnp.isfinite(rounded), rounded, share)
    first = jnp.where(jnp.isfinite(value), value - (count - 1) * share, value)
    return jnp.where(replica == 0, first, share).astype(value.dtype)
