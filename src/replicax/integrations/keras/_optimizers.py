"""Keras optimizers in replica functions: they sum the replicas' gradients and update once.

On parameter servers they send the sum (`_server_optimizers.py`).
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import keras

from replicax._recording import unrecorded
from replicax.collectives import reduce_leaves
from replicax.contexts import StrategyProtocol, current, has_strategy
from replicax.integrations.keras._private import in_stateless_scope
from replicax.integrations.keras._server_optimizers import as_rows, send_gradients, servers_of
from replicax.types import ReduceOp
from replicax.values import Mirrored

__all__ = ["adding_mirrored_slots", "reducing_first"]


def reducing_first(apply: Callable[..., Any]) -> Callable[..., Any]:
    """Make `optimizer.apply` sum the replicas' gradients in a replica function, as TensorFlow does."""

    @functools.wraps(apply)
    def call(self: Any, grads: Any, trainable_variables: Any = None) -> Any:
        replica = current().replica
        if in_stateless_scope():
            return apply(self, grads, trainable_variables)
        servers = servers_of(self)
        if servers is not None:
            grads = as_rows(self, trainable_variables, [unrecorded(gradient) for gradient in grads])
        if servers is not None and replica is None:
            return send_gradients(self, servers, trainable_variables, grads)
        if replica is None or not has_strategy():
            return apply(self, grads, trainable_variables)
        if isinstance(self, keras.optimizers.LossScaleOptimizer):
            raise NotImplementedError(
                "keras.optimizers.LossScaleOptimizer can't be applied in a replica function: on JAX it "
                "works only in `model.fit`. Use `rx.Optimizer(..., loss_scale=rx.DynamicLossScale())`."
            )
        variables = None if trainable_variables is None else list(trainable_variables)
        chosen = [i for i, gradient in enumerate(grads) if gradient is not None]
        apply_once = functools.partial(apply, self)
        if servers is not None:
            apply_once = functools.partial(_sent, self, servers)
        once = functools.partial(_apply_once, apply_once, variables, len(grads), chosen)
        return replica.merge_call(once, args=([unrecorded(grads[i]) for i in chosen],))

    return call


def _apply_once(
    apply: Callable[..., Any],
    variables: Any,
    count: int,
    chosen: Sequence[int],
    strategy: StrategyProtocol,
    gradients: list[Any],
) -> None:
    reduced = reduce_leaves(strategy.communicator, ReduceOp.SUM, gradients)
    full: list[Any] = [None] * count
    for i, gradient in zip(chosen, reduced, strict=True):
        full[i] = gradient.to_plain() if isinstance(gradient, Mirrored) else gradient
    apply(full, variables)


def _sent(optimizer: Any, servers: Any, gradients: Any, variables: Any) -> None:
    send_gradients(optimizer, servers, variables, gradients)


def adding_mirrored_slots(add_variable: Callable[..., Any]) -> Callable[..., Any]:
    """Make `optimizer.add_variable` create mirrored variables by default."""

    @functools.wraps(add_variable)
    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        if kwargs.get("aggregation", "none") in (None, "none"):
            kwargs["aggregation"] = "only_first_replica"
        return add_variable(self, *args, **kwargs)

    return call
