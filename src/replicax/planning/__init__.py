"""What a step will need, before it runs: memory, computation and communication on any number of devices."""

from replicax.planning._collectives import Collective
from replicax.planning._explain import explain
from replicax.planning._explanation import Explanation, ShardingEffect, VariableUse

__all__ = ["Collective", "Explanation", "ShardingEffect", "VariableUse", "explain"]
