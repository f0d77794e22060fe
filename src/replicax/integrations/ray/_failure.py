"""The failures of workers, and which of several is the cause of the others."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

import jax

from replicax.cluster import Raised
from replicax.errors import (
    ClusterTimeoutError,
    CollectiveMismatchError,
    CollectiveTimeoutError,
    WorkerFailedError,
)

__all__ = ["Failure", "Raised", "choose_cause"]

# What a worker raises when another one is gone.
_CONSEQUENCES = (
    jax.errors.JaxRuntimeError,
    ClusterTimeoutError,
    CollectiveMismatchError,
    CollectiveTimeoutError,
    WorkerFailedError,
)


@final
@dataclass(frozen=True)
class Failure:
    """The failure of one worker: what its function raised, or Ray's error if its process died."""

    rank: int
    reason: Raised | Exception

    @property
    def cause(self) -> Exception:
        """The exception from the training function, or Ray's."""
        return self.reason.error if isinstance(self.reason, Raised) else self.reason

    @property
    def cause_order(self) -> int:
        """0 for a dead process, 1 for an error in user code, 2 for what may be a consequence of those."""
        if not isinstance(self.reason, Raised):
            return 0
        return 2 if isinstance(self.cause, _CONSEQUENCES) else 1

    def __str__(self) -> str:
        if isinstance(self.reason, Raised):
            return f"it raised {type(self.cause).__name__}.\n\n{self.reason.traceback.strip()}"
        return f"its process died without a result.\n\n{str(self.reason).strip()}"


def choose_cause(failures: list[Failure]) -> Failure:
    """The failure that caused the others; the first one if there are several candidates."""
    return min(failures, key=lambda failure: failure.cause_order)
