"""Values that live on several replicas, and how structures of them are merged and split."""

from replicax.values._distributed import (
    DistributedValues,
    Layout,
    Leaf,
    Mirrored,
    PerReplica,
    free,
    is_array,
    is_key,
    is_number,
    on_first_replica,
)
from replicax.values._equal import mirror_equal, remember_derived, remember_equal
from replicax.values._indexed_slices import IndexedSlices
from replicax.values._masks import attach_masks, find_masks, without_padding
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
from replicax.values._specs import PerReplicaSpec, TensorSpec, check_signature

__all__ = [
    "ArrayOperators",
    "Component",
    "DistributedValues",
    "IndexedSlices",
    "Layout",
    "Leaf",
    "Mirrored",
    "PerReplica",
    "PerReplicaSpec",
    "TensorSpec",
    "attach_masks",
    "check_signature",
    "find_masks",
    "flatten",
    "free",
    "is_array",
    "is_key",
    "is_number",
    "map_leaves",
    "mirror_equal",
    "on_first_replica",
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
