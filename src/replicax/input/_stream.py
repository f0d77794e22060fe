"""From batches to steps: which rows each replica gets.

There are two rules. Where every pipeline goes through the same batches, a step is one global batch, split
over all replicas (`SplitStream`). Where pipelines read different data, each deals its own batches to its
own replicas in turn, whole or in parts (`DealtStream`); then they tell each other what they have, so that
one that has run dry takes part with empty batches until all have.
"""

from __future__ import annotations

import abc
import contextlib
import dataclasses
import itertools
import threading
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, final

import numpy as np

from replicax.errors import InputError
from replicax.input._batch import Batch, leaf_names
from replicax.input._pipeline import Pipeline, split_sizes
from replicax.input._source import Reader

__all__ = ["DealtStream", "Piece", "SplitStream", "Step", "Stream", "split", "why_not_a_batch"]


@final
@dataclasses.dataclass(frozen=True)
class Piece:
    """The rows of a batch that one replica gets."""

    batch: Batch
    start: int
    stop: int

    @property
    def size(self) -> int:
        """How many examples."""
        return 1 if self.batch.num_rows is None else self.stop - self.start


@final
@dataclasses.dataclass(frozen=True)
class Step:
    """What the replicas get in one step.

    Args:
        pieces: for each replica of this process its rows.
        sizes: the numbers of examples of all replicas.
    """

    pieces: tuple[Piece, ...]
    sizes: tuple[int, ...]

    @property
    def is_even(self) -> bool:
        """Whether all replicas have the same number of examples."""
        return len(set(self.sizes)) == 1


class Stream(abc.ABC):
    """One pass over the input of a pipeline, step by step."""

    @abc.abstractmethod
    def next(self) -> Step | None:
        """The next step; None after the last."""

    @abc.abstractmethod
    def position(self) -> Any:
        """Where the stream is, as something that can be written as JSON."""

    @abc.abstractmethod
    def seek(self, position: Any) -> None:
        """Go to a position, from the beginning."""

    def cancel(self) -> None:  # noqa: B027 - most streams wait for nobody
        """Stop waiting for other pipelines, from another thread."""

    @abc.abstractmethod
    def close(self) -> None:
        """Let go of what the readers hold."""


@final
class _Checked:
    """A reader whose batches are all like the first."""

    def __init__(self, reader: Reader, *, batched: bool) -> None:
        self.reader = reader
        self._batched = batched
        self._first: Any = None

    def read(self) -> Batch:
        batch = self.reader.read()
        number = self.reader.num_batches - 1
        if batch.num_rows is None and (self._batched or not _is_single(batch)):
            raise InputError(why_not_a_batch(batch, f"Batch {number} of the dataset"))
        kind = (batch.treedef, [_dtype_kind(leaf) for leaf in batch.leaves], batch.num_rows is None)
        if self._first is None:
            self._first = kind
        elif kind != self._first:
            raise InputError(_changed(self._first, kind, number))
        return batch


def _dtype_kind(leaf: Any) -> Any:
    """The dtype of an array; texts may differ in length."""
    text = isinstance(leaf, np.ndarray) and leaf.dtype.kind in "SU"
    return leaf.dtype.type if text else leaf.dtype


def _is_single(batch: Batch) -> bool:
    """Whether an element without one number of rows is a single example, not a mistake."""
    return any(leaf.ndim == 0 for leaf in batch.leaves)


def why_not_a_batch(batch: Batch, what: str) -> str:
    """What is wrong with a batch, called `what`, whose arrays do not have one number of rows."""
    names = leaf_names(batch.treedef)
    if not batch.leaves:
        return f"{what} has no arrays: {_structure(batch.treedef)}."
    for name, leaf in zip(names, batch.leaves, strict=True):
        if leaf.ndim == 0:
            listed = " A list of numbers is a structure of numbers; np.asarray makes it an array."
            return (
                f"{what} is not a batch: {name} is the single value {leaf}. A strategy splits batches, for "
                "all replicas together, along their first axis; put examples into batches first "
                f"(`.batch(global_batch_size)` or np.stack).{listed if '[' in name else ''}"
            )
    listing = ", ".join(f"{n} has {leaf.shape[0]}" for n, leaf in zip(names, batch.leaves, strict=True))
    return (
        f"{what} has arrays with different numbers of rows: {listing}. All arrays of a batch have one row "
        "for each example; pad ragged data to one length first."
    )


