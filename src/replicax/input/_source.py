"""A source: where batches come from, whatever library made it.

A `Source` can be opened any number of times (unless it says otherwise) and every `Reader` makes one pass.
A reader knows its position, a small dictionary that can be written as JSON, and can go to one.
"""

from __future__ import annotations

import abc
from typing import Any, final

from replicax.errors import InputError
from replicax.input._batch import Batch
from replicax.input._options import AutoShardPolicy

__all__ = ["INFINITE_CARDINALITY", "UNKNOWN_CARDINALITY", "GivesSource", "NoFiles", "Reader", "Source"]

INFINITE_CARDINALITY = -1
UNKNOWN_CARDINALITY = -2


class NoFiles(Exception):
    """A source can't be shared out by files; the message says why."""


class Reader(abc.ABC):
    """One pass over a source."""

    def __init__(self) -> None:
        """At the beginning."""
        self.num_batches = 0
        self.num_examples = 0

    @final
    def read(self) -> Batch:
        """The next batch; raises StopIteration after the last."""
        try:
            batch = self._read()
        except InputError as error:
            raise InputError(f"Batch {self.num_batches} of the dataset: {error}") from error
        self.num_batches += 1
        self.num_examples += 1 if batch.num_rows is None else batch.num_rows
        return batch

    @final
    def position(self) -> dict[str, Any]:
        """Where the reader is: what it has read, and what it needs to go on from there."""
        return {"batches": self.num_batches, "examples": self.num_examples, **self._bookmark()}

    @final
    def seek(self, position: dict[str, Any]) -> None:
        """Go to a position, from the beginning."""
        try:
            self._seek(position)
            self.num_batches, self.num_examples = position["batches"], position["examples"]
        except (KeyError, TypeError, ValueError, AttributeError, IndexError) as error:
            if isinstance(error, InputError):
                raise
            raise InputError(f"The position {position!r} does not fit this dataset: {error!r}.") from error

    @abc.abstractmethod
    def _read(self) -> Batch:
        """The next batch; raises StopIteration after the last."""

    def _bookmark(self) -> dict[str, Any]:
        """What is needed to come back here, apart from the number of batches."""
        return {}

    def _seek(self, position: dict[str, Any]) -> None:
        """Go to a position; a reader that knows no better reads up to it."""
        examples = 0
        for _ in range(position["batches"]):
            try:
                num_rows = self._read().num_rows
            except StopIteration:
                break
            examples += 1 if num_rows is None else num_rows
        if examples != position["examples"]:
            raise InputError(
                f"The position is after {position['batches']} batches with {position['examples']} "
                f"examples, but the dataset now has {examples} there. It must give the same batches again."
            )

    @abc.abstractmethod
    def close(self) -> None:
        """Let go of files, threads and processes."""


class Source(abc.ABC):
    """Something that gives batches."""

    batch_size: int | None = None
    """How many rows a full batch has, if that is known without reading."""
    kind: str = "batches"
    """Which other sources' positions it understands: those of its kind."""
    any_thread: bool = False
    """Whether a pass may be read now in this thread, now in that."""
    numbered: bool = False
    """Whether the number of a pass is all that its order depends on."""
    files: tuple[str, ...] = ()
    """The files that it reads, if it says so."""
    shuffled_by: tuple[Any, int] | None = None
    """What decides the order of shuffled data: an object that lives as long as the data, and the seed."""

    @property
    def cardinality(self) -> int:
        """How many batches one pass gives."""
        return UNKNOWN_CARDINALITY

    @property
    def policy(self) -> AutoShardPolicy:
        """How pipelines share it if the user does not say."""
        return AutoShardPolicy.AUTO

    @abc.abstractmethod
    def open(self, number: int) -> Reader:
        """Begin a pass; `number` counts the passes, for sources that shuffle anew for each."""

    def spec(self) -> Any:
        """What a batch looks like, as a structure of specs; None if only reading one can tell."""
        return None

    def of_files(self, num_shards: int, index: int) -> Source:
        """This source with every `num_shards`-th of its files, from `index`; raises `NoFiles`."""
        raise NoFiles("this kind of dataset does not say which files it reads")

    def peek(self) -> Batch | None:
        """The first batch of a pass, which a later pass gives too; None if there is none."""
        reader = self.open(0)
        try:
            return reader.read()
        except StopIteration:
            return None
        finally:
            reader.close()


class GivesSource(abc.ABC):
    """A dataset that knows how it is read."""

    @abc.abstractmethod
    def source(self) -> Source:
        """What a strategy reads."""
