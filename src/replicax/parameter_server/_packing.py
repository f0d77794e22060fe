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
    """Small arrays of one dtype share a buffer; a larger array is sent as it is, which needs no copy.

    Sender and receiver make the same packing from the same shapes. Both methods may be traced.

    Args:
        entries: the shape and dtype of each array.
    """

    def __init__(self, entries: Sequence[tuple[tuple[int, ...], Any]]) -> None:
        self.entries = tuple((tuple(shape), np.dtype(dtype)) for shape, dtype in entries)
        self._shared: dict[Any, list[int]] = {}
        self._large: list[int] = []
        for i, (shape, dtype) in enumerate(self.entries):
            is_large = int(np.prod(shape)) * dtype.itemsize > _SMALL_BYTES
            (self._large if is_large else self._shared.setdefault(dtype, [])).append(i)

    def __reduce__(self) -> Any:
        return Packing, (self.entries,)

    @property
    def num_buffers(self) -> int:
        """How many arrays a message has: one per dtype with small arrays, and every larger array."""
        return len(self._shared) + len(self._large)

    @property
    def num_bytes(self) -> int:
        """The size of all arrays."""
        return sum(int(np.prod(shape)) * dtype.itemsize for shape, dtype in self.entries)

    def pack(self, arrays: Sequence[Any]) -> list[Any]:
        """The buffers."""
        shared = [
            jnp.concatenate([jnp.reshape(arrays[i], -1) for i in own]) for own in self._shared.values()
        ]
        return shared + [arrays[i] for i in self._large]

    def unpack(self, buffers: Sequence[Any]) -> list[Any]:
        """The arrays."""
        arrays: list[Any] = [None] * len(self.entries)
        for own, buffer in zip(self._shared.values(), buffers, strict=False):
            start = 0
            for i in own:
                shape, _ = self.entries[i]
                stop = start + int(np.prod(shape))
                arrays[i] = jnp.reshape(buffer[start:stop], shape)
                start = stop
        for i, buffer in zip(self._large, buffers[len(self._shared) :], strict=True):
            arrays[i] = buffer
        return arrays
