"""One update as a function of arrays: what optax computes, with the loss scale, sharding and the norm."""

from __future__ import annotations

from typing import Any, NamedTuple, final

import jax
import jax.numpy as jnp

from replicax.contexts import current
from replicax.training._loss_scale import DynamicLossScale
from replicax.training._norms import global_norm
from replicax.training._pairs import Parameters
from replicax.training._transformation import Transformation

__all__ = ["Update", "Updated"]


class Updated(NamedTuple):
    """What an update computes."""

    values: list[Any]
    slots: list[Any]
    scale: Any
    """The state of the loss scale."""
    count: Any
    """1, or 0 if the update is skipped because a gradient is not finite."""
    norm: Any
    """The norm of the gradients; None unless it was requested."""


@final
class Update:
    """Computes new values and slots from reduced gradients.

    Args:
        transformation: what optax computes.
        parameters: the parameters to update.
        loss_scale: the scale of the loss that the gradients belong to.
    """

    def __init__(
        self, transformation: Transformation, parameters: Parameters, loss_scale: DynamicLossScale | None
    ) -> None:
        self.transformation = transformation
        self._parameters, self._loss_scale = parameters, loss_scale
        self._jitted = jax.jit(self._compute, static_argnames=("with_norm", "in_replica"))

    def __call__(
        self, gradients: list[Any], values: list[Any], slots: list[Any], scale: Any, *, with_norm: bool
    ) -> Updated:
        """The new values, from the old ones and full gradients."""
        in_replica = current().frame.is_one_replica
        return self._jitted(gradients, values, slots, scale, with_norm=with_norm, in_replica=in_replica)

    def _compute(
        self,
        gradients: list[Any],
        values: list[Any],
        slots: list[Any],
        scale: Any,
        *,
        with_norm: bool,
        in_replica: bool,
    ) -> Updated:
        finite = None
        if self._loss_scale is not None:
            gradients, finite, scale = self._loss_scale.unscale(gradients, scale)
        norm = global_norm(gradients) if with_norm else None
        if not in_replica:
            values = self._sharded(values)
        gradients = [g.astype(v.dtype) for g, v in zip(gradients, values, strict=True)]
        new, state = self.transformation(gradients, slots, values)
        if not in_replica:
            new = self._sharded(new)
        new_slots = [x.astype(old.dtype) for x, old in zip(state, slots, strict=True)]
        if finite is not None:
            new = [jnp.where(finite, n, old) for n, old in zip(new, values, strict=True)]
            new_slots = [jnp.where(finite, n, old) for n, old in zip(new_slots, slots, strict=True)]
        count = jnp.int32(1) if finite is None else finite.astype(jnp.int32)
        return Updated(new, new_slots, scale, count, norm)

    def _sharded(self, values: list[Any]) -> list[Any]:
        """The same values, with sharding constraints if the strategy shards their update."""
        find, variables = self._parameters.strategy.find_shards, self._parameters.variables
        if find is None:
            return values
        layouts = [find(v._spec) for v in variables]
        return [
            x if layout is None else jax.lax.with_sharding_constraint(x, layout.sharding(layout.mesh))
            for x, layout in zip(values, layouts, strict=True)
        ]
