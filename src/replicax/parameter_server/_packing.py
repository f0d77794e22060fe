"""Many small arrays in few buffers, so that a message has few objects to serialize."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, final

import jax.numpy as jnp
import numpy as np

__all__ = ["Packing"]

_SMALL_BYTES = 64 << 10


@final
class Packing:
    """Small arrays of one dtype share a buffer; each larger array is a buffer of its own.

    Sender and receiver make the same packing from the same shapes. Both methods may be traced.

    Args:
        entries: the shape and dtype of each array.
    """

    def __init__(self, entries: Sequence[tuple[tuple[int, ...], Any]]) -> None:
        self.entries = tuple((tuple(shape), np.dtype(dtype)) for shape, dtype in entries)
        shared: dict[Any, list[int]] = {}
        self._groups: list[list[int]] = []
        for i, (shape, dtype) in enumerate(self.entries):
            if int(np.prod(shape)) * dtype.itemsize > _SMALL_BYTES:
                self._groups.append([i])
            elif dtype in shared:
                shared[dtype].append(i)
            else:
                shared[dtype] = [i]
                self._groups.append(shared[dtype])

    def __reduce__(self) -> Any:
        return Packing, (self.entries,)

    @property
    def num_buffers(self) -> int:
        """The number of buffers."""
        return len(self._groups)

    @property
    def num_bytes(self) -> int:
        """The size of all arrays."""
        return sum(int(np.prod(shape)) * dtype.itemsize for shape, dtype in self.entries)

    def pack(self, arrays: Sequence[Any]) -> list[Any]:
        """The buffers."""
        return [
            jnp.reshape(arrays[group[0]], -1)
            if len(group) == 1
            else jnp.concatenate([jnp.reshape(arrays[i], -1) for i in group])
            for group in self._groups
        ]

    def unpack(self, buffers: Sequence[Any]) -> list[Any]:
        """The arrays."""
        arrays: list[Any] = [None] * len(self.entries)
        for group, buffer in zip(self._groups, buffers, strict=True):
            start = 0
            for i in group:
                shape, _ = self.entries[i]
                stop = start + int(np.prod(shape))
                arrays[i] = jnp.reshape(buffer[start:stop], shape)
                start = stop
        return arrays
