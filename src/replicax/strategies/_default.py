"""The strategy in use when none is: one replica, and JAX places everything."""

from __future__ import annotations

import contextlib
from functools import cached_property
from typing import Any, Self, final

import jax

from replicax.collectives import Communicator, DefaultAllReduce
from replicax.contexts import Context, ReplicaContext, has_strategy, register_default
from replicax.errors import ContextError
from replicax.execution import SingleReplica
from replicax.strategies._strategy import Strategy
from replicax.topology import ReplicaMesh, prepare_cpu_pool
from replicax.variables import PlainVariable, Variable, VariableSpec

__all__ = ["DefaultStrategy"]


@final
class DefaultStrategy(Strategy):
    """What `rx.get_strategy()` returns where no strategy is in scope.

    Code written for strategies runs under it unchanged, with one replica.

    >>> strategy = rx.get_strategy()
    >>> strategy.reduce("MEAN", strategy.run(lambda x: x + 1, args=(jnp.ones(4),)), axis=0)
    Array(2., dtype=float32)
    """

    @cached_property
    def _communicator(self) -> Communicator:
        # Only now: making the default strategy must not start JAX.
        prepare_cpu_pool()
        return Communicator(ReplicaMesh([jax.local_devices()[0]]), DefaultAllReduce())

    @property
    def communicator(self) -> Communicator:
        """How values are combined over the replicas: there is one."""
        return self._communicator

    @property
    def parameter_device(self) -> Any:
        """JAX's default device."""
        return self.mesh.local_devices[0]

    @property
    def places_values(self) -> bool:
        """False: values are wherever JAX puts them."""
        return False

    def __repr__(self) -> str:
        return "DefaultStrategy()"

    def scope(self) -> contextlib.AbstractContextManager[Self]:
        """A `with` block that changes nothing; not inside another strategy's scope."""
        if has_strategy():
            raise ContextError("The default strategy's scope can't be entered inside another strategy's.")
        return contextlib.nullcontext(self)

    def make_variable(self, spec: VariableSpec, value: jax.Array) -> Variable:
        """A plain variable where JAX puts it."""
        return PlainVariable(spec, self, jax.numpy.copy(value))

    def _distribute(self, values: list[Any]) -> Any:
        return values[0]


_default = DefaultStrategy()
register_default(Context(_default, replica=ReplicaContext(_default, merge_point=SingleReplica(_default))))
