"""Some rows of a variable: all that a compiled step needs if it only looks up rows.

The rows are sorted by number, so that binary search finds them. The gradient with respect to the rows has
their shape. It is returned as an array of the variable's shape, like any other gradient, but XLA does not
compute that array unless the step uses it. `as_rows` recovers the rows that it was made from.
"""

from __future__ import annotations

from typing import Any, final

import jax
import jax.numpy as jnp
import numpy as np

from replicax.values import IndexedSlices

__all__ = ["Table", "padded_rows", "row_numbers"]


@final
class Table:
    """Rows of a variable.

    Args:
        numbers: the row numbers in ascending order, padded with the total number of rows.
        rows: the rows.
        shape: the variable's shape.
        known: the gradients that were made from rows, by the id of the array.
    """

    def __init__(
        self,
        numbers: Any,
        rows: Any,
        shape: tuple[int, ...],
        known: dict[int, tuple[Any, IndexedSlices]] | None = None,
    ) -> None:
        self.numbers, self.rows, self._shape = numbers, rows, shape
        self._known = {} if known is None else known

    def with_rows(self, rows: Any) -> Table:
        """The same table with other values, such as the tracers that JAX differentiates."""
        return Table(self.numbers, rows, self._shape, self._known)

    def take(self, indices: Any) -> jax.Array:
        """The rows at `indices`, like `jnp.take(variable, indices, axis=0)`."""
        total = self._shape[0]
        numbers = row_numbers(indices, total)
        places = jnp.searchsorted(self.numbers, numbers)
        inside = (numbers >= 0) & (numbers < total)
        return jnp.take(self.rows, jnp.where(inside, places, len(self.numbers)), axis=0)

    def whole_gradient(self, rows: Any) -> jax.Array:
        """The gradient with respect to the variable, from that with respect to the rows."""
        slices = IndexedSlices(rows, self.numbers, self._shape)
        whole = slices.to_dense()
        self._known[id(whole)] = whole, slices
        return whole

    def as_rows(self, gradient: Any) -> Any:
        """The rows that `whole_gradient` made `gradient` from, else `gradient`."""
        return self._known.get(id(gradient), (None, gradient))[1]


def padded_rows(
    numbers: np.ndarray, rows: np.ndarray, size: int, num_rows: int
) -> tuple[np.ndarray, np.ndarray]:
    """Pad `numbers` and `rows`, which belong to a variable with `num_rows` rows."""
    all_numbers = np.full(size, num_rows, np.int32)
    all_numbers[: len(numbers)] = numbers
    all_rows = np.zeros((size, *rows.shape[1:]), rows.dtype)
    all_rows[: len(numbers)] = rows
    return all_numbers, all_rows


def row_numbers(indices: Any, num_rows: int) -> jax.Array:
    """Indices as row numbers: negative ones count from the end."""
    indices = jnp.asarray(indices)
    return jnp.where(indices < 0, indices + num_rows, indices).astype(jnp.int32)
