"""Contexts: whether code runs in the default, cross-replica, replica or update context."""

from replicax.contexts._axis import explain_unbound_axis
from replicax.contexts._examples import BatchMask, Examples, Incomplete, Origins, Padding, Record
from replicax.contexts._exchange import Exchange
from replicax.contexts._protocol import StrategyProtocol
from replicax.contexts._replica import ReplicaContext
from replicax.contexts._rows import Rows
from replicax.contexts._stack import (
    Context,
    Scope,
    context_stack,
    current,
    enter,
    enter_default,
    get_replica_context,
    get_strategy,
    get_update_replica_id,
    has_strategy,
    in_cross_replica_context,
    register_default,
    require_cross_replica,
    set_strategy,
)

__all__ = [
    "BatchMask",
    "Context",
    "Examples",
    "Exchange",
    "explain_unbound_axis",
    "Incomplete",
    "Origins",
    "Padding",
    "Record",
    "ReplicaContext",
    "Rows",
    "Scope",
    "StrategyProtocol",
    "context_stack",
    "current",
    "enter",
    "enter_default",
    "get_replica_context",
    "get_strategy",
    "get_update_replica_id",
    "has_strategy",
    "in_cross_replica_context",
    "register_default",
    "require_cross_replica",
    "set_strategy",
]
