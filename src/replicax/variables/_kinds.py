"""TensorFlow's names for kinds of variables, for `isinstance`.

There is only one variable class; `isinstance(v, MirroredVariable)` checks the variable's layout.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from replicax.variables._divided import Divided
from replicax.variables._layout import Layout
from replicax.variables._on_servers import OnServers
from replicax.variables._one_device import Central
from replicax.variables._per_replica import OnePerReplica
from replicax.variables._replicated import Replicated
from replicax.variables._variable import Variable

__all__ = ["AggregatingVariable", "MirroredVariable", "ShardedVariable", "SyncOnReadVariable"]


class _ByLayout(type):
    """Makes `isinstance(v, cls)` true for variables with the layout `cls.layout`."""

    layout: type[Layout] | tuple[type[Layout], ...]

    def __instancecheck__(cls, instance: Any) -> bool:
        return isinstance(instance, Variable) and isinstance(instance.layout, cls.layout)

    def __call__(cls, *args: Any, **kwargs: Any) -> Any:
        raise TypeError(
            f"{cls.__name__} is for isinstance() only. Use `rx.Variable(...)` in a strategy's scope."
        )


if TYPE_CHECKING:
    # Type checkers see subclasses, so that `v` is still a `Variable` after `isinstance(v, ...)`.
    class _Kind(Variable):  # type: ignore[misc]
        layout: Any

else:

    class _Kind(metaclass=_ByLayout):
        layout: type[Layout] | tuple[type[Layout], ...]


class MirroredVariable(_Kind):
    """A variable with one equal copy on each replica: what a `MirroredStrategy` creates.

    >>> with rx.MirroredStrategy(["CPU:0", "CPU:1"]).scope():
    ...     v = rx.Variable(1.0)
    >>> isinstance(v, rx.MirroredVariable), isinstance(v, rx.Variable)
    (True, True)
    """

    layout = Replicated


class SyncOnReadVariable(_Kind):
    """A variable with a separate part on each replica; reading it combines the parts.

    >>> strategy = rx.MirroredStrategy(["CPU:0", "CPU:1"])
    >>> with strategy.scope():
    ...     total = rx.Variable(0, synchronization=rx.VariableSynchronization.ON_READ,
    ...                         aggregation=rx.VariableAggregation.SUM)
    >>> strategy.run(lambda: total.assign_add(rx.get_replica_context().replica_id_in_sync_group + 1))
    PerReplica:{
      0: Array(1, dtype=int32),
      1: Array(2, dtype=int32)
    }
    >>> total.read_value(), isinstance(total, rx.SyncOnReadVariable)
    (Array(3, dtype=int32), True)
    """

    layout = OnePerReplica


class AggregatingVariable(_Kind):
    """A variable with one copy on the parameter device: what a `CentralStorageStrategy` creates.

    >>> strategy = rx.CentralStorageStrategy(["CPU:0", "CPU:1"], parameter_device="CPU:0")
    >>> with strategy.scope():
    ...     v = rx.Variable(1.0, aggregation=rx.VariableAggregation.MEAN)
    >>> strategy.run(lambda: v.assign_add(rx.get_replica_context().replica_id_in_sync_group * 4.0))
    PerReplica:{
      0: Array(3., dtype=float32),
      1: Array(3., dtype=float32)
    }
    >>> v
    <rx.Variable 'Variable:0' shape=() dtype=float32, numpy=3.0>
    """

    layout = (Central, OnServers)


class ShardedVariable(_Kind):
    """A variable whose value is sharded: over the replicas by a `ShardedStrategy`, or over the devices of
    each replica by a partition.

    >>> with rx.ShardedStrategy(["CPU:0", "CPU:1"]).scope():
    ...     v = rx.Variable(jnp.zeros((256, 256)))
    >>> isinstance(v, rx.ShardedVariable), v.shape
    (True, (256, 256))
    """

    layout = Divided
