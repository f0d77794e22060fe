"""The exceptions that Replicax raises, in one tree.

Each class is also the builtin that a `tf.distribute` user already catches: `except ValueError` around
ported code keeps working, and `except ReplicaxError` catches errors of Replicax and no others.

    ReplicaxError
    ├── UnsupportedJaxError        (ImportError)                 JAX lacks something that Replicax needs
    ├── DeviceError                (ValueError)                  a device that can't be used
    │   ├── BackendStartedError    (and RuntimeError)            too late to change the devices or to join
    │   └── RepeatedDeviceError    (and AssertionError)          a device is named twice
    ├── StructureMismatchError     (ValueError, AssertionError)  replicas disagree about a structure
    ├── ContextError               (RuntimeError)                a call in the wrong place
    ├── VariableError              (ValueError)                  a bad creation or write
    │   └── VariableTypeError      (and TypeError)               an argument or a write of the wrong type
    ├── OutOfMemoryError           (MemoryError, RuntimeError)   too large for a device
    ├── TracingError               (RuntimeError)                a variable in a trace outside `rx.function`
    ├── TracedValueError           (TypeError)                   a traced value used as a Python number
    ├── CollectiveError            (ValueError)                  a reduction that can't be done
    │   └── CollectiveMismatchError (and RuntimeError)           processes start different collectives
    ├── ArgumentKindError          (ValueError, AssertionError)  an argument of the wrong kind
    ├── OpArgumentError            (TypeError, ValueError)       an op of `replicax.tf` got unfit arrays
    ├── PerReplicaUseError         (TypeError, ValueError)       a per-replica value used as one array
    ├── ReduceOpTypeError          (TypeError, AssertionError)   not a kind of reduction at all
    ├── CollectiveTimeoutError     (TimeoutError)                the replicas did not all arrive
    ├── ClusterError               (ValueError)                  an invalid cluster
    │   ├── ClusterFormatError     (and json.JSONDecodeError)    TF_CONFIG is not JSON
    │   ├── NotInClusterError      (and RuntimeError)            this process was not started as a task
    │   └── OverlappingTasksError  (and KeyError)                two clusters have the same task
    ├── ClusterTimeoutError        (TimeoutError)                a task of the cluster did not join
    ├── CancelledError             (futures.CancelledError)      a scheduled function did not run
    ├── RunFailedError             (RuntimeError, AssertionError)  a worker that a test started failed
    ├── WorkerFailedError          (RuntimeError)                another worker failed
    │   ├── WorkerLostError        (and ConnectionError)         its process died
    │   ├── WorkerStuckError       (and TimeoutError)            the others waited for it for too long
    │   └── WorkerLeftError                                      its program ended, but the others need it
    ├── InputError                 (ValueError)                  batches that can't be distributed
    │   └── MissingFilesError      (and FileNotFoundError)       the files of a dataset are missing
    ├── NotADatasetError           (TypeError, AttributeError)   not a dataset
    ├── InputModeError             (NotImplementedError)         a replication mode that has no meaning here
    ├── OutOfRangeError            (LookupError)                 `get_next` after the last batch
    └── CheckpointError            (RuntimeError)                a checkpoint that can't be written or read
        ├── CheckpointMissingError (and FileNotFoundError)       it does not exist
        └── CheckpointMismatchError (and ValueError, AssertionError)  it does not match the objects

Some are also one of TensorFlow's own kinds (`_status.py`), so that `except tf.errors.OutOfRangeError` works
in ported code:

    InvalidArgumentError       DeviceError, VariableError, CollectiveError, InputError, OpArgumentError
    NotFoundError              MissingFilesError, CheckpointMissingError
    OutOfRangeError            OutOfRangeError
    ResourceExhaustedError     OutOfMemoryError
    DeadlineExceededError      CollectiveTimeoutError, ClusterTimeoutError
    CancelledError             CancelledError
    UnavailableError           WorkerFailedError
"""

from __future__ import annotations

import concurrent.futures
import json
from collections.abc import Sequence
from typing import Any

from replicax import _status

__all__ = [
    "ArgumentKindError",
    "BackendStartedError",
    "CancelledError",
    "CheckpointError",
    "CheckpointMismatchError",
    "CheckpointMissingError",
    "ClusterError",
    "ClusterFormatError",
    "ClusterTimeoutError",
    "CollectiveError",
    "CollectiveMismatchError",
    "CollectiveTimeoutError",
    "ContextError",
    "DeviceError",
    "InputError",
    "InputModeError",
    "MissingFilesError",
    "NotADatasetError",
    "NotInClusterError",
    "OpArgumentError",
    "OutOfMemoryError",
    "OutOfRangeError",
    "OverlappingTasksError",
    "PerReplicaUseError",
    "ReduceOpTypeError",
    "RepeatedDeviceError",
    "ReplicaxError",
    "RunFailedError",
    "StructureMismatchError",
    "TracedValueError",
    "TracingError",
    "UnsupportedJaxError",
    "VariableError",
    "VariableTypeError",
    "WorkerFailedError",
    "WorkerLeftError",
    "WorkerLostError",
    "WorkerStuckError",
]


