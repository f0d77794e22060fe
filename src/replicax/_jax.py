"""The private parts of JAX that Replicax uses, all in this module and `_recording.py`.

Everything else in Replicax uses JAX's public API. What is here, and what we need it for:

* whether a backend has started: virtual CPU devices must be requested before that;
* which trace is current: a `Variable` must know whether `jax.jit` would bake its value into a program;
* JAX's thread-local settings: eager replicas share one thread and must not see each other's settings. One
  of the settings is our own, and keeps cached traces apart;
* a view of a device buffer as an *uncommitted* array, which JAX combines with arrays on any device, and
  outputs of a program that are uncommitted already;
* assembling an array from host memory without validating everything twice, in a fifth of the time that
  `jax.device_put` takes for a small batch;
* a traced array whose type does not name the mesh that it came from, and one without a value;
* the equations of a jaxpr, which of them are collectives, and evaluating one: programs for replicas of
  different shapes are woven into one;
* the functions of `jax.lax` that take an axis name: eager replicas replace them, because `psum` of a
  concrete array binds no primitive that could be intercepted;
* discarding a profile that could not be written: until then, JAX refuses to start another;
* the operations of a lowered program: processes compare the collectives of their programs;
* devices to compile for that this machine does not have, and source lines in a compiled program:
  `rx.explain` shows both;
* the network address that Gloo listens on, which JAX leaves to Gloo;
* the key-value store of `jax.distributed`: its messages need no collective and so no fixed order;
* JAX's detection of Open MPI and Kubernetes, which its public function combines with connecting;
* connecting to a coordination service that does not run in the first worker's process;
* the trace in which `jax.vjp` runs a function, and transposing what it recorded: `_recording.py`.

There are no silent fallbacks: if JAX renames a part, importing or first using it raises
`UnsupportedJaxError`. `tests/test_jax_internals.py` has a test for each part.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import importlib.util
import itertools
import operator
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from types import FunctionType
from typing import Any

import jax
import jax.numpy as jnp
from jax.interpreters import ad, batching, mlir

from replicax.errors import UnsupportedJaxError


def _unsupported(what: str) -> UnsupportedJaxError:
    return UnsupportedJaxError(
        f"Replicax needs `{what}`, a private part of JAX that JAX {jax.__version__} does not have. Install "
        "a version of JAX that this version of Replicax was tested with, or upgrade Replicax."
    )


def _private(module: str, name: str) -> Any:
    """The attribute `name` of the module `jax._src.MODULE`."""
    try:
        return operator.attrgetter(name)(importlib.import_module(f"jax._src.{module}"))
    except (ImportError, AttributeError) as error:
        raise _unsupported(f"jax._src.{module}.{name}") from error


# Public as jax.extend.core.Primitive, but importing that takes as long as importing all of Replicax.
Primitive = _private("core", "Primitive")
_eval_jaxpr = _private("core", "eval_jaxpr")
_jaxprs_in = _private("core", "jaxprs_in_params")
_NamedAxisEffect = _private("core", "NamedAxisEffect")
_ShapedArray = _private("core", "ShapedArray")
_Tracer = _private("core", "Tracer")
_set_current_trace = _private("core", "set_current_trace")
trace_state, eval_trace = _private("core", "trace_ctx"), _private("core", "eval_trace")
"""`trace_state.trace is eval_trace` where operations are executed rather than traced."""

_without_dead_code = _private("interpreters.partial_eval", "dce_jaxpr")
_JaxprTrace = _private("interpreters.partial_eval", "DynamicJaxprTrace")
_BatchTrace = _private("interpreters.batching", "BatchTrace")
# These traces execute operations at once, so no other trace encloses them.
_OUTERMOST_TRACES = (_private("core", "EvalTrace"), _private("shard_map", "ShardMapTrace"))

ArrayImpl = _private("array", "ArrayImpl")
_batched_device_put = _private("interpreters.pxla", "batched_device_put")
_array_result_handler = _private("lib", "_jax.array_result_handler")

debug_nans = _private("config", "debug_nans")
debug_infs = _private("config", "debug_infs")
disable_jit = _private("config", "disable_jit")
"""JAX's config options of these names; `.value` is the value in this thread."""

