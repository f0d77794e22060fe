"""`DistributedDataset`: what `strategy.distribute_dataset` returns."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Sequence
from typing import Any, Generic, NoReturn, TypeVar, final

import jax
import numpy as np

from replicax.contexts import enter_default
from replicax.errors import InputError, InputModeError, NotADatasetError
from replicax.input._batch import device_dtype, spec_of
from replicax.input._hints import RepeatedOrder
from replicax.input._iterator import DistributedIterator
from replicax.input._missing import length, no_attribute, refuse_pickling
from replicax.input._options import AutoShardPolicy, InputContext, InputOptions, InputReplicationMode
from replicax.input._partial import PartialBatches
from replicax.input._pipeline import Pipeline
from replicax.input._place import Placer
from replicax.input._plan import InputPlan, PipelinePlan
from replicax.input._producer import Pass
from replicax.input._recognise import find_source
from replicax.input._sharding import share
from replicax.input._source import INFINITE_CARDINALITY, UNKNOWN_CARDINALITY, Source
from replicax.input._stream import DealtStream, Stream
from replicax.topology import ReplicaMesh
from replicax.values import PerReplicaSpec, TensorSpec

__all__ = ["DistributedDataset", "Target", "distribute_dataset", "distribute_datasets_from_function"]

_Batch = TypeVar("_Batch")
_State = TypeVar("_State")


@final
class Target:
    """Where batches go: the devices of a strategy, and this process's part of the input.

    Args:
        mesh: the devices.
        pipeline: which replicas this process feeds.
        committed: whether values are committed to the devices.
    """

    def __init__(self, mesh: ReplicaMesh, pipeline: Pipeline, *, committed: bool) -> None:
        self.mesh, self.pipeline, self.committed = mesh, pipeline, committed


@final
class DistributedDataset(Generic[_Batch]):
    """Batches for the replicas of a strategy; made by `strategy.distribute_dataset`.

    You can loop over it any number of times. A batch has the structure of the dataset's batches, with
    per-replica values on the replicas' devices in place of arrays; with one replica, plain arrays.

    >>> strategy = rx.MirroredStrategy(["CPU:0", "CPU:1"])
    >>> dataset = strategy.distribute_dataset(rx.from_arrays(jnp.arange(10.0)).batch(4))
    >>> for batch in dataset:
    ...     print(strategy.reduce("MEAN", batch, axis=0))
    1.5
    5.5
    8.5
    """

    def __init__(
        self,
        target: Target,
        options: InputOptions,
        plan: InputPlan,
        sources: Sequence[Source],
        open_stream: Callable[[int, str], Stream],
        *,
        num_parts: int,
        layout: dict[str, Any],
        cardinality: int,
    ) -> None:
        self._target, self._options, self._plan = target, options, plan
        self._sources, self._num_parts = sources, num_parts
        self._open_stream, self._layout = open_stream, layout
        self._cardinality = cardinality
        self._num_passes = 0
        # Topics are named by dataset, so that one process may read a batch alone without confusing others.
        self._topic, self._topics = target.pipeline.new_topic(), itertools.count()
        self._placer = Placer(target.mesh, on_device=options.on_device, committed=target.committed)

    def __iter__(self) -> DistributedIterator[_Batch]:
        number, self._num_passes = self._num_passes, self._num_passes + 1
        return self._iterate(number, self._first_order() if number == 0 else None)

    def epoch(self, number: int) -> DistributedIterator[_Batch]:
        """One pass over the dataset in the order of epoch `number`, counted from 0.

        `for batch in dataset` counts the epochs for you. Pass the number if a program resumes at a later
        epoch, or distributes the dataset inside the loop over epochs. Later passes are counted from this
        one.

        Args:
            number: the epoch; with `repeat(n)`, a pass of n epochs.

        Raises:
            InputError: the epoch does not determine the order of this dataset. It does for `rx.from_arrays`
                and `rx.from_files`; other datasets define their own order.

        >>> strategy = rx.MirroredStrategy(["CPU:0", "CPU:1"])
        >>> dataset = strategy.distribute_dataset(rx.from_arrays(np.arange(4)).shuffle(seed=1).batch(4))
        >>> epochs = [strategy.gather(batch, axis=0) for _ in range(3) for batch in dataset]
        >>> [strategy.gather(batch, axis=0) for batch in dataset.epoch(2)][0] == epochs[2]
        Array([ True,  True,  True,  True], dtype=bool)
        """
        if isinstance(number, bool) or not isinstance(number, int | np.integer) or number < 0:
            raise InputError(f"dataset.epoch({number!r}): pass an epoch number: 0, 1, 2, ...")
        if not all(source.numbered for source in self._sources):
            raise InputError(
                f"dataset.epoch({number}) was called, but this dataset defines its own order. Loop over "
                "it with `for batch in dataset`, and shuffle each epoch where its batches are made; or use "
                "rx.from_arrays(...).shuffle(), whose order depends on the epoch."
            )
        self._num_passes = int(number) + 1
        return self._iterate(int(number), None)

    def _first_order(self) -> RepeatedOrder | None:
        shuffled_by = self._sources[0].shuffled_by
        if shuffled_by is None:
            return None
        anchor, seed = shuffled_by
        return RepeatedOrder(anchor, (seed, self._target.mesh))

    def _iterate(self, number: int, order: RepeatedOrder | None) -> DistributedIterator[_Batch]:
        this_pass = Pass(
            open=self._open_stream,
            new_topic=lambda: f"{self._topic}/{next(self._topics)}",
            layout=self._layout,
            element_spec=lambda: self.element_spec,
            placer=self._placer,
            partial_batches=lambda seen: PartialBatches(
                self._options.partial_batch, self._sources[0].batch_size or seen, self._num_parts
            ),
            buffer_size=self._options.per_replica_buffer_size,
            any_thread=self._any_thread,
            number=number,
            order=order,
        )
        return DistributedIterator(this_pass, self._continue_from)

    @property
    def _any_thread(self) -> bool:
        """Whether threads may take turns. Not if pipelines exchange messages: those can't be sent twice."""
        alone = self._plan.policy is AutoShardPolicy.DATA or self._target.pipeline.num_pipelines == 1
        return alone and all(source.any_thread for source in self._sources)

    def _continue_from(self, number: int) -> None:
        self._num_passes = number + 1

    @property
    def _full_size(self) -> int | None:
        """The number of examples per replica in a full batch, if known without reading."""
        size = self._sources[0].batch_size
        return None if size is None else -(-size // self._num_parts)

    def plan(self) -> InputPlan:
        """Which pipeline reads which files or rows.

        >>> strategy = rx.MirroredStrategy(["CPU:0", "CPU:1"])
        >>> print(strategy.distribute_dataset([np.arange(4)]).plan())
        DATA: every pipeline goes through all batches and keeps its replicas' rows
        pipeline 0, replicas 0-1: its replicas' rows of every batch
        """
        return self._plan

    @property
    def cardinality(self) -> int:
        """The number of batches in a pass; -1 (`rx.INFINITE_CARDINALITY`) if endless, -2 if unknown.

        >>> strategy = rx.MirroredStrategy(["CPU:0", "CPU:1"])
        >>> strategy.distribute_dataset(rx.from_arrays(np.arange(10)).batch(4)).cardinality
        3
        """
        return self._cardinality

    @functools.cached_property
    def element_spec(self) -> Any:
        """The shapes and dtypes of a batch, which `rx.function` takes as an `input_signature`.

        The number of examples is None unless all batches have the same size. If the dataset does not
        describe its batches, the first one is read.

        Raises:
            InputError: the dataset has no batches.

        >>> strategy = rx.MirroredStrategy(["CPU:0", "CPU:1"])
        >>> dataset = strategy.distribute_dataset(rx.from_arrays(jnp.ones((6, 3))).batch(2))
        >>> dataset.element_spec.value_specs[0]
        TensorSpec(shape=(None, 3), dtype=float32)
        >>> @rx.function(input_signature=[dataset.element_spec])
        ... def step(batch):
        ...     return strategy.reduce("SUM", batch, axis=0)
        >>> [step(batch).shape for batch in dataset]
        [(3,), (3,), (3,)]
        """
        source = self._sources[0]
        spec = source.spec()
        if spec is None:
            with enter_default():
                first = source.peek()
            if first is None:
                raise InputError("The dataset has no batches, so their shapes and dtypes are unknown.")
            spec = spec_of(first)
        return jax.tree.map(self._of_replicas, spec)

    def _of_replicas(self, spec: TensorSpec) -> Any:
        """The spec of a per-replica value, from the spec of an array of a global batch."""
        rows = spec.shape[0] if spec.shape else None
        if rows is not None:
            even = rows % self._num_parts == 0 and not self._may_have_empty_batches
            rows = rows // self._num_parts if even else None
        if self._options.partial_batch != "exact" and self._full_size is not None:
            rows = self._full_size
        shape = (rows, *spec.shape[1:]) if spec.shape else ()
        dtype = spec.dtype if spec.dtype.kind in "OSU" else device_dtype(spec)
        count = len(self._target.pipeline.own)
        if self._target.pipeline.num_replicas == 1 and self._options.partial_batch != "pad":
            return TensorSpec(shape, dtype)
        return PerReplicaSpec(*[TensorSpec(shape, dtype)] * count)

    @property
    def _may_have_empty_batches(self) -> bool:
        """Whether some replicas may get an empty batch at the end."""
        pipeline = self._target.pipeline
        dealt = self._num_parts < pipeline.num_replicas or pipeline.num_pipelines > 1
        shared = self._plan.policy is AutoShardPolicy.DATA
        return dealt and not shared and self._cardinality != INFINITE_CARDINALITY

    def reduce(self, initial_state: _State, reduce_func: Callable[[_State, _Batch], _State]) -> _State:
        """Fold all batches into one result, one batch at a time.

        Args:
            initial_state: the initial result.
            reduce_func: called with the result so far and a batch; returns the new result.

        >>> strategy = rx.MirroredStrategy(["CPU:0", "CPU:1"])
        >>> dataset = strategy.distribute_dataset(rx.from_arrays(np.arange(8)).batch(4))
        >>> dataset.reduce(0, lambda total, batch: total + strategy.reduce("SUM", batch, axis=0))
        Array(28, dtype=int32)
        """
        return functools.reduce(reduce_func, self, initial_state)

    def __len__(self) -> int:
        return length(self, self._cardinality)

    def __bool__(self) -> bool:  # not the length
        return True

    def __reduce__(self) -> Any:
        return refuse_pickling(self)

    def __getattr__(self, name: str) -> NoReturn:
        raise no_attribute(self, name, distributed=True)


def distribute_dataset(
    dataset: Any, target: Target, options: InputOptions | None
) -> DistributedDataset[Any]:
    """Split the global batches of `dataset` over the replicas of `target`."""
    chosen = _checked_options(options)
    _refuse_distributed(dataset)
    if chosen.replication_mode is InputReplicationMode.PER_REPLICA:
        raise InputModeError(
            "InputReplicationMode.PER_REPLICA is for strategy.distribute_datasets_from_function, which can "
            "make one dataset per replica. strategy.distribute_dataset has one dataset for all replicas."
        )
    pipeline = target.pipeline
    shard = share(find_source(dataset), pipeline, chosen.auto_shard_policy)
    layout: dict[str, Any] = {"policy": shard.plan.policy.name, "source": shard.source.kind}
    if shard.plan.policy is not AutoShardPolicy.DATA:
        layout |= _layout(pipeline) | {"replicas": pipeline.num_replicas}
    return DistributedDataset(
        target,
        chosen,
        shard.plan,
        [shard.source],
        shard.stream,
        num_parts=pipeline.num_replicas,
        layout=layout,
        cardinality=_cardinality(shard.source.cardinality, shard.plan.policy, pipeline, chosen),
    )


def _layout(pipeline: Pipeline) -> dict[str, Any]:
    return {"pipelines": pipeline.num_pipelines, "pipeline": pipeline.pipeline_id}


def _cardinality(batches: int, policy: AutoShardPolicy, pipeline: Pipeline, options: InputOptions) -> int:
    """The number of steps, if the number of batches determines it."""
    if options.partial_batch == "drop" and batches > 0:
        return UNKNOWN_CARDINALITY
    if policy is AutoShardPolicy.DATA or batches == INFINITE_CARDINALITY:
        return batches
    if policy is AutoShardPolicy.OFF and batches >= 0:
        fewest = min(map(len, pipeline.replicas))
        return -(-batches * pipeline.num_replicas // fewest)
    return UNKNOWN_CARDINALITY


def distribute_datasets_from_function(
    dataset_fn: Callable[[InputContext], Any], target: Target, options: InputOptions | None
) -> DistributedDataset[Any]:
    """Distribute the datasets that `dataset_fn` returns; each of their batches is for one replica."""
    chosen = _checked_options(options)
    if not callable(dataset_fn):
        raise TypeError(f"distribute_datasets_from_function takes a function, got {dataset_fn!r}.")
    if chosen.auto_shard_policy not in (AutoShardPolicy.AUTO, AutoShardPolicy.OFF):
        raise InputError(
            f"InputOptions(auto_shard_policy={chosen.auto_shard_policy.name}) does not apply to "
            "distribute_datasets_from_function. Shard the dataset in your function, by "
            "context.input_pipeline_id."
        )
    per_replica = chosen.replication_mode is InputReplicationMode.PER_REPLICA
    _check_placement(chosen, per_replica)
    pipeline = target.pipeline
    contexts = _contexts(pipeline, per_replica)
    with enter_default():
        datasets = [dataset_fn(context) for context in contexts]
        for dataset in datasets:
            _refuse_distributed(dataset)
        sources = [find_source(dataset) for dataset in datasets]

    def open_stream(number: int, topic: str) -> Stream:
        readers = [source.open(number) for source in sources]
        return DealtStream(readers, pipeline, topic, [source.peek for source in sources])

    plans = [PipelinePlan(replicas) for replicas in pipeline.replicas]
    plan = InputPlan(AutoShardPolicy.OFF, AutoShardPolicy.OFF, "", tuple(plans))
    layout: dict[str, Any] = {"policy": "FUNCTION", "source": sources[0].kind}
    if per_replica:
        layout |= {"policy": "PER_REPLICA", "replicas": pipeline.num_replicas}
    return DistributedDataset(
        target,
        chosen,
        plan,
        sources,
        open_stream,
        num_parts=1,
        layout=layout | _layout(pipeline),
        cardinality=_dealt_cardinality(sources, pipeline, chosen),
    )


def _refuse_distributed(dataset: Any) -> None:
    if isinstance(dataset, DistributedDataset | DistributedIterator):
        raise NotADatasetError("The dataset is already distributed. Pass the original dataset.")


def _contexts(pipeline: Pipeline, per_replica: bool) -> list[InputContext]:
    count = pipeline.num_replicas
    if per_replica:
        return [InputContext(count, replica, count) for replica in pipeline.own]
    return [InputContext(pipeline.num_pipelines, pipeline.pipeline_id, count)]


def _dealt_cardinality(sources: Sequence[Source], pipeline: Pipeline, options: InputOptions) -> int:
    counts = [source.cardinality for source in sources]
    if pipeline.num_pipelines > 1 or UNKNOWN_CARDINALITY in counts:
        return UNKNOWN_CARDINALITY
    if INFINITE_CARDINALITY in counts:
        return INFINITE_CARDINALITY
    if options.replication_mode is InputReplicationMode.PER_REPLICA:
        fewest, most = min(counts), max(counts)
    else:
        count = len(pipeline.own)
        fewest, most = counts[0] // count, -(-counts[0] // count)
    if fewest == most and options.partial_batch != "drop":
        return most
    # The last step is used if its batches can be empty, and dropped if they are single examples.
    spec = sources[0].spec()
    if spec is None or options.partial_batch == "drop":
        return UNKNOWN_CARDINALITY
    return most if all(leaf.shape for leaf in jax.tree.leaves(spec)) else fewest


def _checked_options(options: Any) -> InputOptions:
    if options is not None and not isinstance(options, InputOptions):
        raise TypeError(f"options must be an rx.InputOptions, got {options!r}.")
    return options or InputOptions()


def _check_placement(options: InputOptions, per_replica: bool) -> None:
    if not options.place_dataset_on_device:
        return
    if per_replica and options.fetch_to_device is not False:
        raise InputError(
            "InputOptions(place_dataset_on_device=True) with PER_REPLICA needs fetch_to_device=False: the "
            "batches of a dataset on the device do not have to be fetched."
        )
    if not per_replica:
        raise InputError(
            "InputOptions(place_dataset_on_device=True) needs the replication mode PER_REPLICA."
        )
