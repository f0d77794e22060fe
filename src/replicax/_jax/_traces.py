"""What JAX stores for each thread: the current trace, and settings.

A `Variable` must know whether `jax.jit` would bake its value into a program. Eager replicas share one
thread and must not see each other's settings. One of the settings is our own, and keeps cached traces
apart.
"""

from __future__ import annotations

import contextlib
import importlib
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
    "outside_of_traces",
    "restore_trace",
    "staged_for",
    "thread_settings",
    "trace_of",
    "trace_state",
    "traces_of",
]

trace_state, eval_trace = private("core", "trace_ctx"), private("core", "eval_trace")
"""`trace_state.trace is eval_trace` where operations are executed rather than traced."""

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


def current_trace() -> Any:
    """The trace that the next JAX operation goes to; compare with `is`."""
    return trace_state.trace


def restore_trace() -> None:
    """Restore the thread's trace if Ctrl-C has removed it in JAX 0.11.

    While an operation runs, JAX clears the thread's current trace. If it is interrupted at the wrong
    instant, JAX does not set it again, and every later operation of the thread fails.
    """
    if trace_state.trace is None:
        trace_state.set_trace(eval_trace)


def _enclosing_traces() -> Iterator[Any]:
    """The current trace and its enclosing ones, innermost first."""
    trace = trace_state.trace
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
        return trace_state.axis_env.axis_exists(axis_name)
    except AttributeError as error:
        raise unsupported("jax._src.core.trace_ctx.axis_env.axis_exists") from error


# JAX caches the traces of nested functions (jit, scan, checkpoint, ...) by function and by this value.
_trace_token = jax.make_user_context(None)


_tokens = itertools.count()


def fresh_traces() -> Any:
    """A `with` block in which JAX does not reuse cached traces from outside the block."""
    return _trace_token(next(_tokens))


def traces_of(*context: Any) -> Any:
    """A `with` block in which JAX reuses only cached traces from blocks with an equal `context`."""
    return _trace_token((_trace_token._obj.get_global(), *context))


def forget_traces() -> None:
    """Make JAX discard all cached traces, in this and in other threads."""
    _trace_token._obj.set_global(next(_tokens))


def _thread_settings() -> tuple[Any, ...]:
    """Every thread-local setting of JAX."""
    kind = private("config", "config_ext.Config")
    candidates = [*private("config", "config_states").values(), private("core", "axis_env_state")]
    for module in ("config", "mesh", "layout"):  # since JAX 0.12 `mesh` and `layout` define their own
        candidates += vars(importlib.import_module(f"jax._src.{module}")).values()
    try:
        candidates.append(_trace_token._obj)
    except AttributeError as error:
        raise unsupported("jax.make_user_context(...)._obj") from error
    states = {id(state): state for state in candidates if isinstance(state, kind)}
    return (*states.values(), _SourceInfo())


class _SourceInfo:
    """The user's source line that JAX records in operations, with the interface of a setting."""

    def __init__(self) -> None:
        self._thread_local = private("source_info_util", "_source_info_context")
        self._unset = private("config", "config_ext.unset")
        self._new = private("source_info_util", "new_source_info")

    def get_local(self) -> Any:
        return self._thread_local.context

    def set_local(self, value: Any) -> None:
        self._thread_local.context = self._new() if value is self._unset else value


thread_settings = _thread_settings()
"""JAX's thread-local settings, each with `get_local` and `set_local`."""


@contextlib.contextmanager
def outside_of_traces() -> Iterator[None]:
    """A `with` block in which operations are executed at once, as in a new thread, even during a trace."""
    unset = private("config", "config_ext.unset")
    before = [state.get_local() for state in thread_settings]
    try:
        for state in thread_settings:
            state.set_local(unset)
        with _set_current_trace(eval_trace):
            yield
    finally:
        for state, value in zip(thread_settings, before, strict=True):
            state.set_local(value)