# JAX 0.10 validates the buffers unless told not to; 0.11 never does.
_unchecked = {"_skip_checks": True} if "_skip_checks" in str(_array_result_handler.__doc__) else {}

_source_context = _private("source_info_util", "user_context")
_frames_in_programs = _private("config", "traceback_in_locations_limit")
_lines_in_cache_keys = _private("config", "compilation_cache_include_metadata_in_key")

_backends_are_initialized = _private("xla_bridge", "backends_are_initialized")
_distributed_state = _private("distributed", "global_state")
_OmpiCluster, _K8sCluster = _private("clusters", "OmpiCluster"), _private("clusters", "K8sCluster")

__all__ = [
    "ArrayImpl",
    "Primitive",
    "add_array_method",
    "at_source_of",
    "at_trace",
    "backends_are_initialized",
    "called_program",
    "connect_to_service",
    "current_program",
    "current_trace",
    "debug_infs",
    "debug_nans",
    "detect_kubernetes_job",
    "disable_jit",
    "distributed_client",
    "eval_trace",
    "first_copy",
    "forget_profile",
    "forget_traces",
    "fresh_traces",
    "has_effect",
    "hides_collectives",
    "inputs_of",
    "is_array_type",
    "is_axis_bound",
    "is_collective",
    "is_mapped_over",
    "is_staging",
    "is_tracer",
    "restore_trace",
    "num_consts_and_carry",
    "open_mpi_coordinator",
    "operations_of",
    "outside_of_traces",
    "plain",
    "planned_cpu_devices",
    "program_of",
    "put_parts",
    "run_collective",
    "run_equation",
    "run_program",
    "staged",
    "staged_for",
    "thread_settings",
    "trace_of",
    "trace_state",
    "traces_of",
    "uncommit_outputs",
    "uncommitted",
    "unknown",
    "use_gloo_at",
    "with_source_lines",
    "wrap_collectives",
]


def backends_are_initialized() -> bool:
    """Whether JAX has started a backend, after which the number of devices is fixed."""
    return _backends_are_initialized()


def distributed_client() -> Any:
    """The client of the key-value store that `jax.distributed` runs; None with a single process."""
    try:
        return _distributed_state.client
    except AttributeError as error:
        raise _unsupported("jax._src.distributed.global_state.client") from error


def open_mpi_coordinator() -> str:
    """'host:port' of the coordinator, from the environment variables that Open MPI 4 sets."""
    return _OmpiCluster.get_coordinator_address(timeout_secs=None, override_coordinator_port=None)


def detect_kubernetes_job(port: int) -> tuple[str, int] | None:
    """'host:port' of the first pod of this pod's Job, and the number of pods, from the Kubernetes API.

    None if the package `kubernetes` is not installed. Raises `RuntimeError` if the API refuses the request
    or this pod does not belong to a Job.
    """
    if importlib.util.find_spec("kubernetes") is None or not _K8sCluster.is_env_present():
        return None
    address = _K8sCluster.get_coordinator_address(timeout_secs=None, override_coordinator_port=str(port))
    return address, _K8sCluster.get_process_count()


def connect_to_service(address: str, num_processes: int, process_id: int, heartbeat_seconds: float) -> None:
    """Do what `jax.distributed.initialize` does, with a service that is already running."""
    make_client = _private("lib", "_jax.get_distributed_runtime_client")
    state = _distributed_state
    client = make_client(
        address,
        process_id,
        init_timeout=300,
        heartbeat_timeout=max(1, round(heartbeat_seconds)),
        use_compression=True,
    )
    client.connect()
    state.client, state.coordinator_address = client, address
    state.process_id, state.num_processes = process_id, num_processes
    state.initialize_preemption_sync_manager()


