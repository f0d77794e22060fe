import concurrent.futures
import inspect
import json

import pytest

from replicax import errors

BUILTINS = {
    errors.UnsupportedJaxError: [ImportError],
    errors.DeviceError: [ValueError],
    errors.BackendStartedError: [ValueError, RuntimeError],
    errors.RepeatedDeviceError: [ValueError, AssertionError],
    errors.ArgumentKindError: [ValueError, AssertionError],
    errors.PerReplicaUseError: [TypeError, ValueError],
    errors.OpArgumentError: [TypeError, ValueError],
    errors.StructureMismatchError: [ValueError, AssertionError],
    errors.ContextError: [RuntimeError],
    errors.VariableError: [ValueError],
    errors.VariableTypeError: [ValueError, TypeError],
    errors.OutOfMemoryError: [MemoryError, RuntimeError],
    errors.TracingError: [RuntimeError],
    errors.TracedValueError: [TypeError],
    errors.CollectiveError: [ValueError],
    errors.CollectiveMismatchError: [ValueError, RuntimeError],
    errors.ReduceOpTypeError: [TypeError, AssertionError],
    errors.CollectiveTimeoutError: [TimeoutError],
    errors.ClusterError: [ValueError],
    errors.ClusterFormatError: [ValueError, json.JSONDecodeError],
    errors.NotInClusterError: [ValueError, RuntimeError],
    errors.OverlappingTasksError: [ValueError, KeyError],
    errors.ClusterTimeoutError: [TimeoutError],
    errors.WorkerFailedError: (RuntimeError,),
    errors.WorkerLostError: (RuntimeError, ConnectionError),
    errors.WorkerStuckError: (RuntimeError, TimeoutError),
    errors.WorkerLeftError: (RuntimeError,),
    errors.CancelledError: [concurrent.futures.CancelledError],
    errors.RunFailedError: [RuntimeError, AssertionError],
    errors.InputError: [ValueError],
    errors.MissingFilesError: [ValueError, FileNotFoundError],
    errors.NotADatasetError: [TypeError, AttributeError],
    errors.InputModeError: [NotImplementedError],
    errors.OutOfRangeError: [LookupError],
    errors.CheckpointError: [RuntimeError],
    errors.CheckpointMissingError: [RuntimeError, FileNotFoundError],
    errors.CheckpointMismatchError: [RuntimeError, ValueError, AssertionError],
}


@pytest.mark.parametrize("error", BUILTINS)
def test_is_caught_as_the_builtins_that_tensorflow_users_catch(error):
    for builtin in [errors.ReplicaxError, *BUILTINS[error]]:
        with pytest.raises(builtin, match="what went wrong"):
            raise error("what went wrong")


def test_the_tree_is_complete():
    classes = {
        error
        for _, error in inspect.getmembers(errors, inspect.isclass)
        if error.__module__ == errors.__name__
    }
    assert classes == {errors.ReplicaxError, *BUILTINS}
    assert {error.__name__ for error in classes} == set(errors.__all__)


@pytest.mark.parametrize("name", errors.__all__)
def test_the_tree_in_the_header_names_every_class(name):
    assert f" {name} " in f" {errors.__doc__} ".replace("\n", " ")
    assert getattr(errors, name).__doc__
