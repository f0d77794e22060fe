"""Grain iterators for what goes on one element after the other, each with a position to come back to."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from typing import Any, BinaryIO, final

import grain

from replicax.errors import InputError
from replicax.input import INFINITE_CARDINALITY, UNKNOWN_CARDINALITY
from replicax.tf.data._elements import frozen

__all__ = [
    "CacheIterator",
    "ConcatenateIterator",
    "CountingIterator",
    "FileIterator",
    "GeneratorIterator",
    "NestedIterator",
    "RepeatIterator",
    "StrideIterator",
]

_State = dict[str, Any]


@final
class StrideIterator(grain.DatasetIterator):
    """Every `step`-th element, from `start`."""

    def __init__(self, parent: Any, start: int, step: int) -> None:
        """Nothing is skipped yet."""
        super().__init__(parent)
        self._to_skip, self._step = start, step

    def __next__(self) -> Any:
        while self._to_skip:
            next(self._parent)
            self._to_skip -= 1
        element = next(self._parent)
        self._to_skip = self._step - 1
        return element

    def get_state(self) -> _State:
        """The parent's, and how many elements are still to be skipped."""
        return {"parent": self._parent.get_state(), "to_skip": self._to_skip}

    def set_state(self, state: _State) -> None:
        """Go there."""
        self._parent.set_state(state["parent"])
        self._to_skip = state["to_skip"]


@final
class ConcatenateIterator(grain.DatasetIterator):
    """One iterator after the other."""

    def __init__(self, first: Any, second: Any) -> None:
        """Begin with the first."""
        super().__init__([first, second])
        self._iterators = first, second
        self._current = 0

    def __next__(self) -> Any:
        if self._current == 0:
            try:
                return next(self._iterators[0])
            except StopIteration:
                self._current = 1
        return next(self._iterators[1])

    def get_state(self) -> _State:
        """Both, and which it is the turn of."""
        return {"parents": [iterator.get_state() for iterator in self._iterators], "current": self._current}

    def set_state(self, state: _State) -> None:
        """Go there."""
        for iterator, where in zip(self._iterators, state["parents"], strict=True):
            iterator.set_state(where)
        self._current = state["current"]


@final
class CountingIterator(grain.DatasetIterator):
    """Counts elements; raises if there are not as many as was said."""

    def __init__(self, parent: Any, wanted: int) -> None:
        """Nothing is counted yet."""
        super().__init__(parent)
        self._count, self._wanted = 0, wanted

    def __next__(self) -> Any:
        try:
            element = next(self._parent)
        except StopIteration:
            if self._wanted not in (UNKNOWN_CARDINALITY, self._count):
                self._complain(f"has only {self._count}")
            raise
        self._count += 1
        if 0 <= self._wanted < self._count:
            self._complain("has more")
        return element

    def _complain(self, but: str) -> None:
        wanted = "no end of" if self._wanted == INFINITE_CARDINALITY else self._wanted
        raise InputError(f"assert_cardinality said that the dataset has {wanted} elements, but it {but}.")

    def get_state(self) -> _State:
        """The parent's, and the count."""
        return {"parent": self._parent.get_state(), "count": self._count}

    def set_state(self, state: _State) -> None:
        """Go there."""
        self._parent.set_state(state["parent"])
        self._count = state["count"]


@final
class RepeatIterator(grain.DatasetIterator):
    """One epoch after the other, each begun anew.

    Args:
        begin: gives the iterator of an epoch.
        count: how many epochs; None ends only with an epoch that has no elements.
    """

    def __init__(self, begin: Callable[[int], Any], count: int | None) -> None:
        """Begin with the first epoch."""
        self._inner: Any = None
        super().__init__()
        self._begin, self._count = begin, count
        self._epoch, self._any = 0, False

    def __next__(self) -> Any:
        while self._count is None or self._epoch < self._count:
            if self._inner is None:
                self._inner = self._begin(self._epoch)
            try:
                element = next(self._inner)
            except StopIteration:
                if self._count is None and not self._any:
                    raise
                self._go_to(self._epoch + 1, any_read=False)
                continue
            self._any = True
            return element
        raise StopIteration

    def _go_to(self, epoch: int, *, any_read: bool) -> None:
        if self._inner is not None:
            self._inner.close()
        self._inner, self._epoch, self._any = None, epoch, any_read

    def get_state(self) -> _State:
        """The epoch, and where it is in that."""
        inner = None if self._inner is None else self._inner.get_state()
        return {"epoch": self._epoch, "any": self._any, "inner": inner}

    def set_state(self, state: _State) -> None:
        """Go there."""
        self._go_to(state["epoch"], any_read=state["any"])
        if state["inner"] is not None:
            self._inner = self._begin(self._epoch)
            self._inner.set_state(state["inner"])

    def close(self) -> None:
        """Close the epoch."""
        if self._inner is not None:
            self._inner.close()
        super().close()


@final
class CacheIterator(grain.DatasetIterator):
    """Elements that are read once, and then come from a store."""

    def __init__(self, begin: Callable[[], Any], store: Any) -> None:
        """Read from what `begin` gives until `store` has all elements."""
        self._inner: Any = None
        super().__init__()
        self._begin, self._store = begin, store
        self._read: list[Any] = []
        self._index = 0

    def __next__(self) -> Any:
        elements = self._store.elements
        while elements is None and self._index >= len(self._read):
            if self._inner is None:
                self._inner = self._begin()
            try:
                self._read.append(frozen(next(self._inner)))
            except StopIteration:
                elements = self._store.elements = self._read
        available = self._read if elements is None else elements
        if self._index >= len(available):
            raise StopIteration
        self._index += 1
        return available[self._index - 1]

    def get_state(self) -> _State:
        """How many elements were given."""
        return {"index": self._index}

    def set_state(self, state: _State) -> None:
        """Go there; elements that are not in the store are read up to it."""
        self._index = state["index"]

    def close(self) -> None:
        """Close what is being read."""
        if self._inner is not None:
            self._inner.close()
        super().close()


