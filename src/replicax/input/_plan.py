"""The plan of a distributed dataset: which pipeline reads what. It can be printed and checked."""

from __future__ import annotations

import dataclasses
from typing import final

from replicax.errors import InputError
from replicax.input._options import AutoShardPolicy
from replicax.input._pipeline import Pipeline, split_sizes

__all__ = ["InputPlan", "PipelinePlan"]


@final
@dataclasses.dataclass(frozen=True)
class PipelinePlan:
    """What one pipeline reads.

    Args:
        replicas: the replicas that it feeds.
        files: the files that it reads; empty if it reads the whole dataset.
        rows: the start and stop of its rows in every full batch; None if it uses all rows that it reads, or
            the batch size is unknown.

    >>> strategy = rx.MirroredStrategy(["CPU:0", "CPU:1"])
    >>> strategy.distribute_dataset(rx.from_arrays(np.arange(8)).batch(4)).plan().pipelines[0].rows
    (0, 4)
    """

    replicas: tuple[int, ...]
    files: tuple[str, ...] = ()
    rows: tuple[int, int] | None = None


@final
@dataclasses.dataclass(frozen=True)
class InputPlan:
    """How pipelines share a dataset; `print` shows it as a table.

    Args:
        asked: the policy in the options.
        policy: the policy that is used.
        reason: why they differ, if they do.
        pipelines: what each pipeline reads.
        files: all files of the dataset.
        batch_size: the number of rows in a full batch, if known.

    >>> strategy = rx.MirroredStrategy(["CPU:0", "CPU:1"])
    >>> print(strategy.distribute_dataset(rx.from_arrays(np.arange(8)).batch(4)).plan())
    DATA: every pipeline goes through all batches and keeps its replicas' rows
    pipeline 0, replicas 0-1: rows 0-3 of every 4
    """

    asked: AutoShardPolicy
    policy: AutoShardPolicy
    reason: str
    pipelines: tuple[PipelinePlan, ...]
    files: tuple[str, ...] = ()
    batch_size: int | None = None

    def check(self) -> None:
        """Raise `InputError` unless every file or row is read by exactly one pipeline.

        There is nothing to check with the policy OFF, where every pipeline reads everything, or if neither
        the files nor the batch size are known before reading.

        >>> plan = rx.MirroredStrategy(["CPU:0"]).distribute_dataset([np.arange(4)]).plan()
        >>> plan.check()
        """
        if self.policy is AutoShardPolicy.FILE and self.files:
            read = [path for pipeline in self.pipelines for path in pipeline.files]
            self._check_once(sorted(read), sorted(self.files), "file")
        elif self.policy is AutoShardPolicy.DATA and self.batch_size is not None:
            self._check_rows(self.batch_size)

    def _check_once(self, read: list[str], wanted: list[str], what: str) -> None:
        if read == wanted:
            return
        missing = sorted(set(wanted) - set(read))
        double = sorted({item for item in read if read.count(item) > 1})
        raise InputError(f"The plan reads {what}s twice: {double}, and not at all: {missing}.")

    def _check_rows(self, batch_size: int) -> None:
        spans = [pipeline.rows for pipeline in self.pipelines]
        if any(span is None for span in spans):
            return  # the replicas of a pipeline are not consecutive
        end = 0
        for start, stop in sorted(span for span in spans if span is not None and span[0] < span[1]):
            if start != end:
                raise InputError(f"The plan reads rows twice or not at all: {start} comes after {end}.")
            end = stop
        if end != batch_size:
            raise InputError(f"The plan reads rows twice or not at all: up to {end} of {batch_size}.")

    def __str__(self) -> str:
        title = f"{self.policy.name}: {_MEANING[self.policy]}"
        if self.reason:
            title += f" (instead of {self.asked.name}: {self.reason})"
        return "\n".join([title, *(self._line(i) for i in range(len(self.pipelines)))])

    def _line(self, index: int) -> str:
        pipeline = self.pipelines[index]
        if pipeline.files:
            what = f"{len(pipeline.files)} files: {', '.join(pipeline.files)}"
        elif pipeline.rows and self.batch_size:
            start, stop = pipeline.rows
            rows = f"rows {start}-{stop - 1}" if stop > start else "no rows"
            what = f"{rows} of every {self.batch_size}"
        elif self.policy is AutoShardPolicy.DATA:
            what = "its replicas' rows of every batch"
        else:
            what = "everything" if self.policy is AutoShardPolicy.OFF else "its part"
        return f"pipeline {index}, {_replicas(pipeline.replicas)}: {what}"


_MEANING = {
    AutoShardPolicy.OFF: "every pipeline reads everything",
    AutoShardPolicy.FILE: "every pipeline reads its own files",
    AutoShardPolicy.DATA: "every pipeline goes through all batches and keeps its replicas' rows",
    AutoShardPolicy.HINT: "the dataset is sharded at its SHARD_HINT",
}


def _replicas(ids: tuple[int, ...]) -> str:
    if len(ids) == 1:
        return f"replica {ids[0]}"
    if ids == tuple(range(ids[0], ids[-1] + 1)):
        return f"replicas {ids[0]}-{ids[-1]}"
    return f"replicas {', '.join(map(str, ids))}"


def rows_of(pipeline: Pipeline, index: int, batch_size: int) -> tuple[int, int] | None:
    """The rows of a full batch that a pipeline keeps, if they are contiguous."""
    sizes = split_sizes(batch_size, pipeline.num_replicas)
    ids = pipeline.replicas[index]
    if ids != tuple(range(ids[0], ids[-1] + 1)):
        return None
    return sum(sizes[: ids[0]]), sum(sizes[: ids[-1] + 1])
