"""Variables: state that a strategy places and keeps equal, or combines when it is read."""

from replicax.variables._copy import VariableCopy
from replicax.variables._creation import NewVariable, awaiting_values, made_beside, prepare_variable
from replicax.variables._frames import (
    Cell,
    Frame,
    RecordingFrame,
    current_frame,
    journal,
    note_before_write,
    use_frame,
)
from replicax.variables._mirrored import MirroredVariable
from replicax.variables._readable import is_variable
from replicax.variables._single import AggregatingVariable, PlainVariable
from replicax.variables._spec import VariableSpec, user_line
from replicax.variables._state import Holder, state_lock, state_version
from replicax.variables._sync_on_read import SyncOnReadVariable
from replicax.variables._variable import Variable

__all__ = [
    "AggregatingVariable",
    "Cell",
    "Frame",
    "Holder",
    "MirroredVariable",
    "NewVariable",
    "PlainVariable",
    "RecordingFrame",
    "SyncOnReadVariable",
    "Variable",
    "VariableCopy",
    "VariableSpec",
    "awaiting_values",
    "current_frame",
    "is_variable",
    "journal",
    "made_beside",
    "note_before_write",
    "prepare_variable",
    "state_lock",
    "state_version",
    "use_frame",
    "user_line",
]
