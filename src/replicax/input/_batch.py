"""A batch: a structure of arrays with one row per example.

`Batch.rows` returns memory that does not change afterwards. JAX copies host memory to a device in the
background, and a CPU device may even alias it, while many readers reuse their buffers. So the rows of a
reader's arrays are copied here, into aligned memory that a CPU device can alias without a second copy.
"""

from __future__ import annotations

import abc
import math
import sys
from collections.abc import Sequence
from typing import Any, final

import jax
import jax.numpy as jnp
import numpy as np

from replicax.errors import InputError
from replicax.topology import is_key
from replicax.values import DistributedValues, TensorSpec

__all__ = [
    "Batch",
    "WholeBatch",
    "aligned_empty",
    "check_batch_size",
    "device_dtype",
    "is_numeric",
    "leaf_names",
    "spec_of",
    "taken",
    "to_arrays",
]

_ALIGNMENT = 64  # bytes; XLA aliases host memory only if it is aligned to this


def aligned_empty(shape: tuple[int, ...], dtype: Any) -> np.ndarray:
    """An uninitialised array that a CPU device can alias."""
    dtype = np.dtype(dtype)
    size = math.prod(shape) * dtype.itemsize
    memory = np.empty(size + _ALIGNMENT, np.uint8)
    start = -memory.__array_interface__["data"][0] % _ALIGNMENT
    return memory[start : start + size].view(dtype).reshape(shape)


def check_batch_size(batch_size: Any, owner: str) -> None:
    """Raise if the argument of `owner.batch` is not a number of examples."""
    is_count = isinstance(batch_size, int | np.integer) and not isinstance(batch_size, bool)
    if not is_count:
        raise InputError(
            f"{owner}.batch({batch_size!r}) got a value of type {type(batch_size).__name__}: pass a batch "
            "size of at least 1, an int."
        )
    if batch_size < 1:
        raise InputError(f"{owner}.batch({batch_size!r}): pass a batch size of at least 1.")


def is_numeric(array: Any) -> bool:
    """Whether `array` can be placed on a device: strings, bytes and Python objects can't."""
    if isinstance(array, jax.Array):
        return True
    return array.dtype.kind in "biufc" or (
        array.dtype.kind == "V" and jnp.issubdtype(array.dtype, np.number)
    )


def device_dtype(array: Any) -> Any:
    """The dtype of an array on a device: 32 bits unless JAX is in 64-bit mode, in native byte order."""
    if is_key(array):
        return array.dtype
    return jax.dtypes.canonicalize_dtype(array.dtype.newbyteorder("="))


class Batch(abc.ABC):
    """A structure of arrays whose rows can be taken."""

    treedef: Any
    """The structure."""
    num_rows: int | None
    """The number of examples; None for an element without a batch axis."""

    @property
    @abc.abstractmethod
    def leaves(self) -> Sequence[Any]:
        """Arrays with the dtypes and trailing shapes of the batch, and any number of rows."""

    @abc.abstractmethod
    def detached(self) -> Batch:
        """This batch in memory that the reader will not reuse."""

    @abc.abstractmethod
    def rows(self, start: int, stop: int, *, aligned: bool = False) -> list[Any]:
        """The rows `start` to `stop` of every array, in memory that does not change afterwards.

        Args:
            start: the first row.
            stop: the row after the last.
            aligned: copy into memory that a CPU device can alias. Otherwise the device makes its own copy,
                which takes longer.
        """


@final
class WholeBatch(Batch):
    """A batch made of arrays that a reader returned.

    Args:
        structure: the arrays.
        private: whether the arrays never change, so that no copy is needed.
    """

    def __init__(self, structure: Any, *, private: bool) -> None:
        leaves, self.treedef = jax.tree.flatten(structure, is_leaf=_is_distributed)
        self._leaves = to_arrays(leaves, self.treedef)
        self._private = private
        sizes = {leaf.shape[0] if leaf.ndim else None for leaf in self._leaves}
        self.num_rows = sizes.pop() if len(sizes) == 1 else None

    @property
    def leaves(self) -> Sequence[Any]:
        return self._leaves

    def detached(self) -> Batch:
        if self._private:
            return self
        copies = [leaf if isinstance(leaf, jax.Array) else leaf.copy() for leaf in self._leaves]
        return WholeBatch(self.treedef.unflatten(copies), private=True)

    def rows(self, start: int, stop: int, *, aligned: bool = False) -> list[Any]:
        """The rows `start` to `stop`, or the whole element if it has no batch axis."""
        copied = aligned or not self._private
        if self.num_rows is None:
            return [taken(leaf, copied) for leaf in self._leaves]
        return [taken(leaf[start:stop], copied) for leaf in self._leaves]