def operations_of(lowered: jax.stages.Lowered, names: Collection[str]) -> list[tuple[str, list[str]]]:
    """The operations of a lowered program with one of these `names`, and the types of their operands."""
    module, advance = lowered.compiler_ir("stablehlo"), _private("lib.mlir", "ir.WalkResult.ADVANCE")
    found: list[tuple[str, list[str]]] = []

    def visit(operation: Any) -> Any:
        if operation.name in names:
            found.append((operation.name, [str(operand.type) for operand in operation.operands]))
        return advance

    try:
        module.operation.walk(visit)  # pyright: ignore[reportOptionalMemberAccess]
    except AttributeError as error:
        raise _unsupported("the operations of jax.stages.Lowered.compiler_ir()") from error
    return found


def use_gloo_at(host: str) -> None:
    """Make Gloo listen on `host` in this process; call it before JAX starts.

    By default Gloo listens on the address that the machine's host name resolves to.
    """
    make_cpu_client = _private("xla_bridge", "make_cpu_client")
    make_collectives = _private("lib", "_jax.make_gloo_tcp_collectives")

    def make_client() -> Any:
        client = distributed_client()
        if client is None or jax.config.values["jax_cpu_collectives_implementation"] != "gloo":
            return make_cpu_client()
        return make_cpu_client(make_collectives(distributed_client=client, hostname=host))

    register = _private("xla_bridge", "register_backend_factory")
    register("cpu", make_client, priority=0, fail_quietly=False)


def forget_profile() -> None:
    """Discard a profile that could not be written."""
    state = _private("profiler", "_profile_state")  # imported here: few programs make profiles
    with state.lock:
        state.reset()


def put_parts(
    parts: Sequence[Any], shape: tuple[int, ...], sharding: Any, devices: Sequence[Any]
) -> jax.Array:
    """The array with this shape and sharding that has `parts[i]` on `devices[i]`.

    Parts are NumPy arrays with a dtype that JAX supports. JAX may alias them, so do not change them later.
    """
    return _batched_device_put(_abstract_array(shape, parts[0].dtype), sharding, parts, devices)


@functools.lru_cache(maxsize=4096)
def _abstract_array(shape: tuple[int, ...], dtype: Any) -> Any:
    return _ShapedArray(shape, dtype)


def run_equation(jaxpr: Any, equation: Any, inputs: Sequence[Any]) -> list[Any]:
    """Evaluate one equation of `jaxpr`."""
    values = {v: x for v, x in zip(equation.invars, inputs, strict=True) if not hasattr(v, "val")}
    alone = jaxpr.replace(
        constvars=[],
        invars=list(values),
        outvars=equation.outvars,
        eqns=[equation],
        debug_info=jaxpr.debug_info.with_unknown_names(),
    )
    return _eval_jaxpr(alone, (), *values.values())


_CALLS = {
    "jit": "jaxpr",
    "closed_call": "call_jaxpr",
    "custom_jvp_call": "call_jaxpr",
    "custom_vjp_call": "call_jaxpr",
}
"""Maps primitives that call a function, once derivatives are taken, to the parameter with its jaxpr."""


def called_program(equation: Any) -> tuple[Any, Sequence[Any]] | None:
    """The jaxpr of the function that an equation calls, and its constants; None if it calls none.

    `jax.checkpoint` counts as a call only if collectives would be hidden in it.
    """
    name, parameters = equation.primitive.name, equation.params
    if name in _CALLS:
        try:
            called = parameters[_CALLS[name]]
        except KeyError as error:
            raise _unsupported(f"the parameter {_CALLS[name]} of {name}") from error
        return called.jaxpr, called.consts
    is_checkpoint = "prevent_cse" in parameters and "differentiated" in parameters
    return (parameters["jaxpr"], ()) if is_checkpoint and hides_collectives(equation) else None


def is_collective(equation: Any) -> bool:
    """Whether an equation communicates along a mesh axis."""
    is_function = next(iter(_jaxprs_in(equation.params)), None) is not None
    return _uses_axis(equation) and not is_function and equation.primitive.name != "axis_index"


def hides_collectives(equation: Any) -> bool:
    """Whether an equation is a loop, a branch or another function that contains collectives."""
    inside = (inner for body in _jaxprs_in(equation.params) for inner in body.eqns)
    return _uses_axis(equation) and any(is_collective(e) or hides_collectives(e) for e in inside)


def _uses_axis(equation: Any) -> bool:
    return any(isinstance(effect, _NamedAxisEffect) for effect in equation.effects)


