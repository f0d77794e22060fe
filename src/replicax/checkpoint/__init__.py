"""Checkpoints: the state of a program on disk, independent of how it is laid out."""

from replicax.checkpoint._checkpoint import Checkpoint, RestoreStatus
from replicax.checkpoint._manager import CheckpointManager

__all__ = ["Checkpoint", "CheckpointManager", "RestoreStatus"]
