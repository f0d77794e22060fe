"""`tf.train`: checkpoints and cluster specs. For optimizers, use `rx.Optimizer` with optax.

Checkpoints are in Replicax's own format. TensorFlow's can be read: `load_checkpoint` returns their values,
and `Checkpoint.restore` assigns them to variables with the same path.
"""

from __future__ import annotations

import os
import pathlib
from collections.abc import Callable, Mapping
from typing import Any, final

import jax.numpy as jnp
import numpy as np

from replicax import checkpoint as core
from replicax.checkpoint import Store, track
from replicax.cluster import ClusterDef, ClusterSpec, JobDef
from replicax.errors import CheckpointError, CheckpointMismatchError, CheckpointMissingError
from replicax.tf._checkpoint_states import (
    CheckpointState,
    checkpoints_iterator,
    get_checkpoint_state,
    latest_checkpoint,
)
from replicax.tf._missing import refuse
from replicax.tf._moving_average import ExponentialMovingAverage
from replicax.tf._tensorflow_checkpoint import is_tensorflow_checkpoint, read_tensorflow_checkpoint
from replicax.tf.io._messages import BytesList, Example, Feature, Features, FloatList, Int64List
from replicax.types import VariableAggregation
from replicax.variables import Variable

__all__ = [
    "BytesList",
    "Checkpoint",
    "CheckpointManager",
    "CheckpointReader",
    "CheckpointState",
    "ClusterDef",
    "ClusterSpec",
    "Example",
    "ExponentialMovingAverage",
    "Feature",
    "Features",
    "FloatList",
    "Int64List",
    "JobDef",
    "checkpoints_iterator",
    "get_checkpoint_state",
    "latest_checkpoint",
    "list_variables",
    "load_checkpoint",
    "load_variable",
]


class Checkpoint(core.Checkpoint):
    """`rx.Checkpoint`, with checkpoints named like `ckpt-1`.

    Args:
        root: an object to save, under the name `root`.
        **kwargs: the objects to save, by name.

    >>> import tempfile
    >>> from replicax import tf
    >>> v = tf.Variable(1.0)
    >>> checkpoint = tf.train.Checkpoint(v=v)
    >>> path = checkpoint.save(tempfile.mkdtemp() + "/ckpt")
    >>> path.rsplit("/", 1)[1]
    'ckpt-1'
    >>> _ = v.assign(2.0)
    >>> _ = checkpoint.restore(path).assert_consumed()
    >>> v.numpy()
    array(1., dtype=float32)
    """

    def __init__(self, root: Any = None, **kwargs: Any) -> None:
        self._counter: Variable | None = None
        super().__init__(**kwargs if root is None else {"root": root, **kwargs})

    @property
    def save_counter(self) -> Variable:
        """A variable that counts calls of `save`, and is saved, too."""
        if self._counter is None:
            self._counter = _new_counter()
        return self._counter

    def _objects(self) -> dict[str, Any]:
        counter = {} if self._counter is None else {"save_counter": self._counter}
        return super()._objects() | counter

    def save(self, file_prefix: str | os.PathLike[str], options: Any = None) -> str:  # type: ignore[override]
        """Write a checkpoint `file_prefix-n`, where n is the next free number from 1.

        All workers of a cluster call this, and the first one writes. The others may pass different paths,
        as in TensorFlow; the folders of these are created but stay empty.

        Returns:
            Its path.
        """
        _refuse_options(options)
        path = pathlib.Path(file_prefix)
        store = Store(path.parent, prefix=f"{path.name}-", own_folders=True)
        self.save_counter.assign(max(store.next_step(1), int(self.save_counter) + 1))
        return self._save_into(store, first=int(self.save_counter))

    def restore(self, save_path: str | os.PathLike[str] | None, options: Any = None) -> Any:  # type: ignore[override]
        """Restore all objects from a checkpoint; None leaves them unchanged."""
        _refuse_options(options)
        if save_path is not None and is_tensorflow_checkpoint(save_path):
            return self._restore_tensorflow(save_path)
        return NothingRestored() if save_path is None else super().restore(save_path)

    read = restore

    def _restore_tensorflow(self, path: str | os.PathLike[str]) -> ForeignRestored:
        """Assign the values that TensorFlow saved to variables with the same path."""
        saved = read_tensorflow_checkpoint(path)
        values = {name.removesuffix(_SUFFIX): value for name, value in saved.items()}
        _ = self.save_counter if "save_counter" in values else None
        things = track(self._objects())
        variables = {name: thing for name, thing in things.items() if isinstance(thing, Variable)}
        for name in variables.keys() & values.keys():
            if variables[name].shape != values[name].shape:
                raise CheckpointError(
                    f"{os.fspath(path)} has {name} with the shape {list(values[name].shape)}, but the "
                    f"variable has the shape {list(variables[name].shape)}. Nothing was restored."
                )
        for name in variables.keys() & values.keys():
            variables[name].assign(jnp.asarray(values[name], variables[name].dtype))
        missing, unused = sorted(variables.keys() - values.keys()), sorted(values.keys() - variables.keys())
        return ForeignRestored(os.fspath(path), missing, unused, len(variables) - len(missing))

    def restore_saved(self, saved: Any, where: str) -> Any:
        """Restore what was read; checkpoints from `save` include the counter."""
        if "save_counter" in saved.document["entries"]:
            _ = self.save_counter
        return super().restore_saved(saved, where)

    def write(self, file_prefix: str | os.PathLike[str], options: Any = None) -> str:
        """Write a checkpoint `file_prefix`, without a number; `read` restores it.

        The checkpoint is a folder; one from an earlier `write` is replaced.
        """
        _refuse_options(options)
        self._save_into(Store(file_prefix, max_to_keep=1, managed=True, own_folders=True), first=0)
        return str(file_prefix)

    def sync(self) -> None:
        """Do nothing: `save` and `write` wait until the checkpoint is complete."""


