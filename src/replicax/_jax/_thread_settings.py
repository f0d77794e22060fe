"""What JAX, and libraries on top of it, store for each thread.

Eager replicas share one thread and must not see each other's settings. Threads that we start must have the
settings of the thread that starts them.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import sys
import threading
from collections.abc import Iterator
from types import ModuleType
from typing import Any, final

from replicax._jax._access import private, unsupported
from replicax._jax._traces import at_trace, eval_trace, set_trace, trace_state, trace_token

__all__ = ["ThreadSettings", "outside_of_traces", "restore_trace", "thread_settings"]

_unset = private("config", "config_ext.unset")


def restore_trace() -> None:
    """Restore the thread's trace if Ctrl-C has removed it in JAX 0.11.

    While an operation runs, JAX clears the thread's current trace. If it is interrupted at the wrong
    instant, JAX does not set it again, and every later operation of the thread fails.
    """
    if trace_state.value is None:
        set_trace(eval_trace)


def _find_settings() -> tuple[Any, ...]:
    """Every thread-local setting of JAX."""
    kind = private("config", "config_ext.Config")
    candidates = [*private("config", "config_states").values(), private("core", "axis_env_state")]
    for module in ("config", "mesh", "layout"):  # since JAX 0.12, `mesh` and `layout` define settings, too
        candidates += vars(importlib.import_module(f"jax._src.{module}")).values()
    try:
        candidates.append(trace_token._obj)
    except AttributeError as error:
        raise unsupported("jax.make_user_context(...)._obj") from error
    states = {id(state): state for state in candidates if isinstance(state, kind)}
    return (*states.values(), _SourceInfo())


@final
class _SourceInfo:
    """The user's source line that JAX records in operations, with the interface of a setting."""

    def __init__(self) -> None:
        self._thread_local = private("source_info_util", "_source_info_context")
        self._new = private("source_info_util", "new_source_info")

    def get_local(self) -> Any:
        return self._thread_local.context

    def set_local(self, value: Any) -> None:
        self._thread_local.context = self._new() if value is _unset else value


def _linen_stacks() -> Iterator[tuple[threading.local, str, list[Any]]]:
    """This thread's stacks of running Linen modules, each with the object and the name of its attribute.

    The modules that a module creates find their parent there. An eager replica that waits inside a module
    must not leave its modules there for the next replica.
    """
    linen = sys.modules.get("flax.linen.module")
    for holder in () if linen is None else _thread_locals(linen):
        for name, value in vars(holder).items():
            if isinstance(value, list):
                yield holder, name, value


@functools.cache
def _thread_locals(module: ModuleType) -> tuple[threading.local, ...]:
    return tuple(value for value in vars(module).values() if isinstance(value, threading.local))


thread_settings = _find_settings()
"""JAX's thread-local settings, each with `get_local` and `set_local`."""


@final
class ThreadSettings:
    """A snapshot of this thread's settings: default device, matmul precision, mesh, ...

    `with jax.default_device(...)` and similar blocks set state of the *thread*. Replicas that take turns in
    one thread therefore save their settings when they pause and restore them when they continue.
    """

    __slots__ = ("_locals", "_stacks")

    def __init__(self) -> None:
        self._locals = [state.get_local() for state in thread_settings]
        self._stacks = [(holder, name, tuple(stack)) for holder, name, stack in _linen_stacks()]

    def restore(self) -> None:
        """Give the thread that calls this the saved settings."""
        for state, value in zip(thread_settings, self._locals, strict=True):
            if state.get_local() is not value:
                state.set_local(value)
        for holder, name, contents in self._stacks:
            getattr(holder, name)[:] = contents


@contextlib.contextmanager
def outside_of_traces() -> Iterator[None]:
    """A `with` block in which operations are executed at once, as in a new thread, even during a trace."""
    before = ThreadSettings()
    try:
        for state in thread_settings:
            state.set_local(_unset)
        with at_trace(eval_trace):
            yield
    finally:
        before.restore()
