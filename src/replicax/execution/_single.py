"""Running the only replica of a strategy: a plain call."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any, final

import jax

from replicax._jax import current_program, traces_of
from replicax.contexts import Padding, ReplicaContext, StrategyProtocol, current, enter
from replicax.topology import ReplicaMesh
from replicax.values import regroup, select

__all__ = ["SingleReplica", "run_single"]


@final
class SingleReplica:
    """The merge point of a single replica."""

    local_index = 0
    base_trace = None
    alike = True

    def __init__(self, strategy: StrategyProtocol) -> None:
        self._strategy = strategy

    def merge_call(self, merge_fn: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        """Call `merge_fn` in the cross-replica context."""
        with enter(current().inner(self._strategy)):
            return select(merge_fn(self._strategy, *args, **kwargs), 0)

    def create(self, make: Callable[[], Any]) -> Any:
        return make()


def run_single(
    strategy: StrategyProtocol,
    fn: Callable[..., Any],
    args: Any,
    kwargs: Any,
    padding: Padding | None = None,
) -> Any:
    """Call `fn` as the only replica of `strategy`; `padding` has the masks of its padded arguments."""
    mesh = strategy.mesh
    context = ReplicaContext(
        strategy,
        strategy.replica_ids[0],
        merge_point=SingleReplica(strategy),
        devices=mesh.device_names[0],
        examples=padding and padding.examples(mask.select(0) for mask in padding.masks),
    )
    device = mesh.local_devices[0]
    place = jax.default_device(device) if strategy.places_values else contextlib.nullcontext()
    with enter(current().inner(strategy, context)), place, _own_traces(mesh):
        result = fn(*select(args, 0), **select(kwargs, 0))
    return regroup([result], mesh)


def _own_traces(mesh: ReplicaMesh) -> contextlib.AbstractContextManager[None]:
    """A `with` block in which JAX shares no cached traces over the replica axis with other replicas."""
    inside = current_program() is not None  # there `Frame.require_own_trace` does this
    return contextlib.nullcontext() if inside else traces_of("replica", 1, mesh.axis_name)
