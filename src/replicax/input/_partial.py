"""What becomes of a partial batch: one that does not give every replica the full number of examples."""

from __future__ import annotations

from typing import final

from replicax.errors import InputError
from replicax.input._options import PartialBatch
from replicax.input._stream import Step

__all__ = ["PartialBatches"]


@final
class PartialBatches:
    """Lets steps pass, pads them, leaves them out or complains, as `mode` says.

    Args:
        mode: "exact", "pad", "drop" or "error".
        batch_size: how many examples a full batch has, if that is known; otherwise the first one tells.
        num_parts: over how many replicas it is split.
    """

    def __init__(self, mode: PartialBatch, batch_size: int | None, num_parts: int) -> None:
        """Nothing has been seen yet."""
        self._mode = mode
        self._full_size = None if batch_size is None else -(-batch_size // num_parts)
        self._divides = batch_size is not None and batch_size % num_parts == 0
        self._num_steps = 0

    @property
    def padded_size(self) -> int | None:
        """How many rows every replica gets; None if they get as many as there are examples."""
        return self._full_size if self._mode == "pad" else None

    def keep(self, step: Step) -> bool:
        """Whether to use `step`; raises if it must not be."""
        self._num_steps += 1
        if self._mode == "exact":
            return True
        if any(piece.batch.num_rows is None for piece in step.pieces):
            return True
        largest = max(step.sizes)
        if self._full_size is None:
            self._full_size, self._divides = largest, step.is_even
        if self._mode == "pad":
            self._full_size = max(self._full_size, largest)
            return True
        if set(step.sizes) == {self._full_size}:
            return True
        if self._mode == "drop" and self._divides and largest <= self._full_size:
            return False
        raise InputError(self._complaint(step))

    def _complaint(self, step: Step) -> str:
        rows, count, full = sum(step.sizes), len(step.sizes), self._full_size or 0
        where = f"Batch {self._num_steps - 1} has {rows} examples for {count} replicas"
        if rows % count == 0 and max(step.sizes) > full:
            return f"{where}, more than the full {full} for each that the first batch had."
        remedy = (
            f"Choose a batch size that divides by {count}, or InputOptions(partial_batch='exact') to use "
            "such batches as they are, or 'pad' to fill them up."
        )
        if self._mode == "drop":
            return f"{where}, so with partial_batch='drop' no batch of this size would be used. {remedy}"
        return f"{where}, where {full} for each make a full one (partial_batch='error'). {remedy}"
