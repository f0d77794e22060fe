"""Cached traces in the block of a tape.

A function that JAX traces in the block (`jit`, `scan`, ...) may read a variable that the tape watches. JAX
caches the trace by function, with the value that was read, which is invalid outside of the block. In a
compiled step, the frame then causes the step to be traced again. Eager code can't go back, so the cached
traces of that block are dropped, and from then on each block has its own.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator
from typing import ClassVar, final

from replicax._jax import current_program, forget_traces, fresh_traces
from replicax.variables import EagerFrame, current_frame

__all__ = ["OwnTraces"]

_logger = logging.getLogger("replicax")


@final
class OwnTraces:
    """Keeps cached traces that read variables in one block from being reused in another."""

    _are_needed: ClassVar[bool] = False
    """Whether an eager block has read a variable inside a function that JAX traces."""

    def __init__(self) -> None:
        self._tokens = contextlib.ExitStack()
        self._program = None

    @contextlib.contextmanager
    def block(self) -> Iterator[None]:
        """A `with` block that, if necessary, shares no cached traces with others."""
        self._program = current_program()
        frame = current_frame()
        frame.renew_traces()
        with contextlib.ExitStack() as self._tokens:
            self.on_write()
            yield
        frame.renew_traces()

    def on_read(self) -> None:
        """Called when a watched variable is read."""
        if current_program() is self._program or not isinstance(current_frame(), EagerFrame):
            return
        if not OwnTraces._are_needed:
            _logger.warning(_RETRACED)
            OwnTraces._are_needed = True
            forget_traces()
            self.on_write()

    def on_write(self) -> None:
        """Do not reuse cached traces: they have read the old value."""
        if OwnTraces._are_needed and isinstance(current_frame(), EagerFrame):
            self._tokens.enter_context(fresh_traces())


_RETRACED = (
    "A variable is read inside jax.jit, lax.scan or another function that JAX traces, in the block of an "
    "eager GradientTape. JAX then has to trace and compile such functions again for every block, which is "
    "slow. Compile the step with `rx.function`, or read `v.value` before the function and pass it in."
)
