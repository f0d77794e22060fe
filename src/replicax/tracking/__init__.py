"""Tracks a training run: `rx.Tracker` logs metrics, `rx.profile` records a profile.

Both write only in the first process of a cluster (`rx.on_first_process`), so a multi-worker program calls
them unconditionally.
"""

from replicax.tracking._folders import make_folder
from replicax.tracking._processes import on_first_process
from replicax.tracking._profile import profile
from replicax.tracking._tracker import Tracker

__all__ = ["Tracker", "make_folder", "on_first_process", "profile"]
