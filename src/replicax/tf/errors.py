"""`tf.errors`: TensorFlow's error classes, which Replicax's own errors inherit from.

    try:
        batch = iterator.get_next()
    except tf.errors.OutOfRangeError:
        ...

The classes of `replicax.errors` are also here.
"""

from typing import Any

from replicax import errors as _own
from replicax._status import (
    AbortedError,
    AlreadyExistsError,
    CancelledError,
    DataLossError,
    DeadlineExceededError,
    FailedPreconditionError,
    InternalError,
    InvalidArgumentError,
    NotFoundError,
    OpError,
    OutOfRangeError,
    PermissionDeniedError,
    ResourceExhaustedError,
    UnauthenticatedError,
    UnavailableError,
    UnimplementedError,
    UnknownError,
)
from replicax.errors import TracedValueError as OperatorNotAllowedInGraphError
from replicax.errors import TracingError as InaccessibleTensorError
from replicax.tf._missing import refuse

OK = 0
CANCELLED = CancelledError.error_code
UNKNOWN = UnknownError.error_code
INVALID_ARGUMENT = InvalidArgumentError.error_code
DEADLINE_EXCEEDED = DeadlineExceededError.error_code
NOT_FOUND = NotFoundError.error_code
ALREADY_EXISTS = AlreadyExistsError.error_code
PERMISSION_DENIED = PermissionDeniedError.error_code
RESOURCE_EXHAUSTED = ResourceExhaustedError.error_code
FAILED_PRECONDITION = FailedPreconditionError.error_code
ABORTED = AbortedError.error_code
OUT_OF_RANGE = OutOfRangeError.error_code
UNIMPLEMENTED = UnimplementedError.error_code
INTERNAL = InternalError.error_code
UNAVAILABLE = UnavailableError.error_code
DATA_LOSS = DataLossError.error_code
UNAUTHENTICATED = UnauthenticatedError.error_code

__all__ = [
    "ABORTED",
    "ALREADY_EXISTS",
    "CANCELLED",
    "DATA_LOSS",
    "DEADLINE_EXCEEDED",
    "FAILED_PRECONDITION",
    "INTERNAL",
    "INVALID_ARGUMENT",
    "NOT_FOUND",
    "OK",
    "OUT_OF_RANGE",
    "PERMISSION_DENIED",
    "RESOURCE_EXHAUSTED",
    "UNAUTHENTICATED",
    "UNAVAILABLE",
    "UNIMPLEMENTED",
    "UNKNOWN",
    "AbortedError",
    "AlreadyExistsError",
    "CancelledError",
    "DataLossError",
    "DeadlineExceededError",
    "FailedPreconditionError",
    "InaccessibleTensorError",
    "InternalError",
    "InvalidArgumentError",
    "NotFoundError",
    "OpError",
    "OperatorNotAllowedInGraphError",
    "OutOfRangeError",
    "PermissionDeniedError",
    "ResourceExhaustedError",
    "UnauthenticatedError",
    "UnavailableError",
    "UnimplementedError",
    "UnknownError",
]


_refuse = refuse("tf.errors", {"raise_exception_on_not_ok_status": "`try` and `except`"})


def __getattr__(name: str) -> Any:
    return getattr(_own, name) if name in _own.__all__ else _refuse(name)
