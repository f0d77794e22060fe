"""Who holds a variable's array, and when that may change.

A compiled step that runs again and again keeps the arrays of the variables that it writes. What the two
must agree on is here: how to ask for the arrays, how to know that nothing changed, and who has to wait.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from typing import Protocol, final

from replicax.errors import ContextError

__all__ = ["Holder", "StateVersion", "state_lock", "state_version", "waiting_for_steps"]


class Holder(Protocol):
    """A compiled step that keeps the arrays of the variables that it writes, from one run to the next."""

    def give_back(self) -> None:
        """Put the arrays into their variables."""
        ...


@final
class StateVersion:
    """Counts changes of any variable's state, so that a step knows when there were none."""

    __slots__ = ("count",)

    def __init__(self) -> None:
        self.count = 0


state_version = StateVersion()

state_lock = threading.RLock()
"""Held while a step has taken arrays out of variables and has not put new ones back."""

_LOCK_SECONDS = 60


@contextlib.contextmanager
def waiting_for_steps(name: str) -> Iterator[None]:
    """Wait until no step of another thread is between taking and putting back arrays."""
    if not state_lock.acquire(timeout=_LOCK_SECONDS):
        raise ContextError(
            f"The variable {name!r} could not be reached for {_LOCK_SECONDS} seconds, since a "
            "compiled step of another thread runs. A host callback in a step must not touch variables."
        )
    try:
        yield
    finally:
        state_lock.release()