def _structure(treedef: Any) -> str:
    return str(treedef.unflatten(["array"] * treedef.num_leaves)).replace("'array'", "array")


def _changed(first: Any, now: Any, number: int) -> str:
    remedy = "Batches must be alike: mend that where the dataset is made."
    if first[0] != now[0]:
        return (
            f"Batch {number} of the dataset has another structure than the first: {_structure(now[0])} "
            f"instead of {_structure(first[0])}. {remedy}"
        )
    for name, before, after in zip(leaf_names(now[0]), first[1], now[1], strict=True):
        if before != after:
            return (
                f"{name} of batch {number} has the dtype {after}, and had {before} in the first. {remedy}"
            )
    return f"Batch {number} of the dataset is a single example, and the first was a batch. {remedy}"


def split(batch: Batch, pipeline: Pipeline) -> Step:
    """The step in which the rows of a global batch are split over all replicas of all pipelines."""
    assert batch.num_rows is not None
    sizes = split_sizes(batch.num_rows, pipeline.num_replicas)
    stops = list(itertools.accumulate(sizes))
    own = [Piece(batch, stops[i] - sizes[i], stops[i]) for i in pipeline.own]
    return Step(tuple(own), tuple(sizes))


@final
class SplitStream(Stream):
    """Every batch is split over all replicas; this pipeline takes the rows of its own."""

    def __init__(self, reader: Reader, pipeline: Pipeline) -> None:
        """Split what `reader` reads."""
        self._checked = _Checked(reader, batched=True)
        self._pipeline = pipeline

    def next(self) -> Step | None:
        """The next batch."""
        try:
            batch = self._checked.read()
        except StopIteration:
            return None
        return split(batch, self._pipeline)

    def position(self) -> Any:
        """The reader's: the same for any number of replicas and pipelines."""
        return self._checked.reader.position()

    def seek(self, position: Any) -> None:
        """Move the reader."""
        self._checked.reader.seek(position)

    def close(self) -> None:
        """Close the reader."""
        self._checked.reader.close()


