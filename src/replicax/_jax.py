"""The only module that touches JAX interfaces without a stability promise.

Everything else in Replicax uses JAX's public API. What lives here, and why there is no public way:

* whether a backend has started (virtual CPU devices must be asked for before);
* which trace is current (a `Variable` must know whether it would be baked into somebody's `jax.jit`);
* JAX's thread-local settings (eager replicas share one thread and must not see each other's), one of our
  own among them, which tells apart traces that JAX keeps;
* a view of a device buffer as an *uncommitted* array, which mixes freely with arrays on any device;
* an array made of parts in host memory without looking at everything twice (a fifth of the time that
  `jax.device_put` takes for a small batch);
* a traced array whose type does not name the mesh that it came from;
* forgetting a recording of the profiler that could not be written, without which JAX refuses all others;
* messages between the processes of `jax.distributed`, which need no collective and so no fixed order.
"""

from __future__ import annotations

import functools
import itertools
import json
import time
from collections.abc import Callable, Sequence
from typing import Any

import jax
from jax._src import config as _config
from jax._src import core as _core
from jax._src import distributed as _distributed
from jax._src import xla_bridge as _xla_bridge
from jax._src.array import ArrayImpl
from jax._src.interpreters import pxla as _pxla
from jax._src.interpreters.partial_eval import DynamicJaxprTrace as _JaxprTrace
from jax._src.lib import _jax as _jaxlib  # pyright: ignore[reportPrivateImportUsage]
from jax.interpreters import ad, batching, mlir

from replicax.errors import CollectiveTimeoutError

# Public as jax.extend.core.Primitive, whose import takes as long as all of Replicax.
Primitive = _core.Primitive
trace_state, eval_trace = _core.trace_ctx, _core.eval_trace
"""`trace_state.trace is eval_trace` where operations are run rather than traced."""

_batched_device_put = _pxla.batched_device_put
_array_result_handler = _jaxlib.array_result_handler
# JAX 0.10 checks the buffers unless told not to; 0.11 never does.
_unchecked = {"_skip_checks": True} if "_skip_checks" in str(_array_result_handler.__doc__) else {}

__all__ = [
    "ArrayImpl",
    "FirstReplicaViews",
    "Primitive",
    "ThreadSettings",
    "at_trace",
    "backends_are_initialized",
    "current_program",
    "current_trace",
    "eval_trace",
    "exchange_between_processes",
    "forget_profile",
    "fresh_traces",
    "is_mapped_over",
    "is_staging",
    "is_tracer",
    "is_transforming",
    "plain",
    "put_parts",
    "staged_for",
    "trace_of",
    "trace_state",
    "traces_of",
    "uncommitted",
]


def backends_are_initialized() -> bool:
    """Whether JAX has started a backend, after which the number of devices is fixed."""
    return _xla_bridge.backends_are_initialized()


def exchange_between_processes(
    processes: Sequence[int],
    topic: str,
    number: int,
    message: Any,
    cancelled: Callable[[], bool],
    timeout_seconds: float,
) -> list[Any]:
    """The messages of all `processes` about a topic, each of which sends its own, numbered from 0.

    They go through the coordinator of `jax.distributed`, so any thread may call this. Messages are JSON.

    Raises:
        CollectiveTimeoutError: not all were there in time, or before `cancelled()`.
    """
    client = _distributed.global_state.client
    assert client is not None, "several processes have jax.distributed"
    own = jax.process_index()
    client.key_value_set(f"{topic}/{number}/{own}", json.dumps(message))
    deadline = time.monotonic() + timeout_seconds

    def message_of(process: int) -> str:
        while True:
            try:
                return client.blocking_key_value_get(f"{topic}/{number}/{process}", 200)
            except jax.errors.JaxRuntimeError as error:
                if "DEADLINE_EXCEEDED" not in str(error):
                    raise
            if cancelled() or time.monotonic() > deadline:
                raise CollectiveTimeoutError(
                    f"Process {own} waited in vain for message {number} of process {process} about {topic}."
                )

    told = [json.loads(message_of(process)) for process in processes]
    if number > 0:
        # All have sent this message, so all have read the one before.
        client.key_value_delete(f"{topic}/{number - 1}/{own}")
    return told


def forget_profile() -> None:
    """Let go of a recording of the profiler that could not be written."""
    from jax._src.profiler import _profile_state

    with _profile_state.lock:
        _profile_state.reset()


def put_parts(
    parts: Sequence[Any], shape: tuple[int, ...], sharding: Any, devices: Sequence[Any]
) -> jax.Array:
    """The array of `shape` whose part on each of `devices` is one of `parts`, as `sharding` says.

    Parts are NumPy arrays of a dtype that JAX has, and must not change afterwards.
    """
    return _batched_device_put(_abstract_array(shape, parts[0].dtype), sharding, parts, devices)


@functools.lru_cache(maxsize=4096)
def _abstract_array(shape: tuple[int, ...], dtype: Any) -> Any:
    return _core.ShapedArray(shape, dtype)


def current_trace() -> Any:
    """The trace that the next JAX operation would go to; compare with `is`."""
    return _core.trace_ctx.trace


