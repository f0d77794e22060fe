"""Makes the batches of one pass: opens the dataset, then reads, splits and places one batch at a time."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any, final

from replicax.contexts import enter_default
from replicax.input._hints import RepeatedOrder
from replicax.input._partial import PartialBatches
from replicax.input._place import Placer
from replicax.input._stream import Stream

__all__ = ["Made", "Mark", "Pass", "PassProducer"]


@final
@dataclasses.dataclass(frozen=True)
class Pass:
    """What an iterator needs to know about its dataset.

    Args:
        open: begins a pass, given its number and a topic.
        new_topic: returns the name of the next pass in messages between pipelines.
        layout: what a position depends on besides the data; serializable as JSON.
        element_spec: returns the shapes and dtypes of the batches.
        placer: places batches on the devices.
        partial_batches: makes the rule for partial batches, given the size of a full batch if known.
        buffer_size: how many batches to read ahead.
        any_thread: whether several threads may read in turn, and seek to any position.
        number: which pass this is.
        order: warns about repeated shuffled orders; only in a first pass.
    """

    open: Callable[[int, str], Stream]
    new_topic: Callable[[], str]
    layout: dict[str, Any]
    element_spec: Callable[[], Any]
    placer: Placer
    partial_batches: Callable[[int | None], PartialBatches]
    buffer_size: int
    any_thread: bool
    number: int
    order: RepeatedOrder | None


@final
@dataclasses.dataclass(frozen=True)
class Mark:
    """A point in a pass.

    Args:
        number: how many batches this iterator has returned.
        examples: how many examples the pass has returned, including those before a restore.
        position: the stream's position; None at the beginning.
        batch_size: the size of a full batch; None if it is not known yet.
    """

    number: int
    examples: int
    position: Any
    batch_size: int | None


@final
@dataclasses.dataclass(frozen=True)
class Made:
    """A batch, and the mark after it."""

    batch: Any
    mark: Mark

    @property
    def number(self) -> int:
        """Which batch this is, counted from 1."""
        return self.mark.number


@final
class PassProducer:
    """Makes the batches of a pass.

    Args:
        this_pass: what to read.
        number: which pass it is.
        mark: where to begin.
    """

    def __init__(self, this_pass: Pass, number: int, mark: Mark) -> None:
        self._pass, self._number = this_pass, number
        self._topic = this_pass.new_topic()  # in the user's thread: all processes have the same order there
        self._mark = mark
        self._stream: Stream | None = None
        self._partial = this_pass.partial_batches(mark.batch_size)
        self._incomplete = False

    @property
    def number(self) -> int:
        """How many batches have been made."""
        return self._mark.number

    def make(self) -> Made | None:
        """The next batch; None after the last."""
        if self._incomplete:  # an exception interrupted the last call: read again from the last mark
            self.close()
            self._partial = self._pass.partial_batches(self._mark.batch_size)
        self._incomplete = True
        with enter_default():
            made = self._next()
        if made is None:
            self._incomplete = False
            return None
        # No calls from here on, so no interrupt can come between these stores and the return.
        self._mark, self._incomplete = made.mark, False
        return made

    def _next(self) -> Made | None:
        stream = self._stream or self._open()
        while (step := stream.next()) is not None:
            if self._partial.keep(step):
                break
        else:
            return None
        batch = self._pass.placer.place(step, self._partial.padded_size)
        before = self._mark
        examples = before.examples + sum(step.sizes)
        return Made(batch, Mark(before.number + 1, examples, stream.position(), self._partial.batch_size))

    def _open(self) -> Stream:
        try:
            stream = self._stream = self._pass.open(self._number, self._topic)
        except StopIteration as error:  # not the end of the batches
            raise RuntimeError("The dataset raised StopIteration at the beginning of a pass.") from error
        if self._mark.position is not None:
            stream.seek(self._mark.position)
        return stream

    def cancel(self) -> None:
        """Stop waiting for other processes; called from another thread."""
        stream = self._stream
        if stream is not None:
            stream.cancel()

    def close(self) -> None:
        """Close the dataset."""
        stream, self._stream = self._stream, None
        if stream is not None:
            stream.close()
