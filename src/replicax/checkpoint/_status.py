"""`RestoreStatus`: what `Checkpoint.restore` returns."""

from __future__ import annotations

import weakref
from typing import final

from replicax.checkpoint._pending import Restored
from replicax.errors import CheckpointMismatchError

__all__ = ["RestoreStatus"]


@final
class RestoreStatus:
    """Reports what a restore matched and what it did not; returned by `Checkpoint.restore`.

    Mismatches are logged in one line when the status is garbage-collected (immediately, if you do not keep
    it), and by the next save at the latest. `assert_consumed()` raises instead; `expect_partial()` logs
    nothing.

    >>> import tempfile
    >>> path = rx.Checkpoint(w=rx.Variable(1.0), b=rx.Variable(2.0)).save(tempfile.mkdtemp())
    >>> b = rx.Variable(0.0)
    >>> status = rx.Checkpoint(b=b).restore(path).expect_partial()
    >>> b.read_value(), status.unused, status.missing
    (Array(2., dtype=float32), ['w'], [])
    """

    def __init__(self, restored: Restored) -> None:
        self._restored = restored
        weakref.finalize(self, restored.report)

    @property
    def missing(self) -> list[str]:
        """Objects of the program without a saved value."""
        return self._restored.missing

    @property
    def unused(self) -> list[str]:
        """Saved values without an object in the program."""
        return self._restored.unused

    def assert_consumed(self) -> RestoreStatus:
        """Raise `CheckpointMismatchError` unless everything matched, in both directions."""
        if problems := self._restored.problems(self.unused):
            self._restored.was_reported = True
            raise CheckpointMismatchError(
                f"The checkpoint {self._restored.where} was not restored completely: {problems}."
            )
        return self

    def assert_existing_objects_matched(self) -> RestoreStatus:
        """Raise `CheckpointMismatchError` unless everything that exists now was restored."""
        self._restored.attach()
        if problems := self._restored.problems([]):
            self._restored.was_reported = True
            raise CheckpointMismatchError(
                f"The checkpoint {self._restored.where} was not restored completely: {problems}."
            )
        return self

    def assert_nontrivial_match(self) -> RestoreStatus:
        """Raise `CheckpointMismatchError` if nothing at all was restored."""
        if len(self.unused) == len(self._restored.entries):
            raise CheckpointMismatchError(
                f"Nothing of the checkpoint {self._restored.where} was restored: "
                f"{self._restored.problems(self.unused) or 'it is empty'}."
            )
        return self

    def run_restore_ops(self, session: None = None) -> None:
        """Do nothing: `restore` has already restored the values."""

    def initialize_or_restore(self, session: None = None) -> None:
        """Do nothing: variables are initialized when they are created."""

    def expect_partial(self) -> RestoreStatus:
        """Accept mismatches: they are not logged.

        Variables that are created later are no longer matched by name. Those with a known path still are:
        slots of this program's optimizers, and variables of Keras models.
        """
        self._restored.expect_partial()
        return self
