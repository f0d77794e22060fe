"""`rx.from_arrays`: arrays in memory (or memory-mapped) as a dataset, read by index.

Positions are counted in examples, so a pass can be resumed exactly, on any number of replicas and even with
a different batch size. A pipeline reads only its own rows.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from typing import Any, Generic, Never, NoReturn, TypeVar, final

import jax
import numpy as np

from replicax.errors import InputError
from replicax.input._batch import (
    Batch,
    aligned_empty,
    check_batch_size,
    device_dtype,
    is_numeric,
    leaf_names,
    taken,
    to_arrays,
)
from replicax.input._missing import length, no_attribute
from replicax.input._source import INFINITE_CARDINALITY, GivesSource, Reader, Source
from replicax.topology import is_key
from replicax.values import TensorSpec

__all__ = ["ArrayDataset", "from_arrays"]

_T = TypeVar("_T")


def from_arrays(arrays: _T, *others: Never) -> ArrayDataset[_T]:
    """A dataset of the rows of `arrays`.

    The arrays are not copied, so do not change them while they are being read. Memory-mapped NumPy arrays
    work too: only the rows that a batch needs are read from disk.

    Args:
        arrays: an array, or a structure of arrays with one row per example.
        *others: not allowed: pass several arrays as one structure, `rx.from_arrays((x, y))`.

    Raises:
        InputError: `arrays` is empty, or the arrays have different numbers of rows.

    >>> dataset = rx.from_arrays({"x": np.arange(5), "y": np.arange(5) ** 2}).batch(4)
    >>> for batch in dataset:
    ...     print(batch)
    {'x': array([0, 1, 2, 3]), 'y': array([0, 1, 4, 9])}
    {'x': array([4]), 'y': array([16])}
    """
    if others:
        raise TypeError(
            f"rx.from_arrays takes one structure of arrays, got {1 + len(others)} arguments. Put them into "
            "a tuple, rx.from_arrays((x, y)), or a dict, rx.from_arrays({'x': x, 'y': y})."
        )
    leaves, treedef = jax.tree.flatten(arrays)
    if any(map(is_key, leaves)):
        raise InputError(
            "rx.from_arrays does not take arrays of random keys. Pass `jax.random.key_data(keys)`, and "
            "call `jax.random.wrap_key_data` in the step."
        )
    try:
        rows = tuple(np.asarray(leaf) for leaf in to_arrays(leaves, treedef))
    except InputError as error:
        raise InputError(f"rx.from_arrays: {error}") from None
    if not rows:
        raise InputError(f"rx.from_arrays needs at least one array, got {arrays!r}.")
    for name, array in zip(leaf_names(treedef), rows, strict=True):
        if array.ndim == 0:
            raise InputError(
                f"rx.from_arrays takes arrays with one row for each example, but {name} is the single "
                f"number {array}. A list of numbers is a structure: convert it to an array with np.asarray."
            )
    sizes = {array.shape[0] for array in rows}
    if len(sizes) > 1:
        pairs = zip(leaf_names(treedef), rows, strict=True)
        listing = ", ".join(f"{name} has {array.shape[0]}" for name, array in pairs)
        raise InputError(
            f"rx.from_arrays takes arrays that all have the same number of rows, but {listing}."
        )
    return ArrayDataset(rows, treedef)


@final
@dataclasses.dataclass(frozen=True)
class ArrayDataset(GivesSource, Generic[_T]):
    """Rows of arrays as a dataset; made by `rx.from_arrays`.

    Each method returns a new dataset, so calls can be chained: shuffle, repeat, batch, or shuffle, batch,
    repeat.

    >>> dataset = rx.from_arrays(np.arange(6)).shuffle(seed=1).batch(4)
    >>> [batch.tolist() for batch in dataset]
    [[4, 0, 2, 1], [5, 3]]
    """

    _rows: tuple[np.ndarray, ...]
    _treedef: Any
    _seed: int | None = None
    _epochs: int | None = 1
    _batch_size: int | None = None
    _drop_remainder: bool = False
    _across_epochs: bool = False

    def __repr__(self) -> str:
        shapes = jax.tree.map(lambda a: f"{a.dtype}{list(a.shape)}", self._treedef.unflatten(self._rows))
        batched = f", batch {self._batch_size}" if self._batch_size else ", not batched"
        shuffled = "" if self._seed is None else f", shuffled with seed {self._seed}"
        return f"<ArrayDataset of {shapes}{shuffled}{batched}>"

    def shuffle(self, *, seed: int = 0) -> ArrayDataset[_T]:
        """Shuffle the examples, in a different order in each epoch.

        Args:
            seed: the same seed gives the same orders in every process and on any number of replicas.

        >>> examples = rx.from_arrays(np.arange(3)).shuffle(seed=2).repeat(2).batch(3)
        >>> [batch.tolist() for batch in examples]
        [[2, 0, 1], [0, 2, 1]]
        """
        if self._batch_size is not None or self._epochs != 1:
            raise InputError(
                "Call ArrayDataset.shuffle before repeat and batch: it shuffles the examples of a whole "
                "epoch, and batches are made from the shuffled examples."
            )
        if isinstance(seed, bool) or not isinstance(seed, int | np.integer) or seed < 0:
            raise InputError(f"ArrayDataset.shuffle(seed={seed!r}): pass a non-negative integer.")
        return dataclasses.replace(self, _seed=int(seed))

    def repeat(self, count: int | None = None) -> ArrayDataset[_T]:
        """Repeat the examples, so that one pass covers several epochs.

        Before `batch`, a batch can span two epochs. After `batch`, each epoch ends with its own partial
        batch.

        Args:
            count: how many times; None repeats forever.

        >>> rows = rx.from_arrays(np.arange(3))
        >>> [batch.tolist() for batch in rows.repeat(2).batch(2)]
        [[0, 1], [2, 0], [1, 2]]
        >>> [batch.tolist() for batch in rows.batch(2).repeat(2)]
        [[0, 1], [2], [0, 1], [2]]
        """
        if count is not None and (isinstance(count, bool) or not isinstance(count, int) or count < 0):
            raise InputError(
                f"ArrayDataset.repeat({count!r}): pass a number of epochs, or None to repeat forever."
            )
        if self._epochs != 1:
            raise InputError("ArrayDataset.repeat was called twice. Call it once.")
        return dataclasses.replace(self, _epochs=count, _across_epochs=self._batch_size is None)

    def batch(self, batch_size: int, drop_remainder: bool = False) -> ArrayDataset[_T]:
        """Combine examples into global batches, to be split over all replicas.

        Args:
            batch_size: the number of examples in a batch.
            drop_remainder: drop the last batch if it is smaller.

        >>> [batch.tolist() for batch in rx.from_arrays(np.arange(5)).batch(2, drop_remainder=True)]
        [[0, 1], [2, 3]]
        """
        check_batch_size(batch_size, "ArrayDataset")
        if self._batch_size is not None:
            raise InputError(
                f"ArrayDataset.batch was called twice, first with {self._batch_size}. Call it once."
            )
        return dataclasses.replace(self, _batch_size=int(batch_size), _drop_remainder=bool(drop_remainder))

    @property
    def element_spec(self) -> Any:
        """The shapes and dtypes of an example or, after `batch`, of a batch.

        >>> rx.from_arrays(np.ones((6, 2), np.float32)).batch(4).element_spec
        TensorSpec(shape=(None, 2), dtype=float32)
        """
        size = self._batch_size if self._drop_remainder else None
        rows = () if self._batch_size is None else (size,)
        specs = [TensorSpec((*rows, *array.shape[1:]), array.dtype) for array in self._rows]
        return self._treedef.unflatten(specs)

    def __len__(self) -> int:
        return length(self, self._cardinality)

    def __bool__(self) -> bool:  # not the length
        return True

    def __getattr__(self, name: str) -> NoReturn:
        raise no_attribute(self, name)

    def __iter__(self) -> Iterator[_T]:
        reader = self.source().open(0)
        while True:
            try:
                batch = reader.read()
            except StopIteration:
                return
            assert isinstance(batch, _ArrayBatch)
            yield batch.unchanged()

    def source(self) -> Source:
        """The source that a strategy reads; raises if `batch` was not called."""
        if self._batch_size is None:
            raise InputError(
                f"{self!r} yields single examples. Combine them into batches for all replicas with "
                ".batch(global_batch_size)."
            )
        return _ArraySource(self)

    # Epochs are counted across passes, so that two loops over a dataset yield the same examples as one loop
    # over a dataset that repeats twice.

    @property
    def num_rows(self) -> int:
        """The number of examples."""
        return self._rows[0].shape[0]

    @property
    def _cardinality(self) -> int:
        """The number of batches in a pass or, before `batch` is called, of examples."""
        rows, passes, size = self.num_rows, self._epochs, self._batch_size or 1
        if rows == 0 or passes == 0:
            return 0
        if passes is None:
            smaller = self._drop_remainder and not self._across_epochs and rows < size
            return 0 if smaller else INFINITE_CARDINALITY
        if self._across_epochs:
            rows, passes = rows * passes, 1
        return passes * (rows // size if self._drop_remainder else -(-rows // size))

    def order(self, epoch: int) -> np.ndarray | None:
        """The shuffled row numbers of an epoch; None if the dataset is not shuffled."""
        if self._seed is None:
            return None
        order = np.arange(self.num_rows, dtype=np.int32 if self.num_rows < 2**31 else np.int64)
        np.random.default_rng([self._seed, epoch]).shuffle(order)
        return order


@final
class _ArraySource(Source):
    kind = "arrays"
    any_thread = numbered = True

    def __init__(self, dataset: ArrayDataset[Any]) -> None:
        self._dataset = dataset
        self.batch_size = dataset._batch_size
        self.shuffled_by = None if dataset._seed is None else (dataset._rows[0], dataset._seed)

    @property
    def cardinality(self) -> int:
        return self._dataset._cardinality

    def open(self, number: int) -> Reader:
        return _ArrayReader(self._dataset, number, self.cardinality)

    def spec(self) -> Any:
        dataset = self._dataset
        endless = dataset._epochs is None and dataset._across_epochs
        rows = self.batch_size if dataset._drop_remainder or endless else None
        specs = [TensorSpec((rows, *array.shape[1:]), array.dtype) for array in dataset._rows]
        return dataset._treedef.unflatten(specs)


@final
class _ArrayReader(Reader):
    def __init__(self, dataset: ArrayDataset[Any], number: int, cardinality: int) -> None:
        super().__init__()
        self._dataset = dataset
        self._first_epoch = number * (dataset._epochs or 0)
        self._epoch, self._offset = 0, 0
        self._orders: dict[int, np.ndarray | None] = {}
        self._empty = cardinality == 0

    def close(self) -> None:
        """Arrays need no closing."""

    def _read(self) -> Batch:
        dataset, size = self._dataset, self._dataset._batch_size
        assert size is not None
        spans: list[tuple[int, int, int]] = []
        while size > 0 and not self._at_end():
            stop = min(self._offset + size, dataset.num_rows)
            spans.append((self._epoch, self._offset, stop))
            size -= stop - self._offset
            self._offset = stop
            if stop == dataset.num_rows:
                self._epoch, self._offset = self._epoch + 1, 0
                if not dataset._across_epochs:
                    break
        if not spans or (size > 0 and dataset._drop_remainder and self._at_end()):
            raise StopIteration
        if size > 0 and dataset._drop_remainder:
            return self._read()  # drop the remainder of this epoch and begin the next one
        return _ArrayBatch(dataset, [(self._order(epoch), a, b) for epoch, a, b in spans])

    def _at_end(self) -> bool:
        epochs = self._dataset._epochs
        return self._empty or (epochs is not None and self._epoch >= epochs)

    def _order(self, epoch: int) -> np.ndarray | None:
        if epoch not in self._orders:
            self._orders = {e: order for e, order in self._orders.items() if e == epoch - 1}
            self._orders[epoch] = self._dataset.order(self._first_epoch + epoch)
        return self._orders[epoch]

    def _bookmark(self) -> dict[str, Any]:
        return {"epoch": self._epoch, "offset": self._offset}

    def _seek(self, position: dict[str, Any]) -> None:
        epoch, offset = int(position["epoch"]), int(position["offset"])
        if epoch < 0 or offset < 0:
            raise InputError(f"The position {position!r} has a negative epoch or offset.")
        if offset >= max(self._dataset.num_rows, 1):
            raise InputError(
                f"The position is after {offset} examples of an epoch, but the dataset has only "
                f"{self._dataset.num_rows}. Restore a position into the dataset that it was saved from."
            )
        self._epoch, self._offset = epoch, offset


@final
class _ArrayBatch(Batch):
    """A batch whose rows are gathered only when they are taken."""

    def __init__(self, dataset: ArrayDataset[Any], spans: list[tuple[np.ndarray | None, int, int]]) -> None:
        self._rows, self.treedef, self._spans = dataset._rows, dataset._treedef, spans
        self.num_rows = self._num_rows = sum(stop - start for _, start, stop in spans)

    @property
    def leaves(self) -> Sequence[Any]:
        return self._rows

    def detached(self) -> Batch:
        return self

    def rows(self, start: int, stop: int, *, aligned: bool = False) -> list[Any]:
        wanted = self._wanted(start, stop)
        if isinstance(wanted, slice):
            return [taken(array[wanted], aligned) for array in self._rows]
        return [_gathered(array, wanted) for array in self._rows]

    def unchanged(self) -> Any:
        """All rows, with the dtypes of the user's arrays."""
        wanted = self._wanted(0, self._num_rows)
        return self.treedef.unflatten(array[wanted] for array in self._rows)

    def _wanted(self, start: int, stop: int) -> slice | np.ndarray:
        """Which rows of the arrays to take: a slice if they are contiguous, otherwise indices."""
        parts: list[slice | np.ndarray] = []
        before = 0
        for order, first, last in self._spans:
            low, high = max(start - before, 0), min(stop - before, last - first)
            if low < high:
                span = slice(first + low, first + high)
                parts.append(span if order is None else order[span])
            before += last - first
        if len(parts) == 1:
            return parts[0]
        indices = [np.arange(p.start, p.stop) if isinstance(p, slice) else p for p in parts]
        return np.concatenate(indices) if indices else slice(0, 0)


def _gathered(array: np.ndarray, wanted: np.ndarray) -> np.ndarray:
    if not is_numeric(array):
        return array[wanted]
    dtype = device_dtype(array)
    if dtype != array.dtype:
        return taken(array[wanted], True)
    rows = aligned_empty((len(wanted), *array.shape[1:]), dtype)
    np.take(array, wanted, axis=0, out=rows, mode="clip")
    return rows