class ReplicaxError(Exception):
    """The base class of every error that Replicax itself raises.

    It is never raised directly. Each subclass is also a builtin exception.

    >>> from replicax.errors import ReplicaxError
    >>> try:
    ...     rx.set_cpu_devices(0)
    ... except ReplicaxError as error:
    ...     print(type(error).__name__, isinstance(error, ValueError))
    DeviceError True
    """


class UnsupportedJaxError(ReplicaxError, ImportError):
    """The installed JAX lacks a private function that Replicax relies on; the message names both.

    Raised when Replicax is imported, or when the function is first used. Install a version of JAX that
    Replicax supports.
    """


class DeviceError(ReplicaxError, _status.InvalidArgumentError, ValueError):
    """A device does not exist, its name can't be parsed, or platforms are mixed.

    Raised wherever devices are named: by a strategy's constructor, for a reduction's destination, and by
    `rx.set_cpu_devices`. The message lists the devices that exist.
    """


class BackendStartedError(DeviceError, RuntimeError):
    """`rx.set_cpu_devices`, or a strategy that joins a cluster, was called after JAX had started.

    JAX fixes its devices when it is first used and can't change them in a running process.
    """


class RepeatedDeviceError(DeviceError, AssertionError):
    """A strategy was given the same device twice: a device can run only one replica."""


class StructureMismatchError(ReplicaxError, ValueError, AssertionError):
    """The replicas returned, or passed to a `merge_call`, different structures.

    Raised when the results are merged: one replica has a tuple and another a dict, or lists of different
    lengths. Shapes may differ between replicas; structures may not.
    """


class ContextError(ReplicaxError, RuntimeError):
    """A call was made in a context that does not allow it.

    Raised for a cross-replica method inside a replica function and vice versa, for an object of one
    strategy used under another, for scopes closed in the wrong order, and when some replicas call
    `merge_call` more often than others.
    """


class VariableError(ReplicaxError, _status.InvalidArgumentError, ValueError):
    """A variable was created or written in a way that its policy does not define.

    Raised for a meaningless combination of synchronization and aggregation, for a replica's write to a
    variable without aggregation, and for a value of the wrong shape or dtype.
    """


class VariableTypeError(VariableError, TypeError):
    """Something that does not convert to an array, such as text, was written to a variable.

    Also raised for a `dtype` or `trainable` of the wrong type when a variable is created.
    """


class OutOfMemoryError(ReplicaxError, _status.ResourceExhaustedError, MemoryError, RuntimeError):
    """A step, or the creation of a variable, needs more memory than a device has.

    The message lists the largest consumers and the settings that would help. The cause is XLA's own error,
    if XLA raised one. `rx.explain` tells you beforehand what a step needs.
    """


class TracingError(ReplicaxError, RuntimeError):
    """A variable was used inside a JAX transformation outside `rx.function`.

    Raised when a plain `jax.jit` reads a `Variable`, because the value would become a constant of the
    program, and for a write inside `jax.lax` control flow, because the new value would be lost. Use
    `rx.function` to compile code that uses variables.
    """


class TracedValueError(ReplicaxError, TypeError):
    """A compiled step or replica function used a traced value, often the replica id, as a Python number.

    A traced value has no concrete value yet, and one program serves all replicas.
    """


class CollectiveError(ReplicaxError, _status.InvalidArgumentError, ValueError):
    """A reduction, gather or broadcast is not possible.

    Raised for an unknown reduction, an axis that a value does not have, values whose shapes or dtypes do
    not match, and an algorithm that the platform does not support.
    """


class CollectiveMismatchError(CollectiveError, RuntimeError):
    """The processes of a cluster started different collectives, or the same ones in different orders.

    Raised in every process before anything is sent. The message shows each process's collective, its shapes
    and the line of code. Processes must run the same program: the same steps and the same variables, in the
    same order.
    """


class ArgumentKindError(ReplicaxError, ValueError, AssertionError):
    """An argument is of the wrong kind: not a variable, not one device, or devices of another strategy.

    Raised by the methods of `strategy.extended`, before anything is changed.
    """


class OpArgumentError(ReplicaxError, _status.InvalidArgumentError, TypeError, ValueError):
    """An op of `replicax.tf` got arrays with unsuitable shapes or dtypes; the message has JAX's reason."""


class PerReplicaUseError(ReplicaxError, TypeError, ValueError):
    """A `PerReplica` was used as one array or number outside of a replica function."""


