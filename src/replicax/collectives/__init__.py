"""Combining values across replicas."""

from replicax.collectives._communicator import Communicator, checked_axis
from replicax.collectives._cross_device_ops import (
    CrossDeviceOps,
    DefaultAllReduce,
    HierarchicalCopyAllReduce,
    NcclAllReduce,
    ReductionToOneDevice,
    broadcast,
    deliver,
)
from replicax.collectives._local import Recipe, Spread
from replicax.collectives._options import (
    CollectiveHints,
    CommunicationImplementation,
    CommunicationOptions,
    merge_options,
)
from replicax.collectives._programs import combine, map_each, spread
from replicax.collectives._riders import Riders, offer_rider, taking_riders
from replicax.collectives._timeout import await_result, collect_step_timeouts

__all__ = [
    "CollectiveHints",
    "CommunicationImplementation",
    "CommunicationOptions",
    "Communicator",
    "CrossDeviceOps",
    "DefaultAllReduce",
    "HierarchicalCopyAllReduce",
    "NcclAllReduce",
    "Recipe",
    "ReductionToOneDevice",
    "Riders",
    "Spread",
    "await_result",
    "broadcast",
    "checked_axis",
    "collect_step_timeouts",
    "combine",
    "deliver",
    "map_each",
    "merge_options",
    "offer_rider",
    "spread",
    "taking_riders",
]
