"""A dynamic loss scale for float16, which depends on the reduced gradients, so all replicas agree."""

from __future__ import annotations

from typing import Any, final

import jax.numpy as jnp

from replicax.contexts import current
from replicax.types import VariableAggregation
from replicax.values import Mirrored
from replicax.variables import Variable

__all__ = ["DynamicLossScale"]


@final
class DynamicLossScale:
    """Scales the loss so that small gradients do not underflow in float16, and adapts the scale.

    Pass it to an `rx.Optimizer`, and differentiate `optimizer.scale_loss(loss)`. If the reduced gradients
    are not finite, the update is skipped on all replicas and the scale is halved. After enough consecutive
    updates with finite gradients it is doubled.

    Args:
        initial_scale: the initial scale.
        growth_interval: the number of consecutive finite updates after which the scale is doubled.
        smallest: the scale never falls below this.

    >>> import optax
    >>> w = rx.Variable(1.0)
    >>> scale = rx.DynamicLossScale(initial_scale=4.0)
    >>> optimizer = rx.Optimizer(optax.sgd(0.1), loss_scale=scale)
    >>> optimizer.apply_gradients([(jnp.float32(jnp.inf), w)])      # overflow: w does not change
    >>> w.read_value(), scale.scale.read_value()
    (Array(1., dtype=float32), Array(2., dtype=float32))
    """

    def __init__(
        self, initial_scale: float = 2.0**15, growth_interval: int = 2000, smallest: float = 1.0
    ) -> None:
        """Call this in the strategy's scope."""
        if initial_scale <= 0 or growth_interval < 1 or smallest <= 0:
            raise ValueError(
                f"DynamicLossScale(initial_scale={initial_scale}, growth_interval={growth_interval}, "
                f"smallest={smallest}): all must be positive."
            )
        first = VariableAggregation.ONLY_FIRST_REPLICA
        make = current().strategy.create_variable
        self.scale: Variable = make(
            jnp.float32(initial_scale), name="loss_scale", trainable=False, aggregation=first
        )
        self.good_steps: Variable = make(
            0, name="loss_scale/good_steps", trainable=False, aggregation=first
        )
        self._growth_interval, self._smallest = growth_interval, smallest

    @property
    def variables(self) -> list[Variable]:
        """The scale, and the number of consecutive updates with finite gradients."""
        return [self.scale, self.good_steps]

    def held(self) -> tuple[Any, Any]:
        """The arrays of its variables."""
        cells = [variable.held() for variable in self.variables]
        assert all(isinstance(cell, Mirrored) for cell in cells)
        return cells[0].whole, cells[1].whole

    def store(self, values: tuple[Any, Any]) -> None:
        """Write its variables."""
        for variable, value in zip(self.variables, values, strict=True):
            variable.assign(Mirrored.from_whole(value, variable.mesh), read_value=False)

    def unscale(
        self, gradients: list[Any], held: tuple[Any, Any]
    ) -> tuple[list[Any], Any, tuple[Any, Any]]:
        """The unscaled gradients, whether all are finite, and the new values of the variables."""
        scale, good = held
        gradients = [g.astype(jnp.promote_types(g.dtype, jnp.float32)) / scale for g in gradients]
        finite = jnp.all(jnp.stack([jnp.all(jnp.isfinite(g)) for g in gradients]))
        good = jnp.where(finite, good + 1, 0)
        grown = good >= self._growth_interval
        halved = jnp.maximum(scale / 2, self._smallest)
        doubled = jnp.where(jnp.isfinite(scale * 2), scale * 2, scale)
        scale = jnp.where(finite, jnp.where(grown, doubled, scale), halved)
        return gradients, finite, (scale, jnp.where(grown, 0, good))
