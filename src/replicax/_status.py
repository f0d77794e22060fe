"""TensorFlow's error classes: `tf.errors` of `replicax.tf`.

They are at the bottom of the import order because the classes in `errors.py` inherit from them, so that
`except tf.errors.NotFoundError` catches ours. `error_code` is TensorFlow's number for the class.
"""

from __future__ import annotations

from typing import Any

__all__ = [
    "AbortedError",
    "AlreadyExistsError",
    "CancelledError",
    "DataLossError",
    "DeadlineExceededError",
    "FailedPreconditionError",
    "InternalError",
    "InvalidArgumentError",
    "NotFoundError",
    "OpError",
    "OutOfRangeError",
    "PermissionDeniedError",
    "ResourceExhaustedError",
    "UnauthenticatedError",
    "UnavailableError",
    "UnimplementedError",
    "UnknownError",
]


class OpError(Exception):
    """The base class of TensorFlow's errors.

    Args:
        *args: the message, or TensorFlow's three arguments, `node_def`, `op` and `message`. There are no
            graphs, so the first two are None.

    >>> from replicax import tf
    >>> error = tf.errors.NotFoundError(None, None, "no such file")
    >>> error.message, error.error_code == tf.errors.NOT_FOUND
    ('no such file', True)
    """

    error_code = 2
    node_def = op = None

    def __init__(self, *args: Any) -> None:
        """Take a message, or TensorFlow's three arguments."""
        super().__init__(*(args[2:3] if len(args) >= 3 else args))

    @property
    def message(self) -> str:
        """What went wrong."""
        return Exception.__str__(self)


class CancelledError(OpError):
    """An operation was cancelled."""

    error_code = 1


class UnknownError(OpError):
    """An error that no other class describes."""


class InvalidArgumentError(OpError):
    """An argument is invalid, whatever the state of the program."""

    error_code = 3


class DeadlineExceededError(OpError):
    """An operation took too long."""

    error_code = 4


class NotFoundError(OpError):
    """A file, or something else, does not exist."""

    error_code = 5


class AlreadyExistsError(OpError):
    """Something that should be created already exists."""

    error_code = 6


class PermissionDeniedError(OpError):
    """The program lacks the permission for an operation."""

    error_code = 7


class ResourceExhaustedError(OpError):
    """Memory, or another resource, is used up."""

    error_code = 8


class FailedPreconditionError(OpError):
    """The program is not in the state that an operation needs."""

    error_code = 9


class AbortedError(OpError):
    """An operation was aborted, usually because of a concurrent one."""

    error_code = 10


class OutOfRangeError(OpError):
    """There is nothing more to read."""

    error_code = 11


class UnimplementedError(OpError):
    """An operation is not implemented."""

    error_code = 12


class InternalError(OpError):
    """An internal invariant is broken."""

    error_code = 13


class UnavailableError(OpError):
    """A worker or a service can't be reached."""

    error_code = 14


class DataLossError(OpError):
    """Data is lost or corrupted."""

    error_code = 15


class UnauthenticatedError(OpError):
    """The program is not authenticated."""

    error_code = 16
