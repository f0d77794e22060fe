"""Checks that all pipelines read the same batches where they are supposed to.

With AutoShardPolicy.DATA every pipeline relies on the others to read the same batches, and keeps its own
replicas' rows. If the dataset had fewer rows or another order in one process, the model would train on the
wrong examples, or the other processes would wait for a step that never comes. So each pipeline publishes
what it reads and compares it with what the others have published so far, without waiting for them. A
dataset that knows its number of batches is compared once per pass, any other dataset batch by batch.
"""

from __future__ import annotations

import dataclasses
from typing import Any, final

from replicax.errors import InputError
from replicax.input._batch import Batch, spec_of
from replicax.input._pipeline import Pipeline
from replicax.input._source import UNKNOWN_CARDINALITY, Source

__all__ = ["SameBatches"]


@final
@dataclasses.dataclass
class _Seen:
    """What a pipeline has read in a pass.

    Args:
        facts: what all pipelines must have in common.
        count: the number of batches since the start.
        recent: the rows of the last of them.
        ended: whether the pass has ended.
    """

    facts: dict[str, Any]
    count: int = 0
    recent: list[int] = dataclasses.field(default_factory=list)
    ended: bool = False

    def add(self, rows: int) -> None:
        self.count += 1
        self.recent = [*self.recent[1 - _RECENT :], rows]

    def rows(self) -> dict[int, int]:
        """The numbers of rows of the recent batches, by batch number."""
        return dict(enumerate(self.recent, self.count - len(self.recent)))

    def num_batches(self) -> str:
        return str(self.count) if self.ended else f"at least {self.count}"


_RECENT = 32


@final
class SameBatches:
    """Compares the batches of this pipeline with those of the others.

    Args:
        source: the source that is read.
        pipeline: this pipeline.
        topic: the name of this pass in messages.
        number: the number of the pass, which determines the order of a shuffled source.
    """

    def __init__(self, source: Source, pipeline: Pipeline, topic: str, number: int) -> None:
        self._pipeline, self._topic = pipeline, topic
        self._source, self._number = source, number
        self._each_batch = source.cardinality == UNKNOWN_CARDINALITY
        others = range(pipeline.num_pipelines) if pipeline.board is not None else ()
        self._waiting = {i for i in others if i != pipeline.pipeline_id}
        self._seen: _Seen | None = None

    def note(self, batch: Batch, batches_before: int) -> None:
        """Count a batch, and raise if another pipeline has read a different one."""
        if not self._waiting:
            return
        if self._seen is None:
            self._seen = _Seen(self._facts(batch, batches_before))
        elif not self._each_batch:
            self._compare()
            return
        self._seen.add(batch.num_rows or 0)
        self._publish()
        self._compare()

    def end(self) -> None:
        """Note the end of the pass, and raise if another pipeline has read on."""
        if not self._waiting or not self._each_batch:
            return
        self._seen = self._seen or _Seen({})
        self._seen.ended = True
        self._publish()
        self._compare()

    def _facts(self, batch: Batch, batches_before: int) -> dict[str, Any]:
        source = self._source
        facts = {"number of batches": source.cardinality, "batches read before": batches_before}
        if source.shuffled_by is not None:
            facts |= {"seed": source.shuffled_by[1], "epoch": self._number}
        return facts | {"arrays": str(spec_of(batch))}

    def _publish(self) -> None:
        board, seen = self._pipeline.board, self._seen
        assert board is not None and seen is not None
        board.put(self._topic, dataclasses.asdict(seen))

    def _compare(self) -> None:
        board = self._pipeline.board
        assert board is not None
        for other in sorted(self._waiting):
            message = board.get(self._topic, other)
            if message is None:
                continue
            self._compare_with(other, _Seen(**message))
            if not self._each_batch:
                self._waiting.remove(other)

    def _compare_with(self, pipeline: int, theirs: _Seen) -> None:
        own = self._seen
        assert own is not None
        for name, fact in own.facts.items():
            self._require(pipeline, name, fact, theirs.facts.get(name, fact))
        rows = theirs.rows()
        for number, count in own.rows().items():
            self._require(pipeline, f"rows of batch {number}", count, rows.get(number, count))
        shorter, longer = sorted((own, theirs), key=lambda seen: seen.count)
        if shorter.ended and shorter.count < longer.count:
            self._require(pipeline, "number of batches", own.num_batches(), theirs.num_batches())

    def _require(self, pipeline: int, what: str, here: Any, there: Any) -> None:
        own = self._pipeline.pipeline_id
        if here != there:
            (first, one), (second, other) = sorted(((own, here), (pipeline, there)), key=lambda x: x[0])
            raise InputError(
                f"Input pipelines {first} and {second} read different batches. {what}: {one} in pipeline "
                f"{first}, {other} in pipeline {second}. With AutoShardPolicy.DATA every process reads "
                "the same batches and keeps its replicas' rows. Make the same dataset in every process, "
                "with the same seeds. If each process has its own data, use AutoShardPolicy.OFF or "
                "strategy.distribute_datasets_from_function."
            )
