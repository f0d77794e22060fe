"""Sources that are plain Python: re-iterables, functions that return iterators, one-shot iterators.

Their position is a number of batches, and they get to it by reading up to it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any, final

from replicax.errors import InputError, NotADatasetError
from replicax.input._batch import Batch, WholeBatch
from replicax.input._source import UNKNOWN_CARDINALITY, Reader, Source

__all__ = ["FunctionSource", "IterableSource", "IteratorSource"]


@final
class _IteratorReader(Reader):
    def __init__(self, iterator: Iterator[Any]) -> None:
        super().__init__()
        self._iterator = iterator

    def _read(self) -> Batch:
        return WholeBatch(next(self._iterator), private=False)

    def close(self) -> None:
        """Let a generator run its `finally` blocks; drop any other iterator."""
        close = getattr(self._iterator, "close", None)
        self._iterator = iter(())
        if callable(close):
            close()


@final
class IterableSource(Source):
    """Anything that can be iterated over again and again."""

    def __init__(self, iterable: Iterable[Any]) -> None:
        """Read from `iterable`."""
        self._iterable = iterable

    @property
    def cardinality(self) -> int:
        """The length, if it has one."""
        try:
            return len(self._iterable)  # pyright: ignore[reportArgumentType]
        except (TypeError, NotImplementedError):
            return UNKNOWN_CARDINALITY

    def open(self, number: int) -> Reader:
        """Begin again."""
        return _IteratorReader(iter(self._iterable))


@final
class FunctionSource(Source):
    """A function that returns a fresh iterator each time."""

    def __init__(self, function: Callable[[], Iterable[Any]]) -> None:
        """Read from what `function` returns."""
        self._function = function

    def open(self, number: int) -> Reader:
        """Call the function."""
        batches = self._function()
        if not isinstance(batches, Iterable):
            raise NotADatasetError(
                f"A function that is given as a dataset must return something to iterate over, a fresh one "
                f"for every pass; {self._function!r} returned {batches!r}."
            )
        return _IteratorReader(iter(batches))


@final
class IteratorSource(Source):
    """An iterator or generator, which can be read once."""

    def __init__(self, iterator: Iterator[Any]) -> None:
        """Read from `iterator`."""
        self._iterator = iterator
        self._peeked: list[Batch] = []
        self._opened = False

    def open(self, number: int) -> Reader:
        """Take the iterator; the second time there is none."""
        if self._opened:
            raise InputError(
                f"This dataset was made from {self._iterator!r}, which can be read only once, and a second "
                "pass over it was begun. Give something that can be iterated over again (a list, a "
                "DataLoader, ...) or a function that returns a fresh iterator: `lambda: my_generator()`."
            )
        self._opened = True
        return _OnceReader(self._iterator, self._peeked)

    def peek(self) -> Batch | None:
        """The first batch, which is kept for the pass."""
        if not self._peeked and not self._opened:
            try:
                # A copy: the iterator may use its buffers again.
                batch = WholeBatch(next(self._iterator), private=False)
                rows = batch.rows(0, batch.num_rows or 0)
                self._peeked.append(WholeBatch(batch.treedef.unflatten(rows), private=True))
            except StopIteration:
                return None
        return self._peeked[0] if self._peeked else None


@final
class _OnceReader(Reader):
    def __init__(self, iterator: Iterator[Any], first: list[Batch]) -> None:
        super().__init__()
        self._first = list(first)
        self._rest = _IteratorReader(iterator)

    def _read(self) -> Batch:
        return self._first.pop() if self._first else self._rest.read()

    def close(self) -> None:
        self._rest.close()
