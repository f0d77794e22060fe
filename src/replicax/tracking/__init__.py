"""Watching a training run: its numbers, its profile, and the process that logs for all."""

from replicax.tracking._folders import make_folder
from replicax.tracking._processes import on_first_process
from replicax.tracking._profile import profile
from replicax.tracking._tracker import Tracker

__all__ = ["Tracker", "make_folder", "on_first_process", "profile"]
