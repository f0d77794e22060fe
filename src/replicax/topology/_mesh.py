"""The mesh of a strategy, and the two ways to place a value on it.

The first mesh axis is the replica axis, named `replica` unless the strategy was given another name. If a
replica has several devices, its *logical devices*, the mesh has more axes: one for each prime factor of
their number, so an array can be partitioned into any number of parts that divides it.

Values that are equal on all replicas are *replicated* arrays. Values that differ are *sharded*: replica i
holds rows `[i * n, (i + 1) * n)` of one global array, so a global batch and the tuple of per-replica
batches are two views of the same memory. Per-replica scalars form a global vector with one entry per
replica. Between steps, each of a replica's devices holds the replica's full part; arrays are partitioned
over the logical axes only inside a step.

Devices may belong to several processes: `split` returns the parts of the local replicas, and `assemble`
builds the global array from them.
"""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from functools import cached_property
from typing import Any, NoReturn, final

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec, Sharding

from replicax._jax import put_parts, with_all_shards
from replicax.topology._cpu import collectives_must_wait
from replicax.topology._devices import device_name

__all__ = ["REPLICA_AXIS", "ReplicaMesh", "is_key", "prime_factors"]

REPLICA_AXIS = "replica"
"""The default name of the replica axis."""

_LOGICAL = "logical_"


def _check_axis_name(axis_name: str) -> None:
    if not isinstance(axis_name, str) or not axis_name or axis_name.startswith(_LOGICAL):
        raise ValueError(
            f"axis_name must be a string like 'batch', for jax.lax.pmean(x, 'batch'), got {axis_name!r}. "
            f"Names that start with {_LOGICAL!r} are reserved for the devices within a replica."
        )


def prime_factors(number: int) -> list[int]:
    """The prime factors of `number`, in ascending order."""
    factors, prime = [], 2
    while number > 1:
        while number % prime == 0:
            factors.append(prime)
            number //= prime
        prime += 1
    return factors


_meshes: weakref.WeakValueDictionary[Any, ReplicaMesh] = weakref.WeakValueDictionary()


def is_key(value: Any) -> bool:
    """Whether `value` is an array of typed random keys; their buffers are accessible only as key data."""
    return isinstance(value, jax.Array) and jnp.issubdtype(value.dtype, jax.dtypes.prng_key)


