"""Values that live on several replicas, and how structures of them are merged and split."""

from replicax.values._arrays import copied, free, is_array, is_number, on_first_replica, owned, pad_to
from replicax.values._distributed import DistributedValues, Leaf
from replicax.values._equal import mirror_equal, remember_derived, remember_equal
from replicax.values._host_array import HostArray
from replicax.values._indexed_slices import IndexedSlices
from replicax.values._masks import (
    FIND,
    Find,
    batch_numbers,
    find_masks,
    intersection,
    masked,
    num_rows,
    without_padding,
)
from replicax.values._mirrored import Mirrored
from replicax.values._nest import (
    Component,
    flatten,
    map_leaves,
    regroup,
    regroup_apart,
    regroup_mirrored,
    regroup_traced,
    select,
    split,
)
from replicax.values._operators import ArrayOperators
from replicax.values._per_replica import Layout, PerReplica
from replicax.values._shape import TensorShape
from replicax.values._specs import PerReplicaSpec, TensorSpec, check_signature, converted

__all__ = [
    "FIND",
    "ArrayOperators",
    "Component",
    "DistributedValues",
    "Find",
    "HostArray",
    "IndexedSlices",
    "Layout",
    "Leaf",
    "Mirrored",
    "PerReplica",
    "PerReplicaSpec",
    "TensorShape",
    "TensorSpec",
    "batch_numbers",
    "check_signature",
    "converted",
    "copied",
    "find_masks",
    "flatten",
    "free",
    "intersection",
    "is_array",
    "is_number",
    "map_leaves",
    "masked",
    "mirror_equal",
    "num_rows",
    "on_first_replica",
    "owned",
    "pad_to",
    "regroup",
    "regroup_apart",
    "regroup_mirrored",
    "regroup_traced",
    "remember_derived",
    "remember_equal",
    "select",
    "split",
    "without_padding",
]
