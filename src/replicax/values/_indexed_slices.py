"""Some rows of an array: the sparse form of a gradient or of an update."""

from __future__ import annotations

from typing import Any, final

import jax
import jax.numpy as jnp
import numpy as np

__all__ = ["IndexedSlices"]


@final
@jax.tree_util.register_pytree_node_class
class IndexedSlices:
    """`values[i]` belongs to row `indices[i]` of an array of shape `dense_shape`.

    Rows may repeat. Reducing across replicas concatenates the rows. It is a pytree: a per-replica sparse
    value is an `IndexedSlices` whose parts are `PerReplica`.

    Args:
        values: the rows, along the first axis.
        indices: the row number of each row.
        dense_shape: the shape of the dense array, if known.

    >>> rows = rx.IndexedSlices(jnp.array([[1.0, 2.0]]), jnp.array([2]), dense_shape=(3, 2))
    >>> rows.to_dense()
    Array([[0., 0.],
           [0., 0.],
           [1., 2.]], dtype=float32)
    """

    __slots__ = ("dense_shape", "indices", "values")

    def __init__(self, values: Any, indices: Any, dense_shape: Any = None) -> None:
        """Pair `values` with their row numbers `indices`."""
        self.values = values
        self.indices = indices
        self.dense_shape: tuple[int, ...] | None = (
            None if dense_shape is None else tuple(int(d) for d in np.asarray(dense_shape))
        )

    @property
    def shape(self) -> tuple[int, ...] | None:
        """The shape of the dense array: `dense_shape`."""
        return self.dense_shape

    @property
    def dtype(self) -> Any:
        """The dtype of the values."""
        return self.values.dtype

    @property
    def device(self) -> Any:
        """The device of the values."""
        return self.values.device

    def to_dense(self) -> jax.Array:
        """The dense array; rows that repeat are added."""
        if self.dense_shape is None:
            raise ValueError(
                "These IndexedSlices have no dense_shape, so the shape of the dense array is unknown. "
                "Pass it to the constructor: IndexedSlices(values, indices, dense_shape)."
            )
        values = jnp.asarray(self.values)
        zeros = jnp.zeros(self.dense_shape, values.dtype)
        return zeros.at[jnp.asarray(self.indices)].add(values)

    def __repr__(self) -> str:
        shape = "" if self.dense_shape is None else f", dense_shape={self.dense_shape}"
        return f"IndexedSlices(values={self.values!r}, indices={self.indices!r}{shape})"

    def tree_flatten(self) -> tuple[tuple[Any, Any], Any]:
        """Children: values and indices."""
        return (self.values, self.indices), self.dense_shape

    @classmethod
    def tree_unflatten(cls, dense_shape: Any, children: Any) -> IndexedSlices:
        """Rebuild from children of any kind."""
        self = object.__new__(cls)
        self.values, self.indices = children
        self.dense_shape = dense_shape
        return self
