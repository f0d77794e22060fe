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
        self._num_parts = num_parts
        self.batch_size = batch_size
        self._num_steps = 0

    @property
    def _full_size(self) -> int:
        """How many examples a replica gets of a full batch."""
        return -(-(self.batch_size or 0) // self._num_parts)

    @property
    def padded_size(self) -> int | None:
        """How many rows every replica gets; None if they get as many as there are examples."""
        return self._full_size if self._mode == "pad" else None

    def keep(self, step: Step) -> bool:
        """Whether to use `step`; raises if it must not be."""
        self._num_steps += 1
        rows = [piece.batch.num_rows for piece in step.pieces]
        if self._mode == "exact" or None in rows:
            return True
        largest = max(row or 0 for row in rows)
        if not self.batch_size or (self._mode == "pad" and largest > self.batch_size):
            self.batch_size = largest
        if self._mode == "pad" or (largest and set(step.sizes) == {self._full_size}):
            return True
        divides = self.batch_size % self._num_parts == 0
        if self._mode == "drop" and divides and max(step.sizes) <= self._full_size:
            return False
        raise InputError(self._complaint(step))

    def _complaint(self, step: Step) -> str:
        rows, count, full = sum(step.sizes), len(step.sizes), self._full_size
        what = f"A batch has {rows} examples for {count} {'replica' if count == 1 else 'replicas'}"
        if max(step.sizes) > full:
            return (
                f"{what}, and a full one {full} for each. With partial_batch={self._mode!r} all batches "
                "must have one size; use 'exact' or 'pad' if they differ."
            )
        if self.batch_size and self.batch_size % self._num_parts:
            smaller = self.batch_size // self._num_parts * self._num_parts
            sizes = f"{smaller} or {smaller + self._num_parts}" if smaller else str(self._num_parts)
            return (
                f"{what}, which do not divide evenly, so with partial_batch={self._mode!r} no batch could "
                f"be used. Choose a batch size such as {sizes}, or partial_batch='exact' or 'pad'."
            )
        return (
            f"{what}, where {full} for each make a full batch, and partial_batch='error' was asked for. "
            "Leave such batches out with 'drop', use them as they are with 'exact', or fill up with 'pad'."
        )
