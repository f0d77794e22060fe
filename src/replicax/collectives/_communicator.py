"""`Communicator`: combines values over the replicas of one strategy.

Every reduction and gather of a strategy goes through it, from replicas as well as from the cross-replica
context. It also defines what reducing a value that is the same on all replicas means: each replica
contributes it, so the sum is N times the value.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any, final

import jax
import jax.numpy as jnp
import numpy as np

from replicax._jax import is_tracer
from replicax._messages import brief, user_line
from replicax._recording import is_transforming
from replicax.cluster import Collective
from replicax.collectives._cross_device_ops import CrossDeviceOps, DefaultAllReduce, place
from replicax.collectives._local import AllGather, FirstReplica
from replicax.collectives._options import CommunicationOptions
from replicax.collectives._order import order_of
from replicax.collectives._programs import combine
from replicax.collectives._timeout import await_or_limit
from replicax.errors import CollectiveError
from replicax.topology import ReplicaMesh
from replicax.types import ReduceOp
from replicax.values import Mirrored, PerReplica, is_number

__all__ = ["Communicator", "checked_axis"]

_DEFAULT = CommunicationOptions()


@final
class Communicator:
    """Combines values over the replicas of `mesh` with the cross-device operations `ops`.

    `options` are the defaults of every collective.
    """

    def __init__(
        self, mesh: ReplicaMesh, ops: CrossDeviceOps, options: CommunicationOptions | None = None
    ) -> None:
        """Check that `ops` supports the devices of `mesh`."""
        ops.check_devices(mesh)
        self.mesh = mesh
        self.ops = ops
        self._options = options or _DEFAULT
        self.num_replicas = mesh.num_replicas

    def on(self, mesh: ReplicaMesh) -> Communicator:
        """The same communicator on other devices; on another platform, with XLA's own collectives."""
        ops = self.ops if mesh.platform == self.mesh.platform else DefaultAllReduce()
        return Communicator(mesh, ops, self._options)

    def reduce(
        self,
        op: ReduceOp,
        values: Sequence[Any],
        options: CommunicationOptions | None = None,
        destinations: Sequence[Any] | None = None,
    ) -> list[Any]:
        """Sum or average each value over the replicas, all in one operation.

        Results are mirrored, or placed on `destinations`, one for each value.
        """
        values = [
            v.on(self.mesh) if isinstance(v, PerReplica) else v for v in map(self.contribution, values)
        ]
        wanted = zip(values, destinations or values, strict=True)
        pairs = [(v, where) for v, where in wanted if isinstance(v, PerReplica)]
        options = self._chosen(options)
        reduced = iter(self.ops.batch_reduce(op, pairs, options) if pairs else ())
        results = [next(reduced) if isinstance(v, PerReplica) else self._reduce_same(op, v) for v in values]
        if destinations is None:
            return results
        return [place(result, where) for result, where in zip(results, destinations, strict=True)]

    def _chosen(self, options: CommunicationOptions | None) -> CommunicationOptions:
        """The strategy's options, overridden by the fields of `options` that are not defaults."""
        if options is None:
            return self._options
        fields = dataclasses.fields(options)
        given = {field.name: getattr(options, field.name) for field in fields}
        changed = {f.name: given[f.name] for f in fields if given[f.name] != f.default}
        return dataclasses.replace(self._options, **changed) if changed else self._options

    def on_each(self, value: Any) -> Any:
        """The per-replica value in which every replica holds `value`."""
        if isinstance(value, PerReplica) or self.num_replicas == 1:
            return value
        return PerReplica([value] * len(self.mesh.local_replica_ids), mesh=self.mesh)

    def contribution(self, value: Any) -> Any:
        """What this process contributes to a collective if each of its replicas holds `value`.

        With several processes that is a per-replica value, because the others may hold a different one.
        """
        between = is_number(value) and self.is_between_processes(value)
        return self.on_each(value) if between else value

    def is_between_processes(self, value: Any) -> bool:
        """Whether a collective of `value` would be an eager one with other processes."""
        if self.mesh.is_local or is_transforming() or is_tracer(value):
            return False
        traced = isinstance(value, PerReplica) and (
            value.is_local or value.is_global_tracer or value.is_traced_apart
        )
        return not traced

    def mirrored(self, value: Any) -> Any:
        """`value`, which is the same for all replicas, placed on each of them."""
        if isinstance(value, Mirrored | PerReplica) or self.num_replicas == 1:
            return value
        # In a trace it becomes a constant of the program.
        whole = jnp.asarray(value) if is_transforming() else self.mesh.replicate(value)
        return Mirrored.from_whole(whole, self.mesh)

    def _reduce_same(self, op: ReduceOp, value: Any) -> Any:
        if isinstance(value, Mirrored) and value.mesh is None:
            value = value.to_plain()
        number = value.to_plain() if isinstance(value, Mirrored) else value
        if not is_number(number):
            raise CollectiveError(
                f"Only arrays and numbers can be reduced over replicas, got {brief(value)}."
            )
        if self.num_replicas == 1 and op is ReduceOp.SUM:
            return value
        if isinstance(value, Mirrored):
            whole = self.ops.reduce_equal(op, value.whole, self.num_replicas)
            return Mirrored.from_whole(whole, value.mesh)
        return self.ops.reduce_equal(op, value, self.num_replicas)

    def first(self, values: Sequence[Any]) -> list[Any]:
        """The first replica's part of each value, mirrored."""
        values = [self._first_of_uneven(v) if isinstance(v, PerReplica) else v for v in values]
        own = [v for v in values if isinstance(v, PerReplica)]
        firsts = combine(FirstReplica(), own, self.mesh)
        await_or_limit(firsts, self._options, "A broadcast from the first replica")
        sent = iter(firsts)
        return [next(sent) if isinstance(v, PerReplica) else v for v in values]

    def _first_of_uneven(self, value: PerReplica) -> Any:
        """The first component, mirrored, if shapes differ between local replicas; else `value`."""
        value = value.on(self.mesh)
        if value.uniform is not None or not self.mesh.is_local:
            return value
        first = value.components[0]
        return Mirrored.from_whole(first if is_tracer(first) else self.mesh.replicate(first), self.mesh)

    def gather(self, value: Any, axis: int, options: CommunicationOptions | None = None) -> tuple[Any, Any]:
        """Concatenate the replicas' values along `axis`; also returns the offset of each replica's part."""
        if isinstance(value, Mirrored) and self.num_replicas > 1:
            whole = jnp.concatenate([value.whole] * self.num_replicas, axis)
            return Mirrored.from_whole(whole, value.mesh), None
        value = self.contribution(value)
        if not isinstance(value, PerReplica):
            checked_axis(axis, value)
            return value, 0
        value = value.on(self.mesh)
        uniform = value.uniform
        if self.is_between_processes(value):
            whole, offsets = self._gather_between_processes(value, axis)
        elif uniform is None:
            whole, offsets = self._gather_uneven(value, axis)
        else:
            axis = checked_axis(axis, uniform)
            whole = self._gather_even(value, uniform, axis)
            starts = [i * uniform.shape[axis] for i in self.mesh.local_replica_ids]
            offsets = None if value.is_local else PerReplica(starts)
        await_or_limit([whole], self._chosen(options), "A gather across replicas")
        return whole, offsets

    def _gather_even(self, value: PerReplica, uniform: Any, axis: int) -> Mirrored:
        if uniform.shape[axis] == 0:
            return self.mirrored(jnp.zeros(uniform.shape, uniform.dtype))
        return combine(AllGather(axis), [value], self.mesh)[0]

    def _gather_uneven(self, value: PerReplica, axis: int) -> tuple[Any, Any]:
        """Gather components of different sizes that are all in this process."""
        _check_gathered(value, axis)
        sizes = [np.shape(c)[axis] for c in value.components]
        if value.is_traced_apart:
            whole = Mirrored.from_whole(jnp.concatenate(value.components, axis), self.mesh)
        else:
            whole = self._gather_padded(value, axis, sizes)
        return whole, self._offsets(sizes)

    def _gather_between_processes(self, value: PerReplica, axis: int) -> tuple[Any, Any]:
        """Gather concrete components; the processes exchange their sizes first."""
        _check_gathered(value, axis)
        axis = checked_axis(axis, value.components[0])
        shape, dtype = list(np.shape(value.components[0])), jnp.result_type(value.components[0])
        own, shape[axis] = [np.shape(c)[axis] for c in value.components], "*"
        kind, values = f"all-gather along axis {axis}", f"{dtype}[{','.join(map(str, shape))}]"
        with order_of(self.mesh).turn(Collective(kind, values, user_line()), own) as received:
            sizes = self._in_replica_order(received)
            if len(set(sizes)) == 1:
                uniform = jax.ShapeDtypeStruct(np.shape(value.components[0]), dtype)
                whole = self._gather_even(value, uniform, axis)
            else:
                whole = self._gather_padded(value, axis, sizes)
        return whole, self._offsets(sizes)

    def _in_replica_order(self, received: Sequence[Sequence[int]]) -> list[int]:
        """What the processes sent about their replicas, in the order of all replicas."""
        told = dict(zip(self.mesh.processes, map(iter, received), strict=True))
        return [next(told[devices[0].process_index]) for devices in self.mesh.replica_devices]

    def _offsets(self, sizes: Sequence[int]) -> PerReplica:
        """The offset of each local replica's part."""
        starts = np.cumsum([0, *sizes[:-1]])
        return PerReplica([int(starts[i]) for i in self.mesh.local_replica_ids])

    def _gather_padded(self, value: PerReplica, axis: int, sizes: Sequence[int]) -> Mirrored:
        """Gather arrays padded to the largest size, and remove the padding."""
        largest, padded = max(sizes), []
        for component in map(jnp.asarray, value.components):
            widths = [(0, 0)] * component.ndim
            widths[axis] = (0, largest - component.shape[axis])
            padded.append(jnp.pad(component, widths))
        (stack,) = combine(AllGather(None), [PerReplica(padded, mesh=self.mesh)], self.mesh)
        parts = [jnp.take(stack.whole[i], jnp.arange(size), axis=axis) for i, size in enumerate(sizes)]
        return Mirrored.from_whole(jnp.concatenate(parts, axis), self.mesh)


