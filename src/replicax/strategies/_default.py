"""The default strategy: one replica, and JAX places everything."""

from __future__ import annotations

import contextlib
from typing import Any, Self, final

import jax

from replicax.collectives import Communicator, DefaultAllReduce
from replicax.contexts import Context, ReplicaContext, has_strategy, register_default
from replicax.errors import ContextError
from replicax.execution import SingleReplica
from replicax.strategies._answers import Answers
from replicax.strategies._older_names import refuse
from replicax.strategies._strategy import Strategy
from replicax.topology import ReplicaMesh, prepare_cpu_pool
from replicax.variables import EAGER, OneDevice

__all__ = ["DefaultStrategy"]


@final
class DefaultStrategy(Strategy):
    """What `rx.get_strategy()` returns if no strategy is in scope.

    Code written for strategies runs under it unchanged, with one replica.

    >>> strategy = rx.get_strategy()
    >>> strategy.reduce("MEAN", strategy.run(lambda x: x + 1, args=(jnp.ones(4),)), axis=0)
    Array(2., dtype=float32)
    """

    def __init__(self) -> None:
        """Do nothing: importing Replicax must not start a JAX backend."""

    def __getattr__(self, name: str) -> Any:
        # The base class's constructor runs when an attribute is first used.
        if name.startswith("__") or "store" in vars(self):
            raise refuse(self, name)
        prepare_cpu_pool()
        device = jax.local_devices()[0]
        communicator = Communicator(ReplicaMesh([device]), DefaultAllReduce())
        layout = OneDevice(device, None)
        super().__init__(
            Answers(
                communicator,
                lambda spec: (spec, layout),
                parameter_device=device,
                places_values=False,
                plain_values=True,
            )
        )
        return getattr(self, name)

    def __repr__(self) -> str:
        return "DefaultStrategy()"

    def scope(self) -> contextlib.AbstractContextManager[Self]:
        """A `with` block that has no effect; raises inside the scope of another strategy."""
        if has_strategy():
            raise ContextError(
                "The default strategy's scope can't be entered inside another strategy's scope. Leave that "
                "scope first."
            )
        return contextlib.nullcontext(self)


_default = DefaultStrategy()
_replica = ReplicaContext(_default, merge_point=SingleReplica(_default))
register_default(Context(_default, replica=_replica, frame=EAGER))
