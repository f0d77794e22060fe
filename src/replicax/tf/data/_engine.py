"""The steps of a dataset as Grain pipelines; imported when the first dataset is opened.

Where elements can be read by index (`grain.MapDataset`), an index beyond the length belongs to a later
epoch, as everywhere in Grain. Three iterators have no equivalent in Grain: over a Python generator, over
the records of a file with checksums, and over nested datasets.
"""

from __future__ import annotations

import functools
import itertools
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import Any, BinaryIO, final

import grain
import numpy as np

from replicax.errors import InputError
from replicax.tf.data._node import Opening

__all__ = ["ENDLESS", "as_stream", "chain", "concatenate", "is_by_index", "iterate", "limit", "nested"]
__all__ += ["records", "replayed", "rows", "rows_of_epochs", "shuffle", "side_by_side", "sliced"]

ENDLESS = sys.maxsize
"""The length of an infinite dataset in Grain."""

# A `filter` may drop most elements, and `shard` is a filter; Grain would warn about that by default.
_QUIET = grain.experimental.DatasetOptions(filter_warn_threshold_ratio=None)


def rows(count: int, get: Callable[[int], Any]) -> Any:
    """The elements `get(0)`, `get(1)`, ... by index, the same in each epoch."""
    return _Rows(count, lambda _, row: get(row))


def rows_of_epochs(count: int, get: Callable[[int, int], Any]) -> Any:
    """The elements `get(epoch, row)` by index, with epochs from 0."""
    return _Rows(count, get)


def is_by_index(*datasets: Any) -> bool:
    """Whether all elements can be read by index."""
    return all(isinstance(dataset, grain.MapDataset) for dataset in datasets)


def as_stream(dataset: Any, opening: Opening) -> Any:
    """`dataset` as a `grain.IterDataset`."""
    if not is_by_index(dataset):
        return dataset
    buffer_size = max(opening.buffer_size, opening.num_threads) if opening.num_threads else 0
    return dataset.to_iter_dataset(grain.ReadOptions(opening.num_threads, buffer_size))


def iterate(dataset: Any, opening: Opening) -> Any:
    """An iterator over `dataset`."""
    opened = grain.experimental.WithOptionsIterDataset(as_stream(dataset, opening), _QUIET)
    # Otherwise Grain would shorten the traceback of every error and add a note about it.
    opened.has_child = True
    return opened.__iter__()


def limit(dataset: Any, count: int) -> Any:
    """The first `count` elements."""
    if is_by_index(dataset):
        return dataset.slice(slice(count))
    return grain.experimental.LimitIterDataset(dataset, count)


def sliced(dataset: Any, chosen: slice) -> Any:
    """The elements `[n:]` or `[i::n]`."""
    if is_by_index(dataset):
        return dataset.slice(chosen)
    start, step = chosen.start, chosen.step or 1
    numbered = dataset.map_with_index(lambda index, element: (index, element))
    passing = numbered.filter(lambda pair: pair[0] >= start and (pair[0] - start) % step == 0)
    return passing.map(lambda pair: pair[1])


def side_by_side(datasets: Sequence[Any], opening: Opening) -> Any:
    """Tuples of the elements of several datasets, up to the end of the shortest."""
    if is_by_index(*datasets):
        shortest = min(map(len, datasets))
        cut = [each if len(each) == shortest else limit(each, shortest) for each in datasets]
        return grain.experimental.ZipMapDataset(cut)
    streams = [as_stream(dataset, opening) for dataset in datasets]
    return grain.experimental.ZipIterDataset(streams, strict=False)


def concatenate(datasets: Sequence[Any], opening: Opening) -> Any:
    """The elements of one dataset after those of another."""
    if is_by_index(*datasets) and ENDLESS not in map(len, datasets):
        return grain.MapDataset.concatenate(datasets)
    return chain(len(datasets), lambda number: iterate(datasets[number], opening))


