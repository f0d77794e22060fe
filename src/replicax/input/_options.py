"""Input options, sharding policies, and the context that a dataset function receives."""

from __future__ import annotations

import dataclasses
import enum
from typing import Any, Literal, final

import numpy as np

from replicax.errors import InputError

__all__ = ["AutoShardPolicy", "InputContext", "InputOptions", "InputReplicationMode", "PartialBatch"]

PartialBatch = Literal["exact", "pad", "drop", "error"]


class AutoShardPolicy(enum.Enum):
    """How several input pipelines (one per process) share a dataset.

    With one pipeline, every policy yields the same batches.

    >>> rx.AutoShardPolicy.DATA
    <AutoShardPolicy.DATA: 2>
    """

    OFF = -1
    """Every pipeline reads the whole dataset, so each pipeline sees every example once."""
    AUTO = 0
    """FILE if there are at least as many files as pipelines, otherwise DATA."""
    FILE = 1
    """Every pipeline reads some of the files, and makes its replicas' part of each batch from those."""
    DATA = 2
    """Every pipeline reads all global batches and keeps its replicas' rows. The order of examples is the
    same as with one pipeline."""
    HINT = 3
    """A `tf.data` dataset is sharded where it contains `SHARD_HINT`."""


class InputReplicationMode(enum.Enum):
    """How often `distribute_datasets_from_function` calls the dataset function.

    >>> rx.InputReplicationMode("PER_REPLICA")
    <InputReplicationMode.PER_REPLICA: 'PER_REPLICA'>
    """

    PER_WORKER = "PER_WORKER"
    """Once per process; its replicas take batches from that dataset in turn."""
    PER_REPLICA = "PER_REPLICA"
    """Once per replica, so each replica reads its own dataset."""


@final
@dataclasses.dataclass(frozen=True)
class InputContext:
    """Tells a dataset function which part of the input to make.

    Args:
        num_input_pipelines: the number of datasets in all processes.
        input_pipeline_id: the index of this dataset, from 0.
        num_replicas_in_sync: the number of replicas in all processes.

    >>> context = rx.InputContext(num_input_pipelines=2, input_pipeline_id=1, num_replicas_in_sync=4)
    >>> context.get_per_replica_batch_size(64)
    16
    """

    num_input_pipelines: int = 1
    input_pipeline_id: int = 0
    num_replicas_in_sync: int = 1

    def get_per_replica_batch_size(self, global_batch_size: int) -> int:
        """The batch size of one replica.

        Args:
            global_batch_size: the batch size of all replicas together.

        Raises:
            InputError: `global_batch_size` is not a multiple of the number of replicas.

        >>> rx.InputContext(num_replicas_in_sync=4).get_per_replica_batch_size(10)
        Traceback (most recent call last):
        replicax.errors.InputError: A global batch size of 10 is not divisible by 4 replicas; use 8 or 12.
        """
        size, rest = divmod(global_batch_size, self.num_replicas_in_sync)
        if rest:
            count = self.num_replicas_in_sync
            below = f"{size * count} or " if size else ""
            raise InputError(
                f"A global batch size of {global_batch_size} is not divisible by {count} replicas; "
                f"use {below}{(size + 1) * count}."
            )
        return size


_ALIASES = {
    "experimental_fetch_to_device": "fetch_to_device",
    "experimental_prefetch_to_device": "fetch_to_device",
    "experimental_replication_mode": "replication_mode",
    "experimental_place_dataset_on_device": "place_dataset_on_device",
    "experimental_per_replica_buffer_size": "per_replica_buffer_size",
}


_DEFAULTS: dict[str, Any] = {
    "fetch_to_device": None,
    "replication_mode": InputReplicationMode.PER_WORKER,
    "place_dataset_on_device": False,
    "per_replica_buffer_size": 2,
}