@final
class GeneratorIterator(grain.DatasetIterator):
    """What a generator yields; it gets to a position by reading up to it.

    Args:
        begin: gives a fresh iterator.
        checked: of what was yielded, and its number, makes an element.
    """

    def __init__(self, begin: Callable[[], Iterator[Any]], checked: Callable[[Any, int], Any]) -> None:
        """The generator begins when the first element is asked for."""
        self._iterator: Any = None
        super().__init__()
        self._begin, self._checked = begin, checked
        self._count = 0

    def __next__(self) -> Any:
        if self._iterator is None:
            self._iterator = self._begin()
        value = next(self._iterator)
        self._count += 1
        return self._checked(value, self._count - 1)

    def get_state(self) -> _State:
        """How many elements were yielded."""
        return {"count": self._count}

    def set_state(self, state: _State) -> None:
        """Begin anew, and read up to there."""
        self._stop()
        self._iterator, self._count = self._begin(), state["count"]
        found = sum(1 for _ in itertools.islice(self._iterator, self._count))
        if found < self._count:
            raise InputError(
                f"The position is after {self._count} elements of the generator given to "
                f"Dataset.from_generator, which now yields only {found}. It must yield the same again."
            )

    def _stop(self) -> None:
        # A generator runs its `finally` blocks; other iterators need not have this method.
        getattr(self._iterator, "close", lambda: None)()

    def close(self) -> None:
        """Close the generator."""
        self._stop()
        super().close()


@final
class FileIterator(grain.DatasetIterator):
    """The records of a file.

    Args:
        begin: opens the file.
        read: reads the next record; None at the end.
    """

    def __init__(self, begin: Callable[[], BinaryIO], read: Callable[[BinaryIO], bytes | None]) -> None:
        """The file is opened at once."""
        self._file: Any = None
        super().__init__()
        self._read, self._file = read, begin()

    def __next__(self) -> bytes:
        record = self._read(self._file)
        if record is None:
            raise StopIteration
        return record

    def get_state(self) -> _State:
        """The place in the file, in bytes before any compression."""
        return {"offset": self._file.tell()}

    def set_state(self, state: _State) -> None:
        """Go there."""
        self._file.seek(state["offset"])

    def close(self) -> None:
        """Close the file."""
        if self._file is not None:
            self._file.close()
        super().close()


@final
class NestedIterator(grain.DatasetIterator):
    """The elements of what each element of the parent opens, `cycle_length` of those in turn.

    Args:
        parent: what to open.
        begin: of an element and its number makes an iterator.
        cycle_length: how many are open together.
        block_length: how many elements one gives before it is the next one's turn.
    """

    def __init__(
        self, parent: Any, begin: Callable[[Any, int], Any], cycle_length: int, block_length: int
    ) -> None:
        """Nothing is open yet."""
        self._slots: list[_Slot | None] = [None] * cycle_length
        super().__init__(parent)
        self._begin, self._block_length = begin, block_length
        self._turn, self._in_block = 0, 0
        self._num_opened, self._at_end = 0, False

    def __next__(self) -> Any:
        while not self._at_end or any(self._slots):
            slot = self._slots[self._turn]
            if slot is not None:
                try:
                    element = next(slot.iterator)
                except StopIteration:
                    slot.iterator.close()
                    self._slots[self._turn] = None
                    self._next_turn()
                    continue
                self._in_block += 1
                if self._in_block == self._block_length:
                    self._next_turn()
                return element
            if self._at_end:
                self._next_turn()
            else:
                self._open()
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
        self._slots[self._turn] = _Slot(before, self._num_opened, self._begin(element, self._num_opened))
        self._num_opened += 1

    def get_state(self) -> _State:
        """The parent's, and for each slot where its element came from and how far it was read."""
        return {
            "parent": self._parent.get_state(),
            "slots": [None if slot is None else slot.state() for slot in self._slots],
            "turn": [self._turn, self._in_block],
            "opened": self._num_opened,
            "at_end": self._at_end,
        }

    def set_state(self, state: _State) -> None:
        """Go there: open the slots again."""
        self._close_slots()
        for index, slot in enumerate(state["slots"]):
            if slot is not None:
                self._parent.set_state(slot["before"])
                iterator = self._begin(next(self._parent), slot["number"])
                iterator.set_state(slot["inner"])
                self._slots[index] = _Slot(slot["before"], slot["number"], iterator)
        self._parent.set_state(state["parent"])
        self._turn, self._in_block = state["turn"]
        self._num_opened, self._at_end = state["opened"], state["at_end"]

    def _close_slots(self) -> None:
        for index, slot in enumerate(self._slots):
            if slot is not None:
                slot.iterator.close()
            self._slots[index] = None

    def close(self) -> None:
        """Close what is open."""
        self._close_slots()
        super().close()


@final
class _Slot:
    """One of the iterators that are open together: its element is the next one after `before`."""

    def __init__(self, before: _State, number: int, iterator: Any) -> None:
        self.before, self.number, self.iterator = before, number, iterator

    def state(self) -> _State:
        return {"before": self.before, "number": self.number, "inner": self.iterator.get_state()}
