"""How variables, strategies and optimizers are pickled between processes: as references.

A scheduled function closes over them. The function is pickled by value, they are pickled by name. In a
worker each name refers to one object, with the same state on the servers.
"""

from __future__ import annotations

import weakref
from collections.abc import MutableMapping
from typing import TYPE_CHECKING, Any, final

from replicax.errors import ContextError
from replicax.parameter_server._placement import Placement, placement_of
from replicax.training import Optimizer
from replicax.variables import Variable, VariableSpec

if TYPE_CHECKING:
    from replicax.parameter_server._strategy import ParameterServerStrategy

__all__ = [
    "Member",
    "join",
    "leave",
    "load_optimizer",
    "load_resource",
    "load_strategy",
    "load_variable",
    "member",
    "optimizer_key",
    "recall",
    "remember",
]


@final
class Member:
    """What this process has of a cluster.

    Args:
        strategy: the strategy.
        is_worker: whether the process is a worker, which keeps the objects that it was sent.
    """

    def __init__(self, strategy: ParameterServerStrategy, *, is_worker: bool) -> None:
        self.strategy = strategy
        make: Any = dict if is_worker else weakref.WeakValueDictionary
        self.variables: MutableMapping[str, Variable] = make()
        self.optimizers: MutableMapping[str, Optimizer] = make()
        self.resources: dict[str, Any] = {}
        self.known: MutableMapping[str, Any] = weakref.WeakValueDictionary()


_members: dict[str, Member] = {}


def join(cluster: str, member: Member) -> None:
    """This process belongs to a cluster."""
    _members[cluster] = member


def leave(cluster: str) -> None:
    """This process does not belong to the cluster any more."""
    _members.pop(cluster, None)


def member(cluster: str) -> Member:
    """What this process has of a cluster."""
    if cluster not in _members:
        raise ContextError(
            "An object of a ParameterServerStrategy was unpickled in a process that does not belong to its "
            "cluster. Pass it to `coordinator.schedule`, whose functions run in the workers."
        )
    return _members[cluster]


def optimizer_key(optimizer: Optimizer) -> str:
    """The name of an optimizer in its cluster: that of its counter."""
    return placement_of(optimizer.iterations).key


def remember(variable: Variable, thing: Any) -> None:
    """Let `recall` find what this process has for a variable, such as the Keras variable around it."""
    servers: Any = variable.layout.servers
    member(servers.cluster).known[placement_of(variable).key] = thing


def recall(variable: Variable) -> Any:
    """What this process has for a variable."""
    servers: Any = variable.layout.servers
    return member(servers.cluster).known[placement_of(variable).key]


def load_strategy(cluster: str) -> ParameterServerStrategy:
    """The strategy of this process."""
    return member(cluster).strategy


def load_variable(cluster: str, spec: VariableSpec, placement: Placement) -> Variable:
    """The variable of this process that has the value `placement` says."""
    here = member(cluster)
    found = here.variables.get(placement.key)
    if found is None:
        found = here.strategy.attach_variable(spec, placement)
        here.variables[placement.key] = found
    return found


def load_optimizer(cluster: str, key: str, arguments: dict[str, Any], variables: Any) -> Optimizer:
    """The optimizer of this process; `variables` are those it has slots for, None if none yet."""
    here = member(cluster)
    found = here.optimizers.get(key)
    if found is None:
        found = here.optimizers[key] = Optimizer.attached(**arguments)
    if variables is not None:
        found.attach(variables)
    return found


def load_resource(cluster: str, key: str) -> Any:
    """This worker's object of a `PerWorkerValues`."""
    resources = member(cluster).resources
    if key not in resources:
        raise ContextError(
            f"This worker has no object for <rx.PerWorkerValues {key}>: the function that makes it raised "
            "an error when this worker replaced another one. The coordinator raised that error."
        )
    return resources[key]