@final
@dataclasses.dataclass(frozen=True, init=False)
class InputOptions:
    """How a dataset is distributed.

    Args:
        fetch_to_device: whether to move batches to the replicas' devices ahead of the step; None means
            True. False leaves them in host memory, as NumPy arrays.
        replication_mode: how often `distribute_datasets_from_function` calls its function.
        place_dataset_on_device: TensorFlow's other option for batches on the devices; it needs
            `PER_REPLICA` and `fetch_to_device=False`.
        per_replica_buffer_size: how many batches a background thread prefetches. 0 reads each batch only
            on request.
        partial_batch: what to do with a batch that does not have the full number of examples for every
            replica, most often the last one.

            - "exact" gives every replica only real rows: sizes differ by at most one, and some replicas get
              no rows if there are fewer rows than replicas.
            - "pad" adds rows that do not count, so that all steps have the same shapes;
              `rx.get_replica_context().example_mask` is True for the rows that count, and reductions over
              axis 0 ignore the others.
            - "drop" skips the batch.
            - "error" raises.
        auto_shard_policy: how several pipelines share the dataset.
        **aliases: the same options under TensorFlow's names, `experimental_fetch_to_device` and so on.

    >>> options = rx.InputOptions(experimental_fetch_to_device=False, partial_batch="drop")
    >>> options.fetch_to_device, options.partial_batch
    (False, 'drop')
    """

    fetch_to_device: bool | None
    replication_mode: InputReplicationMode
    place_dataset_on_device: bool
    per_replica_buffer_size: int
    partial_batch: PartialBatch
    auto_shard_policy: AutoShardPolicy

    def __init__(
        self,
        fetch_to_device: bool | None = None,
        replication_mode: InputReplicationMode | str = InputReplicationMode.PER_WORKER,
        place_dataset_on_device: bool = False,
        per_replica_buffer_size: int = 2,
        partial_batch: PartialBatch = "exact",
        auto_shard_policy: AutoShardPolicy | str = AutoShardPolicy.AUTO,
        **aliases: Any,
    ) -> None:
        given = {
            "fetch_to_device": fetch_to_device,
            "replication_mode": replication_mode,
            "place_dataset_on_device": place_dataset_on_device,
            "per_replica_buffer_size": per_replica_buffer_size,
            "partial_batch": partial_batch,
            "auto_shard_policy": auto_shard_policy,
        }
        for alias, value in aliases.items():
            if alias not in _ALIASES:
                names = ", ".join((*given, *_ALIASES))
                raise TypeError(f"InputOptions has no option {alias!r}; it has {names}.")
            name = _ALIASES[alias]
            if given[name] != _DEFAULTS[name] and given[name] != value:
                raise InputError(f"InputOptions got both {name} and {alias}, which are the same option.")
            given[name] = value
        given["replication_mode"] = _member(InputReplicationMode, given["replication_mode"])
        given["auto_shard_policy"] = _member(AutoShardPolicy, given["auto_shard_policy"])
        for name, value in given.items():
            object.__setattr__(self, name, value)
        self._check()

    def _check(self) -> None:
        for name in ("fetch_to_device", "place_dataset_on_device"):
            if not isinstance(getattr(self, name), bool | None):
                raise InputError(f"InputOptions({name}={getattr(self, name)!r}): pass True or False.")
        size = self.per_replica_buffer_size
        if isinstance(size, bool) or not isinstance(size, int | np.integer) or size < 0:
            raise InputError(f"InputOptions(per_replica_buffer_size={size!r}): pass 0, 1, 2, ...")
        if self.partial_batch not in ("exact", "pad", "drop", "error"):
            raise InputError(
                f"InputOptions(partial_batch={self.partial_batch!r}): choose 'exact', 'pad', 'drop' or "
                "'error'."
            )
        if self.partial_batch == "pad" and not self.on_device:
            raise InputError(
                "InputOptions(partial_batch='pad', fetch_to_device=False): a padded batch and its mask "
                "must be on the devices. Leave out fetch_to_device."
            )

    @property
    def on_device(self) -> bool:
        """Whether batches go to the replicas' devices."""
        return self.fetch_to_device is not False or self.place_dataset_on_device

    def __getattr__(self, name: str) -> Any:
        if name in _ALIASES:
            return getattr(self, _ALIASES[name])
        raise AttributeError(f"InputOptions has no attribute {name!r}.")


def _member(kind: type[enum.Enum], value: Any) -> Any:
    """The member of an enum that `value` is or names; accepts TensorFlow's enum of the same name too."""
    name = value if isinstance(value, str) else getattr(value, "name", None)
    if not isinstance(value, kind) and name not in kind.__members__:
        raise InputError(
            f"{value!r} is not an {kind.__name__}; choose one of {', '.join(kind.__members__)}."
        )
    return value if isinstance(value, kind) else kind[str(name)]
