"""Some rows of a variable instead of all: what a compiled step has of a table in which it looks up rows.

The rows are sorted by number, so that binary search finds them. The gradient with respect to the rows has
their shape. It is returned as an array of the variable's shape, like any other gradient; XLA does not
compute that array unless the step uses it. `as_rows` finds the rows behind it.
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
        numbers: which rows, in ascending order, padded with the total number of rows.
        rows: the rows.
        shape: the shape of the variable.
        known: the gradients that represent rows, by the identity of the array.
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
        """The same table with other values, such as those that JAX differentiates with respect to."""
        return Table(self.numbers, rows, self._shape, self._known)

    def take(self, indices: Any) -> jax.Array:
        """The rows at `indices`, as `jnp.take(variable, indices, axis=0)`."""
        total = self._shape[0]
        numbers = row_numbers(indices, total)
        places = jnp.searchsorted(self.numbers, numbers)
        inside = (numbers >= 0) & (numbers < total)
        return jnp.take(self.rows, jnp.where(inside, places, len(self.numbers)), axis=0)

    def whole_gradient(self, rows: Any) -> jax.Array:
        """The gradient of the variable, from that of the rows."""
        slices = IndexedSlices(rows, self.numbers, self._shape)
        whole = slices.to_dense()
        self._known[id(whole)] = whole, slices
        return whole

    def as_rows(self, gradient: Any) -> Any:
        """The rows that `whole_gradient` made `gradient` from, or else `gradient`."""
        return self._known.get(id(gradient), (None, gradient))[1]


def padded_rows(
    numbers: np.ndarray, rows: np.ndarray, size: int, num_rows: int
) -> tuple[np.ndarray, np.ndarray]:
    """Pad `numbers` and `rows` of a variable with `num_rows` rows."""
    all_numbers = np.full(size, num_rows, np.int32)
    all_numbers[: len(numbers)] = numbers
    all_rows = np.zeros((size, *rows.shape[1:]), rows.dtype)
    all_rows[: len(numbers)] = rows
    return all_numbers, all_rows


def row_numbers(indices: Any, num_rows: int) -> jax.Array:
    """Indices without negative ones, which count from the end."""
    indices = jnp.asarray(indices)
    return jnp.where(indices < 0, indices + num_rows, indices).astype(jnp.int32)
