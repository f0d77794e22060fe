"""FSDP in plain JAX, as one would write it by hand: the other side of `sharded.py`.

All versions divide the same arrays along the same axes, donate their state and update with optax on global
arrays that are divided. They differ in how the collectives come about:

    jit             arrays with a NamedSharding; `with_sharding_constraint` asks for whole ones
    shard_map       `all_gather` of all arrays at first; its transpose is a reduce-scatter
    where used      `all_gather` in each operation, and again in its gradient, as FSDP is meant to be. XLA
                    merges equal gathers on CPU, where it ignores `jax.checkpoint`; a branch prevents that
    optimizer       ZeRO-1: only the slots are divided; gradients are reduce-scattered, new arrays gathered
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import lax
from jax.sharding import Mesh, NamedSharding, PartitionSpec

AXIS = "replica"
WHOLE, ROWS = PartitionSpec(), PartitionSpec(AXIS)
MIN_BYTES = 64 * 1024

LossFn = Callable[..., Any]
"""From a dict of parameters and a batch to one loss for each example."""


class Lowered(NamedTuple):
    """A step, and what it was lowered to."""

    step: Callable[[], Any]
    lowered: jax.stages.Lowered


def spec_of(array: Any, count: int) -> PartitionSpec:
    """Divide the largest axis that divides evenly; small arrays stay whole."""
    axes = [axis for axis, size in enumerate(array.shape) if size % count == 0]
    if array.size * array.dtype.itemsize < MIN_BYTES or not axes:
        return WHOLE
    return PartitionSpec(*[None] * max(axes, key=lambda axis: array.shape[axis]), AXIS)


class State:
    """Parameters and slots, divided among the devices, and one batch."""

    def __init__(
        self, parameters: dict[str, Any], batch: Any, transformation: Any, count: int, *, slots_only: bool
    ) -> None:
        self.mesh = Mesh(np.array(jax.devices()[:count]), (AXIS,))
        self.transformation = transformation
        self.specs = {name: spec_of(array, count) for name, array in parameters.items()}
        self.held_specs = dict.fromkeys(parameters, WHOLE) if slots_only else self.specs
        slots = jax.tree.map(np.asarray, transformation.init(parameters))
        self.slot_specs = jax.tree.map(functools.partial(spec_of, count=count), slots)
        self.arrays = self._put((parameters, slots), (self.held_specs, self.slot_specs))
        self.batch = [jax.device_put(array, self._sharding(ROWS)) for array in batch]

    def _sharding(self, spec: PartitionSpec) -> NamedSharding:
        return NamedSharding(self.mesh, spec)

    def _put(self, tree: Any, specs: Any) -> Any:
        return jax.tree.map(lambda a, spec: jnp.copy(jax.device_put(a, self._sharding(spec))), tree, specs)

    def constrained(self, tree: Any, specs: Any) -> Any:
        return jax.tree.map(
            lambda a, spec: lax.with_sharding_constraint(a, self._sharding(spec)), tree, specs
        )

    def lowered(self, value_and_grad: Callable[..., Any]) -> Lowered:
        """A step with `value_and_grad(parameters, *batch)`, whose gradients are divided."""

        def update(arrays: Any, *batch: Any) -> Any:
            parameters, slots = arrays
            loss, gradients = value_and_grad(parameters, *batch)
            parameters = self.constrained(parameters, self.specs)
            updates, slots = self.transformation.update(gradients, slots, parameters)
            parameters = self.constrained(optax.apply_updates(parameters, updates), self.specs)
            parameters = self.constrained(parameters, self.held_specs)
            return loss, (parameters, self.constrained(slots, self.slot_specs))

        jitted = jax.jit(update, donate_argnums=0)

        def step() -> Any:
            loss, self.arrays = jitted(self.arrays, *self.batch)
            return loss

        return Lowered(step, jitted.lower(self.arrays, *self.batch))

    def mapped(self, replica: Callable[..., Any]) -> Callable[..., Any]:
        """`replica(parts of the parameters, *rows) -> (loss, parts of the gradients)` on all devices."""
        return jax.shard_map(
            replica,
            mesh=self.mesh,
            in_specs=(self.held_specs, *(ROWS for _ in self.batch)),
            out_specs=(WHOLE, self.specs),
            check_vma=False,
        )


def with_jit(losses_of: LossFn, state: State) -> Lowered:
    whole = dict.fromkeys(state.specs, WHOLE)

    def loss_fn(parameters: Any, *batch: Any) -> Any:
        return jnp.mean(losses_of(state.constrained(parameters, whole), *batch))

    def value_and_grad(parameters: Any, *batch: Any) -> Any:
        loss, gradients = jax.value_and_grad(loss_fn)(parameters, *batch)
        return loss, state.constrained(gradients, state.specs)

    return state.lowered(value_and_grad)


def gathered(shard: Any, spec: PartitionSpec) -> Any:
    return shard if spec == WHOLE else lax.all_gather(shard, AXIS, axis=len(spec) - 1, tiled=True)


def scattered(gradient: Any, spec: PartitionSpec) -> Any:
    return lax.psum_scatter(gradient, AXIS, scatter_dimension=len(spec) - 1, tiled=True)


def with_shard_map(
    losses_of: LossFn, state: State, whole: Callable[[Any, PartitionSpec], Any] = gathered
) -> Lowered:
    def loss_fn(shards: Any, *batch: Any) -> Any:
        parameters = {name: whole(shard, state.specs[name]) for name, shard in shards.items()}
        return jnp.mean(losses_of(parameters, *batch)) / state.mesh.size

    def replica(shards: Any, *batch: Any) -> Any:
        loss, gradients = jax.value_and_grad(loss_fn)(shards, *batch)
        small = {name: g for name, g in gradients.items() if state.specs[name] == WHOLE}
        loss, small = lax.psum((loss, small), AXIS)
        return loss, gradients | small

    return state.lowered(state.mapped(replica))


class GatheredWhereUsed:
    """A shard that acts as the whole array in the operations of these models."""

    def __init__(self, shard: Any, spec: PartitionSpec) -> None:
        self._shard, self._spec = shard, spec

    def _using(self, operation: Callable[[Any, Any], Any], x: Any) -> Any:
        @jax.custom_vjp
        def use(x: Any, shard: Any) -> Any:
            return operation(x, gathered(shard, self._spec))

        def backward(kept: Any, gradient: Any) -> Any:
            x, shard = kept
            _, transposed = jax.vjp(operation, x, self._again(shard, gradient))
            of_x, of_whole = transposed(gradient)
            return of_x, scattered(of_whole, self._spec)

        use.defvjp(lambda x, shard: (use(x, shard), (x, shard)), backward)
        return use(x, self._shard)

    def _again(self, shard: Any, gradient: Any) -> Any:
        first = jnp.ravel(gradient)[0]
        gather = functools.partial(gathered, spec=self._spec)
        return lax.cond(
            (first != first) & (first == first), lambda x: jnp.zeros_like(gather(x)), gather, shard
        )

    def __rmatmul__(self, x: Any) -> Any:
        return self._using(jnp.matmul, x)

    def __radd__(self, x: Any) -> Any:
        return self._using(jnp.add, x)

    def __getitem__(self, indices: Any) -> Any:
        return self._using(lambda indices, whole: whole[indices], indices)


def gathered_where_used(shard: Any, spec: PartitionSpec) -> Any:
    return shard if spec == WHOLE else GatheredWhereUsed(shard, spec)


def with_divided_slots(losses_of: LossFn, state: State) -> Lowered:
    def loss_fn(parameters: Any, *batch: Any) -> Any:
        return jnp.mean(losses_of(parameters, *batch)) / state.mesh.size

    def replica(parameters: Any, *batch: Any) -> Any:
        loss, gradients = jax.value_and_grad(loss_fn)(parameters, *batch)
        small = {name: g for name, g in gradients.items() if state.specs[name] == WHOLE}
        large = {
            name: scattered(g, state.specs[name]) for name, g in gradients.items() if name not in small
        }
        loss, small = lax.psum((loss, small), AXIS)
        return loss, large | small

    return state.lowered(state.mapped(replica))


BY_HAND: dict[str, Callable[[LossFn, State], Lowered]] = {
    "jit": with_jit,
    "shard_map": with_shard_map,
    "where used": functools.partial(with_shard_map, whole=gathered_where_used),
}