def has_effect(equation: Any) -> bool:
    """Whether an equation has side effects, as a callback does."""
    return any(not isinstance(effect, _NamedAxisEffect) for effect in equation.effects)


def is_array_type(type_: Any) -> bool:
    """Whether the type of a traced value is an array type, rather than a mutable reference."""
    return isinstance(type_, _ShapedArray)


def staged(value: Any) -> Any:
    """`value` as a traced array, even if it is a constant; call it in a trace."""
    return value if is_tracer(value) else jax.lax.optimization_barrier(value)


def run_collective(equation: Any, inputs: Sequence[Any]) -> list[Any]:
    """Evaluate a collective for other `inputs`, which may replace constants."""
    with at_source_of(equation):
        results = equation.primitive.bind(*inputs, **equation.params)
    return results if equation.primitive.multiple_results else [results]


def at_source_of(equation: Any) -> Any:
    """A `with` block in which operations get the source line of `equation`."""
    try:
        return _source_context(equation.source_info.traceback)
    except AttributeError as error:
        raise _unsupported("JaxprEqn.source_info.traceback") from error


@contextlib.contextmanager
def with_source_lines() -> Iterator[None]:
    """A `with` block in which programs are lowered and compiled with source lines."""
    with _frames_in_programs(100), _lines_in_cache_keys(True):
        yield


@functools.lru_cache(maxsize=4)
def planned_cpu_devices(count: int) -> tuple[Any, ...]:
    """`count` CPU devices to compile for, whatever this machine has. Nothing should run on them."""
    return tuple(_private("lib", "xla_client.make_cpu_client")(num_devices=count).devices())


def run_program(jaxpr: Any, inputs: Sequence[Any]) -> list[Any]:
    """Evaluate a jaxpr without constants."""
    return _eval_jaxpr(jaxpr, (), *inputs)


def program_of(traced: Any, results: Sequence[bool]) -> Callable[..., list[Any]] | None:
    """The part of a traced program (`jax.make_jaxpr`) that computes the selected results.

    None if they depend on a value that is `unknown`.
    """
    jaxpr = traced.jaxpr
    pure = jaxpr.replace(eqns=[equation for equation in jaxpr.eqns if equation.outvars])
    needed, _ = _without_dead_code(pure, list(results), instantiate=True)
    if any(equation.primitive is _unknown_p for equation in needed.eqns):
        return None
    return functools.partial(_eval_jaxpr, needed, traced.consts)


def num_consts_and_carry(scan_params: dict[str, Any]) -> tuple[int, int]:
    """How many of a scan's inputs are constants, and how many are carried."""
    if "num_consts" in scan_params:  # JAX 0.10
        return scan_params["num_consts"], scan_params["num_carry"]
    try:
        consts, carry, _ = scan_params["ft_in"].unpack()
        return len(consts), len(carry)
    except (KeyError, AttributeError) as error:
        raise _unsupported("the parameters of a scan in a jaxpr") from error


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
        raise _unsupported(f"{type(trace).__name__}.parent_trace") from error


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
        raise _unsupported(f"{type(value).__name__}._trace") from error


def at_trace(trace: Any) -> Any:
    """A `with` block in which operations go to `trace`."""
    return _set_current_trace(trace)


def current_program() -> Any:
    """The innermost program (`jit`, `shard_map`, `scan`, ...) being traced, or None."""
    return next((t for t in _enclosing_traces() if isinstance(t, _JaxprTrace)), None)


def is_mapped_over(axis_name: str) -> bool:
    """Whether a `vmap` with this axis name is active; it would shadow an outer axis of the same name."""
    return any(_axis_name(t) == axis_name for t in _enclosing_traces() if isinstance(t, _BatchTrace))


def is_axis_bound(axis_name: str) -> bool:
    """Whether JAX maps over an axis of this name here (`shard_map`, `vmap`, ...)."""
    try:
        return trace_state.axis_env.axis_exists(axis_name)
    except AttributeError as error:
        raise _unsupported("jax._src.core.trace_ctx.axis_env.axis_exists") from error