def _new_counter() -> Variable:
    make: Any = Variable
    return make(
        np.int32(0),
        trainable=False,
        name="save_counter",
        aggregation=VariableAggregation.ONLY_FIRST_REPLICA,
    )


def _refuse_options(options: Any) -> None:
    if options is not None:
        raise ValueError("CheckpointOptions are for TensorFlow's file format. Leave out `options`.")


@final
class NothingRestored:
    """What `restore(None)` returns: nothing was restored."""

    def assert_consumed(self) -> NothingRestored:
        """Raise, because nothing was restored."""
        raise CheckpointMismatchError("Nothing was restored: restore() was called with None.")

    assert_existing_objects_matched = assert_nontrivial_match = assert_consumed

    def run_restore_ops(self, session: None = None) -> None:
        """No effect."""

    initialize_or_restore = run_restore_ops

    def expect_partial(self) -> NothingRestored:
        """No effect."""
        return self


@final
class ForeignRestored:
    """What restoring a TensorFlow checkpoint returns."""

    def __init__(self, where: str, missing: list[str], unused: list[str], num_restored: int) -> None:
        self.missing, self.unused = missing, unused
        self._where, self._num_restored = where, num_restored

    def _require(self, matched: bool) -> ForeignRestored:
        if not matched:
            raise CheckpointMismatchError(
                f"The TensorFlow checkpoint {self._where} was not restored completely. It has no values "
                f"for {self.missing}, and unused values for {self.unused}. Variables are matched by their "
                "path: the names given to tf.train.Checkpoint, then the names of attributes."
            )
        return self

    def assert_consumed(self) -> ForeignRestored:
        """Raise unless everything matched, in both directions."""
        return self._require(not self.missing and not self.unused)

    def assert_existing_objects_matched(self) -> ForeignRestored:
        """Raise unless all variables of this program were restored."""
        return self._require(not self.missing)

    def assert_nontrivial_match(self) -> ForeignRestored:
        """Raise if nothing was restored."""
        return self._require(self._num_restored > 0)

    def expect_partial(self) -> ForeignRestored:
        """Do nothing: mismatches are not logged."""
        return self

    def run_restore_ops(self, session: None = None) -> None:
        """No effect."""

    initialize_or_restore = run_restore_ops


