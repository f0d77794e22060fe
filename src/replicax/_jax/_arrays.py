"""JAX's arrays: assembling them from buffers, and views of their buffers.

Assembling an array from host memory without validating everything twice takes a fifth of the time of
`jax.device_put` for a small batch. A view is *uncommitted*: JAX combines it with arrays on any device.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from replicax._jax._access import private, unsupported

__all__ = [
    "ArrayImpl",
    "ShapedArray",
    "add_array_method",
    "first_copy",
    "is_array_type",
    "put_parts",
    "uncommit_outputs",
    "uncommitted",
    "with_all_shards",
]

ArrayImpl = private("array", "ArrayImpl")
ShapedArray = private("core", "ShapedArray")
_batched_device_put = private("interpreters.pxla", "batched_device_put")
_array_result_handler = private("lib", "_jax.array_result_handler")
# jaxlib 0.10 validates the buffers unless told not to; 0.11 never does. JAX asks in the same way.
_unchecked = {"_skip_checks": True} if private("lib", "jaxlib_extension_version") < 489 else {}


def put_parts(
    parts: Sequence[Any], shape: tuple[int, ...], sharding: Any, devices: Sequence[Any]
) -> jax.Array:
    """The array with this shape and sharding that has `parts[i]` on `devices[i]`.

    Parts are NumPy arrays with a dtype that JAX supports. JAX may alias them, so do not change them later.
    """
    return _batched_device_put(_abstract_array(shape, parts[0].dtype), sharding, parts, devices)


@functools.lru_cache(maxsize=4096)
def _abstract_array(shape: tuple[int, ...], dtype: Any) -> Any:
    return ShapedArray(shape, dtype)


def with_all_shards(array: Any) -> Any:
    """An array whose shards can be read: `array`, or a copy.

    If JAX is interrupted while it lists the shards of an array, it keeps the incomplete list.
    """
    if not isinstance(array, ArrayImpl):
        return array
    is_complete = len(array._arrays) == len(array.sharding.addressable_devices)
    return array if is_complete else jnp.copy(array)


def uncommitted(array: Any) -> jax.Array:
    """A view of a single-device array that JAX may combine with arrays on other devices."""
    return ArrayImpl(array.aval, array.sharding, [array], committed=False, _skip_checks=True)


def first_copy(array: Any) -> jax.Array:
    """An `uncommitted` view of the first local copy of an array that is replicated over a mesh."""
    if not isinstance(array, ArrayImpl):
        return array  # JAX already combines typed random keys with arrays on any device
    copy = array._fully_replicated_shard()
    return uncommitted(copy) if copy._committed else copy


def uncommit_outputs(compiled: jax.stages.Compiled, indices: Iterable[int]) -> None:
    """Make a compiled function return some of its outputs uncommitted.

    The shards that `first_copy` takes from these outputs are then uncommitted already, so it does not have
    to make another view. JAX refuses uncommitted arrays on several devices, so only views may reach a user.
    """
    try:
        outputs = compiled._executable.unsafe_call.out_handler  # pyright: ignore[reportAttributeAccessIssue]
        handlers, avals, shardings = outputs.handlers, outputs.out_avals, outputs.out_shardings
    except AttributeError as error:
        raise unsupported("MeshExecutable.unsafe_call.out_handler.handlers") from error
    for i in indices:
        if not jnp.issubdtype(avals[i].dtype, jax.dtypes.extended):  # typed random keys
            handlers[i] = _array_result_handler(avals[i], shardings[i], committed=False, **_unchecked)


def is_array_type(type_: Any) -> bool:
    """Whether the type of a traced value is an array type, rather than a mutable reference."""
    return isinstance(type_, ShapedArray)


def add_array_method(name: str, method: Any, doc: str) -> None:
    """Add a method to JAX's arrays, for a namespace whose users expect it, such as `replicax.tf`."""

    def added(self: Any) -> Any:
        return method(self)

    added.__name__, added.__doc__ = name, doc
    setattr(ArrayImpl, name, added)
