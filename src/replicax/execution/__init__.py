"""How replica functions run: eagerly, one at a time, or compiled into one program."""

from replicax.execution._between_processes import BetweenProcesses
from replicax.execution._compiled import CompiledStep
from replicax.execution._function import Function, function, in_replicas
from replicax.execution._memory import StepMemory
from replicax.execution._repeated import scan_calls
from replicax.execution._run import run
from replicax.execution._signals import signals_deferred
from replicax.execution._single import SingleReplica
from replicax.execution._traced_values import explain_leaks, explain_traced_values
from replicax.execution._update import update_copies

__all__ = [
    "BetweenProcesses",
    "CompiledStep",
    "Function",
    "SingleReplica",
    "StepMemory",
    "explain_leaks",
    "explain_traced_values",
    "function",
    "in_replicas",
    "run",
    "scan_calls",
    "signals_deferred",
    "update_copies",
]
