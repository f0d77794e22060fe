"""The methods of `Dataset` that stream over its elements; see `_streams.py`."""

from __future__ import annotations

import abc
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from replicax.errors import InputError
from replicax.tf.data import _arguments as arguments
from replicax.tf.data import _sources as sources
from replicax.tf.data import _streams as streams
from replicax.tf.data._elements import stack
from replicax.tf.data._node import Node
from replicax.tf.data._options import Options

if TYPE_CHECKING:
    from replicax.tf.data._dataset import Dataset

__all__ = ["Streams"]


class Streams(abc.ABC):
    """The part of `Dataset` that reads elements one after the other."""

    _node: Node
    _options: Options

    @abc.abstractmethod
    def _with_node(self, node: Node) -> Dataset:
        """A dataset with the same options."""

    def _streamed(
        self, name: str, transform: Callable[..., Any], *others: Node, spec: Any = None
    ) -> Dataset:
        node = streams.streamed(self._node, *others, name=name, transform=transform, spec=spec)
        return self._with_node(node)

    def scan(self, initial_state: Any, scan_func: Callable[..., Any], name: str | None = None) -> Dataset:
        """Map elements with a state: `scan_func(state, element)` returns the new state and an element.

        >>> from replicax import tf
        >>> sums = tf.data.Dataset.range(4).scan(np.int64(0), lambda state, i: (state + i, state + i))
        >>> [int(i) for i in sums]
        [0, 1, 3, 6]
        """
        arguments.as_function(scan_func, "Dataset.scan")
        return self._streamed("ScanDataset", streams.scanned(initial_state, scan_func))

    def take_while(self, predicate: Callable[..., Any], name: str | None = None) -> Dataset:
        """The elements before the first for which `predicate` returns False.

        >>> from replicax import tf
        >>> [int(i) for i in tf.data.Dataset.range(9).take_while(lambda i: i < 2)]
        [0, 1]
        """
        transform = streams.taken_while(arguments.as_function(predicate, "Dataset.take_while"))
        return self._streamed("TakeWhileDataset", transform, spec=self._node.spec)

    def unique(self, name: str | None = None) -> Dataset:
        """Drop repeated elements; the unique ones are held in memory.

        >>> from replicax import tf
        >>> [int(i) for i in tf.data.Dataset.from_tensor_slices([1, 2, 1]).unique()]
        [1, 2]
        """
        return self._streamed("UniqueDataset", streams.unique, spec=self._node.spec)

    def rebatch(self, batch_size: Any, drop_remainder: bool = False, name: str | None = None) -> Dataset:
        """Regroup the rows of batches into batches of another size, or of several sizes in turn.

        >>> from replicax import tf
        >>> [batch.tolist() for batch in tf.data.Dataset.range(6).batch(4).rebatch(3)]
        [[0, 1, 2], [3, 4, 5]]
        """
        given = np.atleast_1d(batch_size).tolist()
        sizes = [arguments.as_number(size, "Dataset.rebatch(", least=1) for size in given]
        drop = arguments.as_flag(drop_remainder, "Dataset.rebatch(drop_remainder=")
        return self._streamed("RebatchDataset", streams.rebatched(sizes, drop))

    def window(
        self,
        size: Any,
        shift: Any = None,
        stride: Any = 1,
        drop_remainder: bool = False,
        name: str | None = None,
    ) -> Dataset:
        """Datasets of `size` consecutive elements each.

        Args:
            size: the number of elements in a window.
            shift: the distance between the starts of two windows; by default `size`.
            stride: the distance between the elements of a window.
            drop_remainder: drop smaller windows at the end.
            name: no effect.

        >>> from replicax import tf
        >>> [[int(i) for i in window] for window in tf.data.Dataset.range(4).window(3, shift=1)]
        [[0, 1, 2], [1, 2, 3], [2, 3], [3]]
        """
        number = arguments.as_number(size, "Dataset.window(size=", least=1)
        step = number if shift is None else arguments.as_number(shift, "Dataset.window(shift=", least=1)
        apart = arguments.as_number(stride, "Dataset.window(stride=", least=1)
        drop = arguments.as_flag(drop_remainder, "Dataset.window(drop_remainder=")
        transform = streams.windows(number, step, apart, drop, self._of_rows)
        return self._streamed("WindowDataset", transform)

    def _of_rows(self, array: Any) -> Dataset:
        return self._with_node(sources.slices(array, "Dataset.window"))

    def group_by_window(
        self,
        key_func: Callable[..., Any],
        reduce_func: Callable[[Any, Any], Any],
        window_size: Any = None,
        window_size_func: Callable[[Any], Any] | None = None,
        name: str | None = None,
    ) -> Dataset:
        """Group elements into windows by key, and concatenate the datasets `reduce_func(key, window)`.

        >>> from replicax import tf
        >>> dataset = tf.data.Dataset.range(4).group_by_window(
        ...     lambda i: i % 2, lambda key, window: window.batch(2), window_size=2)
        >>> [batch.tolist() for batch in dataset]
        [[0, 2], [1, 3]]
        """
        if (window_size is None) == (window_size_func is None):
            raise InputError("Dataset.group_by_window takes either window_size or window_size_func.")
        arguments.as_function(key_func, "Dataset.group_by_window")

        def size_of(key: Any) -> int:
            return int(window_size if window_size_func is None else window_size_func(np.int64(key)))

        def inner(key: Any, elements: Sequence[Any]) -> Any:
            window = self._with_node(sources.slices(stack(elements), "Dataset.group_by_window"))
            return reduce_func(key, window).as_numpy_iterator()

        return self._streamed("GroupByWindowDataset", streams.grouped(key_func, inner, size_of))

    def get_single_element(self, name: str | None = None) -> Any:
        """The only element; raises if there is none, or more than one.

        >>> from replicax import tf
        >>> tf.data.Dataset.range(1).get_single_element()
        Array(0, dtype=int32)
        """
        found: list[Any] = [element for element, _ in zip(self, range(2))]  # type: ignore  # noqa: B905
        if len(found) != 1:
            found_one = "more than one" if found else "no"
            raise InputError(f"Dataset.get_single_element: the dataset has {found_one} element.")
        return found[0]