def _enclosing_traces() -> list[Any]:
    traces, trace = [], current_trace()
    while trace is not None:
        traces.append(trace)
        trace = getattr(trace, "parent_trace", None)
    return traces


def is_tracer(value: Any) -> bool:
    """Whether `value` is an abstract array of a trace."""
    return isinstance(value, _core.Tracer)


def trace_of(value: Any) -> Any:
    """The trace that a tracer belongs to; None for anything else."""
    return value._trace if isinstance(value, _core.Tracer) else None


def at_trace(trace: Any) -> Any:
    """A `with` block in which operations go to `trace`."""
    return _core.set_current_trace(trace)


def current_program() -> Any:
    """The innermost program (`jit`, `shard_map`, `scan`, ...) being recorded, or None."""
    return next((t for t in _enclosing_traces() if isinstance(t, _JaxprTrace)), None)


def is_mapped_over(axis_name: str) -> bool:
    """Whether a `vmap` of this axis name is active, which hides an axis of that name around it."""
    data = (getattr(trace, "axis_data", None) for trace in _enclosing_traces())
    return any(getattr(axis, "name", None) == axis_name for axis in data)


def is_transforming() -> bool:
    """Whether any trace is active: JAX differentiates, maps or records what is called."""
    return trace_state.trace is not eval_trace


def is_staging() -> bool:
    """Whether operations are being recorded into a program (`jit`, `scan`, ...) rather than run."""
    return current_program() is not None


def staged_for() -> str:
    """What the innermost program being recorded belongs to: "jit", "scan", "cond", ..."""
    program = current_program()
    return "nothing" if program is None else str(program.frame.debug_info.traced_for)


def uncommitted(array: Any) -> jax.Array:
    """A view of a single-device array that JAX may combine with arrays on other devices."""
    return ArrayImpl(array.aval, array.sharding, [array], committed=False, _skip_checks=True)


class FirstReplicaViews:
    """Makes `uncommitted` views of the first local copy of arrays that come again with the same type."""

    __slots__ = ("_handlers", "_several_devices")

    def __init__(self, several_devices: bool) -> None:
        self._handlers: dict[int, Any] = {}
        self._several_devices = several_devices

    def __call__(self, index: int, array: Any) -> jax.Array:
        """The view of the array that has this `index` among those of a program."""
        if not isinstance(array, ArrayImpl):
            return array  # random keys are not plain arrays, and mix as they are
        handler = self._handlers.get(index)
        if handler is None:
            first = array.addressable_data(0)
            handler = self._handlers[index] = _array_result_handler(
                first.aval, first.sharding, committed=False, **_unchecked
            )
        return handler([array.addressable_data(0) if self._several_devices else array])


_plain_p = Primitive("replicax_plain")
_plain_p.def_impl(lambda x: x)
_plain_p.def_abstract_eval(lambda x: _core.ShapedArray(x.shape, x.dtype, weak_type=x.weak_type))
ad.deflinear2(_plain_p, lambda ct, _: [_plain_p.bind(ct)])
batching.defvectorized(_plain_p)
mlir.register_lowering(_plain_p, lambda _, x: [x])


def plain(array: Any) -> Any:
    """The same traced array, with a type that does not mention any mesh.

    The type of an array that came from a mesh names the mesh, and some operations of a `shard_map`
    body refuse such a type when the body closes over the array.
    """
    traced = is_tracer(array) and not jax.numpy.issubdtype(array.dtype, jax.dtypes.extended)
    return _plain_p.bind(array) if traced else array


# JAX keeps traces of nested functions (jit, scan, checkpoint, ...) by function and by this value.
_trace_token = jax.make_user_context(None)
_tokens = itertools.count()


def fresh_traces() -> Any:
    """A `with` block in which JAX uses no trace that it has kept from elsewhere."""
    return _trace_token(next(_tokens))


def traces_of(*place: Any) -> Any:
    """A `with` block in which JAX uses kept traces of such a place only."""
    return _trace_token(place)


class ThreadSettings:
    """JAX's thread-local settings (default device, matmul precision, mesh, ...) at one moment.

    `with jax.default_device(...)` and its like set state of the *thread*. Replicas that take turns in
    one thread therefore save theirs when they stop and put them back when they go on.
    """

    __slots__ = ("_locals",)

    _STATES = tuple(
        {
            id(state): state
            for state in (*_config.config_states.values(), *vars(_config).values(), _trace_token._obj)
            if isinstance(state, _config.config_ext.Config)
        }.values()
    )

    def __init__(self) -> None:
        self._locals = [state.get_local() for state in self._STATES]

    def restore(self) -> None:
        """Make the settings of this moment the current ones."""
        for state, value in zip(self._STATES, self._locals, strict=True):
            if state.get_local() is not value:
                state.set_local(value)


def add_array_method(name: str, method: Any, doc: str) -> None:
    """Give JAX's arrays a method, for a namespace in which arrays are expected to have it."""

    def added(self: Any) -> Any:
        return method(self)

    added.__name__, added.__doc__ = name, doc
    setattr(ArrayImpl, name, added)
