"""`TensorShape`: a tuple of sizes with TensorFlow's methods."""

from __future__ import annotations

import math
from typing import Any, final

__all__ = ["TensorShape"]


@final
class TensorShape(tuple[Any, ...]):
    """The sizes along the axes, with None where a size is unknown.

    It is a tuple, equal to any other with the same sizes, so JAX accepts it as a shape. The shape of a
    `jax.Array` is a plain tuple.

    Args:
        dims: the sizes, or a single size; None for an unknown size.

    >>> shape = rx.Variable(jnp.zeros((2, 3))).shape
    >>> shape, shape.as_list(), shape.rank, shape.num_elements()
    ((2, 3), [2, 3], 2, 6)
    """

    __slots__ = ()

    def __new__(cls, dims: Any = ()) -> TensorShape:
        """Take the sizes from any sequence."""
        if dims is None:
            raise ValueError(
                "TensorShape(None) would have an unknown rank, but JAX knows the rank of every array. Pass "
                "a list of sizes, with None for unknown ones."
            )
        sizes = (dims,) if isinstance(dims, int) else dims
        return super().__new__(cls, (None if size is None else int(size) for size in sizes))

    @property
    def rank(self) -> int:
        """The number of axes."""
        return len(self)

    ndims = rank

    @property
    def dims(self) -> list[int | None]:
        """The sizes, as a list."""
        return list(self)

    def as_list(self) -> list[int | None]:
        """The sizes, as a list."""
        return list(self)

    def num_elements(self) -> int | None:
        """The product of the sizes; None if one is unknown."""
        return math.prod(self) if self.is_fully_defined() else None

    def is_fully_defined(self) -> bool:
        """Whether all sizes are known."""
        return None not in self

    def is_compatible_with(self, other: Any) -> bool:
        """Whether both could be the shape of one array.

        >>> from replicax import tf
        >>> tf.TensorShape([None, 3]).is_compatible_with([2, 3])
        True
        """
        other = TensorShape(other)
        return len(self) == len(other) and all(
            None in (a, b) or a == b for a, b in zip(self, other, strict=True)
        )

    def assert_is_compatible_with(self, other: Any) -> None:
        """Raise unless both could be the shape of one array."""
        if not self.is_compatible_with(other):
            raise ValueError(f"The shapes {tuple(self)} and {tuple(TensorShape(other))} are incompatible.")

    def merge_with(self, other: Any) -> TensorShape:
        """The sizes that are known in either shape."""
        self.assert_is_compatible_with(other)
        return TensorShape(b if a is None else a for a, b in zip(self, TensorShape(other), strict=True))

    def concatenate(self, other: Any) -> TensorShape:
        """The sizes of this shape, followed by those of `other`."""
        return TensorShape((*self, *TensorShape(other)))

    def with_rank(self, rank: int) -> TensorShape:
        """This shape; raises unless it has `rank` axes."""
        if len(self) != rank:
            raise ValueError(f"The shape {tuple(self)} has rank {len(self)}, not {rank}.")
        return self

    def __getitem__(self, index: Any) -> Any:
        """A size, or a `TensorShape` for a slice."""
        found = super().__getitem__(index)
        return TensorShape(found) if isinstance(index, slice) else found

    def __add__(self, other: Any) -> TensorShape:
        """Alias of `concatenate`."""
        return self.concatenate(other)
