"""The strategies and the small vocabulary that the cases are written in.

Every case is a function of a `World`: a new strategy of one kind, with the few values that the recorded
programs share. Inside a replica function, `rid()`, `ctx()`, `merge(...)` and `context()` give the current
replica and context.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from functools import cached_property
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import replicax as rx

__all__ = [
    "AGGREGATIONS",
    "KINDS",
    "Cases",
    "World",
    "context",
    "ctx",
    "merge",
    "mirrored",
    "rid",
    "ridf",
    "slices",
    "tensor",
]

DEVICES = ("CPU:0", "CPU:1")
AGGREGATIONS = ("NONE", "SUM", "MEAN", "ONLY_FIRST_REPLICA")


def mirrored(*devices: str, **options: Any) -> rx.MirroredStrategy:
    """A MirroredStrategy on both devices, or on those named."""
    return rx.MirroredStrategy(list(devices or DEVICES), **options)


KINDS: dict[str, Callable[[], Any]] = {
    "mirrored": mirrored,
    "central": lambda: rx.CentralStorageStrategy(list(DEVICES), "CPU:0"),
    "onedev": lambda: rx.OneDeviceStrategy("CPU:1"),
    "default": rx.get_strategy,
}


def tensor(value: Any, dtype: Any = None) -> jax.Array:
    """A new array with a strong type, on the current default device."""
    host = np.asarray(value, dtype=dtype)
    narrow = {"float64": np.float32, "int64": np.int32}.get(host.dtype.name, host.dtype)
    return jnp.array(host, dtype=narrow)


def ctx() -> rx.ReplicaContext:
    """The current replica context."""
    return rx.get_replica_context()


def rid() -> Any:
    """The current replica's id."""
    return ctx().replica_id_in_sync_group


def ridf() -> jax.Array:
    """The current replica's id, as a float32 array."""
    return jnp.asarray(rid(), jnp.float32)


def merge(fn: Callable[..., Any], *args: Any) -> Any:
    """`merge_call` of the current replica context."""
    return ctx().merge_call(fn, args=args)


def slices() -> rx.IndexedSlices:
    """One row per replica: row `rid` holds `rid + 1`."""
    return rx.IndexedSlices(jnp.reshape(ridf() + 1.0, (1,)), jnp.reshape(jnp.asarray(rid()), (1,)), (3,))


def context() -> str:
    """Where in the programming model we are."""
    strategy, replica = rx.get_strategy(), rx.get_replica_context()
    is_default = not isinstance(strategy, _STRATEGIES)
    name = "default" if is_default else type(strategy).__name__
    where = "None"
    if replica is not None:
        n = replica.num_replicas_in_sync
        where = f"default(id={int(rid())},n={n})" if is_default else f"replica(n={n})"
    has, cross = rx.has_strategy(), rx.in_cross_replica_context()
    return f"strategy={name} has={has} xrep={cross} rctx={where}"


_STRATEGIES = (rx.MirroredStrategy, rx.CentralStorageStrategy, rx.OneDeviceStrategy)


class World:
    """One strategy of a kind, and the values that the recorded programs share."""

    def __init__(self, kind: str) -> None:
        """Make the strategy."""
        self.kind = kind
        self.s = KINDS[kind]()
        self.e = self.s.extended
        self.n: int = self.s.num_replicas_in_sync
        self.run = self.s.run
        self.OBJ = object()

    @cached_property
    def C(self) -> jax.Array:
        """One array object that all replicas share."""
        return tensor(5.0)

    def scope(self, *, when: bool = True) -> AbstractContextManager[Any]:
        """The strategy's scope, or nothing."""
        return self.s.scope() if when else nullcontext()

    def per_replica(self, fn: Callable[[int], Any]) -> Any:
        """`fn(replica id)` on each replica."""
        return self.s.experimental_distribute_values_from_function(
            lambda value_context: fn(value_context.replica_id_in_sync_group)
        )

    def variable(self, init: Any = 10.0, sync: str = "AUTO", agg: str = "NONE", **options: Any) -> Any:
        """A variable made in the strategy's scope."""
        with self.s.scope():
            return rx.Variable(
                init,
                synchronization=rx.VariableSynchronization[sync],
                aggregation=rx.VariableAggregation[agg],
                **options,
            )


class Cases:
    """A probe's cases: (section, name) -> function of a world."""

    def __init__(self) -> None:
        """No cases yet."""
        self.functions: dict[tuple[str, str], Callable[[World], Any]] = {}
        self._section = ""

    def section(self, title: str) -> None:
        """What follows belongs to the section `title`."""
        self._section = title

    def __call__(self, name: str, fn: Callable[[World], Any] | None = None) -> Any:
        """Add a case; without `fn`, as a decorator."""
        if fn is None:
            return lambda fn: self(name, fn)
        key = (self._section, name)
        assert key not in self.functions, key
        self.functions[key] = fn
        return fn
