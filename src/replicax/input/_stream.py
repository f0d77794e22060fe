"""From batches to steps: which rows each replica gets.

There are two rules. If all pipelines read the same batches, a step is one global batch, split over all
replicas (`SplitStream`). If pipelines read different data, each deals its own batches to its own replicas
in turn, whole or in parts (`DealtStream`). Then the pipelines exchange their numbers of rows before every
step, so that a pipeline without data continues with empty batches until all have finished.
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
from replicax.input._batch import Batch, is_numeric, leaf_names
from replicax.input._pipeline import Pipeline, split_sizes
from replicax.input._same_batches import SameBatches
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
        """The number of examples."""
        return 1 if self.batch.num_rows is None else self.stop - self.start


@final
@dataclasses.dataclass(frozen=True)
class Step:
    """The rows that the replicas get in one step.

    Args:
        pieces: the rows of each replica of this process.
        sizes: the numbers of examples of all replicas of all processes.
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
        """The current position, which can be serialized as JSON."""

    @abc.abstractmethod
    def seek(self, position: Any) -> None:
        """Go to a position; call this before the first step."""

    def cancel(self) -> None:  # noqa: B027 - most streams do not wait
        """Stop waiting for other pipelines, from another thread."""

    @abc.abstractmethod
    def close(self) -> None:
        """Close the readers."""


@final
class _Checked:
    """A reader that raises if a batch differs from the first in structure or dtypes."""

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
    """The dtype of an array; strings may differ in length."""
    text = isinstance(leaf, np.ndarray) and leaf.dtype.kind in "SU"
    return leaf.dtype.type if text else leaf.dtype


def _is_single(batch: Batch) -> bool:
    """Whether an element without a batch axis is a single example rather than a mistake."""
    return any(leaf.ndim == 0 for leaf in batch.leaves)


def why_not_a_batch(batch: Batch, what: str) -> str:
    """The error message for a batch, called `what`, whose arrays differ in their numbers of rows."""
    names = leaf_names(batch.treedef)
    if not batch.leaves:
        return f"{what} has no arrays: {_structure(batch.treedef)}."
    for name, leaf in zip(names, batch.leaves, strict=True):
        if leaf.ndim == 0:
            listed = " A list of numbers is a structure of numbers; np.asarray makes it an array."
            return (
                f"{what} is not a batch: {name} is the single value {leaf}. A strategy splits global "
                "batches over the replicas along their first axis; combine examples into batches first "
                f"(`.batch(global_batch_size)` or np.stack).{listed if '[' in name else ''}"
            )
    listing = ", ".join(f"{n} has {leaf.shape[0]}" for n, leaf in zip(names, batch.leaves, strict=True))
    return (
        f"{what} has arrays with different numbers of rows: {listing}. All arrays of a batch need one row "
        "for each example; pad ragged data to one length first."
    )


def _structure(treedef: Any) -> str:
    return str(treedef.unflatten(["array"] * treedef.num_leaves)).replace("'array'", "array")


def _changed(first: Any, now: Any, number: int) -> str:
    remedy = "All batches need the same structure and dtypes: fix this where the dataset is made."
    if first[0] != now[0]:
        return (
            f"Batch {number} of the dataset has a different structure than the first: {_structure(now[0])} "
            f"instead of {_structure(first[0])}. {remedy}"
        )
    for name, before, after in zip(leaf_names(now[0]), first[1], now[1], strict=True):
        if before != after:
            return (
                f"{name} of batch {number} has the dtype {after}, but {before} in the first batch. {remedy}"
            )
    return f"Batch {number} of the dataset is a single example, but the first was a batch. {remedy}"


def split(batch: Batch, pipeline: Pipeline) -> Step:
    """Split a global batch over the replicas of all pipelines; one example goes to the only replica."""
    if batch.num_rows is None:
        return Step((Piece(batch, 0, 0),), (1,))
    sizes = split_sizes(batch.num_rows, pipeline.num_replicas)
    stops = list(itertools.accumulate(sizes))
    own = [Piece(batch, stops[i] - sizes[i], stops[i]) for i in pipeline.own]
    return Step(tuple(own), tuple(sizes))


@final
class SplitStream(Stream):
    """Splits every batch over all replicas; this pipeline takes its own replicas' rows.

    With a single replica, elements may also be single examples.
    """

    def __init__(self, reader: Reader, pipeline: Pipeline, same: SameBatches) -> None:
        self._checked = _Checked(reader, batched=pipeline.num_replicas > 1)
        self._pipeline, self._same = pipeline, same

    def next(self) -> Step | None:
        before = self._checked.reader.num_batches
        try:
            batch = self._checked.read()
        except StopIteration:
            self._same.end()
            return None
        self._same.note(batch, before)
        return split(batch, self._pipeline)

    def position(self) -> Any:
        """The reader's position, which does not depend on the number of replicas and pipelines."""
        return self._checked.reader.position()

    def seek(self, position: Any) -> None:
        self._checked.reader.seek(position)

    def close(self) -> None:
        self._checked.reader.close()