_COLLECTIVES = (
    *("psum", "pmean", "pmax", "pmin", "all_gather", "all_to_all", "psum_scatter", "ppermute"),
    *("pshuffle", "pswapaxes", "axis_index", "axis_size"),
)


def wrap_collectives(wrap: FunctionType) -> None:
    """Replace the collectives `jax.lax.NAME` with `wrap(NAME, collective)`."""
    # Errors and profiles should name the line that called the collective, not one in the wrapper.
    _private("source_info_util", "register_exclusion")(wrap.__code__.co_filename)
    psum, parallel = _private("lax.parallel", "psum"), importlib.import_module("jax._src.lax.parallel")
    _private("lax.parallel", "_axis_size")
    for name in _COLLECTIVES:
        wrapped = wrap(name, _private("lax.parallel", name))
        for module in (jax.lax, parallel):
            setattr(module, name, wrapped)

    def axis_size(axis_name: Any, axis_index_groups: Any = None, /) -> Any:
        names = axis_name if isinstance(axis_name, tuple | list) else (axis_name,)
        add = psum if all(map(is_axis_bound, names)) else parallel.psum
        return add(1, axis_name, axis_index_groups=axis_index_groups)

    # JAX's own collectives compute an axis size as a psum of ones, which must stay a Python number.
    parallel._axis_size = axis_size  # pyright: ignore[reportAttributeAccessIssue]


def _axis_name(trace: Any) -> Any:
    try:
        return trace.axis_data.name
    except AttributeError as error:
        raise _unsupported("BatchTrace.axis_data.name") from error


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
        raise _unsupported("DynamicJaxprTrace.frame.debug_info.traced_for") from error


def uncommitted(array: Any) -> jax.Array:
    """A view of a single-device array that JAX may combine with arrays on other devices."""
    return ArrayImpl(array.aval, array.sharding, [array], committed=False, _skip_checks=True)


def first_copy(array: Any) -> jax.Array:
    """An `uncommitted` view of the first local copy of an array that is replicated over a mesh."""
    if not isinstance(array, ArrayImpl):
        return array  # JAX already combines typed random keys with arrays on any device
    copy = array._fully_replicated_shard()
    return uncommitted(copy) if copy._committed else copy


def uncommit_outputs(compiled: jax.stages.Compiled, indices: Iterable[int]) -> None:
    """Let the jitted function that was compiled return some of its outputs uncommitted.

    The views that `first_copy` makes of these outputs are then uncommitted, too, which saves it the second
    half of its work. JAX refuses uncommitted arrays on several devices, so only views may reach a user.
    """
    try:
        outputs = compiled._executable.unsafe_call.out_handler  # pyright: ignore[reportAttributeAccessIssue]
        handlers, avals, shardings = outputs.handlers, outputs.out_avals, outputs.out_shardings
    except AttributeError as error:
        raise _unsupported("MeshExecutable.unsafe_call.out_handler.handlers") from error
    for i in indices:
        if not jnp.issubdtype(avals[i].dtype, jax.dtypes.extended):  # typed random keys
            handlers[i] = _array_result_handler(avals[i], shardings[i], committed=False, **_unchecked)


_unknown_p = Primitive("replicax_unknown")
_unknown_p.def_abstract_eval(lambda *, shape, dtype, key: _ShapedArray(shape, dtype))


def unknown(shape: tuple[int, ...], dtype: Any, key: int | None = None) -> Any:
    """An array without a value, for a trace that is never run; `jnp.zeros` takes ten times as long.

    `inputs_of` can make it an input of the traced program, identified by `key`.
    """
    return _unknown_p.bind(shape=shape, dtype=dtype, key=key)


def inputs_of(traced: Any) -> tuple[list[int], Callable[[Sequence[Any]], list[Any]]]:
    """The keys of the `unknown` values in a traced program (`jax.make_jaxpr`), and a function that runs it.

    The function takes a list of the unknown values and then the program's own arguments. In another trace
    it adds one call of the program, instead of tracing its operations again.
    """
    jaxpr = traced.jaxpr
    equations = [equation for equation in jaxpr.eqns if equation.primitive is _unknown_p]
    inputs = [equation.outvars[0] for equation in equations]
    program = jaxpr.replace(
        constvars=[],
        invars=[*jaxpr.constvars, *inputs, *jaxpr.invars],
        eqns=[equation for equation in jaxpr.eqns if equation.primitive is not _unknown_p],
        debug_info=jaxpr.debug_info.with_unknown_names(),
    )
    closed = type(traced)(program, [])
    keys = [equation.params["key"] for equation in equations]
    return keys, lambda values: _call_program(closed, [*traced.consts, *values])


