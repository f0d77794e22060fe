"""How replica functions run: eagerly, in turns, or compiled into one program."""

from replicax.execution._function import Function, function
from replicax.execution._run import run
from replicax.execution._single import SingleReplica
from replicax.execution._update import update_copies

__all__ = ["Function", "SingleReplica", "function", "run", "update_copies"]