def shuffle(dataset: Any, window: int, seed: int, epoch: int, reshuffle: bool) -> Any:
    """Shuffle elements within windows; each epoch has its own order if `reshuffle` is set.

    Grain's window shuffles find an index by walking through a permutation of at least 2**16 numbers, which
    takes a hundred times as long for a window of 1,000.
    """

    @functools.lru_cache(maxsize=16)  # threads that read ahead are in adjacent windows
    def order(epoch: int, number: int, size: int) -> np.ndarray:
        return np.random.default_rng([seed, epoch if reshuffle else 0, number]).permutation(size)

    if not is_by_index(dataset):
        lists = dataset.batch(window, batch_fn=list).map_with_index(
            lambda number, elements: [elements[i] for i in order(epoch, number, len(elements))]
        )
        return nested(lists, lambda window, _: iterate(rows(len(window), window.__getitem__), Opening()))
    length = len(dataset)
    if reshuffle and 2**16 <= length <= window:
        first = int(np.random.SeedSequence(seed).generate_state(1)[0])
        return dataset.shuffle(seed=(first + epoch) % 2**32)

    def element(repetition: int, row: int) -> Any:
        number, place = divmod(row, window)
        chosen = order(epoch + repetition, number, min(window, length - number * window))[place]
        return dataset[repetition * length + row - place + int(chosen)]

    return rows_of_epochs(length, element)


def replayed(begin: Callable[[], Iterator[Any]], make: Callable[[int, Any], Any], what: str) -> Any:
    """The elements of a Python iterator.

    Args:
        begin: starts the iterator, which must yield the same values each time.
        make: creates an element from its number and a value.
        what: the name of the iterator in messages.
    """
    return _Stream((), lambda: _ReplayedIterator(begin, make, what))


def records(begin: Callable[[], BinaryIO], read: Callable[[BinaryIO], bytes | None]) -> Any:
    """The records of the file that `begin` opens; `read` returns the next one, or None at the end."""
    return _Stream((), lambda: _RecordIterator(begin, read))


def chain(count: int | None, begin: Callable[[int], Any]) -> Any:
    """The elements of the iterators `begin(0)`, `begin(1)`, ...; `count` None stops at an empty one."""
    numbers = as_stream(grain.MapDataset.range(ENDLESS if count is None else count), Opening())
    return nested(numbers, lambda number, _: begin(number), until_empty=count is None)


def nested(
    parent: Any,
    begin: Callable[[Any, int], Any],
    cycle_length: int = 1,
    block_length: int = 1,
    until_empty: bool = False,
) -> Any:
    """The elements of the iterators that `begin` opens for each element of a stream.

    Args:
        parent: the stream.
        begin: opens an iterator, given an element and its number.
        cycle_length: how many iterators are open at a time; they take turns.
        block_length: how many elements one yields before the next one's turn.
        until_empty: stop at the first iterator that is empty.
    """
    return _Stream(
        (parent,), lambda opened: _NestedIterator(opened, begin, cycle_length, block_length, until_empty)
    )


@final
class _Rows(grain.MapDataset):
    """Elements computed by a function; `grain.MapDataset.range(length).map(get)` is three times slower."""

    def __init__(self, length: int, get: Callable[[int, int], Any]) -> None:
        super().__init__()
        self._length, self._get = length, get

    def __len__(self) -> int:
        return self._length

    def __getitem__(self, index: Any) -> Any:
        return self.slice(index) if isinstance(index, slice) else self._get(*divmod(index, self._length))


@final
class _Stream(grain.IterDataset):
    def __init__(self, parents: Sequence[Any], make: Callable[..., Any]) -> None:
        super().__init__(parents)
        self._make = make

    def __iter__(self) -> Any:
        return self._make(*[parent.__iter__() for parent in self.parents])


_State = dict[str, Any]


