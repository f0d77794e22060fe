"""Sources of batches, one class for each kind of dataset.

A `Source` can be opened any number of times, except for one-shot iterators; each `Reader` makes one pass. A
reader knows its position, a small dictionary that can be serialized as JSON, and can seek to a position.
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
    """A source can't be sharded by file; the message is the reason."""


class Reader(abc.ABC):
    """One pass over a source."""

    def __init__(self) -> None:
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
        """The current position."""
        return {"batches": self.num_batches, "examples": self.num_examples, **self._bookmark()}

    @final
    def seek(self, position: dict[str, Any]) -> None:
        """Go to a position; call this before the first batch is read."""
        try:
            self._seek(position)
            self.num_batches, self.num_examples = position["batches"], position["examples"]
        except (KeyError, TypeError, ValueError, AttributeError, IndexError) as error:
            if isinstance(error, InputError):
                raise
            raise InputError(
                f"The position {position!r} does not match this dataset: {error!r}. Restore a position "
                "that `iterator.state()` returned for a dataset of the same kind."
            ) from error

    @abc.abstractmethod
    def _read(self) -> Batch:
        """The next batch; raises StopIteration after the last."""

    def _bookmark(self) -> dict[str, Any]:
        """What `_seek` needs, apart from the number of batches."""
        return {}

    def _seek(self, position: dict[str, Any]) -> None:
        """Go to a position; by default, by reading and dropping batches."""
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
                f"examples, but these batches now have {examples}. The dataset must yield the same batches "
                "again."
            )

    @abc.abstractmethod
    def close(self) -> None:
        """Release files, threads and processes."""


class Source(abc.ABC):
    """A dataset that can be read in passes."""

    batch_size: int | None = None
    """The number of rows in a full batch, if known without reading."""
    kind: str = "batches"
    """The kind of source; a position can be restored only by a source of the same kind."""
    any_thread: bool = False
    """Whether several threads may take turns reading a pass; then it must be able to seek quickly."""
    numbered: bool = False
    """Whether the order of a pass depends only on its number."""
    files: tuple[str, ...] = ()
    """The files that it reads, if known."""
    shuffled_by: tuple[Any, int] | None = None
    """For shuffled data: an object that lives as long as the data, and the seed."""

    @property
    def cardinality(self) -> int:
        """The number of batches in a pass."""
        return UNKNOWN_CARDINALITY

    @property
    def policy(self) -> AutoShardPolicy:
        """How pipelines share it by default."""
        return AutoShardPolicy.AUTO

    @abc.abstractmethod
    def open(self, number: int) -> Reader:
        """Begin a pass. Sources that shuffle use its `number` to choose the order."""

    def spec(self) -> Any:
        """The shapes and dtypes of a batch; None if they are unknown before reading."""
        return None

    def of_files(self, num_shards: int, index: int) -> Source:
        """This source with every `num_shards`-th file, starting at `index`; may raise `NoFiles`."""
        raise NoFiles("the files that this kind of dataset reads are unknown")

    def peek(self) -> Batch | None:
        """The first batch, read without affecting later passes; None if there is none."""
        reader = self.open(0)
        try:
            return reader.read()
        except StopIteration:
            return None
        finally:
            reader.close()


class GivesSource(abc.ABC):
    """A dataset that has its own source."""

    @abc.abstractmethod
    def source(self) -> Source:
        """The source that a strategy reads."""
