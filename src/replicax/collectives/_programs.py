"""Running a recipe: one implementation of each collective for eager, compiled and traced code.

`combine` takes one `PerReplica` for each value of the recipe. What they hold decides how the recipe runs:

* the local values of a compiled replica: it is called inline;
* components traced one replica after the other: it is `vmap`ped over the stacked components;
* global arrays, or concrete components, which are assembled first: it runs under `shard_map`, compiled once
  per recipe.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec

from replicax._jax import is_mapped_over, is_tracer, plain
from replicax._messages import brief
from replicax.collectives._local import STACK_AXIS, AllReduce, Recipe
from replicax.collectives._order import in_order
from replicax.errors import CollectiveError
from replicax.topology import ReplicaMesh
from replicax.values import Mirrored, PerReplica, is_number

__all__ = ["combine", "map_each", "spread"]


def combine(recipe: Recipe, values: Sequence[PerReplica], mesh: ReplicaMesh) -> list[Mirrored]:
    """The results of `recipe` if replica i contributes component i of `values`."""
    if not values:
        return []
    if values[0].is_local:
        if is_mapped_over(mesh.axis_name):
            raise CollectiveError(
                f"A collective between replicas was called inside jax.vmap(axis_name={mesh.axis_name!r}), "
                "which shadows the replica axis of the same name. Give the vmap another axis_name."
            )
        outputs = recipe(mesh.axis_name, *(value.select(0) for value in values))
        return [Mirrored.from_whole(output, mesh) for output in outputs]
    _require_uniform(values)
    if any(value.is_traced_apart for value in values):
        stacks = [jnp.stack(value.components) for value in values]
        outputs = jax.vmap(functools.partial(recipe, STACK_AXIS), axis_name=STACK_AXIS)(*stacks)
        return [Mirrored.from_whole(output[0], mesh) for output in outputs]
    if isinstance(recipe, AllReduce) and any(value.known_sum is not None for value in values):
        return _with_known_sums(recipe, values, mesh)
    arrays, scalars = zip(*(value.to_global(mesh) for value in values), strict=True)
    if any(map(is_tracer, arrays)):
        outputs = map(plain, _mapped(recipe, mesh, scalars)(*arrays))
    else:
        local = recipe.unpacked if isinstance(recipe, AllReduce) and mesh.is_local else recipe
        program = _compiled(local, mesh, scalars)
        kinds = [value.uniform for value in values]
        outputs = in_order(mesh, str(recipe), kinds, lambda: program(*arrays))
    return [Mirrored.from_whole(output, mesh) for output in outputs]


def _with_known_sums(recipe: AllReduce, values: Sequence[PerReplica], mesh: ReplicaMesh) -> list[Mirrored]:
    """`combine` for values some of which were summed inside the replica function (`EarlySums`)."""
    others = iter(combine(recipe, [value for value in values if value.known_sum is None], mesh))
    return [
        next(others)
        if value.known_sum is None
        else Mirrored.from_whole(recipe.of_sum(value.known_sum, mesh.num_replicas), mesh)
        for value in values
    ]


def _require_uniform(values: Sequence[PerReplica]) -> None:
    for value in values:
        if value.uniform is None:
            parts = ", ".join(map(brief, value.values))
            if not all(map(is_number, value.components)):
                raise CollectiveError(
                    f"Only arrays of numbers can be combined across replicas, got {parts}."
                )
            raise CollectiveError(
                f"The replicas' values can't be combined element by element: {parts}. They must have the "
                "same shape and dtype. Also reduce over the axis that differs "
                "(`strategy.reduce(op, value, axis=0)`), or use `gather`."
            )


def _mapped(recipe: Recipe, mesh: ReplicaMesh, scalars: Sequence[bool]) -> Any:
    def body(*arrays: Any) -> Any:
        mine = (a.reshape(()) if scalar else a for a, scalar in zip(arrays, scalars, strict=True))
        return tuple(recipe(mesh.axis_name, *mine))

    return _shard_map(body, mesh, PartitionSpec(mesh.axis_name), PartitionSpec())


@functools.lru_cache(maxsize=1024)
def _compiled(recipe: Recipe, mesh: ReplicaMesh, scalars: tuple[bool, ...]) -> Any:
    return jax.jit(_mapped(recipe, mesh, scalars), out_shardings=mesh.replicated)


def map_each(recipe: Recipe, value: PerReplica, mesh: ReplicaMesh) -> PerReplica:
    """Apply `recipe` to each replica's own component, without communication."""
    if value.is_local:
        (mine,) = recipe(mesh.axis_name, value.select(0))
        return PerReplica.from_local(mine, mesh)
    if not value.is_global_tracer:
        parts = [recipe(mesh.axis_name, component)[0] for component in value.components]
        return PerReplica(parts, mesh=mesh)
    array, scalar = value.to_global(mesh)
    is_scalar: list[bool] = []

    def body(array: Any) -> Any:
        (mine,) = recipe(mesh.axis_name, array.reshape(()) if scalar else array)
        is_scalar.append(mine.ndim == 0)
        return mine.reshape((1,)) if mine.ndim == 0 else mine

    mapped = plain(
        _shard_map(body, mesh, PartitionSpec(mesh.axis_name), PartitionSpec(mesh.axis_name))(array)
    )
    return PerReplica.from_global(mapped, mesh, scalar=is_scalar[-1])


def spread(recipe: Recipe, value: Mirrored, mesh: ReplicaMesh) -> PerReplica:
    """Apply `recipe` to one value on each replica; returns the replicas' results."""
    whole = value.whole
    scalar = jnp.ndim(whole) == 0
    if is_tracer(whole):
        array = plain(_spreading(recipe, mesh, scalar)(whole))
    else:
        array = mesh.wait(_compiled_spreading(recipe, mesh, scalar)(whole))
    return PerReplica.from_global(array, mesh, scalar=scalar)


@functools.lru_cache(maxsize=1024)
def _compiled_spreading(recipe: Recipe, mesh: ReplicaMesh, scalar: bool) -> Any:
    return jax.jit(_spreading(recipe, mesh, scalar), out_shardings=mesh.sharded)


def _spreading(recipe: Recipe, mesh: ReplicaMesh, scalar: bool) -> Any:
    def body(array: Any) -> Any:
        (mine,) = recipe(mesh.axis_name, array)
        return mine.reshape((1,)) if scalar else mine

    return _shard_map(body, mesh, PartitionSpec(), PartitionSpec(mesh.axis_name))


def _shard_map(body: Any, mesh: ReplicaMesh, in_specs: Any, out_specs: Any) -> Any:
    # Without check_vma the transpose of a psum is a psum, which is how tf.distribute defines gradients.
    return jax.shard_map(
        body,
        mesh=mesh.mesh,
        in_specs=in_specs,
        out_specs=out_specs,
        axis_names={mesh.axis_name},
        check_vma=False,
    )
