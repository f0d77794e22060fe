"""`tf.distribute.experimental`: older names, and options for collectives."""

from __future__ import annotations

from typing import Any

from replicax.checkpoint import PreemptionCheckpointHandler, TerminationConfig
from replicax.cluster import PreemptionWatcher
from replicax.collectives import CollectiveHints, CommunicationImplementation, CommunicationOptions
from replicax.input import InputContext
from replicax.parameter_server import ParameterServerStrategy
from replicax.strategies import CentralStorageStrategy, ValueContext
from replicax.strategies import MultiWorkerMirroredStrategy as _MultiWorkerMirroredStrategy
from replicax.strategies import TPUStrategy as _TPUStrategy
from replicax.tf._missing import OF_DISTRIBUTE, refuse
from replicax.tf.distribute import coordinator
from replicax.tf.distribute.experimental import partitioners

__all__ = [
    "CentralStorageStrategy",
    "CollectiveCommunication",
    "CollectiveHints",
    "CommunicationImplementation",
    "CommunicationOptions",
    "InputContext",
    "MultiWorkerMirroredStrategy",
    "ParameterServerStrategy",
    "PreemptionCheckpointHandler",
    "PreemptionWatcher",
    "TPUStrategy",
    "TerminationConfig",
    "ValueContext",
    "coordinator",
    "partitioners",
]

CollectiveCommunication = CommunicationImplementation


class _Older(type):
    """The metaclass of an older name: `isinstance` accepts instances of the strategy itself."""

    strategy: type

    def __instancecheck__(cls, instance: Any) -> bool:
        return isinstance(instance, cls.strategy)

    def __subclasscheck__(cls, subclass: type) -> bool:
        return issubclass(subclass, cls.strategy)


class MultiWorkerMirroredStrategy(metaclass=_Older):
    """The older name of `tf.distribute.MultiWorkerMirroredStrategy`, with its older arguments.

    >>> from replicax import tf
    >>> strategy = tf.distribute.experimental.MultiWorkerMirroredStrategy()
    >>> isinstance(strategy, tf.distribute.MultiWorkerMirroredStrategy)
    True
    """

    strategy = _MultiWorkerMirroredStrategy

    def __new__(
        cls,
        communication: CommunicationImplementation = CommunicationImplementation.AUTO,
        cluster_resolver: Any = None,
    ) -> Any:
        """Make the strategy itself."""
        options = None
        if communication is not CommunicationImplementation.AUTO:
            options = CommunicationOptions(implementation=communication)
        return _MultiWorkerMirroredStrategy(cluster_resolver, options)


class TPUStrategy(metaclass=_Older):
    """The older name of `tf.distribute.TPUStrategy`, with its older arguments."""

    strategy = _TPUStrategy

    def __new__(cls, tpu_cluster_resolver: Any = None, device_assignment: Any = None) -> Any:
        """Make the strategy itself."""
        return _TPUStrategy(tpu_cluster_resolver, device_assignment)


__getattr__ = refuse("tf.distribute.experimental", OF_DISTRIBUTE)
