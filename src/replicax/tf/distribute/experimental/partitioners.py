"""`tf.distribute.experimental.partitioners`: how many shards a variable is split into."""

from replicax.tf._missing import refuse
from replicax.variables import (
    FixedShardsPartitioner,
    MaxSizePartitioner,
    MinSizePartitioner,
    Partitioner,
)

__all__ = ["FixedShardsPartitioner", "MaxSizePartitioner", "MinSizePartitioner", "Partitioner"]

__getattr__ = refuse("tf.distribute.experimental.partitioners", {})
