"""Pads and stacks elements of different sizes, for `Dataset.padded_batch`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import numpy as np

from replicax.errors import InputError
from replicax.tf.data._elements import leaf_dtype
from replicax.values import TensorSpec

__all__ = ["pad_and_stack", "padded_spec"]


def pad_and_stack(elements: Sequence[Any], *, shapes: Any, values: Any) -> Any:
    """Pad `elements` to `shapes` with `values`, and stack them into a batch."""
    treedef = jax.tree.structure(elements[0])
    columns = zip(*map(jax.tree.leaves, elements), strict=True)
    if isinstance(values, tuple | dict):
        fills = _up_to(treedef, values, "padding_values")
    else:
        fills = [values] * treedef.num_leaves
    return treedef.unflatten(map(_padded, columns, _up_to(treedef, shapes, "padded_shapes"), fills))


def padded_spec(spec: Any, *, shapes: Any) -> Any:
    """The spec of a row of a padded batch."""
    treedef = jax.tree.structure(spec)
    specs = []
    for leaf, wanted in zip(jax.tree.leaves(spec), _up_to(treedef, shapes, "padded_shapes"), strict=True):
        shape = leaf.shape if wanted is None else wanted
        specs.append(TensorSpec(tuple(None if size in (None, -1) else size for size in shape), leaf.dtype))
    return treedef.unflatten(specs)


def _up_to(treedef: Any, structure: Any, argument: str) -> list[Any]:
    """The leaves of an argument, one per array of an element."""
    if structure is None:
        return [None] * treedef.num_leaves
    try:
        return treedef.flatten_up_to(structure)
    except ValueError as error:
        raise InputError(
            f"Dataset.padded_batch({argument}={structure!r}) must have the structure of the elements, "
            f"{treedef}: {error}"
        ) from None


def _padded(leaves: tuple[Any, ...], wanted: Any, fill: Any) -> np.ndarray:
    """Stack arrays, padded to the largest or to the sizes in `wanted`."""
    arrays = [np.asarray(leaf, leaf_dtype(leaf)) for leaf in leaves]
    kinds = {(array.ndim, array.dtype) for array in arrays}
    if len(kinds) > 1:
        listing = " and ".join(f"{ndim} axes of {dtype}" for ndim, dtype in sorted(kinds, key=str))
        raise InputError(f"Dataset.padded_batch can't put elements with {listing} into one batch.")
    sizes = np.max([array.shape for array in arrays], axis=0).astype(int).tolist()
    dtype = arrays[0].dtype
    if fill is None:
        fill = b"" if dtype.kind == "O" else 0
    elif isinstance(fill, str):
        fill = fill.encode()
    batch = np.full((len(arrays), *_full_shape(wanted, sizes)), fill, dtype)
    for number, array in enumerate(arrays):
        batch[(number, *map(slice, array.shape))] = array
    return batch


def _full_shape(wanted: Any, sizes: list[int]) -> list[int]:
    if wanted is None:
        return sizes
    wanted = list(wanted)
    full = [size if want in (None, -1) else want for want, size in zip(wanted, sizes, strict=False)]
    if len(wanted) != len(sizes) or any(want < size for want, size in zip(full, sizes, strict=True)):
        raise InputError(
            f"Dataset.padded_batch(padded_shapes=...) asks for the shape {tuple(wanted)}, but there are "
            f"elements with sizes up to {tuple(sizes)}. Pass None to pad to the largest size."
        )
    return full
