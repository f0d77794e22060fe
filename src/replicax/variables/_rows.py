"""Reading and writing parts of a variable: rows, elements given by coordinates, and slices.

A write of rows is an `IndexedSlices`: values and their row numbers. A write at coordinates (`scatter_nd_*`)
is one too; the last axis of its indices has the coordinates of one element or slice.
"""

from __future__ import annotations

import abc
from typing import Any, final

import jax
import jax.numpy as jnp
import numpy as np

from replicax.values import IndexedSlices
from replicax.variables._readable import Readable
from replicax.variables._writes import Method, sliced

__all__ = ["HasRows"]


class HasRows(Readable):
    """Methods of variables and their copies that read or write a part of the value.

    As in TensorFlow, every method that writes takes `use_locking`, which has no effect because writes are
    always atomic, and `name`, which profiles show.
    """

    __slots__ = ()

    @abc.abstractmethod
    def _write_rows(self, name: str, rows: Any, scope: str | None) -> Any:
        """Write rows, or values at coordinates, with the method of this name."""

    @abc.abstractmethod
    def _write(self, method: Method, value: Any, read_value: bool, scope: str | None = None) -> Any:
        """Write with a method; profiles show it as `scope`."""

    # Reading.

    def sparse_read(self, indices: Any, name: str | None = None) -> jax.Array:
        """Some rows of the value.

        >>> rx.Variable([1.0, 2.0, 3.0]).sparse_read([2, 0])
        Array([3., 1.], dtype=float32)
        """
        with jax.named_scope(name or "sparse_read"):
            return jnp.take(self.read_value(), jnp.asarray(indices), axis=0)

    def gather_nd(self, indices: Any, name: str | None = None) -> jax.Array:
        """Elements or slices at coordinates, which are the last axis of `indices`.

        >>> rx.Variable([[1.0, 2.0], [3.0, 4.0]]).gather_nd([[0, 1], [1, 0]])
        Array([2., 3.], dtype=float32)
        """
        with jax.named_scope(name or "gather_nd"):
            return self.read_value()[tuple(jnp.moveaxis(jnp.asarray(indices), -1, 0))]

    # Writing rows.

    def scatter_add(
        self, sparse_delta: IndexedSlices, use_locking: bool = False, name: str | None = None
    ) -> Any:
        """Add to some rows; in a replica function, add the rows of all replicas.

        >>> v = rx.Variable([1.0, 2.0, 3.0])
        >>> v.scatter_add(rx.IndexedSlices(jnp.array([10.0]), jnp.array([1])))
        Array([ 1., 12.,  3.], dtype=float32)
        """
        return self._write_rows("scatter_add", sparse_delta, name)

    def scatter_sub(
        self, sparse_delta: IndexedSlices, use_locking: bool = False, name: str | None = None
    ) -> Any:
        """Subtract from some rows."""
        return self._write_rows("scatter_sub", sparse_delta, name)

    def scatter_mul(
        self, sparse_delta: IndexedSlices, use_locking: bool = False, name: str | None = None
    ) -> Any:
        """Multiply some rows."""
        return self._write_rows("scatter_mul", sparse_delta, name)

    def scatter_div(
        self, sparse_delta: IndexedSlices, use_locking: bool = False, name: str | None = None
    ) -> Any:
        """Divide some rows."""
        return self._write_rows("scatter_div", sparse_delta, name)

    def scatter_min(
        self, sparse_delta: IndexedSlices, use_locking: bool = False, name: str | None = None
    ) -> Any:
        """Replace some rows with the elementwise minimum of old and new."""
        return self._write_rows("scatter_min", sparse_delta, name)

    def scatter_max(
        self, sparse_delta: IndexedSlices, use_locking: bool = False, name: str | None = None
    ) -> Any:
        """Replace some rows with the elementwise maximum of old and new."""
        return self._write_rows("scatter_max", sparse_delta, name)

    def scatter_update(
        self, sparse_delta: IndexedSlices, use_locking: bool = False, name: str | None = None
    ) -> Any:
        """Replace some rows."""
        return self._write_rows("scatter_update", sparse_delta, name)

    def batch_scatter_update(
        self, sparse_delta: IndexedSlices, use_locking: bool = False, name: str | None = None
    ) -> Any:
        """Replace some rows of each batch entry: `indices` has the leading axes of the variable.

        >>> v = rx.Variable([[1.0, 2.0], [3.0, 4.0]])
        >>> v.batch_scatter_update(rx.IndexedSlices(jnp.array([[9.0], [8.0]]), jnp.array([[0], [1]])))
        Array([[9., 2.],
               [3., 8.]], dtype=float32)
        """
        _require_rows("batch_scatter_update", sparse_delta)
        places = _places_in_batch(jnp.asarray(sparse_delta.indices))
        return self._write_rows("scatter_nd_update", IndexedSlices(sparse_delta.values, places), name)

    # Writing at coordinates.

    def scatter_nd_add(self, indices: Any, updates: Any, name: str | None = None) -> Any:
        """Add at coordinates, which are the last axis of `indices`.

        >>> rx.Variable([1.0, 2.0, 3.0]).scatter_nd_add([[2], [2]], [10.0, 20.0])
        Array([ 1.,  2., 33.], dtype=float32)
        """
        return self._write_places("scatter_nd_add", indices, updates, name)

    def scatter_nd_sub(self, indices: Any, updates: Any, name: str | None = None) -> Any:
        """Subtract at coordinates."""
        return self._write_places("scatter_nd_sub", indices, updates, name)

    def scatter_nd_update(self, indices: Any, updates: Any, name: str | None = None) -> Any:
        """Replace the values at coordinates."""
        return self._write_places("scatter_nd_update", indices, updates, name)

    def scatter_nd_max(self, indices: Any, updates: Any, name: str | None = None) -> Any:
        """Replace the values at coordinates with the maximum of old and new."""
        return self._write_places("scatter_nd_max", indices, updates, name)

    def scatter_nd_min(self, indices: Any, updates: Any, name: str | None = None) -> Any:
        """Replace the values at coordinates with the minimum of old and new."""
        return self._write_places("scatter_nd_min", indices, updates, name)

    def _write_places(self, method: str, indices: Any, updates: Any, name: str | None) -> Any:
        places = IndexedSlices(jnp.asarray(updates, self.dtype), jnp.asarray(indices))
        return self._write_rows(method, places, name)

    # Writing slices.

    def slice_at(self, index: Any) -> VariableSlice:
        """A part of the variable that can be written: `v[index].assign(x)` in TensorFlow.

        >>> v = rx.Variable([1.0, 2.0, 3.0])
        >>> v.slice_at(slice(1, None)).assign([8.0, 9.0])
        Array([1., 8., 9.], dtype=float32)
        """
        return VariableSlice(self, index)