def _check_gathered(value: PerReplica, axis: int) -> None:
    for component in value.components:
        if not is_number(component):
            raise CollectiveError(f"Only arrays can be gathered, got {brief(component)}.")
        checked_axis(axis, component)
    if len(_other_axes(value, axis)) > 1:
        raise CollectiveError(
            f"gather(axis={axis}) needs values that differ only in their size along that axis, "
            f"got {', '.join(map(brief, value.components))}."
        )


def _other_axes(value: PerReplica, axis: int) -> set[Any]:
    kinds = set()
    for component in value.components:
        shape = list(np.shape(component))
        del shape[axis]
        kinds.add((tuple(shape), jnp.result_type(component)))
    return kinds


def checked_axis(axis: Any, value: Any, what: str = "gather") -> int:
    """`axis` as a non-negative index of an axis of `value`."""
    shape = np.shape(value) if is_number(value) else tuple(value.shape)
    ndim = len(shape)
    if isinstance(axis, bool) or not isinstance(axis, int | np.integer):
        raise TypeError(f"{what}: axis must be an int, got {axis!r}.")
    if not -ndim <= axis < ndim:
        allowed = f"Pass {-ndim} <= axis < {ndim}." if ndim else "A scalar has no axes."
        raise CollectiveError(
            f"{what}(axis={axis}) got a value of shape {shape} on each replica, which has no axis "
            f"{axis}. {allowed}"
        )
    return int(axis) % ndim
