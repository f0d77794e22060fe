"""Nodes without parents: arrays, numbers, generators, file names."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import jax
import numpy as np

from replicax.errors import InputError
from replicax.input import INFINITE_CARDINALITY, UNKNOWN_CARDINALITY
from replicax.tf.data._elements import frozen, leaf_dtype, spec_of_element, to_element
from replicax.tf.data._node import Node, engine
from replicax.values import TensorSpec

__all__ = ["file_names", "generated", "numbers", "slices", "tensors"]


def slices(tensors: Any, what: str) -> Node:
    """The rows of arrays; `what` names the call in errors."""
    arrays = frozen(to_element(tensors, what))
    leaves = [
        (f"tensors{jax.tree_util.keystr(path)}", leaf)
        for path, leaf in jax.tree_util.tree_leaves_with_path(arrays)
    ]
    if not leaves:
        raise InputError(f"{what} got no arrays: {tensors!r}.")
    for name, leaf in leaves:
        if not np.ndim(leaf):
            raise InputError(
                f"{what} takes arrays with one row per element, but {name} is the scalar {leaf!r}. For a "
                "dataset of one element, use `Dataset.from_tensors`."
            )
    count = len(leaves[0][1])
    if any(len(leaf) != count for _, leaf in leaves):
        listing = ", ".join(f"{name} has {len(leaf)}" for name, leaf in leaves)
        raise InputError(f"{what} takes arrays with the same number of rows, but {listing}.")

    def rows(index: Any) -> Any:
        return jax.tree.map(lambda array: array[index], arrays)

    spec = jax.tree.map(lambda array: TensorSpec(array.shape[1:], array.dtype), arrays)
    return Node("TensorSliceDataset", (), lambda _: engine().rows(count, rows), count, spec, rows=rows)


def tensors(element: Any, what: str) -> Node:
    """One element."""
    one = frozen(to_element(element, what))
    return Node("TensorDataset", (), lambda _: engine().rows(1, lambda _: one), 1, spec_of_element(one))


def numbers(start: int, step: int, count: int | None, dtype: np.dtype) -> Node:
    """`count` equally spaced numbers; infinitely many if it is None."""

    def make(_: Any) -> Any:
        length = engine().ENDLESS if count is None else count
        return engine().rows(length, lambda index: dtype.type(start + index * step))

    cardinality = INFINITE_CARDINALITY if count is None else count
    return Node("RangeDataset", (), make, cardinality, TensorSpec((), dtype))


def file_names(paths: tuple[str, ...]) -> Node:
    """The names of files, which several pipelines can divide among them."""

    def make(_: Any) -> Any:
        return engine().rows(len(paths), lambda index: paths[index].encode())

    return Node("ListFilesDataset", (), make, len(paths), TensorSpec((), object), paths=paths)


def generated(
    generator: Callable[..., Iterable[Any]], args: tuple[Any, ...], dtypes: Any, shapes: Any
) -> Node:
    """The elements that a generator yields, checked against the declared dtypes and shapes."""
    treedef = jax.tree.structure(dtypes)
    wanted = list(zip(treedef.flatten_up_to(dtypes), treedef.flatten_up_to(shapes), strict=True))
    spec = None
    if all(shape is not None for _, shape in wanted):
        spec = treedef.unflatten([TensorSpec(shape, dtype) for dtype, shape in wanted])

    def checked(number: int, value: Any) -> Any:
        if isinstance(value, list) and treedef != jax.tree.structure(0):
            value = tuple(value)
        element = to_element(value, f"The generator given to Dataset.from_generator (element {number})")
        if jax.tree.structure(element) != treedef:
            raise InputError(
                f"Element {number} of the generator given to Dataset.from_generator has the structure "
                f"{jax.tree.structure(element)}, but its signature has {treedef}."
            )
        leaves = zip(jax.tree.leaves(element), wanted, strict=True)
        return treedef.unflatten([_fitted(leaf, *declared, number) for leaf, declared in leaves])

    def make(_: Any) -> Any:
        what = "the generator given to Dataset.from_generator"
        return engine().replayed(lambda: iter(generator(*args)), checked, what)

    return Node("GeneratorDataset", (), make, UNKNOWN_CARDINALITY, spec)


def _fitted(leaf: Any, dtype: np.dtype, shape: tuple[int | None, ...] | None, number: int) -> Any:
    """Convert a leaf of an element to the declared dtype; raises if dtype or shape do not match."""
    have, got = leaf_dtype(leaf), np.shape(leaf)
    fits = have == dtype if "O" in (have.kind, dtype.kind) else np.can_cast(have, dtype, "same_kind")
    if shape is not None:
        fits &= len(shape) == len(got) and all(a in (None, b) for a, b in zip(shape, got, strict=True))
    if not fits:
        wanted = f"dtype {dtype}" if shape is None else f"shape {shape} and dtype {dtype}"
        raise InputError(
            f"Element {number} of the generator given to Dataset.from_generator has shape {got} and dtype "
            f"{have}, but its signature says {wanted}. Change one of them."
        )
    return leaf if have == dtype else np.asarray(leaf).astype(dtype)[()]