@final
class VariableSlice:
    """A part of a variable, made by `v.slice_at(index)`; it has a variable's `assign` methods.

    In a replica function, the replicas' values are combined according to the aggregation, as in `v.assign`.
    All replicas must write the same part.
    """

    __slots__ = ("_index", "_variable")

    def __init__(self, variable: HasRows, index: Any) -> None:
        self._variable, self._index = variable, index

    def assign(
        self, value: Any, use_locking: bool = False, name: str | None = None, read_value: bool = True
    ) -> Any:
        """Replace this part; returns the new value of the whole variable."""
        return self._write("assign", value, read_value, name)

    def assign_add(
        self, delta: Any, use_locking: bool = False, name: str | None = None, read_value: bool = True
    ) -> Any:
        """Add to this part."""
        return self._write("assign_add", delta, read_value, name)

    def assign_sub(
        self, delta: Any, use_locking: bool = False, name: str | None = None, read_value: bool = True
    ) -> Any:
        """Subtract from this part."""
        return self._write("assign_sub", delta, read_value, name)

    def _write(self, method: str, value: Any, read_value: bool, name: str | None) -> Any:
        shape = np.broadcast_to(np.empty((), bool), self._variable.shape)[self._index].shape
        value = jnp.broadcast_to(jnp.asarray(value, self._variable.dtype), shape)
        return self._variable._write(sliced(method, self._index), value, read_value, name)


def _require_rows(name: str, rows: Any) -> None:
    if not isinstance(rows, IndexedSlices):
        raise TypeError(f"{name} takes an rx.IndexedSlices, got {type(rows).__name__}.")


def _places_in_batch(indices: jax.Array) -> jax.Array:
    """The coordinates of rows: those of the batch entry, then the row number."""
    entries = jnp.indices(indices.shape)[: indices.ndim - 1]
    return jnp.stack([*entries, indices], axis=-1)