@final
class CheckpointManager:
    """Keeps the newest checkpoints in a directory. `rx.CheckpointManager` can save in the background.

    Args:
        checkpoint: the checkpoint to save.
        directory: the directory. The first worker of a cluster writes there; if the others pass different
            directories, these are created but stay empty.
        max_to_keep: how many checkpoints to keep; None keeps all.
        keep_checkpoint_every_n_hours: must be None.
        checkpoint_name: the prefix of the checkpoints' names.
        step_counter: a variable that counts steps.
        checkpoint_interval: the minimum number of steps between two checkpoints.
        init_fn: called by `restore_or_initialize` if there is no checkpoint.

    >>> import tempfile
    >>> from replicax import tf
    >>> checkpoint = tf.train.Checkpoint(v=tf.Variable(1.0))
    >>> manager = tf.train.CheckpointManager(checkpoint, tempfile.mkdtemp(), max_to_keep=2)
    >>> for _ in range(3):
    ...     _ = manager.save()
    >>> [path.rsplit("/", 1)[1] for path in manager.checkpoints]
    ['ckpt-2', 'ckpt-3']
    """

    def __init__(
        self,
        checkpoint: core.Checkpoint,
        directory: str | os.PathLike[str],
        max_to_keep: int | None,
        keep_checkpoint_every_n_hours: float | None = None,
        checkpoint_name: str = "ckpt",
        step_counter: Any = None,
        checkpoint_interval: int | None = None,
        init_fn: Callable[[], Any] | None = None,
    ) -> None:
        if keep_checkpoint_every_n_hours is not None:
            raise ValueError(
                "CheckpointManager(keep_checkpoint_every_n_hours=...): checkpoints are kept by number, not "
                "by age. Pass max_to_keep, or max_to_keep=None to keep all."
            )
        if (checkpoint_interval is None) != (step_counter is None):
            raise ValueError(
                "CheckpointManager: pass both `step_counter` and `checkpoint_interval`, or neither."
            )
        prefix = f"{checkpoint_name}-"
        self._manager = core.CheckpointManager(
            checkpoint, directory, max_to_keep, asynchronous=False, prefix=prefix, own_folders=True
        )
        self._store = Store(directory, prefix=prefix)
        self.checkpoint = checkpoint
        self.checkpoint_interval = checkpoint_interval
        self._counter, self._init, self._last = step_counter, init_fn, None

    @property
    def directory(self) -> str:
        """The directory of the checkpoints."""
        return self._manager.directory

    @property
    def checkpoints(self) -> list[str]:
        """The paths of the checkpoints, oldest first."""
        return [str(self._store.path(step)) for step in self._store.steps()]

    @property
    def latest_checkpoint(self) -> str | None:
        """The path of the newest checkpoint; None if there is none."""
        return self._manager.latest_checkpoint

    def save(
        self, checkpoint_number: Any = None, check_interval: bool = True, options: Any = None
    ) -> str | None:
        """Save a checkpoint, unless the last one is less than `checkpoint_interval` steps old.

        Returns:
            Its path; None if nothing was saved.
        """
        _refuse_options(options)
        step = None if self._counter is None else int(self._counter)
        if check_interval and self._is_early(step):
            return None
        number = self._next_number() if checkpoint_number is None else int(checkpoint_number)
        self._manager.save(number)
        self._last = step
        return str(self._store.path(number))

    def _next_number(self) -> int:
        """The number after the newest checkpoint, and after those that the save counter has counted."""
        number = max(self._store.steps(), default=0) + 1
        if isinstance(self.checkpoint, Checkpoint):
            number = max(number, int(self.checkpoint.save_counter) + 1)
            self.checkpoint.save_counter.assign(number)
        return number

    @property
    def last_checkpoint_step(self) -> int | None:
        """The value of `step_counter` at the last checkpoint."""
        return self._last

    def sync(self) -> None:
        """Do nothing: `save` waits until the checkpoint is complete."""

    def _is_early(self, step: int | None) -> bool:
        if step is None or self._last is None or self.checkpoint_interval is None:
            return False
        return step - self._last < self.checkpoint_interval

    def restore_or_initialize(self) -> str | None:
        """Restore the newest checkpoint; if there is none, call `init_fn`.

        Returns:
            The path of the checkpoint; None if there is none.
        """
        step = self._manager.restore_or_initialize()
        if step is not None:
            return str(self._store.path(step))
        if self._init is not None:
            self._init()
        return None


