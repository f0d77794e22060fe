"""`rx.explain`: the memory, computation and communication of a step, for any number of devices.

The step is traced and compiled from shapes, as if the strategy had those devices (`_plan.py`); the numbers
come from the compiled program (`_program_text.py`, `_collectives.py`). Nothing runs and no array moves.
"""

from replicax.planning._collectives import COLLECTIVES, Collective, collectives_in, user_line_of
from replicax.planning._explain import explain
from replicax.planning._explanation import Explanation, ShardingEffect, VariableUse, short_line
from replicax.planning._one_replica import OneReplica, compile_for_one_replica
from replicax.planning._program_text import ProgramText
from replicax.planning._scaling import Interconnect, Scaling, ScalingPoint

__all__ = [
    "COLLECTIVES",
    "Collective",
    "Explanation",
    "Interconnect",
    "OneReplica",
    "ProgramText",
    "Scaling",
    "ScalingPoint",
    "ShardingEffect",
    "VariableUse",
    "collectives_in",
    "compile_for_one_replica",
    "explain",
    "short_line",
    "user_line_of",
]