@final
class DealtStream(Stream):
    """Batches are cut into `num_parts` and dealt to this pipeline's replicas in turn.

    Args:
        readers: one for all replicas of this pipeline, or one for each.
        topic: what the pipelines call this pass when they tell each other about it.
        samples: give a batch of what each reader reads, for the shape of an empty one.
        num_parts: into how many parts a batch is cut.
        batched: elements must be batches; otherwise they may be single examples too.
    """

    def __init__(
        self,
        readers: Sequence[Reader],
        pipeline: Pipeline,
        topic: str,
        samples: Sequence[Callable[[], Batch | None]],
        num_parts: int = 1,
        *,
        batched: bool = False,
    ) -> None:
        """Deal what `readers` read."""
        self._hands = [
            _Hand(_Checked(reader, batched=batched), num_parts, sample)
            for reader, sample in zip(readers, samples, strict=True)
        ]
        self._pipeline, self._topic = pipeline, topic
        self._num_steps = 0
        self._cancelled = threading.Event()

    def next(self) -> Step | None:
        """One part for each replica."""
        try:
            return self._next()
        except Exception as error:
            self._tell_of_failure(error)
            raise

    def _next(self) -> Step | None:
        num_own = len(self._pipeline.own)
        hands = self._hands if len(self._hands) > 1 else self._hands * num_own
        dealt = [hand.deal() for hand in hands]
        single = any(piece is not None and piece.batch.num_rows is None for piece in dealt)
        if single and None in dealt:
            dealt = [None] * num_own  # single examples have no empty batch: what is left over is left out
        message = None if not any(dealt) else [piece.size if piece else 0 for piece in dealt]
        sizes = self._agree(message, single)
        if sizes is None:
            return None
        pieces = [piece or self._empty(i) for i, piece in enumerate(dealt)]
        return Step(tuple(pieces), tuple(sizes))

    def _agree(self, own: list[int] | None, single: bool) -> list[int] | None:
        """The sizes of all replicas, by replica; None when no pipeline has anything left."""
        if self._pipeline.num_pipelines == 1:
            return own
        number, self._num_steps = self._num_steps, self._num_steps + 1
        told = self._pipeline.tell(self._topic, number, [own, single, None], self._cancelled.is_set)
        for pipeline, (_, _, failure) in enumerate(told):
            if failure is not None:
                raise InputError(
                    f"Input pipeline {pipeline} failed, so there are no more steps: {failure}. Its own "
                    "process has the traceback."
                )
        left = [sizes for sizes, _, _ in told]
        if not any(left) or (None in left and any(is_single for _, is_single, _ in told)):
            return None
        sizes = [0] * self._pipeline.num_replicas
        for replicas, message in zip(self._pipeline.replicas, left, strict=True):
            for replica, size in zip(replicas, message or [0] * len(replicas), strict=True):
                sizes[replica] = size
        return sizes

    def _tell_of_failure(self, error: Exception) -> None:
        """Let the other pipelines know, which would wait for the next step of this one; wait for none."""
        if self._pipeline.num_pipelines == 1 or self._cancelled.is_set():
            return
        message = [None, False, f"{type(error).__name__}: {error}"]
        with contextlib.suppress(Exception):  # nobody has to listen
            self._pipeline.tell(self._topic, self._num_steps, message, lambda: True)

    def _empty(self, index: int) -> Piece:
        first = index if len(self._hands) > 1 else 0
        hands = [self._hands[first], *self._hands]
        last = next((batch for hand in hands if (batch := hand.sample()) is not None), None)
        if last is None:
            raise InputError(
                f"Input pipeline {self._pipeline.pipeline_id} has no batches at all while others have, so "
                "it does not know what an empty one looks like. Give every pipeline some data: fewer "
                "processes, more files, or AutoShardPolicy.DATA."
            )
        return Piece(last, 0, 0)

    def position(self) -> Any:
        """Those of all readers."""
        return [hand.position() for hand in self._hands]

    def seek(self, position: Any) -> None:
        """Move all readers."""
        for hand, where in zip(self._hands, position, strict=True):
            hand.seek(where)

    def cancel(self) -> None:
        """Stop waiting for other pipelines."""
        self._cancelled.set()

    def close(self) -> None:
        """Close all readers."""
        for hand in self._hands:
            hand.close()


@final
class _Hand:
    """A reader whose batches are dealt part by part."""

    def __init__(self, checked: _Checked, num_parts: int, sample: Callable[[], Batch | None]) -> None:
        self._checked, self._num_parts, self._sample = checked, num_parts, sample
        self._parts: deque[Piece] = deque()
        self._before: Any = None
        self._last: Batch | None = None

    def sample(self) -> Batch | None:
        """A batch like those that are dealt; None if there never was one."""
        if self._last is None:
            self._last = self._sample()
        return self._last

    def deal(self) -> Piece | None:
        """The next part; None if there is none."""
        if not self._parts:
            self._before = self._checked.reader.position()
            try:
                # Parts of it are taken when the next one may have been read already.
                batch = self._checked.read().detached()
            except StopIteration:
                return None
            self._last = batch
            start = 0
            for size in split_sizes(batch.num_rows or 0, self._num_parts):
                self._parts.append(Piece(batch, start, start + size))
                start += size
        return self._parts.popleft()

    def position(self) -> Any:
        """The reader's before the batch that is being dealt, and how many parts of that are gone."""
        if not self._parts:
            return {"reader": self._checked.reader.position(), "parts": 0}
        return {"reader": self._before, "parts": self._num_parts - len(self._parts)}

    def seek(self, position: Any) -> None:
        self._checked.reader.seek(position["reader"])
        for _ in range(position["parts"]):
            self.deal()

    def close(self) -> None:
        self._checked.reader.close()
