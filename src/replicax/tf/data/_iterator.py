"""`iter(dataset)`: one pass over a dataset."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Self, final

import jax
import jax.numpy as jnp
import numpy as np

from replicax._recording import is_transforming
from replicax.errors import InputError, OutOfRangeError
from replicax.values import HostArray

__all__ = ["DatasetIterator"]


@final
class DatasetIterator(Iterator[Any]):
    """One pass over a dataset; created by `iter(dataset)`.

    >>> from replicax import tf
    >>> with iter(tf.data.Dataset.range(3)) as iterator:
    ...     int(next(iterator)), int(iterator.get_next())
    (0, 1)
    """

    def __init__(self, iterator: Any, element_spec: Callable[[], Any], *, as_numpy: bool) -> None:
        self._iterator, self._element_spec, self._as_numpy = iterator, element_spec, as_numpy
        self._closed = False

    def __next__(self) -> Any:
        if self._closed:
            raise StopIteration
        if is_transforming():
            raise InputError(
                "A dataset was read inside a traced function (tf.function or jax.jit), where its elements "
                "would become constants of the program. Pass the dataset or its iterator to the "
                "tf.function as an argument: its loop then runs in Python."
            )
        element = next(self._iterator)
        return element if self._as_numpy else jax.tree.map(_to_device, element)

    def get_next(self) -> Any:
        """The next element; raises `OutOfRangeError` after the last."""
        try:
            return next(self)
        except StopIteration:
            raise OutOfRangeError("The dataset has no more elements.") from None

    @property
    def element_spec(self) -> Any:
        """The `element_spec` of the dataset."""
        return self._element_spec()

    def close(self) -> None:
        """Release files and threads. Leaving a `with` block or deleting the iterator does the same."""
        self._closed = True
        self._iterator.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _to_device(leaf: Any) -> Any:
    """Convert numbers to a JAX array; text stays on the host."""
    if isinstance(leaf, bytes):
        return Text(leaf)
    if not isinstance(leaf, np.ndarray | np.generic):
        return leaf
    if leaf.dtype.kind in "OSU":
        return np.asarray(leaf).view(HostArray)
    return jnp.asarray(leaf, jax.dtypes.canonicalize_dtype(leaf.dtype))


@final
class Text(bytes):
    """The text of one element, with the method `numpy()` of TensorFlow's string tensors."""

    def numpy(self) -> bytes:
        """The text as plain `bytes`."""
        return bytes(self)
