"""Collectives: reducing, gathering and broadcasting values across replicas and processes."""

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
from replicax.collectives._early_sums import (
    EarlySums,
    collect_early_sums,
    offer_early_sum,
    offer_sum_in_shards,
    sum_in_shards,
)
from replicax.collectives._local import Spread
from replicax.collectives._options import (
    CollectiveHints,
    CommunicationImplementation,
    CommunicationOptions,
    merge_options,
)
from replicax.collectives._order import Order, in_order, order_of, order_of_all, shapes_of
from replicax.collectives._programs import combine, map_each, spread
from replicax.collectives._reductions import gather_leaves, reduce_leaves, reduce_leaves_over
from replicax.collectives._timeout import await_result, collect_step_timeouts

__all__ = [
    "CollectiveHints",
    "CommunicationImplementation",
    "CommunicationOptions",
    "Communicator",
    "CrossDeviceOps",
    "DefaultAllReduce",
    "EarlySums",
    "HierarchicalCopyAllReduce",
    "NcclAllReduce",
    "Order",
    "ReductionToOneDevice",
    "Spread",
    "await_result",
    "broadcast",
    "checked_axis",
    "collect_early_sums",
    "collect_step_timeouts",
    "combine",
    "deliver",
    "gather_leaves",
    "map_each",
    "merge_options",
    "offer_early_sum",
    "offer_sum_in_shards",
    "in_order",
    "order_of",
    "order_of_all",
    "reduce_leaves",
    "reduce_leaves_over",
    "shapes_of",
    "spread",
    "sum_in_shards",
]
