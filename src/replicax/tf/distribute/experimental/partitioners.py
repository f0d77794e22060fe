"""`tf.distribute.experimental.partitioners`: into how many parts a variable is divided."""

from replicax.tf._missing import refuse
from replicax.variables import (
    FixedShardsPartitioner,
    MaxSizePartitioner,
    MinSizePartitioner,
    Partitioner,
)

__all__ = ["FixedShardsPartitioner", "MaxSizePartitioner", "MinSizePartitioner", "Partitioner"]

__getattr__ = refuse("tf.distribute.experimental.partitioners", {})
