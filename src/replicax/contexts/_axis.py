"""JAX's collectives over the replica axis, in replicas that JAX does not map.

In a compiled step with several replicas `shard_map` binds the axis, and `jax.lax.pmean(x, axis_name)` is
JAX's own. Nothing binds it for a single replica, for eager replicas, or for replicas that are traced one
after the other. There, the functions of `jax.lax` call this module. A sum is the replica context's
`all_reduce`. Every other collective gathers the replicas' values, applies JAX's function under `vmap` and
takes this replica's row, so results, dtypes and gradients are JAX's.

We replace the functions rather than the rules of their primitives, because `jax.lax.psum` of a concrete
array binds no primitive: JAX assumes that the array is equal on all devices and multiplies it by the axis
size. For any other axis, and outside of such replicas, the functions are unchanged.
"""

from __future__ import annotations

import functools
import inspect
import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from replicax._jax import is_axis_bound, is_tracer, staged, staged_for, wrap_collectives
from replicax.contexts._replica import ReplicaContext
from replicax.contexts._stack import current
from replicax.errors import TracingError

__all__ = ["explain_unbound_axis"]

_Collective = Callable[..., Any]


def _wrap(name: str, original: _Collective) -> _Collective:
    position = 0 if name in ("axis_index", "axis_size") else 1

    @functools.wraps(original)
    def collective(*args: Any, **kwargs: Any) -> Any:
        axes = args[position] if len(args) > position else kwargs.get("axis_name")
        replica = _unmapped_replica(axes)
        if replica is None:
            return _mapped_collective(name, original, axes, args, kwargs)
        given = inspect.signature(original).bind(*args, **kwargs).arguments
        return _between_replicas(replica, name, functools.partial(original, **given), given)

    return collective


def _mapped_collective(name: str, original: _Collective, axes: Any, args: Any, kwargs: Any) -> Any:
    """Call JAX's own function, after turning constants that may differ between replicas into tracers.

    JAX assumes that constants are equal on all devices, but one may be a replica's number of rows.
    """
    replica = current().replica
    if name not in ("psum", "pmean") or replica is None or replica._are_alike:
        return original(*args, **kwargs)
    if not replica._is_in_run or replica._axis_name not in _as_tuple(axes):
        return original(*args, **kwargs)
    given = inspect.signature(original).bind(*args, **kwargs).arguments
    return original(**(given | {"x": jax.tree.map(staged, given["x"])}))


def _unmapped_replica(axes: Any) -> ReplicaContext | None:
    """The current replica, if its axis is among `axes` and JAX does not map over it here."""
    replica = current().replica
    if replica is None or not replica._is_in_run:
        return None
    axis = replica._axis_name
    return replica if axis in _as_tuple(axes) and not is_axis_bound(axis) else None


def _as_tuple(axes: Any) -> tuple[Any, ...]:
    return tuple(axes) if isinstance(axes, tuple | list) else (axes,)


def _between_replicas(replica: ReplicaContext, name: str, call: _Collective, given: dict[str, Any]) -> Any:
    """Call `jax.lax.NAME` with the arguments `given`, together with the other replicas."""
    axes = _as_tuple(given["axis_name"])
    if name == "axis_size":
        return math.prod(_size(replica, axis) for axis in axes)
    _require_reachable(replica, name)
    if name == "axis_index":
        return replica.replica_id_in_sync_group if len(axes) == 1 else _index(replica, call)
    groups = given.get("axis_index_groups")
    if name in ("psum", "pmean") and len(axes) == 1 and groups is None:
        total = _sum(replica, given["x"])
        size = replica.num_replicas_in_sync
        return total if name == "psum" else jax.tree.map(lambda x: x / size, total)
    return _mapped(replica, call, given["x"], groups)


def _size(replica: ReplicaContext, axis: Any) -> int:
    return replica.num_replicas_in_sync if axis == replica._axis_name else jax.lax.axis_size(axis)


def _require_reachable(replica: ReplicaContext, name: str) -> None:
    """Raise if the replica can't wait for the others here, because JAX compiles the function."""
    current().frame.require_own_trace()
    if replica._can_wait():
        return
    axis = replica._axis_name
    raise TracingError(
        f"jax.lax.{name} over the replica axis {axis!r} was called inside {staged_for()}, in a replica "
        "that is not compiled together with the others, so it can't wait for them there. Call it, or "
        "rx.get_replica_context().all_reduce, outside of that function, or compile the whole step with "
        "`rx.function`. There it works if all replicas have the same number of rows, as with "
        "`InputOptions(partial_batch='pad')`."
    )


def _index(replica: ReplicaContext, call: _Collective) -> Any:
    """The index over several axes, one of which is the replica axis."""
    return _mapped(replica, lambda x: call(), jnp.int32(0))


def _sum(replica: ReplicaContext, structure: Any) -> Any:
    leaves, treedef = jax.tree.flatten(structure)
    numbers = [jnp.int32(leaf) if _is_bool(leaf) else leaf for leaf in leaves]  # as jax.lax.psum does
    if replica.num_replicas_in_sync > 1 and numbers:
        sums = replica.all_reduce("SUM", numbers)
        numbers = [_as_given(total, number) for total, number in zip(sums, numbers, strict=True)]
    return treedef.unflatten(numbers)


def _is_bool(leaf: Any) -> bool:
    return jnp.result_type(leaf) == jnp.bool_


def _as_given(total: Any, number: Any) -> Any:
    """Return a sum of Python integers as a Python integer: it may be used as the size of an axis."""
    return int(total) if isinstance(number, int) and not is_tracer(total) else total


def _mapped(replica: ReplicaContext, call: _Collective, structure: Any, groups: Any = None) -> Any:
    """This replica's result of `call`, vmapped over the values of all replicas, or of its group."""
    mine = replica._index
    rows = jax.tree.map(lambda leaf: jnp.asarray(leaf)[None], structure)
    if replica.num_replicas_in_sync > 1:
        rows = replica.all_gather(rows, axis=0)
    if groups is not None:  # which vmap does not support
        group = next(list(group) for group in groups if mine in group)
        rows = jax.tree.map(lambda leaf: leaf[jnp.array(group)], rows)
        call, mine = functools.partial(call, axis_index_groups=None), group.index(mine)
    results = jax.vmap(lambda row: call(x=row), axis_name=replica._axis_name)(rows)
    return jax.tree.map(lambda result: result[mine], results)


def explain_unbound_axis(error: NameError, axis_name: str) -> None:
    """Add the name of the replica axis to JAX's error about an unbound axis."""
    if "unbound axis name" in str(error):
        error.add_note(
            f"The replica axis is named {axis_name!r} here (`strategy.axis_name`); a strategy's "
            "`axis_name=` argument gives it another name. Outside of compiled steps, call the "
            "functions as `jax.lax.pmean` or import them after replicax, or use "
            "rx.get_replica_context().all_reduce and all_gather."
        )


wrap_collectives(_wrap)
