"""Everything Replicax raises on purpose, in one tree.

Each class is also the builtin that a `tf.distribute` user already catches: `except ValueError`
around ported code goes on working, and `except ReplicaxError` tells Replicax's complaints from all
others.

    ReplicaxError
    ├── DeviceError                (ValueError)                  a device that can't be used
    │   ├── BackendStartedError    (and RuntimeError)            too late to change the devices or to join
    │   └── RepeatedDeviceError    (and AssertionError)          a device is named twice
    ├── StructureMismatchError     (ValueError, AssertionError)  replicas disagree about a structure
    ├── ContextError               (RuntimeError)                a call in the wrong place
    ├── VariableError              (ValueError)                  a bad creation or write
    ├── TracingError               (RuntimeError)                a variable inside a foreign trace
    ├── TracedValueError           (TypeError)                   a traced value used as a Python number
    ├── CollectiveError            (ValueError)                  a reduction that can't be done
    ├── ArgumentKindError          (ValueError, AssertionError)  another kind of thing was expected
    ├── PerReplicaUseError         (TypeError, ValueError)       a value per replica used as one value
    ├── ReduceOpTypeError          (TypeError, AssertionError)   not a kind of reduction at all
    ├── CollectiveTimeoutError     (TimeoutError)                the replicas did not all arrive
    ├── ClusterError               (ValueError)                  a cluster that makes no sense
    │   ├── ClusterFormatError     (and json.JSONDecodeError)    a TF_CONFIG that is no JSON
    │   └── NotInClusterError      (and RuntimeError)            nobody has started this process as a task
    ├── ClusterTimeoutError        (TimeoutError)                a task of the cluster did not come
    ├── InputError                 (ValueError)                  batches that can't be distributed
    │   └── MissingFilesError      (and FileNotFoundError)       a dataset without its files
    ├── NotADatasetError           (TypeError, AttributeError)   something that gives no batches
    ├── InputModeError             (NotImplementedError)         a way of reading that has no meaning here
    ├── OutOfRangeError            (LookupError)                 `get_next` after the last batch
    └── CheckpointError            (RuntimeError)                a checkpoint that can't be written or read
        ├── CheckpointMissingError (and FileNotFoundError)       there is none
        └── CheckpointMismatchError (and ValueError, AssertionError)  it is of other objects
"""

from __future__ import annotations

import json

__all__ = [
    "ArgumentKindError",
    "BackendStartedError",
    "CheckpointError",
    "CheckpointMismatchError",
    "CheckpointMissingError",
    "ClusterError",
    "ClusterFormatError",
    "ClusterTimeoutError",
    "CollectiveError",
    "CollectiveTimeoutError",
    "ContextError",
    "DeviceError",
    "InputError",
    "InputModeError",
    "MissingFilesError",
    "NotADatasetError",
    "NotInClusterError",
    "OutOfRangeError",
    "PerReplicaUseError",
    "ReduceOpTypeError",
    "RepeatedDeviceError",
    "ReplicaxError",
    "StructureMismatchError",
    "TracedValueError",
    "TracingError",
    "VariableError",
]


class ReplicaxError(Exception):
    """The root: catches whatever Replicax itself complains about.

    It is never raised as such, only mixed into a builtin exception.

    >>> from replicax.errors import ReplicaxError
    >>> try:
    ...     rx.set_cpu_devices(0)
    ... except ReplicaxError as error:
    ...     print(type(error).__name__, isinstance(error, ValueError))
    DeviceError True
    """


class DeviceError(ReplicaxError, ValueError):
    """A device does not exist, is named twice, is not spelled as a device, or mixes platforms.

    Raised where devices are named: the constructor of a strategy, a reduction's destination,
    `rx.set_cpu_devices`. The message lists the devices that exist.
    """


class BackendStartedError(DeviceError, RuntimeError):
    """`rx.set_cpu_devices`, or a strategy that joins a cluster, came after JAX had started without it.

    JAX fixes its devices when it is first used and can't change them in a running process.
    """


class RepeatedDeviceError(DeviceError, AssertionError):
    """A device was named twice in the list of a strategy's devices: it can run one replica only."""


class StructureMismatchError(ReplicaxError, ValueError, AssertionError):
    """The replicas returned, or passed to a `merge_call`, different structures.

    Raised when they are merged: one replica has a tuple and another a dict, or lists of different
    lengths. Shapes may differ between replicas; structures may not.
    """


