"""`tf.compat.v1.distribute.experimental`."""

from replicax.collectives import CollectiveHints, CommunicationImplementation, CommunicationOptions
from replicax.compat.v1 import (
    CentralStorageStrategy,
    MultiWorkerMirroredStrategy,
    ParameterServerStrategy,
    TPUStrategy,
)
from replicax.tf._missing import OF_DISTRIBUTE, refuse

__all__ = [
    "CentralStorageStrategy",
    "CollectiveCommunication",
    "CollectiveHints",
    "CommunicationImplementation",
    "CommunicationOptions",
    "MultiWorkerMirroredStrategy",
    "ParameterServerStrategy",
    "TPUStrategy",
]

CollectiveCommunication = CommunicationImplementation

__getattr__ = refuse("tf.compat.v1.distribute.experimental", OF_DISTRIBUTE)
