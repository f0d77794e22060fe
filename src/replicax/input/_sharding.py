"""Chooses how pipelines share a dataset, and what this pipeline reads."""

from __future__ import annotations

import dataclasses
from typing import Any, final

from replicax.errors import InputError
from replicax.input._options import AutoShardPolicy
from replicax.input._pipeline import Pipeline
from replicax.input._plan import InputPlan, PipelinePlan, rows_of
from replicax.input._same_batches import SameBatches
from replicax.input._source import NoFiles, Reader, Source
from replicax.input._stream import DealtStream, SplitStream, Stream
from replicax.input._tf_data import TfDataSource

__all__ = ["Shard", "share"]


@final
@dataclasses.dataclass(frozen=True)
class Shard:
    """A source, as this pipeline reads it."""

    source: Source
    pipeline: Pipeline
    plan: InputPlan

    def stream(self, number: int, topic: str) -> Stream:
        """Begin a pass; pipelines exchange messages about it under `topic`."""
        reader: Reader = self.source.open(number)
        if self.plan.policy is AutoShardPolicy.DATA:
            return SplitStream(
                reader, self.pipeline, SameBatches(self.source, self.pipeline, topic, number)
            )
        num_parts = self.pipeline.num_replicas
        batched = num_parts > 1
        return DealtStream([reader], self.pipeline, topic, [self.source.peek], num_parts, batched=batched)


def share(source: Source, pipeline: Pipeline, asked: AutoShardPolicy) -> Shard:
    """Decide how `source` is shared between the pipelines."""
    if asked is AutoShardPolicy.AUTO:
        asked = source.policy
    if pipeline.num_pipelines == 1:
        return _of_rows(source, pipeline, asked, "")
    if asked is AutoShardPolicy.OFF:
        plans = [PipelinePlan(replicas) for replicas in pipeline.replicas]
        return _shard(source, source, pipeline, asked, AutoShardPolicy.OFF, "", plans)
    if asked is AutoShardPolicy.HINT:
        return _of_hints(source, pipeline)
    if asked is AutoShardPolicy.DATA:
        return _of_rows(source, pipeline, asked, "")
    try:
        return _of_files(source, pipeline, asked)
    except NoFiles as reason:
        if asked is AutoShardPolicy.FILE:
            raise InputError(
                f"AutoShardPolicy.FILE can't be used with this dataset: {reason}. Use DATA, where every "
                "process reads all batches and keeps its replicas' rows, or AUTO, which uses FILE where "
                "possible and otherwise DATA."
            ) from None
        return _of_rows(source, pipeline, asked, str(reason))


def _of_rows(source: Source, pipeline: Pipeline, asked: AutoShardPolicy, reason: str) -> Shard:
    size = source.batch_size
    plans = [
        PipelinePlan(replicas, rows=None if size is None else rows_of(pipeline, i, size))
        for i, replicas in enumerate(pipeline.replicas)
    ]
    return _shard(source, source, pipeline, asked, AutoShardPolicy.DATA, reason, plans)


def _of_files(source: Source, pipeline: Pipeline, asked: AutoShardPolicy) -> Shard:
    count = pipeline.num_pipelines
    own = source.of_files(count, pipeline.pipeline_id)
    plans = [
        PipelinePlan(replicas, source.files[index::count])
        for index, replicas in enumerate(pipeline.replicas)
    ]
    return _shard(source, own, pipeline, asked, AutoShardPolicy.FILE, "", plans)


def _of_hints(source: Source, pipeline: Pipeline) -> Shard:
    if not isinstance(source, TfDataSource):
        raise InputError(
            "AutoShardPolicy.HINT is for a tf.data.Dataset that contains "
            "`.shard(tf.data.experimental.SHARD_HINT, ...)`. Shard other datasets yourself in "
            "strategy.distribute_datasets_from_function, or use DATA."
        )
    try:
        own = source.of_hints(pipeline.num_pipelines, pipeline.pipeline_id)
    except NoFiles as reason:
        raise InputError(f"AutoShardPolicy.HINT can't be used with this dataset: {reason}") from reason
    plans = [PipelinePlan(replicas) for replicas in pipeline.replicas]
    return _shard(source, own, pipeline, AutoShardPolicy.HINT, AutoShardPolicy.HINT, "", plans)


def _shard(
    source: Source,
    own: Source,
    pipeline: Pipeline,
    asked: AutoShardPolicy,
    policy: AutoShardPolicy,
    reason: str,
    plans: list[Any],
) -> Shard:
    plan = InputPlan(asked, policy, reason, tuple(plans), source.files, source.batch_size)
    plan.check()
    return Shard(own, pipeline, plan)
