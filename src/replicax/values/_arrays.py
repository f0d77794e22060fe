"""What counts as an array, and array views that JAX combines with arrays on any device."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from replicax._jax import is_tracer, uncommitted
from replicax._recording import followed
from replicax.topology import ReplicaMesh, is_key

__all__ = ["copied", "pad_to", "free", "is_array", "is_number", "on_first_replica", "owned", "undivided"]


def is_array(value: Any) -> bool:
    """Whether `value` is a numeric JAX or NumPy array, or a tracer. Arrays of strings stay on the host."""
    if isinstance(value, jax.Array):
        return True
    return isinstance(value, np.ndarray | np.generic) and value.dtype.kind not in "OSUMm"


def is_number(value: Any) -> bool:
    """Whether `value` is an array or a Python number."""
    return is_array(value) or isinstance(value, bool | int | float | complex)


def owned(array: np.ndarray, dtype: Any = None) -> jax.Array:
    """NumPy's array in JAX, as a copy: JAX may alias the memory, and the caller may change it.

    Unlike `jnp.array`, this does not compile a program for every shape.
    """
    dtype = jax.dtypes.canonicalize_dtype(array.dtype if dtype is None else dtype)
    return jnp.asarray(np.array(array, dtype), dtype)


def copied(array: jax.Array) -> jax.Array:
    """A copy on the same devices. Unlike `jnp.copy`, this does not compile a program for every shape."""
    if not array.is_fully_addressable:
        return jnp.copy(array)  # `device_put` would return the array itself
    return jax.device_put(array, may_alias=False)


def free(value: Any) -> Any:
    """A component as the cross-replica context sees it: arrays become uncommitted views."""
    value = followed(value)  # a tape would not recognise a view of a watched array
    if is_key(value) and not is_tracer(value):
        return jax.random.wrap_key_data(free(jax.random.key_data(value)), impl=jax.random.key_impl(value))
    if not isinstance(value, jax.Array) or is_tracer(value) or not value.committed:
        return value
    return uncommitted(value) if len(value.sharding.device_set) == 1 else on_first_replica(value)


def on_first_replica(array: jax.Array) -> jax.Array:
    """A replicated array as a plain one: an uncommitted view of the first local copy.

    An array that is sharded is returned unchanged.
    """
    keep = is_tracer(array) or not array.is_fully_replicated
    return array if keep else uncommitted(array.addressable_data(0))


def undivided(component: Any, local_index: int, mesh: ReplicaMesh) -> Any:
    """Replicate a component over its replica's devices again; eager code may have partitioned it."""
    is_partitioned = (
        isinstance(component, jax.Array) and not is_tracer(component) and not component.is_fully_replicated
    )
    return mesh.place(component, local_index) if is_partitioned else component


def pad_to(array: Any, shape: Sequence[int]) -> Any:
    """`array` padded with zeros at the end of each axis, up to `shape`."""
    if array.shape == tuple(shape):
        return array
    if is_key(array):
        data = jax.random.key_data(array)
        padded = pad_to(data, (*shape, *data.shape[array.ndim :]))
        return jax.random.wrap_key_data(padded, impl=jax.random.key_impl(array))
    return jnp.pad(array, [(0, wanted - size) for size, wanted in zip(array.shape, shape, strict=True)])
