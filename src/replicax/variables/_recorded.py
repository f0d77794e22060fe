"""Variables in the block of a `GradientTape`: reads are watched, and writes are not recorded."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from replicax._jax import at_trace
from replicax._recording import innermost_but_recordings
from replicax.contexts import Context

if TYPE_CHECKING:
    from replicax.variables._variable import Variable

__all__ = ["read_recorded", "watched_by", "write_unrecorded"]


def read_recorded(variable: Variable, here: Context) -> Any:
    """The value of `variable`, watched by the open tapes.

    It is read outside of their traces, so that a function that JAX traces in the block captures it as a
    constant, like any other array.
    """
    here.frame.require_own_trace()
    with at_trace(here.tapes[0].outer_trace):
        value = variable._read(here)
    return watched_by(here.tapes, variable, value)


def watched_by(tapes: tuple[Any, ...], variable: Any, value: Any) -> Any:
    """Let each tape watch `value`, which was read from `variable`; returns the watched value."""
    for tape in tapes:
        value = tape.on_read(variable, value)
    return value


def write_unrecorded(variable: Variable, here: Context, write: Any) -> Any:
    """Call `write` without recording it on the tapes: it writes `variable` and returns the new value."""
    with at_trace(innermost_but_recordings()):
        value = write()
    for tape in here.tapes:
        tape.on_write()
    return value if value is None else watched_by(here.tapes, variable, value)