class ReduceOpTypeError(ReplicaxError, TypeError, AssertionError):
    """A `reduce_op` is neither a `ReduceOp` nor a string.

    Most often it is a `VariableAggregation`, whose members have the same names.
    """


class CollectiveTimeoutError(ReplicaxError, _status.DeadlineExceededError, TimeoutError):
    """A collective did not finish within `CommunicationOptions.timeout_seconds`.

    Usually another process has died or runs a different program. The collective can't be resumed: restart
    from the last checkpoint.
    """


class ClusterError(ReplicaxError, ValueError):
    """A cluster is invalid, or this process is not part of it.

    Raised for a job or task that does not exist, for jobs that a strategy can't use, and when JAX has
    already joined another cluster.
    """


class ClusterFormatError(ClusterError, json.JSONDecodeError):
    """The environment variable TF_CONFIG is not valid JSON; the message shows where."""

    def __init__(self, msg: str, doc: str = "", pos: int = 0) -> None:
        """Like `json.JSONDecodeError`, but the last two arguments are optional."""
        super().__init__(msg, doc, pos)


class NotInClusterError(ClusterError, RuntimeError):
    """A resolver's cluster manager, such as Slurm, did not start this process."""


class OverlappingTasksError(ClusterError, KeyError):
    """Clusters that are combined have a task with the same job and index."""

    __str__ = Exception.__str__  # a KeyError would quote the message


class ClusterTimeoutError(ReplicaxError, _status.DeadlineExceededError, TimeoutError):
    """Not all tasks of a cluster joined in time; the message names the missing ones."""


class CancelledError(ReplicaxError, _status.CancelledError, concurrent.futures.CancelledError):
    """A scheduled function did not run, because another one raised an error.

    Raised by `RemoteValue.fetch`. The error itself is raised by the next `schedule` or `join` of the
    `ClusterCoordinator`.
    """


class RunFailedError(ReplicaxError, RuntimeError, AssertionError):
    """A worker that `replicax.testing.run` or `replicax.integrations.ray.run` started has failed.

    It raised an exception, was killed, or did not finish in time. The message has the traceback of the rank
    that failed first and, in tests, the output of every rank. `__cause__` is the exception that the rank
    raised.

    Args:
        message: the whole message.
        outcomes: the outcome of each worker (`replicax.testing.Outcome`), in rank order; empty for Ray.
    """

    def __init__(self, message: str, outcomes: Sequence[Any] = ()) -> None:
        """Store `outcomes` with the message."""
        super().__init__(message)
        self.outcomes = tuple(outcomes)


class WorkerFailedError(ReplicaxError, _status.UnavailableError, RuntimeError):
    """Another worker of the cluster has failed, so this one can't continue.

    Raised in the main thread, wherever it is, so that `except` and `finally` blocks run. The other workers
    can't continue either: save nothing that needs them, and restart all workers from the last checkpoint.
    """

    rank: int = -1
    """The index of the worker that failed."""
    step: int = 0
    """How many collectives it had started."""
    worker_traceback: str = ""
    """Its traceback, or its stack if it is stuck."""


class WorkerLostError(WorkerFailedError, ConnectionError):
    """The process of another worker has died: killed, out of memory, or crashed in native code."""


class WorkerStuckError(WorkerFailedError, TimeoutError):
    """Others have waited for a worker longer than `ClusterOptions.stuck_timeout_seconds`.

    The message has the stacks of all workers.
    """


class WorkerLeftError(WorkerFailedError):
    """The program of another worker has ended, but this one waits for it in a collective."""


class InputError(ReplicaxError, _status.InvalidArgumentError, ValueError):
    """A dataset or one of its batches can't be distributed.

    Raised for batches whose arrays have different numbers of rows or none, for a batch that does not match
    the first one, for a second pass over an iterator that can be read only once, and for invalid positions
    and options.
    """


class MissingFilesError(_status.NotFoundError, InputError, FileNotFoundError):
    """The files of a dataset do not exist."""


class NotADatasetError(ReplicaxError, TypeError, AttributeError):
    """Something that does not yield batches, such as an array or a number, was passed as a dataset."""


class InputModeError(ReplicaxError, NotImplementedError):
    """A replication mode was requested where it does not apply.

    `InputReplicationMode.PER_REPLICA` needs a function that makes a dataset for each replica:
    `strategy.distribute_datasets_from_function`.
    """


class OutOfRangeError(ReplicaxError, _status.OutOfRangeError, LookupError):
    """`iterator.get_next()` was called after the last batch."""


class CheckpointError(ReplicaxError, RuntimeError):
    """A checkpoint could not be written or read. Other checkpoints in its folder are unchanged."""


class CheckpointMissingError(CheckpointError, _status.NotFoundError, FileNotFoundError):
    """The checkpoint does not exist."""


class CheckpointMismatchError(CheckpointError, ValueError, AssertionError):
    """A checkpoint does not match the objects to restore; nothing was restored."""