@final
class DealtStream(Stream):
    """Splits batches into `num_parts` parts and deals them to this pipeline's replicas in turn.

    Args:
        readers: one for all replicas of this pipeline, or one per replica.
        pipeline: this pipeline.
        topic: the name of this pass in messages between pipelines.
        samples: for each reader, returns a batch that gives an empty batch its shapes and dtypes.
        num_parts: the number of parts that a batch is split into.
        batched: whether elements must be batches rather than single examples.
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
        self._hands = [
            _Hand(_Checked(reader, batched=batched), num_parts, sample)
            for reader, sample in zip(readers, samples, strict=True)
        ]
        self._pipeline, self._topic = pipeline, topic
        self._num_steps = 0
        self._cancelled = threading.Event()

    def next(self) -> Step | None:
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
            dealt = [None] * num_own  # a single example can't be empty, so the last few are dropped
        message = None if not any(dealt) else [piece.size if piece else 0 for piece in dealt]
        sizes = self._agree(message, single, [_row_kind(piece.batch) for piece in dealt if piece])
        if sizes is None:
            return None
        pieces = [piece or self._empty(i) for i, piece in enumerate(dealt)]
        return Step(tuple(pieces), tuple(sizes))

    def _agree(self, own: list[int] | None, single: bool, kinds: list[str]) -> list[int] | None:
        """The sizes of all replicas; None if no pipeline has data left."""
        if self._pipeline.num_pipelines == 1:
            return own
        number, self._num_steps = self._num_steps, self._num_steps + 1
        message = [own, single, None, kinds]
        told = self._pipeline.tell(self._topic, number, message, self._cancelled.is_set)
        for pipeline, (_, _, failure, _) in enumerate(told):
            if failure is not None:
                raise InputError(
                    f"Input pipeline {pipeline} failed, so there are no more steps: {failure}. See its "
                    "process for the traceback."
                )
        left = [sizes for sizes, _, _, _ in told]
        if not any(left) or (None in left and any(is_single for _, is_single, _, _ in told)):
            return None
        _check_row_kinds([kinds for _, _, _, kinds in told])
        sizes = [0] * self._pipeline.num_replicas
        for replicas, message in zip(self._pipeline.replicas, left, strict=True):
            for replica, size in zip(replicas, message or [0] * len(replicas), strict=True):
                sizes[replica] = size
        return sizes

    def _tell_of_failure(self, error: Exception) -> None:
        """Tell the other pipelines, so that they do not wait for this one; do not wait for them."""
        if self._pipeline.num_pipelines == 1 or self._cancelled.is_set():
            return
        message = [None, False, f"{type(error).__name__}: {error}", []]
        with contextlib.suppress(Exception):  # the others may have ended
            self._pipeline.tell(self._topic, self._num_steps, message, lambda: True)

    def _empty(self, index: int) -> Piece:
        first = index if len(self._hands) > 1 else 0
        hands = [self._hands[first], *self._hands]
        last = next((batch for hand in hands if (batch := hand.sample()) is not None), None)
        if last is None:
            raise InputError(
                f"Input pipeline {self._pipeline.pipeline_id} has no batches, but others have some, so the "
                "shape of an empty batch is unknown. Give every pipeline some data: use fewer processes, "
                "more files, or AutoShardPolicy.DATA."
            )
        return Piece(last, 0, 0)

    def position(self) -> Any:
        return [hand.position() for hand in self._hands]

    def seek(self, position: Any) -> None:
        for hand, where in zip(self._hands, position, strict=True):
            hand.seek(where)

    def cancel(self) -> None:
        self._cancelled.set()

    def close(self) -> None:
        for hand in self._hands:
            hand.close()


def _row_kind(batch: Batch) -> str:
    """The dtypes and shapes of a row of each array, which must be the same in all processes."""
    arrays = [leaf for leaf in batch.leaves if is_numeric(leaf)]
    return ", ".join(f"{leaf.dtype}{list(leaf.shape[batch.num_rows is not None :])}" for leaf in arrays)


def _check_row_kinds(by_pipeline: Sequence[Sequence[str]]) -> None:
    """Raise if rows differ between processes; replicas within a process may differ."""
    kinds = [(pipeline, kind) for pipeline, own in enumerate(by_pipeline) for kind in own]
    for pipeline, kind in kinds:
        first, expected = kinds[0]
        if kind != expected and pipeline != first:
            raise InputError(
                f"A row of a batch is {expected} in input pipeline {first}, but {kind} in pipeline "
                f"{pipeline}. All rows of a step need the same shapes and dtypes across processes: pad "
                "them to one length."
            )


@final
class _Hand:
    """A reader whose batches are dealt part by part."""

    def __init__(self, checked: _Checked, num_parts: int, sample: Callable[[], Batch | None]) -> None:
        self._checked, self._num_parts, self._sample = checked, num_parts, sample
        self._parts: deque[Piece] = deque()
        self._before: Any = None
        self._last: Batch | None = None

    def sample(self) -> Batch | None:
        """A batch with the shapes and dtypes of the dealt ones; None if there is none."""
        if self._last is None:
            self._last = self._sample()
        return self._last

    def deal(self) -> Piece | None:
        """The next part; None after the last."""
        if not self._parts:
            self._before = self._checked.reader.position()
            try:
                # Detached: its last parts may be taken after the next batch was read.
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
        """The reader's position before the current batch, and the number of its parts already dealt."""
        if not self._parts:
            return {"reader": self._checked.reader.position(), "parts": 0}
        return {"reader": self._before, "parts": self._num_parts - len(self._parts)}

    def seek(self, position: Any) -> None:
        self._checked.reader.seek(position["reader"])
        for _ in range(position["parts"]):
            self.deal()

    def close(self) -> None:
        self._checked.reader.close()
