"""Nodes that make other elements: `map`, `filter`, `batch`, and datasets inside of datasets."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any, final

import jax
import numpy as np

from replicax.errors import InputError
from replicax.input import INFINITE_CARDINALITY, UNKNOWN_CARDINALITY
from replicax.tf.data._elements import guarded, leaf_dtype, stack, to_element
from replicax.tf.data._node import Node, Opening, Transformation, engine
from replicax.tf.data._orders import Prefetched, Repeated, Sharded, Shuffled, Skipped, Taken
from replicax.tf.data._sources import Positions, Slices
from replicax.values import TensorSpec

__all__ = ["Batched", "Filtered", "Mapped", "Nested", "pad_and_stack", "padded_spec"]


@final
@dataclasses.dataclass(frozen=True, eq=False)
class Mapped(Transformation):
    """A function of each element."""

    parent: Node
    function: Callable[..., Any]
    num_parallel_calls: int
    name = "MapDataset"

    @property
    def cardinality(self) -> int:
        """As many."""
        return self.parent.cardinality

    def spec(self) -> Any:
        """Only the function can tell."""
        return None

    def _build(self, opening: Opening) -> Any:
        function = guarded(self.function, "Dataset.map")

        def mapped(element: Any) -> Any:
            result = function(element)
            # A list on the outside is several results; further inside it is an array.
            return to_element(tuple(result) if isinstance(result, list) else result, _RESULT)

        return self.parent.build(opening).map(mapped)


_RESULT = "What the function given to Dataset.map returned"


@final
@dataclasses.dataclass(frozen=True, eq=False)
class Filtered(Transformation):
    """Those elements that a function says True of."""

    parent: Node
    predicate: Callable[..., Any]
    name = "FilterDataset"

    @property
    def cardinality(self) -> int:
        """Nobody knows, unless there are none."""
        return 0 if self.parent.cardinality == 0 else UNKNOWN_CARDINALITY

    @property
    def batch_size(self) -> int | None:
        """As before."""
        return self.parent.batch_size

    def spec(self) -> Any:
        """As before."""
        return self.parent.spec()

    def _build(self, opening: Opening) -> Any:
        predicate = guarded(self.predicate, "Dataset.filter")

        def kept(element: Any) -> bool:
            answer = np.asarray(predicate(element))
            if answer.ndim or answer.dtype != np.bool_:
                raise TypeError(
                    f"The function given to Dataset.filter must return True or False, got {answer}."
                )
            return bool(answer)

        return engine().as_stream(self.parent.build(opening), opening).filter(kept)


@final
@dataclasses.dataclass(frozen=True, eq=False)
class Batched(Transformation):
    """Elements put together, `size` at a time.

    Args:
        join: makes a batch of a list of elements.
        row_spec: of an element's spec makes that of one row.
    """

    parent: Node
    size: int
    drop_remainder: bool
    num_parallel_calls: int
    join: Callable[[Sequence[Any]], Any] = stack
    row_spec: Callable[[Any], Any] = lambda spec: spec
    name: str = "BatchDataset"

    @property
    def batch_size(self) -> int | None:
        """The size."""
        return self.size

    @property
    def cardinality(self) -> int:
        """How many batches."""
        once = self.parent.cardinality
        if once < 0:
            return once
        return once // self.size if self.drop_remainder else -(-once // self.size)

    def spec(self) -> Any:
        """One more axis; its size is known if there is no smaller batch at the end."""
        spec = self.parent.spec()
        if spec is None:
            return None
        rows = self.size if self.drop_remainder else None
        row = self.row_spec(spec)
        return jax.tree.map(lambda leaf: TensorSpec((rows, *leaf.shape), leaf.dtype), row)

    def _build(self, opening: Opening) -> Any:
        slices = _slices_below(self.parent) if self.join is stack else None
        if slices is None:
            return self._in_lists(self.parent, opening).map(self.join)
        positions = _by_position(self.parent, slices)
        return self._in_lists(positions, opening).map(lambda indices: slices.rows(np.asarray(indices)))

    def _in_lists(self, parent: Node, opening: Opening) -> Any:
        # Of an endless dataset there is no remainder; Grain's sum for its length would overflow.
        drop = self.drop_remainder or parent.cardinality == INFINITE_CARDINALITY
        return parent.build(opening).batch(self.size, drop_remainder=drop, batch_fn=list)


_IN_ORDER = Shuffled | Repeated | Taken | Skipped | Sharded | Prefetched


def _slices_below(node: Node) -> Slices | None:
    """The arrays whose rows `node` gives, in whatever order; None if it does something else."""
    while isinstance(node, _IN_ORDER):
        node = node.parent
    return node if isinstance(node, Slices) else None


def _by_position(node: Node, slices: Slices) -> Node:
    """`node` with the indices of rows in place of rows: they are taken all at once for a batch."""
    if node is slices:
        return Positions(slices.num_rows)
    return node.with_parents([_by_position(parent, slices) for parent in node.parents])


@final
@dataclasses.dataclass(frozen=True, eq=False)
class Nested(Transformation):
    """The elements of the datasets that a function makes of each element.

    Args:
        inner: of an element makes a node.
        cycle_length: how many of these are read in turn.
        block_length: how many elements are read of one before it is the next one's turn.
        inner_spec: what elements look like, if that is known.
        name: what the dataset is called.
    """

    parent: Node
    inner: Callable[[Any], Node]
    cycle_length: int = 1
    block_length: int = 1
    inner_spec: Any = None
    name: str = "FlatMapDataset"

    @property
    def cardinality(self) -> int:
        """Nobody knows, unless there are none."""
        return 0 if self.parent.cardinality == 0 else UNKNOWN_CARDINALITY

    def spec(self) -> Any:
        """What was said."""
        return self.inner_spec

    def _build(self, opening: Opening) -> Any:
        parent = engine().as_stream(self.parent.build(opening), opening)

        def begin(element: Any, number: int) -> Any:
            inner = opening.at((opening.epoch << 32) + number)
            return engine().iterate(self.inner(element).build(inner), opening)

        return engine().stream(
            (parent,), lambda it: engine().NestedIterator(it, begin, self.cycle_length, self.block_length)
        )


def pad_and_stack(shapes: Any, values: Any) -> Callable[[Sequence[Any]], Any]:
    """A function that makes a batch of elements of several sizes, for `padded_batch`."""

    def join(elements: Sequence[Any]) -> Any:
        treedef = jax.tree.structure(elements[0])
        columns = zip(*map(jax.tree.leaves, elements), strict=True)
        wanted = _up_to(treedef, shapes, "padded_shapes")
        one = not isinstance(values, tuple | dict)
        fills = [values] * treedef.num_leaves if one else _up_to(treedef, values, "padding_values")
        return treedef.unflatten(map(_padded, columns, wanted, fills))

    return join


def padded_spec(shapes: Any, spec: Any) -> Any:
    """What a row of a padded batch looks like."""
    treedef = jax.tree.structure(spec)
    specs = []
    for leaf, wanted in zip(jax.tree.leaves(spec), _up_to(treedef, shapes, "padded_shapes"), strict=True):
        shape = leaf.shape if wanted is None else wanted
        specs.append(TensorSpec(tuple(None if size in (None, -1) else size for size in shape), leaf.dtype))
    return treedef.unflatten(specs)


def _up_to(treedef: Any, structure: Any, argument: str) -> list[Any]:
    """The parts of an argument, one for each array of an element."""
    if structure is None:
        return [None] * treedef.num_leaves
    try:
        return treedef.flatten_up_to(structure)
    except ValueError as error:
        raise InputError(
            f"Dataset.padded_batch({argument}={structure!r}) has another structure than the elements, "
            f"which are {treedef}: {error}"
        ) from None


def _padded(leaves: tuple[Any, ...], wanted: Any, fill: Any) -> np.ndarray:
    """Arrays of one rank in one array, filled up to the largest of them or to the sizes `wanted`."""
    arrays = [np.asarray(leaf, leaf_dtype(leaf)) for leaf in leaves]
    kinds = {(array.ndim, array.dtype) for array in arrays}
    if len(kinds) > 1:
        listing = " and ".join(f"{ndim} axes of {dtype}" for ndim, dtype in sorted(kinds, key=str))
        raise InputError(f"Dataset.padded_batch can't put elements with {listing} into one batch.")
    sizes = [max(lengths) for lengths in zip(*(array.shape for array in arrays), strict=True)]
    shape = sizes if wanted is None else _full_shape(wanted, sizes)
    dtype = arrays[0].dtype
    if fill is None:
        fill = b"" if dtype.kind == "O" else 0
    elif isinstance(fill, str):
        fill = fill.encode()
    batch = np.full((len(arrays), *shape), fill, dtype)
    for number, array in enumerate(arrays):
        batch[(number, *map(slice, array.shape))] = array
    return batch


def _full_shape(wanted: Any, sizes: list[int]) -> list[int]:
    wanted = list(wanted)
    full = [size if want in (None, -1) else want for want, size in zip(wanted, sizes, strict=False)]
    if len(wanted) != len(sizes) or any(want < size for want, size in zip(full, sizes, strict=True)):
        raise InputError(
            f"Dataset.padded_batch(padded_shapes=...) asks for the shape {tuple(wanted)}, but there are "
            f"elements with sizes up to {tuple(sizes)}. Pass None for a size to make it the largest."
        )
    return full
