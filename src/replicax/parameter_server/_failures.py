"""What Ray's errors say about a task."""

from __future__ import annotations

from replicax.parameter_server._ray import library

__all__ = ["is_dead", "reason"]


def is_dead(error: BaseException) -> bool:
    """Whether an error of Ray says that a task has ended, or does not answer."""
    exceptions = library().exceptions
    kinds = (exceptions.RayActorError, exceptions.GetTimeoutError, exceptions.ObjectLostError)
    return isinstance(error, kinds)


def reason(error: BaseException) -> str:
    """Why a task is replaced, for messages."""
    silent = isinstance(error, library().exceptions.GetTimeoutError)
    return "it does not answer" if silent else "its process has ended"