def _call_program(closed: Any, operands: Sequence[Any]) -> list[Any]:
    """Stage a call of a program, as a nested `jax.jit` does once it has traced its function."""

    def with_as_many_results(*_: Any) -> list[int]:
        return [0] * len(closed.out_avals)

    (call,) = jax.make_jaxpr(jax.jit(with_as_many_results))(*[0] * len(operands)).jaxpr.eqns
    return call.primitive.bind(*operands, **{**call.params, "jaxpr": closed})


_plain_p = Primitive("replicax_plain")
_plain_p.def_impl(lambda x: x)
_plain_p.def_abstract_eval(lambda x: _ShapedArray(x.shape, x.dtype, weak_type=x.weak_type))
ad.deflinear2(_plain_p, lambda ct, _: [_plain_p.bind(ct)])
batching.defvectorized(_plain_p)
mlir.register_lowering(_plain_p, lambda _, x: [x])


def plain(array: Any) -> Any:
    """The same traced array, with a type that does not mention any mesh.

    The type of an array that came from a mesh names the mesh, and some operations in the body of a
    `shard_map` reject such an array if the body closes over it.
    """
    traced = is_tracer(array) and not jax.numpy.issubdtype(array.dtype, jax.dtypes.extended)
    return _plain_p.bind(array) if traced else array


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
    kind = _private("config", "config_ext.Config")
    candidates = [*_private("config", "config_states").values(), _private("core", "axis_env_state")]
    for module in ("config", "mesh", "layout"):  # since JAX 0.12 `mesh` and `layout` define their own
        candidates += vars(importlib.import_module(f"jax._src.{module}")).values()
    try:
        candidates.append(_trace_token._obj)
    except AttributeError as error:
        raise _unsupported("jax.make_user_context(...)._obj") from error
    states = {id(state): state for state in candidates if isinstance(state, kind)}
    return (*states.values(), _SourceInfo())


class _SourceInfo:
    """The user's source line that JAX records in operations, with the interface of a setting."""

    def __init__(self) -> None:
        self._thread_local = _private("source_info_util", "_source_info_context")
        self._unset = _private("config", "config_ext.unset")
        self._new = _private("source_info_util", "new_source_info")

    def get_local(self) -> Any:
        return self._thread_local.context

    def set_local(self, value: Any) -> None:
        self._thread_local.context = self._new() if value is self._unset else value


thread_settings = _thread_settings()
"""JAX's thread-local settings, each with `get_local` and `set_local`."""


@contextlib.contextmanager
def outside_of_traces() -> Iterator[None]:
    """A `with` block in which operations are executed at once, as in a new thread, even during a trace."""
    unset = _private("config", "config_ext.unset")
    before = [state.get_local() for state in thread_settings]
    try:
        for state in thread_settings:
            state.set_local(unset)
        with _set_current_trace(eval_trace):
            yield
    finally:
        for state, value in zip(thread_settings, before, strict=True):
            state.set_local(value)


def add_array_method(name: str, method: Any, doc: str) -> None:
    """Add a method to JAX's arrays, for a namespace whose arrays are expected to have it."""

    def added(self: Any) -> Any:
        return method(self)

    added.__name__, added.__doc__ = name, doc
    setattr(ArrayImpl, name, added)


def has_tpu() -> bool:
    """Whether this process can use a TPU; before JAX has started, whether the machine has one."""
    if backends_are_initialized():
        return any(device.platform == "tpu" for device in jax.local_devices())
    wanted = jax.config.values.get("jax_platforms") or "tpu"
    return "tpu" in wanted and _private("hardware_utils", "num_available_tpu_chips_and_device_id")()[0] > 0