@final
class _ReplayedIterator(grain.DatasetIterator):
    """Elements of a Python iterator, which restores a position by reading up to it."""

    def __init__(
        self, begin: Callable[[], Iterator[Any]], make: Callable[[int, Any], Any], what: str
    ) -> None:
        self._iterator: Any = None
        super().__init__()
        self._begin, self._make, self._what, self._count = begin, make, what, 0

    def __next__(self) -> Any:
        if self._iterator is None:
            self._iterator = self._begin()
        value = next(self._iterator)
        self._count += 1
        return self._make(self._count - 1, value)

    def get_state(self) -> _State:
        return {"count": self._count}

    def set_state(self, state: _State) -> None:
        self._stop()
        self._iterator, self._count = self._begin(), state["count"]
        found = sum(1 for _ in itertools.islice(self._iterator, self._count))
        if found < self._count:
            raise InputError(
                f"The saved position is after {self._count} elements of {self._what}, which now has only "
                f"{found}. It must yield the same elements each time."
            )

    def _stop(self) -> None:
        # Only generators have `close`, which runs their `finally` blocks.
        getattr(self._iterator, "close", lambda: None)()

    def close(self) -> None:
        self._stop()
        super().close()


@final
class _RecordIterator(grain.DatasetIterator):
    """Records of a file. Grain's `TFRecordIterDataset` neither verifies checksums nor decompresses."""

    def __init__(self, begin: Callable[[], BinaryIO], read: Callable[[BinaryIO], bytes | None]) -> None:
        self._file: Any = None
        super().__init__()
        self._read, self._file = read, begin()

    def __next__(self) -> bytes:
        record = self._read(self._file)
        if record is None:
            raise StopIteration
        return record

    def get_state(self) -> _State:
        return {"offset": self._file.tell()}

    def set_state(self, state: _State) -> None:
        self._file.seek(state["offset"])

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
        super().close()


@final
class _NestedIterator(grain.DatasetIterator):
    """Nested datasets.

    Grain's `InterleaveIterDataset` must know the number of datasets, has no `block_length` and opens
    datasets ahead of time; its `FlatMapIterDataset` takes lists. For each open iterator, a slot holds the
    parent's state before its element, the number of the element, and the iterator.
    """

    def __init__(
        self,
        parent: Any,
        begin: Callable[[Any, int], Any],
        cycle_length: int,
        block_length: int,
        until_empty: bool,
    ) -> None:
        self._slots: list[tuple[_State, int, Any] | None] = [None] * cycle_length
        super().__init__(parent)
        self._begin, self._block_length, self._until_empty = begin, block_length, until_empty
        self._turn, self._in_block, self._num_opened = 0, 0, 0
        self._at_end, self._is_empty = False, True

    def __next__(self) -> Any:
        while not self._at_end or any(self._slots):
            slot = self._slots[self._turn]
            if slot is None:
                if self._at_end:
                    self._next_turn()
                else:
                    self._open()
                continue
            try:
                element = next(slot[2])
            except StopIteration:
                slot[2].close()
                self._slots[self._turn] = None
                self._at_end |= self._until_empty and self._is_empty
                self._next_turn()
                continue
            self._is_empty = False
            self._in_block += 1
            if self._in_block == self._block_length:
                self._next_turn()
            return element
        raise StopIteration

    def _next_turn(self) -> None:
        self._turn, self._in_block = (self._turn + 1) % len(self._slots), 0

    def _open(self) -> None:
        before = self._parent.get_state()
        try:
            element = next(self._parent)
        except StopIteration:
            self._at_end = True
            return
        number = self._num_opened
        self._slots[self._turn] = before, number, self._begin(element, number)
        self._num_opened, self._is_empty = number + 1, True

    def get_state(self) -> _State:
        return {
            "parent": self._parent.get_state(),
            "slots": [slot and (*slot[:2], slot[2].get_state()) for slot in self._slots],
            "turn": [self._turn, self._in_block, self._num_opened],
            "ends": [self._at_end, self._is_empty],
        }

    def set_state(self, state: _State) -> None:
        self._close_slots()
        for index, slot in enumerate(state["slots"]):
            if slot is not None:
                before, number, inner = slot
                self._parent.set_state(before)
                iterator = self._begin(next(self._parent), number)
                iterator.set_state(inner)
                self._slots[index] = before, number, iterator
        self._parent.set_state(state["parent"])
        self._turn, self._in_block, self._num_opened = state["turn"]
        self._at_end, self._is_empty = state["ends"]

    def _close_slots(self) -> None:
        for slot in filter(None, self._slots):
            slot[2].close()
        self._slots = [None] * len(self._slots)

    def close(self) -> None:
        self._close_slots()
        super().close()
