"""The arguments of a step as shapes, with shardings on the devices that it is explained for."""

from __future__ import annotations

from typing import Any, final

import jax
import jax.numpy as jnp
import numpy as np

from replicax._messages import brief
from replicax.contexts import current, has_strategy
from replicax.errors import ContextError
from replicax.input import DistributedDataset, DistributedIterator
from replicax.topology import ReplicaMesh
from replicax.values import Mirrored, PerReplica, PerReplicaSpec, TensorSpec, is_array
from replicax.variables import is_variable

__all__ = ["Arguments"]

_KINDS = (PerReplica, Mirrored, PerReplicaSpec, TensorSpec, DistributedDataset, DistributedIterator)


def _is_argument(value: Any) -> bool:
    return isinstance(value, _KINDS) or is_variable(value)


@final
class Arguments:
    """The arguments of a step: arrays, per-replica values, and specs in place of either."""

    def __init__(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        leaves, self._treedef = jax.tree.flatten((args, kwargs), is_leaf=_is_argument)
        self._leaves = list(map(_from_spec, leaves))

    def on(self, mesh: ReplicaMesh | None) -> tuple[list[Any], Any]:
        """The shapes on the devices of `mesh` (None: where the arguments are now), and the tree structure.

        The rows per replica stay the same.
        """
        shapes = _Shapes(mesh)
        return jax.tree.flatten(self._treedef.unflatten(map(shapes.of, self._leaves)), is_leaf=is_variable)


def _from_spec(leaf: Any) -> Any:
    """Replace a spec by the value that it describes, with a shape instead of an array."""
    if isinstance(leaf, DistributedDataset | DistributedIterator):
        raise TypeError(
            "rx.explain got a distributed dataset. Explain the step that the loop calls: "
            "`rx.explain(train_step, batch)`, or with the dataset's `element_spec` in place of a batch."
        )
    if isinstance(leaf, TensorSpec):
        return _shape(leaf)
    if not isinstance(leaf, PerReplicaSpec):
        return leaf
    if not has_strategy():
        raise ContextError(
            "rx.explain got an rx.PerReplicaSpec outside of a strategy's scope, so the number of replicas "
            "is unknown. Call it inside `with strategy.scope():`."
        )
    mesh, first = current().strategy.mesh, _shape(leaf.value_specs[0])
    if any(_shape(spec).shape != first.shape for spec in leaf.value_specs):
        raise ValueError(f"rx.explain needs the same shape on all replicas, got {leaf!r}.")
    return PerReplica.from_global(_stack(first, mesh), mesh, scalar=not first.shape)


def _shape(spec: TensorSpec) -> jax.ShapeDtypeStruct:
    if None in spec.shape:
        raise ValueError(
            f"rx.explain needs a fully known shape, got {spec!r}. Pass a batch, or a spec without None."
        )
    sizes = [size for size in spec.shape if size is not None]
    return jax.ShapeDtypeStruct(sizes, jax.dtypes.canonicalize_dtype(spec.dtype))


def _stack(part: Any, mesh: ReplicaMesh) -> jax.ShapeDtypeStruct:
    """The global array with one such part on each replica."""
    first, *others = part.shape or (1,)
    return jax.ShapeDtypeStruct((first * mesh.num_replicas, *others), part.dtype, sharding=mesh.sharded)


@final
class _Shapes:
    """Converts arguments to shapes on one mesh. Values that share a mask keep sharing it."""

    def __init__(self, mesh: ReplicaMesh | None) -> None:
        self._mesh = mesh
        self._masks: dict[int, PerReplica] = {}

    def of(self, leaf: Any) -> Any:
        if isinstance(leaf, PerReplica):
            return self._per_replica(leaf)
        if isinstance(leaf, Mirrored):
            mesh = self._mesh or leaf.mesh
            sharding = None if mesh is None else mesh.replicated
            return Mirrored.from_whole(_of_array(leaf.whole, sharding), mesh)
        return leaf if is_variable(leaf) or not is_array(leaf) else _of_array(leaf, None)

    def _per_replica(self, value: PerReplica) -> Any:
        mesh, part = self._mesh or value.mesh, value.uniform
        if mesh is None or part is None:
            raise ValueError(
                "rx.explain needs per-replica arguments of a strategy, with the same shape on all "
                f"replicas; got {brief(value)}."
            )
        whole = PerReplica.from_global(_stack(part, mesh), mesh, scalar=not part.shape)
        return whole.with_mask(self._mask(value)) if value.mask is not None or value.doubt else whole

    def _mask(self, value: PerReplica) -> PerReplica | str:
        if value.mask is None:
            return value.doubt
        array = value.mask.to_global(value.mesh)[0] if value.mesh is not None else value.mask
        if id(array) not in self._masks:
            self._masks[id(array)] = self._per_replica(value.mask)
        return self._masks[id(array)]


def _of_array(array: Any, sharding: Any) -> jax.ShapeDtypeStruct:
    weak = getattr(array, "weak_type", False)
    dtype = array.dtype if isinstance(array, jax.Array) else jnp.result_type(np.asarray(array))
    return jax.ShapeDtypeStruct(np.shape(array), dtype, sharding=sharding, weak_type=weak)
