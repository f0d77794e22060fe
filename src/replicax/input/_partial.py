"""Partial batches: batches that do not have the full number of examples for every replica."""

from __future__ import annotations

from typing import final

from replicax.errors import InputError
from replicax.input._options import PartialBatch
from replicax.input._stream import Step

__all__ = ["PartialBatches"]


@final
class PartialBatches:
    """Decides whether a step is used, padded, dropped or an error.

    Args:
        mode: "exact", "pad", "drop" or "error".
        batch_size: the number of examples in a full batch; None takes that of the first batch.
        num_parts: the number of replicas that a batch is split over.
    """

    def __init__(self, mode: PartialBatch, batch_size: int | None, num_parts: int) -> None:
        self._mode = mode
        self._num_parts = num_parts
        self.batch_size = batch_size

    @property
    def _full_size(self) -> int:
        """The number of examples per replica in a full batch."""
        return -(-(self.batch_size or 0) // self._num_parts)

    @property
    def padded_size(self) -> int | None:
        """The number of rows that every replica gets; None if batches are not padded."""
        return self._full_size if self._mode == "pad" else None

    def keep(self, step: Step) -> bool:
        """Whether to use `step`; raises if the mode does not allow it."""
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
        raise InputError(self._message(step))

    def _message(self, step: Step) -> str:
        rows, count, full = sum(step.sizes), len(step.sizes), self._full_size
        what = f"A batch has {rows} examples for {count} {'replica' if count == 1 else 'replicas'}"
        if max(step.sizes) > full:
            return (
                f"{what}, but a full one has {full} for each. With partial_batch={self._mode!r} all "
                "batches must have the same size; use 'exact' or 'pad' if sizes differ."
            )
        if self.batch_size and self.batch_size % self._num_parts:
            smaller = self.batch_size // self._num_parts * self._num_parts
            sizes = f"{smaller} or {smaller + self._num_parts}" if smaller else str(self._num_parts)
            return (
                f"{what}, which does not divide evenly, so with partial_batch={self._mode!r} no batch "
                f"could be used. Choose a batch size such as {sizes}, or partial_batch='exact' or 'pad'."
            )
        return (
            f"{what}, but a full batch has {full} for each, and partial_batch='error' forbids partial "
            "batches. Use 'drop' to skip them, 'exact' to use them unchanged, or 'pad' to pad them."
        )
