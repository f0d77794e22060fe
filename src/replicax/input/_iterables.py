"""Sources that are plain Python: re-iterables, functions that return iterators, one-shot iterators.

A position is a number of batches. Seeking reads that many batches and drops them.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, final

from replicax.errors import InputError, NotADatasetError
from replicax.input._batch import Batch, WholeBatch, spec_of
from replicax.input._source import UNKNOWN_CARDINALITY, Reader, Source
from replicax.values import is_array

__all__ = ["FunctionSource", "IterableSource", "IteratorSource", "refuse_arrays"]


def refuse_arrays(dataset: Any) -> None:
    """Raise for arrays and structures of arrays, which are iterable but are not datasets."""
    rows = isinstance(dataset, tuple) and any(is_array(part) for part in dataset)
    if is_array(dataset) or isinstance(dataset, Mapping) or rows:
        raise NotADatasetError(
            f"An object of type {type(dataset).__name__} is not a dataset. For the rows of arrays use "
            "`rx.from_arrays(arrays).batch(global_batch_size)`, for a few batches a list of them, and for "
            "one batch strategy.distribute_batch."
        )


@final
class _IteratorReader(Reader):
    def __init__(self, iterator: Iterator[Any]) -> None:
        super().__init__()
        self._iterator = iterator

    def _read(self) -> Batch:
        return WholeBatch(next(self._iterator), private=False)

    def close(self) -> None:
        """Close a generator, which runs its `finally` blocks; drop any other iterator."""
        close = getattr(self._iterator, "close", None)
        self._iterator = iter(())
        if callable(close):
            close()


@final
class IterableSource(Source):
    """Anything that can be iterated over repeatedly, or has a length and an index."""

    def __init__(self, iterable: Any) -> None:
        self._iterable = iterable

    @property
    def cardinality(self) -> int:
        try:
            return len(self._iterable)
        except (TypeError, NotImplementedError):
            return UNKNOWN_CARDINALITY

    def open(self, number: int) -> Reader:
        if isinstance(self._iterable, Iterable):
            return _IteratorReader(iter(self._iterable))
        sequence: Any = self._iterable  # by index, up to its length
        return _IteratorReader(sequence[i] for i in range(len(sequence)))


@final
class FunctionSource(Source):
    """A function that returns a new iterator each time."""

    def __init__(self, function: Callable[[], Iterable[Any]]) -> None:
        self._function = function

    def open(self, number: int) -> Reader:
        batches = self._function()
        refuse_arrays(batches)
        if not isinstance(batches, Iterable):
            raise NotADatasetError(
                f"A function passed as a dataset must return a new iterable for every pass, but "
                f"{self._function!r} returned {batches!r}."
            )
        return _IteratorReader(iter(batches))


@final
class IteratorSource(Source):
    """An iterator or generator, which can be read once."""

    def __init__(self, iterator: Iterator[Any]) -> None:
        self._iterator = iterator
        self._peeked: list[Batch] = []
        self._spec: Any = None
        self._opened = False

    def open(self, number: int) -> Reader:
        if self._opened:
            raise InputError(
                f"A second pass over this dataset was begun, but {self._iterator!r} can be read only once. "
                "Pass something that can be iterated over repeatedly (a list, a DataLoader, ...) or a "
                "function that returns a new iterator: `lambda: my_generator()`."
            )
        self._opened = True
        return _OnceReader(self)

    def spec(self) -> Any:
        """The spec of the first batch, if it has been read."""
        return self._spec

    def peek(self) -> Batch | None:
        """The first batch, which the pass will return again."""
        if not self._peeked and not self._opened:
            with contextlib.suppress(StopIteration):
                self._peeked.append(self.next_batch().detached())
        return self._peeked[0] if self._peeked else None

    def next_batch(self) -> Batch:
        batch = WholeBatch(next(self._iterator), private=False)
        if self._spec is None:
            self._spec = spec_of(batch)
        return batch

    def take_peeked(self) -> Batch | None:
        """The batch that `peek` read; None after the first call."""
        return self._peeked.pop() if self._peeked else None

    def close(self) -> None:
        _IteratorReader(self._iterator).close()


@final
class _OnceReader(Reader):
    def __init__(self, source: IteratorSource) -> None:
        super().__init__()
        self._source = source

    def _read(self) -> Batch:
        return self._source.take_peeked() or self._source.next_batch()

    def close(self) -> None:
        self._source.close()