def taken(part: Any, copied: bool) -> Any:
    """A part of an array, converted to its dtype on the device, and copied if `copied`."""
    if isinstance(part, jax.Array):
        return part
    if not is_numeric(part):
        return part.copy()
    dtype = device_dtype(part)
    if not copied and part.dtype == dtype:
        return part
    copy = aligned_empty(part.shape, dtype)
    _check_range(part, dtype)
    copy[...] = part
    return copy


def _check_range(array: np.ndarray, dtype: Any) -> None:
    """Raise if integers do not fit into the smaller `dtype`."""
    if array.dtype.kind not in "iu" or array.dtype.itemsize <= dtype.itemsize or not array.size:
        return
    limits = np.iinfo(dtype)
    low, high = array.min(), array.max()
    if low < limits.min or high > limits.max:
        raise InputError(
            f"{array.dtype} numbers from {low} to {high} do not fit into {dtype}, which JAX converts them "
            'to. Call `jax.config.update("jax_enable_x64", True)` first, or use smaller numbers.'
        )


def leaf_names(treedef: Any) -> list[str]:
    """The names of the leaves of a structure, for messages."""
    paths, _ = jax.tree_util.tree_flatten_with_path(treedef.unflatten(range(treedef.num_leaves)))
    return [f"element{jax.tree_util.keystr(path)}" for path, _ in paths]


def _is_distributed(value: Any) -> bool:
    return isinstance(value, DistributedValues)


def to_arrays(leaves: Sequence[Any], treedef: Any) -> list[Any]:
    """Convert `leaves` to JAX or NumPy arrays; raises for anything that is not an array."""
    arrays = list(map(_to_array, leaves))
    for i, array in enumerate(arrays):
        if isinstance(array, np.ndarray) and array.dtype.names is not None:
            raise InputError(
                f"{leaf_names(treedef)[i]} has the structured dtype {array.dtype}, which devices do not "
                "support. Convert it to a dict with one array per field."
            )
    for i, array in enumerate(arrays):
        if array is None:
            raise InputError(
                f"{leaf_names(treedef)[i]} is not an array, but of type {_described(leaves[i])}. A batch "
                "is an array with one row for each example, or a structure (tuple, list, dict, ...) of "
                "such arrays; make them with np.asarray or np.stack."
            )
    return arrays


def _to_array(leaf: Any) -> Any:
    if isinstance(leaf, jax.Array):
        return _on_one_device(leaf)
    if isinstance(leaf, np.ndarray):
        return leaf
    if isinstance(leaf, bool | int | float | complex | np.generic):
        return np.asarray(leaf)
    torch, tensorflow = sys.modules.get("torch"), sys.modules.get("tensorflow")
    if torch is not None and isinstance(leaf, torch.Tensor):
        return _from_torch(leaf, torch)
    if tensorflow is not None and isinstance(leaf, tensorflow.Tensor):
        return leaf.numpy()
    return None


def _on_one_device(array: jax.Array) -> jax.Array:
    """`array` on one device, where slicing it needs no communication."""
    if not array.is_fully_addressable:
        raise InputError(
            f"An array of shape {array.shape} is sharded over several processes, so it can't be split. "
            "Make batches from arrays that are fully addressable in this process."
        )
    devices = array.sharding.device_set
    return array if len(devices) == 1 else jax.device_put(array, min(devices, key=lambda d: d.id))


def _from_torch(tensor: Any, torch: Any) -> np.ndarray:
    tensor = tensor.detach().cpu()
    if tensor.dtype is torch.bfloat16:  # torch does not convert to JAX's NumPy bfloat16
        return tensor.view(torch.int16).numpy().view(jnp.bfloat16)
    return tensor.numpy()


def _described(leaf: Any) -> str:
    text = repr(leaf)
    return f"{type(leaf).__name__}: {text if len(text) < 60 else text[:57] + '...'}"


def spec_of(batch: Batch) -> Any:
    """The structure of a batch with specs in place of arrays; specs leave out the number of rows."""
    specs = [
        TensorSpec((None, *leaf.shape[1:]) if batch.num_rows is not None else leaf.shape, leaf.dtype)
        for leaf in batch.leaves
    ]
    return batch.treedef.unflatten(specs)