@final
class ReplicaMesh:
    """Devices arranged by replica, with the shardings that Replicax uses on them.

    There is one object per arrangement of devices and axis name, so meshes can be compared with `is`.
    """

    def __new__(cls, devices: Sequence[Any], axis_name: str = REPLICA_AXIS) -> ReplicaMesh:
        """Take one device for each replica, or a sequence of devices for each replica."""
        _check_axis_name(axis_name)
        grid = np.asarray(devices, dtype=object)
        if grid.ndim == 2:
            grid = grid.reshape(len(grid), *prime_factors(grid.shape[1]))
        key = (axis_name, grid.shape, *grid.flat)
        mesh = _meshes.get(key)
        if mesh is None:
            mesh = _meshes[key] = super().__new__(cls)
            mesh._arrange(grid, axis_name)
        return mesh

    def _arrange(self, grid: np.ndarray, axis_name: str) -> None:
        self.axis_name = axis_name
        """The name of the replica axis, for `jax.lax.psum` and similar functions."""
        logical_axes = tuple(f"{_LOGICAL}{i}" for i in range(grid.ndim - 1))
        self.logical_axes = logical_axes
        """The names of the mesh axes within a replica."""
        self.mesh = Mesh(grid, (axis_name, *logical_axes))
        self.num_replicas: int = grid.shape[0]
        self.replica_devices = tuple(tuple(np.ravel(row)) for row in grid)
        process = jax.process_index()
        self.local_replica_ids = tuple(
            i for i, row in enumerate(self.replica_devices) if all(d.process_index == process for d in row)
        )
        self.is_local = len(self.local_replica_ids) == self.num_replicas
        """Whether every replica runs in this process."""
        if grid.size == 1:
            # JAX calls a program faster with arrays that have a SingleDeviceSharding.
            self.replicated: Sharding = jax.sharding.SingleDeviceSharding(grid.item())
            self.sharded: Sharding = self.replicated
        else:
            self.replicated = NamedSharding(self.mesh, PartitionSpec())
            self.sharded = NamedSharding(self.mesh, PartitionSpec(axis_name))

    def __copy__(self) -> ReplicaMesh:
        return self

    def __deepcopy__(self, memo: dict[int, object]) -> ReplicaMesh:
        return self

    def __reduce__(self) -> NoReturn:
        names = ", ".join(map(" ".join, self.device_names))
        raise TypeError(
            f"Values on {names} can't be pickled: the devices belong to this process. Pickle NumPy arrays "
            "instead, `[np.asarray(x) for x in strategy.local_results(value)]`, or save a checkpoint."
        )

    def __repr__(self) -> str:
        return f"ReplicaMesh([{', '.join(map(' '.join, self.device_names))}])"

    @cached_property
    def processes(self) -> tuple[int, ...]:
        """The processes that have replicas, in ascending order."""
        return tuple(sorted({device.process_index for row in self.replica_devices for device in row}))

    @cached_property
    def platform(self) -> str:
        """The platform of the devices: "cpu", "gpu" or "tpu"."""
        return self.replica_devices[0][0].platform

    @cached_property
    def local_devices(self) -> tuple[Any, ...]:
        """The first device of each local replica, where its eager code runs."""
        return tuple(self.replica_devices[i][0] for i in self.local_replica_ids)

    @cached_property
    def device_names(self) -> tuple[tuple[str, ...], ...]:
        """The names of each replica's devices."""
        return tuple(tuple(map(device_name, row)) for row in self.replica_devices)

    @property
    def num_logical_devices(self) -> int:
        """The number of devices of each replica."""
        return len(self.replica_devices[0])

    @cached_property
    def replica_shardings(self) -> tuple[Sharding, ...]:
        """For each local replica, the sharding that replicates an array over that replica's devices."""
        if self.num_replicas == 1:
            return (self.replicated,) * len(self.local_replica_ids)
        shardings: list[Sharding] = []
        for i in self.local_replica_ids:
            row = np.asarray(self.mesh.devices[i])
            if row.ndim == 0:
                shardings.append(jax.sharding.SingleDeviceSharding(row.item()))
            else:
                inner = Mesh(row, self.mesh.axis_names[1:])
                shardings.append(NamedSharding(inner, PartitionSpec()))
        return tuple(shardings)

    def partition_spec(self, partition_dimensions: Sequence[int]) -> PartitionSpec:
        """The spec that partitions an array into the given number of parts along each axis.

        The product of the numbers must divide the number of devices per replica.
        """
        sizes = self.mesh.devices.shape
        free_axes = list(range(1, len(sizes)))
        taken: list[tuple[str, ...]] = []
        for parts in partition_dimensions:
            names = []
            for factor in prime_factors(parts):
                axis = next(axis for axis in free_axes if sizes[axis] == factor)
                free_axes.remove(axis)
                names.append(self.mesh.axis_names[axis])
            taken.append(tuple(names))
        return PartitionSpec(*(names or None for names in taken))

    # Putting values on the mesh.

    def place(self, value: Any, local_index: int) -> jax.Array:
        """Place `value` on the devices of one local replica, without a copy if it is already there."""
        sharding = self.replica_shardings[local_index]
        if isinstance(value, jax.Array):
            if value.committed and value.sharding == sharding:
                return value
            if not value.is_fully_addressable and value.is_fully_replicated:
                value = value.addressable_data(0)  # JAX would transfer it between processes
        return jax.device_put(value, sharding)

    def replicate(self, value: Any) -> jax.Array:
        """Replicate `value` over all devices. All processes must pass the same value."""
        if isinstance(value, jax.Array) and value.committed and value.sharding == self.replicated:
            return value
        if self.is_local or (isinstance(value, jax.Array) and not value.is_fully_addressable):
            return jax.device_put(with_all_shards(value), self.replicated)
        return self.assemble_replicated([value] * len(self.local_replica_ids))

    def put(self, value: Any, sharding: Sharding) -> jax.Array:
        """Place `value` with a sharding on this mesh. All processes must pass the same value."""
        if isinstance(value, jax.Array) and value.committed and value.sharding == sharding:
            return value
        if self.is_local or (isinstance(value, jax.Array) and not value.is_fully_addressable):
            return jax.device_put(value, sharding)
        host = np.asarray(value)
        return jax.make_array_from_callback(host.shape, sharding, lambda index: host[index])

    def assemble(self, components: Sequence[Any]) -> jax.Array:
        """The sharded global array with the local parts `components`, all of the same shape and dtype."""
        if is_key(components[0]):
            keys = [key[None] if key.ndim == 0 else key for key in components]
            data = self.assemble([jax.random.key_data(key) for key in keys])
            return jax.random.wrap_key_data(data, impl=jax.random.key_impl(keys[0]))
        parts = [jnp.reshape(c, (1,)) if np.ndim(c) == 0 else c for c in components]
        shape = parts[0].shape
        return self._assemble(parts, (self.num_replicas * shape[0], *shape[1:]), self.sharded)

    def shard(self, rows: Any) -> jax.Array:
        """The sharded global array, from the rows of this process's replicas in order."""
        count = len(self.local_replica_ids)
        if isinstance(rows, np.ndarray) and self.num_replicas > 1 and len(self.replica_devices[0]) == 1:
            size = rows.shape[0] // count
            parts = [rows[i * size : (i + 1) * size] for i in range(count)]
            shape = (size * self.num_replicas, *rows.shape[1:])
            return put_parts(parts, shape, self.sharded, self.local_devices)
        if self.is_local:
            return jax.device_put(rows, self.sharded)
        return self.assemble(jnp.split(rows, count))

    def assemble_replicated(self, components: Sequence[Any]) -> jax.Array:
        """The replicated global array, from one equal copy per local replica."""
        return self._assemble(components, np.shape(components[0]), self.replicated)

    def _assemble(self, parts: Sequence[Any], shape: tuple[int, ...], sharding: Sharding) -> jax.Array:
        placed = [self.place(part, i) for i, part in enumerate(parts)]
        if self.num_logical_devices == 1:
            buffers = [part.addressable_data(0) for part in placed]
        else:
            buffers = [shard.data for part in placed for shard in part.addressable_shards]
        return jax.make_array_from_single_device_arrays(shape, sharding, buffers)

    # Getting values back.

    def split(self, array: jax.Array, *, scalar: bool) -> tuple[jax.Array, ...]:
        """The local replicas' parts of a sharded global array."""
        if is_key(array):
            impl, data = jax.random.key_impl(array), self._split(jax.random.key_data(array), self.sharded)
            keys = tuple(jax.random.wrap_key_data(part, impl=impl) for part in data)
            return tuple(key[0] for key in keys) if scalar else keys
        parts = self._split(array, self.sharded)
        return tuple(jnp.reshape(part, ()) for part in parts) if scalar else parts

    def split_replicated(self, array: jax.Array) -> tuple[jax.Array, ...]:
        """The local replicas' copies of a replicated global array."""
        return self._split(array, self.replicated)

    def _split(self, array: jax.Array, sharding: Sharding) -> tuple[jax.Array, ...]:
        array = with_all_shards(array)
        if self.num_logical_devices > 1:
            array = jax.device_put(array, sharding)  # eager code may have partitioned it differently
        elif self.is_local and not array.sharding.device_set.issuperset(self.local_devices):
            array = jax.device_put(array, sharding)  # jax.tree.map may have moved it
        by_device = {next(iter(s.data.devices())): s.data for s in array.addressable_shards}
        return tuple(
            self._join([by_device[d] for d in self.replica_devices[replica]], i)
            for i, replica in enumerate(self.local_replica_ids)
        )

    def _join(self, buffers: list[jax.Array], local_index: int) -> jax.Array:
        if len(buffers) == 1:
            return buffers[0]
        sharding = self.replica_shardings[local_index]
        return jax.make_array_from_single_device_arrays(buffers[0].shape, sharding, buffers)

    @cached_property
    def must_wait(self) -> bool:
        """Whether queueing a second collective program could deadlock XLA's CPU thread pool."""
        return collectives_must_wait([d for i in self.local_replica_ids for d in self.replica_devices[i]])

    def wait(self, outputs: Any) -> Any:
        """Return a collective program's `outputs`; if `must_wait`, block until they are computed."""
        if self.must_wait:
            jax.block_until_ready(outputs)
        return outputs
