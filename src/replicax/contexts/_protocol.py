"""What the core asks of a strategy.

Contexts, variables and execution are below `strategies` in the import order, so they see a strategy through
this protocol. `replicax.strategies.Strategy` implements it. What users get from the core
(`rx.get_strategy()`, `ctx.strategy`, `variable.distribute_strategy`) is annotated as that class.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, MutableMapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

import jax

from replicax.collectives import Communicator
from replicax.topology import ReplicaMesh

if TYPE_CHECKING:
    from replicax.variables import Servers, Store, Variable

__all__ = ["StrategyProtocol"]


class StrategyProtocol(Protocol):
    """The part of `rx.Strategy` that the core uses."""

    @property
    def mesh(self) -> ReplicaMesh:
        """The devices of each replica."""
        ...

    @property
    def communicator(self) -> Communicator:
        """How values are combined over the replicas."""
        ...

    @property
    def parameter_device(self) -> Any:
        """The device of variables with a single copy; None if each replica has a copy."""
        ...

    @property
    def places_values(self) -> bool:
        """Whether values are placed on the devices of the mesh, rather than wherever JAX places them."""
        ...

    @property
    def find_shards(self) -> Callable[[Any], Any] | None:
        """A function that returns how a variable's update is sharded; None if no update is sharded."""
        ...

    @property
    def shard(self) -> str:
        """What is sharded over the replicas: "mirrored" (nothing), "optimizer" or "all"."""
        ...

    @property
    def servers(self) -> Servers | None:
        """The parameter servers that hold its variables; None if the values are in this process."""
        ...

    @property
    def num_replicas_in_sync(self) -> int:
        """The number of replicas in all processes."""
        ...

    @property
    def replica_ids(self) -> Sequence[jax.Array]:
        """The ids of this process's replicas, each as an array on the replica's device."""
        ...

    @property
    def store(self) -> Store:
        """The arrays of the strategy's variables."""
        ...

    @property
    def compiled_runs(self) -> MutableMapping[Any, Any]:
        """Compiled steps that run a function in every replica, by function."""
        ...

    def run(
        self,
        fn: Callable[..., Any],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        """Call `fn` once for each replica."""
        ...

    def create_variable(self, *args: Any, **kwargs: Any) -> Variable:
        """Make a variable with the arguments of `rx.Variable`."""
        ...
