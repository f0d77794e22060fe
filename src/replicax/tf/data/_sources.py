"""Nodes that elements come from: arrays, numbers, generators, the names of files."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Sequence
from typing import Any, final

import jax
import numpy as np

from replicax.errors import InputError
from replicax.input import INFINITE_CARDINALITY, UNKNOWN_CARDINALITY
from replicax.tf.data._elements import frozen, leaf_dtype, spec_of_element, to_element
from replicax.tf.data._node import Node, Opening, engine
from replicax.values import TensorSpec

__all__ = ["FileNames", "Generated", "Leaf", "Numbers", "Positions", "Slices", "Tensors"]


class Leaf(Node):
    """A node that reads no other."""

    @property
    @final
    def parents(self) -> tuple[Node, ...]:
        return ()

    @final
    def with_parents(self, parents: Sequence[Node]) -> Node:
        return self


@final
class Slices(Leaf):
    """The rows of arrays."""

    name = "TensorSliceDataset"

    def __init__(self, arrays: Any, what: str) -> None:
        """Check that all arrays have the same number of rows."""
        self.arrays = frozen(to_element(arrays, what))
        leaves = jax.tree_util.tree_leaves_with_path(self.arrays)
        if not leaves:
            raise InputError(f"{what} got no arrays: {arrays!r}.")
        for path, leaf in leaves:
            if not np.ndim(leaf):
                raise InputError(
                    f"{what} takes arrays with one row for each element, but tensors"
                    f"{jax.tree_util.keystr(path)} is the single value {leaf!r}. "
                    "`Dataset.from_tensors` makes a dataset of one element."
                )
        sizes = {leaf.shape[0] for _, leaf in leaves}
        if len(sizes) > 1:
            pairs = [(jax.tree_util.keystr(path), leaf.shape[0]) for path, leaf in leaves]
            listing = ", ".join(f"tensors{name} has {size}" for name, size in pairs)
            raise InputError(f"{what} takes arrays with the same number of rows, but {listing}.")
        (self.num_rows,) = sizes

    @property
    def cardinality(self) -> int:
        """The number of rows."""
        return self.num_rows

    def spec(self) -> Any:
        """That of a row."""
        return jax.tree.map(lambda array: TensorSpec(array.shape[1:], array.dtype), self.arrays)

    def rows(self, wanted: Any) -> Any:
        """The rows at an index, or a batch of those at several."""
        return jax.tree.map(lambda array: array[wanted], self.arrays)

    def _build(self, opening: Opening) -> Any:
        return engine().Rows(self.num_rows, self.rows)


@final
@dataclasses.dataclass(frozen=True, eq=False)
class Positions(Leaf):
    """The indices of rows, which stand for the rows until a batch of them is made."""

    num_rows: int
    name = "RangeDataset"

    @property
    def cardinality(self) -> int:
        """The number of rows."""
        return self.num_rows

    def spec(self) -> Any:
        """That of an index."""
        return TensorSpec((), np.int64)

    def _build(self, opening: Opening) -> Any:
        return engine().Rows(self.num_rows, int)


@final
class Tensors(Leaf):
    """One element."""

    name = "TensorDataset"

    def __init__(self, element: Any, what: str) -> None:
        """Bring the element into its form."""
        self._element = frozen(to_element(element, what))

    @property
    def cardinality(self) -> int:
        """One."""
        return 1

    def spec(self) -> Any:
        """That of the element."""
        return spec_of_element(self._element)

    def _build(self, opening: Opening) -> Any:
        return engine().Rows(1, lambda index: self._element)


@final
@dataclasses.dataclass(frozen=True, eq=False)
class Numbers(Leaf):
    """Numbers at equal distances; without end if there is no `count`."""

    start: int
    step: int
    count: int | None
    dtype: np.dtype
    name = "RangeDataset"

    @property
    def cardinality(self) -> int:
        """How many."""
        return INFINITE_CARDINALITY if self.count is None else self.count

    def spec(self) -> Any:
        """That of one number."""
        return TensorSpec((), self.dtype)

    def _build(self, opening: Opening) -> Any:
        count = engine().ENDLESS if self.count is None else self.count
        return engine().Rows(count, lambda index: self.dtype.type(self.start + index * self.step))


@final
@dataclasses.dataclass(frozen=True, eq=False)
class FileNames(Leaf):
    """The names of files, which several pipelines can share out."""

    paths: tuple[str, ...]
    name = "ListFilesDataset"

    @property
    def cardinality(self) -> int:
        """How many files."""
        return len(self.paths)

    def spec(self) -> Any:
        """That of a text."""
        return TensorSpec((), object)

    def _build(self, opening: Opening) -> Any:
        return engine().Rows(len(self.paths), lambda index: self.paths[index].encode())


@final
@dataclasses.dataclass(frozen=True, eq=False)
class Generated(Leaf):
    """What a generator yields, checked against what it was said to."""

    generator: Callable[..., Iterable[Any]]
    arguments: tuple[Any, ...]
    dtypes: Any
    shapes: Any
    name = "GeneratorDataset"

    @property
    def cardinality(self) -> int:
        """Nobody knows."""
        return UNKNOWN_CARDINALITY

    def spec(self) -> Any:
        """What was said, if the shapes were."""
        shapes = jax.tree.structure(self.dtypes).flatten_up_to(self.shapes)
        if any(shape is None for shape in shapes):
            return None
        specs = [TensorSpec(*pair) for pair in zip(shapes, jax.tree.leaves(self.dtypes), strict=True)]
        return jax.tree.structure(self.dtypes).unflatten(specs)

    def _build(self, opening: Opening) -> Any:
        def begin() -> Any:
            return iter(self.generator(*self.arguments))

        return engine().stream((), lambda: engine().GeneratorIterator(begin, self._checked))

    def _checked(self, value: Any, number: int) -> Any:
        """What was yielded as an element; raises if it is not what was said."""
        treedef = jax.tree.structure(self.dtypes)
        if isinstance(value, list) and treedef != jax.tree.structure(0):
            value = tuple(value)
        element = to_element(value, f"The generator given to Dataset.from_generator (element {number})")
        if jax.tree.structure(element) != treedef:
            raise InputError(
                f"Element {number} of the generator given to Dataset.from_generator has another structure "
                f"than its signature says: {jax.tree.structure(element)} instead of {treedef}."
            )
        leaves = zip(
            jax.tree.leaves(element),
            jax.tree.leaves(self.dtypes),
            treedef.flatten_up_to(self.shapes),
            strict=True,
        )
        return treedef.unflatten([_fitted(leaf, dtype, shape, number) for leaf, dtype, shape in leaves])


def _fitted(leaf: Any, dtype: np.dtype, shape: tuple[int | None, ...] | None, number: int) -> Any:
    """A part of an element with the dtype that was said; raises if it has another kind or shape."""
    have, got = leaf_dtype(leaf), np.shape(leaf)
    fits = have == dtype if "O" in (have.kind, dtype.kind) else np.can_cast(have, dtype, "same_kind")
    if shape is not None:
        fits &= len(shape) == len(got) and all(a in (None, b) for a, b in zip(shape, got, strict=True))
    if not fits:
        wanted = f"dtype {dtype}" if shape is None else f"shape {shape} and dtype {dtype}"
        raise InputError(
            f"Element {number} of the generator given to Dataset.from_generator has shape {got} and dtype "
            f"{have}, but its signature says {wanted}. Change the one or the other."
        )
    return leaf if have == dtype else np.asarray(leaf).astype(dtype)[()]