@final
class CheckpointReader:
    """The values in a checkpoint; created by `tf.train.load_checkpoint`."""

    def __init__(self, values: Mapping[str, np.ndarray]) -> None:
        self._values = values

    def get_variable_to_shape_map(self) -> dict[str, list[int]]:
        """The shape of each value, by name."""
        return {name: list(value.shape) for name, value in self._values.items()}

    def get_variable_to_dtype_map(self) -> dict[str, np.dtype]:
        """The dtype of each value, by name."""
        return {name: value.dtype for name, value in self._values.items()}

    def has_tensor(self, tensor_str: str) -> bool:
        """Whether there is a value with this name."""
        return tensor_str in self._values

    def get_tensor(self, tensor_str: str) -> np.ndarray:
        """The value with this name."""
        if tensor_str not in self._values:
            names = ", ".join(sorted(self._values)) or "no values"
            raise CheckpointMissingError(f"The checkpoint has no {tensor_str!r}; it has {names}.")
        return self._values[tensor_str]


_SUFFIX = "/.ATTRIBUTES/VARIABLE_VALUE"


def load_checkpoint(ckpt_dir_or_file: str | os.PathLike[str]) -> CheckpointReader:
    """Read the values of a checkpoint, also of one that TensorFlow wrote, without its objects.

    Names end with TensorFlow's suffix.

    >>> import tempfile
    >>> from replicax import tf
    >>> path = tf.train.Checkpoint(v=tf.Variable([1.0, 2.0])).save(tempfile.mkdtemp() + "/ckpt")
    >>> tf.train.load_checkpoint(path).get_tensor("v/.ATTRIBUTES/VARIABLE_VALUE")
    array([1., 2.], dtype=float32)
    """
    if is_tensorflow_checkpoint(ckpt_dir_or_file):
        return CheckpointReader(read_tensorflow_checkpoint(ckpt_dir_or_file))
    path = pathlib.Path(ckpt_dir_or_file)
    newest = latest_checkpoint(path)
    content = core.read_content(path if newest is None else newest)
    arrays = {name: x for name, x in content.arrays.items() if name in content.document["entries"]}
    return CheckpointReader({f"{name}{_SUFFIX}": value for name, value in arrays.items()})


def list_variables(ckpt_dir_or_file: str | os.PathLike[str]) -> list[tuple[str, list[int]]]:
    """The names and shapes of the values in a checkpoint."""
    return sorted(load_checkpoint(ckpt_dir_or_file).get_variable_to_shape_map().items())


def load_variable(ckpt_dir_or_file: str | os.PathLike[str], name: str) -> np.ndarray:
    """One value of a checkpoint."""
    return load_checkpoint(ckpt_dir_or_file).get_tensor(name)


_OPTAX = "`rx.Optimizer` on a transformation of optax, such as `rx.Optimizer(optax.adam(1e-3))`"

__getattr__ = refuse(
    "tf.train",
    {
        "AdamOptimizer": _OPTAX,
        "CheckpointOptions": "nothing: they are for TensorFlow's file format",
        "GradientDescentOptimizer": _OPTAX,
        "MomentumOptimizer": _OPTAX,
        "SequenceExample": "`tf.train.Example`, with the sequences as features",
        "Saver": "`tf.train.Checkpoint`",
    },
)