class ContextError(ReplicaxError, RuntimeError):
    """A call was made in a context that does not allow it.

    Raised for a cross-replica method inside a replica function and the reverse, for an object of
    one strategy used under another, for scopes closed in the wrong order, and when some replicas
    call `merge_call` more often than others.
    """


class VariableError(ReplicaxError, ValueError):
    """A variable was created or written in a way that its policy does not define.

    Raised for a combination of synchronization and aggregation that means nothing, for a replica's
    write to a variable without aggregation, and for a value of the wrong shape or dtype.
    """


class TracingError(ReplicaxError, RuntimeError):
    """A variable was touched while somebody else's program was being traced.

    Raised when a plain `jax.jit` meets a `Variable`, whose value it would freeze as a constant, and
    for a write inside `jax.lax` control flow, which would escape from it. `rx.function` is the way
    to compile code with variables.
    """


class TracedValueError(ReplicaxError, TypeError):
    """A compiled step or replica function used a traced value, often the replica id, as a Python number.

    There is no number yet when a step is traced, and one program serves all replicas.
    """


class CollectiveError(ReplicaxError, ValueError):
    """A reduction, gather or broadcast was asked for that can't be done.

    Raised for an unknown reduction, an axis that a value does not have, values whose shapes or
    dtypes do not fit together, and an algorithm that the platform does not offer.
    """


class ArgumentKindError(ReplicaxError, ValueError, AssertionError):
    """Something of another kind was expected: a variable, devices that the strategy named, one device.

    Raised by the methods of `strategy.extended`, before anything is changed.
    """


class PerReplicaUseError(ReplicaxError, TypeError, ValueError):
    """A `PerReplica` was used as one array or number outside of a replica function."""


class ReduceOpTypeError(ReplicaxError, TypeError, AssertionError):
    """Something that is neither a `ReduceOp` nor a string was passed as a reduction.

    Most often a `VariableAggregation`, whose members have the same names.
    """


class CollectiveTimeoutError(ReplicaxError, TimeoutError):
    """A collective did not finish within `CommunicationOptions.timeout_seconds`.

    Usually a peer has died or runs another program. The collective can't be resumed: restart from
    the last checkpoint.
    """


class ClusterError(ReplicaxError, ValueError):
    """A cluster makes no sense, or this process has no place in it.

    Raised for a job or task that is not there, for jobs that a strategy can't use, and when JAX has joined
    another cluster already.
    """


class ClusterFormatError(ClusterError, json.JSONDecodeError):
    """The environment variable TF_CONFIG is not JSON; the message says where it goes wrong."""

    def __init__(self, msg: str, doc: str = "", pos: int = 0) -> None:
        """What is wrong, in which text, and at which of its characters."""
        super().__init__(msg, doc, pos)


class NotInClusterError(ClusterError, RuntimeError):
    """A resolver asks the system that started this process, and it was not started by that."""


class ClusterTimeoutError(ReplicaxError, TimeoutError):
    """Not all tasks of a cluster came together in time; the message names those that were awaited."""


class InputError(ReplicaxError, ValueError):
    """A dataset or one of its batches can't be distributed.

    Raised for batches whose arrays have different numbers of rows or none, for a batch that is not like
    the first one, for a second pass over an iterator that can be read only once, and for positions and
    options that do not fit.
    """


class MissingFilesError(InputError, FileNotFoundError):
    """The files of a dataset are not there."""


class NotADatasetError(ReplicaxError, TypeError, AttributeError):
    """Something was distributed that gives no batches, such as an array or a number."""


class InputModeError(ReplicaxError, NotImplementedError):
    """A replication mode was asked for where it has no meaning.

    `InputReplicationMode.PER_REPLICA` needs a function that makes a dataset for each replica:
    `strategy.distribute_datasets_from_function`.
    """


class OutOfRangeError(ReplicaxError, LookupError):
    """`iterator.get_next()` was called after the last batch."""


class CheckpointError(ReplicaxError, RuntimeError):
    """A checkpoint could not be written or read. The others in its folder are as they were."""


class CheckpointMissingError(CheckpointError, FileNotFoundError):
    """There is no such checkpoint."""


class CheckpointMismatchError(CheckpointError, ValueError, AssertionError):
    """A checkpoint does not fit the objects that it was to be restored into; nothing was restored."""
