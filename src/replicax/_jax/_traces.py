"""JAX's current trace, and which cached traces it may reuse.

A `Variable` must know whether `jax.jit` would bake its value into a program. A setting of our own keeps
cached traces apart.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import jax

from replicax._jax._access import private, unsupported

__all__ = [
    "at_trace",
    "current_program",
    "current_trace",
    "debug_infs",
    "debug_nans",
    "disable_jit",
    "eval_trace",
    "forget_traces",
    "fresh_traces",
    "is_axis_bound",
    "is_mapped_over",
    "is_staging",
    "is_tracer",
    "number_check",
    "set_trace",
    "settings_number",
    "staged_for",
    "trace_of",
    "trace_settings",
    "trace_state",
    "trace_token",
    "traces_of",
]

trace_state, eval_trace = private("core", "trace_state_strong_ref"), private("core", "eval_trace")
"""`trace_state.value is eval_trace` where operations are executed rather than traced."""

set_trace = private("core", "trace_ctx.set_trace")
_tracing_context = private("core", "trace_ctx")

_set_current_trace = private("core", "set_current_trace")
_Tracer = private("core", "Tracer")
_JaxprTrace = private("interpreters.partial_eval", "DynamicJaxprTrace")
_BatchTrace = private("interpreters.batching", "BatchTrace")
# These traces execute operations at once, so no other trace encloses them.
_OUTERMOST_TRACES = (private("core", "EvalTrace"), private("shard_map", "ShardMapTrace"))

debug_nans = private("config", "debug_nans")
debug_infs = private("config", "debug_infs")
disable_jit = private("config", "disable_jit")
"""JAX's config options of these names; `.value` is the value in this thread."""

trace_settings = private("config", "trace_context")
"""Returns a tuple of JAX's settings that a trace depends on: matmul precision, default device, ..."""

_settings_numbers: dict[tuple[Any, ...], int] = {}

number_check = private("api", "_post_hook_state")
"""`number_check.value is None` unless `debug_nans` or `debug_infs` is set."""


def current_trace() -> Any:
    """The trace that the next JAX operation goes to; compare with `is`."""
    return trace_state.value


def settings_number(settings: tuple[Any, ...] | None = None) -> int:
    """A number for `settings`, or for the current `trace_settings`: equal settings have the same number."""
    key = trace_settings() if settings is None else settings
    return _settings_numbers.setdefault(key, len(_settings_numbers))


def _enclosing_traces() -> Iterator[Any]:
    """The current trace and its enclosing ones, innermost first."""
    trace = trace_state.value
    while trace is not None:
        yield trace
        trace = _parent(trace)


def _parent(trace: Any) -> Any:
    if isinstance(trace, _OUTERMOST_TRACES):
        return None
    try:
        return trace.parent_trace
    except AttributeError as error:
        raise unsupported(f"{type(trace).__name__}.parent_trace") from error


def is_tracer(value: Any) -> bool:
    """Whether `value` is a tracer."""
    return isinstance(value, _Tracer)


def trace_of(value: Any) -> Any:
    """The trace that a tracer belongs to; None for anything else."""
    if not isinstance(value, _Tracer):
        return None
    try:
        return value._trace
    except AttributeError as error:
        raise unsupported(f"{type(value).__name__}._trace") from error


def at_trace(trace: Any) -> Any:
    """A `with` block in which operations go to `trace`."""
    return _set_current_trace(trace)


def current_program() -> Any:
    """The innermost program (`jit`, `shard_map`, `scan`, ...) being traced, or None."""
    return next((t for t in _enclosing_traces() if isinstance(t, _JaxprTrace)), None)


def is_staging() -> bool:
    """Whether operations are being traced into a program (`jit`, `scan`, ...) rather than run."""
    return current_program() is not None


def staged_for() -> str:
    """What the innermost program is being traced for: "jit", "scan", "cond", ..."""
    program = current_program()
    if program is None:
        return "nothing"
    try:
        return str(program.frame.debug_info.traced_for)
    except AttributeError as error:
        raise unsupported("DynamicJaxprTrace.frame.debug_info.traced_for") from error


def is_mapped_over(axis_name: str) -> bool:
    """Whether a `vmap` with this axis name is active; it would shadow an outer axis of the same name."""
    return any(_axis_name(t) == axis_name for t in _enclosing_traces() if isinstance(t, _BatchTrace))


def _axis_name(trace: Any) -> Any:
    try:
        return trace.axis_data.name
    except AttributeError as error:
        raise unsupported("BatchTrace.axis_data.name") from error


def is_axis_bound(axis_name: str) -> bool:
    """Whether JAX maps over an axis of this name here (`shard_map`, `vmap`, ...)."""
    try:
        return _tracing_context.axis_env.axis_exists(axis_name)
    except AttributeError as error:
        raise unsupported("jax._src.core.trace_ctx.axis_env.axis_exists") from error


# JAX caches the traces of nested functions (jit, scan, checkpoint, ...) by function and by this value.
trace_token = jax.make_user_context(None)
_tokens = itertools.count()


def fresh_traces() -> Any:
    """A `with` block in which JAX does not reuse cached traces from outside the block."""
    return trace_token(next(_tokens))


def traces_of(*context: Any) -> Any:
    """A `with` block in which JAX reuses only cached traces from blocks with an equal `context`."""
    return trace_token((trace_token._obj.get_global(), *context))


def forget_traces() -> None:
    """Make JAX discard all cached traces, in this and in other threads."""
    trace_token._obj.set_global(next(_tokens))
