"""Checkpoints: saving a program's state and restoring it under any strategy.

A `Checkpoint` collects the variables of the objects it is given (`_tracking.py`), packs them into arrays
and a JSON document (`_entries.py`) and writes both with Orbax (`_store.py`, `_orbax.py`). What is on disk
does not depend on the strategy, so a run can continue on another number of devices.
"""

from replicax.checkpoint._checkpoint import Checkpoint, read_content
from replicax.checkpoint._cluster import on_first_process
from replicax.checkpoint._content import Content
from replicax.checkpoint._manager import CheckpointManager
from replicax.checkpoint._pending import restore_pending
from replicax.checkpoint._preemption import PreemptionCheckpointHandler, TerminationConfig
from replicax.checkpoint._status import RestoreStatus
from replicax.checkpoint._store import Store
from replicax.checkpoint._tracking import track

__all__ = [
    "Checkpoint",
    "CheckpointManager",
    "Content",
    "PreemptionCheckpointHandler",
    "RestoreStatus",
    "Store",
    "TerminationConfig",
    "on_first_process",
    "read_content",
    "restore_pending",
    "track",
]
