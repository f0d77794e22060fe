"""Each private part of JAX that Replicax relies on: that it exists, and that it behaves as we expect.

A failure here means that JAX has changed a part that `replicax/_jax` wraps. Fix the wrapper, not the test.
"""

import contextlib
import inspect
import subprocess
import sys
import threading
from pathlib import Path
from types import SimpleNamespace as Object

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh, NamedSharding, PartitionSpec

import replicax as rx
from replicax import _jax, _recording
from replicax._recording import Recorded, Recording, is_transforming
from replicax.cluster import ClusterOptions, exchange_between_processes
from replicax.cluster._coordinator import start_coordinator
from replicax.errors import UnsupportedJaxError


@pytest.fixture
def mesh():
    return Mesh(np.asarray(jax.devices("cpu")[:2]), ("axis",))


def seen_in(transform):
    """What `is_staging()` and `staged_for()` say inside a function that `transform` calls."""
    seen = []

    def look(x):
        seen.append((_jax.is_staging(), _jax.staged_for()))
        return x * 2.0

    transform(look)
    return seen[0]


# Traces.

PROGRAMS = {
    "jit": lambda f: jax.jit(f)(1.0),
    "make_jaxpr": lambda f: jax.make_jaxpr(f)(1.0),
    "eval_shape": lambda f: jax.eval_shape(f, 1.0),
    "scan": lambda f: jax.lax.scan(lambda c, _: (f(c), None), 1.0, None, length=2),
    "cond": lambda f: jax.lax.cond(True, f, lambda x: x, 1.0),
    "while": lambda f: jax.lax.while_loop(lambda x: x < 5.0, f, 1.0),
    "map": lambda f: jax.lax.map(f, jnp.ones(3)),
    "checkpoint": lambda f: jax.grad(jax.checkpoint(f))(1.0),
    "jit of grad": lambda f: jax.jit(jax.grad(f))(1.0),
    "jit of vmap": lambda f: jax.jit(jax.vmap(f))(jnp.ones(2)),
    "vmap of jit": lambda f: jax.vmap(jax.jit(f))(jnp.ones(2)),
    "grad of jit": lambda f: jax.grad(jax.jit(f))(1.0),
    "vmap of grad of vmap in jit": lambda f: jax.jit(
        jax.vmap(jax.grad(lambda x: jax.vmap(f)(x * jnp.ones(3)).sum()))
    )(jnp.ones(2)),
    "jvp in jit": lambda f: jax.jit(lambda x: jax.jvp(f, (x,), (x,)))(1.0),
    "linearize in jit": lambda f: jax.jit(lambda x: jax.linearize(f, x)[0])(1.0),
    "custom_jvp in jit": lambda f: jax.jit(_custom_jvp(f))(1.0),
}


def _custom_jvp(f):
    wrapped = jax.custom_jvp(f)
    wrapped.defjvp(lambda primals, tangents: (f(*primals), 2.0 * tangents[0]))
    return wrapped


@pytest.mark.parametrize("name", PROGRAMS)
def test_the_program_around_a_trace_is_found(name):
    """parent_trace, DynamicJaxprTrace: a program that is not found would bake variables in."""
    staging, what = seen_in(PROGRAMS[name])
    assert staging
    assert what != "nothing"


def test_shard_map_in_a_jit_is_a_program(mesh):
    mapped = PartitionSpec("axis")
    call = {"mesh": mesh, "in_specs": mapped, "out_specs": mapped}
    staging, what = seen_in(lambda f: jax.jit(jax.shard_map(f, **call))(jnp.ones(2)))
    assert staging and what == "shard_map"


NOT_PROGRAMS = {
    "a plain call": lambda f: f(1.0),
    "grad": lambda f: jax.grad(f)(1.0),
    "vmap": lambda f: jax.vmap(f)(jnp.ones(2)),
    "jvp": lambda f: jax.jvp(f, (1.0,), (1.0,)),
    "linearize": lambda f: jax.linearize(f, 1.0),
    "vmap of grad": lambda f: jax.vmap(jax.grad(f))(jnp.ones(2)),
    "disable_jit": lambda f: _without_jit(f),
}


def _without_jit(f):
    with jax.disable_jit():
        jax.jit(f)(1.0)


@pytest.mark.parametrize("name", NOT_PROGRAMS)
def test_operations_that_run_at_once_are_no_program(name):
    assert seen_in(NOT_PROGRAMS[name]) == (False, "nothing")


def test_an_eager_shard_map_is_no_program(mesh):
    """ShardMapTrace has no parent_trace: it ends the search as EvalTrace does."""
    mapped = PartitionSpec("axis")
    call = {"mesh": mesh, "in_specs": mapped, "out_specs": mapped}
    assert seen_in(lambda f: jax.shard_map(f, **call)(jnp.ones(2))) == (False, "nothing")


@pytest.mark.parametrize("what", ["jit", "scan", "cond"])
def test_the_name_of_a_program(what):
    """frame.debug_info.traced_for."""
    assert seen_in(PROGRAMS[what])[1] == what


def test_two_programs_are_two_objects_and_one_is_one():
    seen = []

    def outer(x):
        seen.extend([_jax.current_program(), _jax.current_program()])

        def inner(x):
            seen.append(_jax.current_program())
            return x

        return jax.jit(inner)(x)

    jax.jit(outer)(1.0)
    assert seen[0] is seen[1] is not seen[2]


def test_whether_operations_are_run_or_traced():
    """trace_ctx and eval_trace."""
    seen = []

    def look(x):
        seen.append(is_transforming())
        assert _jax.current_trace() is _jax.trace_state.value
        return x

    assert _jax.trace_state.value is _jax.eval_trace
    for transform in (lambda f: f, jax.jit, jax.grad, lambda f: lambda x: jax.vmap(f)(x * jnp.ones(2))):
        transform(look)(1.0)
    assert seen == [False, True, True, True]
    thread = threading.Thread(target=look, args=(1.0,))
    thread.start()
    thread.join()
    assert seen[-1] is False


def test_the_trace_of_a_tracer():
    """Tracer, Tracer._trace."""
    seen = []

    def look(x):
        seen.append((_jax.is_tracer(x), _jax.trace_of(x) is _jax.current_trace()))
        return x

    jax.jit(look)(1.0)
    jax.grad(look)(1.0)
    assert seen == [(True, True), (True, True)]
    for plain in (1.0, jnp.ones(2), np.ones(2), None):
        assert not _jax.is_tracer(plain) and _jax.trace_of(plain) is None


def test_operations_go_to_the_trace_that_is_set():
    """set_current_trace."""

    def f(x):
        with _jax.at_trace(_jax.eval_trace):
            assert not is_transforming()
            assert float(jnp.ones(3).sum()) == 3.0, "it was computed, not traced"
        assert is_transforming()
        return x

    jax.jit(f)(1.0)


@pytest.mark.parametrize("inner", ["none", "jit", "grad", "vmap of another name"])
def test_the_axis_of_a_vmap_is_found(inner):
    """BatchTrace.axis_data.name, also through what is inside of it."""
    seen = []

    def look(x):
        seen.append((_jax.is_mapped_over("rows"), _jax.is_mapped_over("columns")))
        return x

    inside = {
        "none": look,
        "jit": jax.jit(look),
        "grad": jax.grad(look),
        "vmap of another name": lambda x: jax.vmap(look, axis_name="other")(x * jnp.ones(2)).sum(),
    }[inner]
    jax.vmap(inside, axis_name="rows")(jnp.ones(2))
    assert seen == [(True, False)]
    look(1.0)
    jax.vmap(look)(jnp.ones(2))
    assert seen[1:] == [(False, False)] * 2


def test_the_axis_of_a_shard_map_is_not_one_of_a_vmap(mesh):
    def f(x):
        assert not _jax.is_mapped_over("axis")
        return x

    mapped = PartitionSpec("axis")
    jax.jit(jax.shard_map(f, mesh=mesh, in_specs=mapped, out_specs=mapped))(jnp.ones(2))


def test_the_axes_that_jax_maps_over(mesh):
    """trace_ctx.axis_env: it also knows the axes of `shard_map`."""
    seen = []

    def look(x):
        seen.append((_jax.is_axis_bound("axis"), _jax.is_axis_bound("rows")))
        return x

    look(1.0)
    jax.vmap(jax.jit(look), axis_name="rows")(jnp.ones(2))
    mapped = PartitionSpec("axis")
    jax.jit(jax.shard_map(look, mesh=mesh, in_specs=mapped, out_specs=mapped))(jnp.ones(2))
    assert seen == [(False, False), (False, True), (True, False)]


def test_axes_without_an_environment_are_an_error(monkeypatch):
    monkeypatch.setattr(_jax._traces, "_tracing_context", object())
    with pytest.raises(UnsupportedJaxError, match=r"axis_env\.axis_exists"):
        _jax.is_axis_bound("rows")


@pytest.mark.parametrize("name", _jax._collectives._COLLECTIVES)
def test_collectives_take_the_name_of_an_axis(name):
    """`jax.lax` and its private module have our function in place of JAX's, whose arguments are these."""
    parameters = list(inspect.signature(getattr(jax.lax, name)).parameters)
    assert parameters[: parameters.index("axis_name") + 1] in (["axis_name"], ["x", "axis_name"])
    assert getattr(jax.lax, name) is _jax.private("lax.parallel", name)
    assert getattr(jax.lax, name).__wrapped__.__module__ == "jax._src.lax.parallel"


def test_collectives_have_the_line_of_their_caller():
    """register_exclusion"""

    program = jax.make_jaxpr(lambda x: jax.lax.psum(x, "rows"), axis_env=[("rows", 2)])(1.0)
    summarize = _jax.private("source_info_util", "summarize")
    assert "test_jax_internals.py" in summarize(program.eqns[-1].source_info)


def test_replicas_leave_no_source_lines_behind():
    """They wait in the middle of JAX's backward pass, which notes the line that it differentiates."""
    strategy = rx.MirroredStrategy(["CPU:0", "CPU:1"])
    context = _jax.private("source_info_util", "_source_info_context")
    before = context.context

    def replica_fn(x):
        return jax.grad(lambda x: rx.get_replica_context().all_reduce("SUM", jnp.sin(x) * x).sum())(x)

    strategy.run(replica_fn, args=(jnp.ones(3),))
    assert context.context is before


def test_axes_are_settings_of_a_thread():
    """axis_env_state: replicas that take turns may be inside of different axes."""
    outside = _jax.ThreadSettings()

    def look(x):
        inside = _jax.ThreadSettings()
        outside.restore()
        bound = [_jax.is_axis_bound("rows")]
        inside.restore()
        assert [*bound, _jax.is_axis_bound("rows")] == [False, True]
        return x

    jax.vmap(look, axis_name="rows")(jnp.ones(2))


# Cached traces and settings of threads.


def test_cached_traces_are_kept_apart():
    """make_user_context is part of the key of JAX's caches."""
    calls = []

    @jax.jit
    def inner(x):
        calls.append(1)
        return x

    def outer(block):
        with block:
            jax.make_jaxpr(lambda x: inner(x))(1.0)
        return len(calls)

    first = outer(_jax.traces_of("a", 2))
    assert outer(_jax.traces_of("a", 2)) == first, "an equal context reuses the trace"
    assert outer(_jax.traces_of("a", 3)) == first + 1
    assert outer(_jax.fresh_traces()) == first + 2
    assert outer(_jax.fresh_traces()) == first + 3, "a fresh one reuses none"


SETTINGS = {
    "default_device": (
        lambda: jax.default_device(jax.devices("cpu")[3]),
        lambda: str(jnp.ones(1).devices()),
    ),
    "default_matmul_precision": (
        lambda: jax.default_matmul_precision("float32"),
        lambda: jax.config.jax_default_matmul_precision,
    ),
    "debug_nans": (lambda: jax.debug_nans(True), lambda: jax.config.jax_debug_nans),
    "enable_x64": (lambda: jax.enable_x64(True), lambda: str(jnp.asarray(np.float64(1)).dtype)),
    "numpy_rank_promotion": (
        lambda: jax.numpy_rank_promotion("raise"),
        lambda: jax.config.jax_numpy_rank_promotion,
    ),
    "disable_jit": (jax.disable_jit, lambda: jax.config.jax_disable_jit),
    "set_mesh": (
        lambda: jax.set_mesh(jax.make_mesh((2,), ("x",), devices=jax.devices("cpu")[:2])),
        lambda: str(jax.sharding.get_abstract_mesh()),
    ),
    "traces_of": (lambda: _jax.traces_of("here"), lambda: _jax._traces.trace_token.value),
}


@pytest.mark.parametrize("name", SETTINGS)
def test_the_settings_of_a_thread_are_saved_and_restored(name):
    """config_states, Config.get_local and set_local."""
    make, read = SETTINGS[name]
    outside, before = _jax.ThreadSettings(), read()
    with contextlib.ExitStack() as stack:
        stack.enter_context(make())
        inside, changed = _jax.ThreadSettings(), read()
        assert changed != before
        outside.restore()
        assert read() == before
        inside.restore()
        assert read() == changed
    assert read() == before


def test_traces_depend_on_settings():
    """trace_context: a tuple that differs if and only if `jax.jit` would trace again."""
    before, number = _jax.trace_settings(), _jax.settings_number()
    assert isinstance(before, tuple)
    with jax.default_matmul_precision("highest"):
        assert _jax.trace_settings() != before
        assert _jax.settings_number() != number
    with jax.disable_jit():
        assert _jax.trace_settings() != before
    assert _jax.trace_settings() == before
    assert _jax.settings_number() == number


def test_it_is_known_whether_numbers_are_checked():
    """_post_hook_state: JAX calls it with the results of a program."""
    assert _jax.number_check.value is None
    for check in (jax.debug_nans, jax.debug_infs):
        with check(True):
            assert _jax.number_check.value is not None
        assert _jax.number_check.value is None


# State of traces and of the compiler, which JAX sets and resets itself.
NOT_SETTINGS = {
    "trace_state",
    "trace_state_strong_ref",
    "axis_env_state",
    "_post_hook_state",
    "_thread_local_context",
    "_disable_nested_fuse",
}


def test_every_setting_of_a_thread_is_known():
    """A new version of JAX may define settings in other modules than the old one."""
    known = {id(state) for state in _jax.thread_settings}
    kind = _jax.private("config", "config_ext.Config")
    modules = [m for name, m in list(sys.modules.items()) if name.startswith("jax._src")]
    found = {(name, id(x)) for m in modules for name, x in vars(m).items() if isinstance(x, kind)}
    assert {name for name, state in found if state not in known} <= NOT_SETTINGS


# Arrays.


def test_an_uncommitted_view_shares_its_buffer_and_mixes():
    """ArrayImpl(aval, sharding, arrays, committed)."""
    first, second = jax.devices("cpu")[:2]
    array = jax.device_put(jnp.arange(4.0), second)
    view = _jax.uncommitted(array)
    assert array.committed and not view.committed
    assert view.unsafe_buffer_pointer() == array.unsafe_buffer_pointer()
    assert view.devices() == {second}
    total = view + jax.device_put(jnp.ones(4), first)
    assert total.tolist() == [1.0, 2.0, 3.0, 4.0] and total.devices() == {first}


@pytest.mark.parametrize("several", [False, True])
def test_the_first_copy_of_an_array(several, mesh):
    """_fully_replicated_shard, _committed."""
    sharding = NamedSharding(mesh, PartitionSpec()) if several else jax.devices("cpu")[1]
    array = jax.device_put(jnp.full(3, 2.0), sharding)
    assert_is_view(_jax.first_copy(array), array)
    key = jax.random.key(0)
    assert _jax.first_copy(key) is key


def assert_is_view(view, array):
    """That `view` is an uncommitted view of the first copy of `array`."""
    assert isinstance(view, jax.Array) and not view.committed
    assert view.tolist() == array.tolist()
    assert view.unsafe_buffer_pointer() == array.addressable_data(0).unsafe_buffer_pointer()
    assert (view + jax.device_put(jnp.ones(3), jax.devices("cpu")[4])).shape == (3,)


@pytest.mark.parametrize("several", [False, True])
def test_programs_with_uncommitted_outputs(several, mesh):
    """MeshExecutable.unsafe_call.out_handler; jit calls what was compiled, and asks its first outputs."""
    mesh = mesh if several else Mesh(mesh.devices[:1], ("axis",))
    sharding = NamedSharding(mesh, PartitionSpec())

    def double(x):
        return 2 * x, 3 * x, jax.random.key(0)

    jitted = jax.jit(double, out_shardings=sharding)
    x = jax.device_put(jnp.ones(3), sharding)
    _jax.uncommit_outputs(jitted.lower(x).compile(), [0, 2])
    for _ in range(3):  # the second and third call in C++
        doubled, tripled, key = jitted(x)
        assert tripled.committed and not doubled.committed
        assert not doubled._fully_replicated_shard().committed
        assert_is_view(_jax.first_copy(doubled), doubled)
        assert jax.random.bits(key) == jax.random.bits(jax.random.key(0))


@pytest.mark.parametrize("dtype", [np.float32, np.int32, np.bool_, jnp.bfloat16])
def test_an_array_is_assembled_from_parts(mesh, dtype):
    """batched_device_put, ShapedArray."""
    parts = [np.arange(6).reshape(2, 3).astype(dtype), np.arange(6, 12).reshape(2, 3).astype(dtype)]
    sharding = NamedSharding(mesh, PartitionSpec("axis"))
    array = _jax.put_parts(parts, (4, 3), sharding, list(mesh.devices))
    assert array.shape == (4, 3) and array.dtype == dtype and array.sharding == sharding
    assert array.committed
    np.testing.assert_array_equal(np.asarray(array), np.concatenate(parts))
    for shard, device, part in zip(array.addressable_shards, mesh.devices, parts, strict=True):
        assert shard.device == device
        np.testing.assert_array_equal(np.asarray(shard.data), part)


def test_arrays_get_methods():
    """setattr on ArrayImpl."""
    _jax.add_array_method("added_by_a_test", lambda array: array.sum() + 1, "Its sum and one.")
    try:
        assert float(jnp.ones(3).added_by_a_test()) == 4.0
        assert _jax.ArrayImpl.added_by_a_test.__doc__ == "Its sum and one."
    finally:
        del _jax.ArrayImpl.added_by_a_test
    assert isinstance(jnp.ones(3), _jax.ArrayImpl)


# The primitive.


def test_a_plain_array_has_a_type_without_a_mesh():
    """Primitive and the rules of jax.interpreters."""
    mesh = jax.make_mesh((2,), ("x",), (jax.sharding.AxisType.Explicit,), devices=jax.devices("cpu")[:2])
    types = []

    @jax.jit
    def f(x):
        types.extend([jax.typeof(x).sharding.mesh.empty, jax.typeof(_jax.plain(x)).sharding.mesh.empty])
        return x

    f(jax.device_put(jnp.ones(4), NamedSharding(mesh, PartitionSpec("x"))))
    assert types == [False, True]


def test_a_plain_array_is_the_same_value_under_every_transformation():
    def f(x):
        return jnp.sum(_jax.plain(x) ** 2)

    x = jnp.arange(3.0)
    assert float(jax.jit(f)(x)) == 5.0
    assert jax.grad(f)(x).tolist() == [0.0, 2.0, 4.0]
    assert jax.jit(jax.vmap(jax.grad(f)))(jnp.stack([x, x])).tolist() == [[0.0, 2.0, 4.0]] * 2
    assert jax.jit(jax.jacrev(lambda x: _jax.plain(x)))(x).tolist() == np.eye(3).tolist()
    assert _jax.plain(x) is x, "there is no trace"
    assert _jax.plain(3) == 3
    jax.jit(lambda key: jax.random.normal(_jax.plain(key)))(jax.random.key(0))


# The process.


def test_whether_a_backend_has_started():
    program = (
        "import jax; from replicax import _jax; assert not _jax.backends_are_initialized();"
        "jax.config.update('jax_num_cpu_devices', 3); assert not _jax.backends_are_initialized();"
        "assert len(jax.devices('cpu')) == 3; assert _jax.backends_are_initialized()"
    )
    subprocess.run([sys.executable, "-c", program], check=True)


def test_the_client_of_jax_distributed():
    """distributed.global_state.client and the key-value store."""
    assert _jax.distributed_client() is None
    program = """
import socket, jax, pytest
from replicax import _jax
from replicax._recording import Recorded, Recording, is_transforming
from replicax.cluster import exchange_between_processes
from replicax.errors import CollectiveTimeoutError
with socket.socket() as free:
    free.bind(("localhost", 0))
    port = free.getsockname()[1]
jax.distributed.initialize(f"localhost:{port}", 1, 0)
client = _jax.distributed_client()
client.key_value_set("a", "b")
assert client.blocking_key_value_get("a", 200) == "b"
for number in range(2):
    assert exchange_between_processes([0], "topic", number, {"n": number}, bool, 5.0) == [{"n": number}]
with pytest.raises(jax.errors.JaxRuntimeError, match="DEADLINE_EXCEEDED"):
    client.blocking_key_value_get("topic/0/0", 200)  # deleted
late = "Process 0 timed out after 0.3 s waiting for message 0 of process 1"
with pytest.raises(CollectiveTimeoutError, match=late):
    exchange_between_processes([0, 1], "late", 0, 1, lambda: False, 0.3)
with pytest.raises(CollectiveTimeoutError, match="told to stop waiting"):
    exchange_between_processes([0, 1], "cancelled", 0, 1, lambda: True, 60.0)
"""
    subprocess.run([sys.executable, "-c", program], check=True, timeout=120)


def test_a_coordination_service_in_another_process():
    """lib._jax.get_distributed_runtime_client and jaxlib's service, which `join_cluster` connects."""
    program = """
import json, os, socket, jax
from replicax import _jax
from replicax.cluster import ClusterOptions
from replicax.cluster._coordinator import Rendezvous, start_coordinator
with socket.socket() as free:
    free.bind(("localhost", 0))
    address = f"localhost:{free.getsockname()[1]}"
start_coordinator(address, ["only"], ClusterOptions())
connection, service = Rendezvous(address, 0, ["only"], 60.0).join()
_jax.connect_to_service(service, 1, 0, 100.0)
assert jax.distributed.is_initialized()
assert (jax.process_index(), jax.process_count()) == (0, 1)
_jax.distributed_client().key_value_set("a", "b")
assert _jax.distributed_client().blocking_key_value_get("a", 200) == "b"
"""
    subprocess.run([sys.executable, "-c", program], check=True, timeout=120)


def test_messages_need_jax_distributed():
    with pytest.raises(rx.errors.ClusterError, match=r"jax\.distributed is not initialized"):
        exchange_between_processes([0, 1], "topic", 0, None, lambda: False, 1.0)


def test_operations_of_a_lowered_program():
    """lib.mlir.ir.WalkResult, and the module that Lowered.compiler_ir returns."""
    lowered = jax.jit(lambda x: jnp.sin(x) + jnp.sin(2 * x)).lower(jnp.ones(3))
    found = _jax.operations_of(lowered, {"stablehlo.sine"})
    assert found == [("stablehlo.sine", ["tensor<3xf32>"])] * 2


def test_operations_run_at_once_outside_of_traces():
    """config.config_ext.unset, and core.set_current_trace."""
    with jax.default_matmul_precision("float32"):

        @jax.jit
        def traced(x):
            with _jax.outside_of_traces():
                assert not is_transforming()
                assert jax.config.jax_default_matmul_precision is None
                assert float(jax.jit(jnp.sum)(jnp.ones(3))) == 3.0
            assert is_transforming() and jax.config.jax_default_matmul_precision == "float32"
            return 2 * x

        assert float(traced(2.0)) == 4.0


def test_a_profile_that_can_not_be_written_is_forgotten(tmp_path):
    """profiler._profile_state."""
    jax.profiler.start_trace(str(tmp_path))
    with pytest.raises(RuntimeError, match=r"[Oo]nly one profile"):
        jax.profiler.start_trace(str(tmp_path))
    _jax.forget_profile()
    jax.profiler.start_trace(str(tmp_path))
    jax.profiler.stop_trace()
    assert list(tmp_path.rglob("*.pb"))


def test_xla_flags_that_this_version_does_not_know_are_left_out():
    script = Path(__file__).with_name("known_xla_flags.py")
    flags = [
        "--xla_backend_optimization_level=0",
        "--xla_no_such_flag=true",
        "--xla_cpu_enable_fast_math=true",
    ]
    done = subprocess.run([sys.executable, script, *flags], check=True, capture_output=True, text=True)
    assert done.stdout.split() == [flags[0], flags[2]]


# What is missing is named.


@pytest.mark.parametrize(("module", "name"), [("core", "no_such_name"), ("no_such_module", "name")])
def test_a_missing_part_is_an_error_when_replicax_is_imported(module, name):
    with pytest.raises(UnsupportedJaxError, match=rf"jax\._src\.{module}\.{name}.*JAX {jax.__version__}"):
        _jax.private(module, name)


class _UnknownTrace:
    """A trace of a future JAX."""


def test_a_trace_without_a_parent_is_an_error(monkeypatch):
    """It must never pass for the outermost trace: a variable would become a constant."""
    monkeypatch.setattr(_jax._traces, "trace_state", type("State", (), {"value": _UnknownTrace()}))
    for ask in (_jax.current_program, _jax.is_staging, lambda: _jax.is_mapped_over("rows")):
        with pytest.raises(UnsupportedJaxError, match=rf"_UnknownTrace\.parent_trace.*{jax.__version__}"):
            ask()


def test_a_variable_in_an_unknown_trace_is_an_error(monkeypatch):
    variable = rx.Variable(1.0)
    monkeypatch.setattr(_jax._traces, "trace_state", type("State", (), {"value": _UnknownTrace()}))
    with pytest.raises(UnsupportedJaxError, match="parent_trace"):
        variable.read_value()


def test_a_vmap_without_the_name_of_its_axis_is_an_error(monkeypatch):
    monkeypatch.setattr(_jax._traces, "_BatchTrace", _UnknownTrace)
    monkeypatch.setattr(_jax._traces, "trace_state", type("State", (), {"value": _UnknownTrace()}))
    with pytest.raises(UnsupportedJaxError, match=r"BatchTrace\.axis_data\.name"):
        _jax.is_mapped_over("rows")


# JAX's detection of clusters.


def test_the_coordinator_of_open_mpi(monkeypatch):
    monkeypatch.setenv("OMPI_MCA_orte_hnp_uri", "8192.0;tcp://192.0.2.2:38459")
    assert _jax.open_mpi_coordinator() == f"192.0.2.2:{2**16 - 2**12 + 2}"


def test_the_job_of_a_pod(monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert _jax.detect_kubernetes_job(1) is None
    monkeypatch.setattr("importlib.util.find_spec", lambda name: name)
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    assert _jax.detect_kubernetes_job(1) is None

    labels = {"job-name": "train"}
    owner = Object(kind="Job", controller=True)
    pod = Object(metadata=Object(labels=labels, owner_references=[owner]), spec=Object(subdomain="workers"))
    job = Object(metadata=Object(name="train", labels={}), spec=Object(parallelism=4))
    for name, value in {"is_env_present": True, "_controller": owner, "_pod": pod, "_job": job}.items():
        monkeypatch.setattr(_jax._runtime._K8sCluster, name, lambda value=value: value)
    assert _jax.detect_kubernetes_job(8476) == ("train-0.workers:8476", 4)


def test_gloo_listens_where_it_is_told(monkeypatch):
    clients, made = [], []
    monkeypatch.setattr(_jax._runtime, "distributed_client", lambda: clients[0] if clients else None)
    parts = {
        "make_cpu_client": lambda collectives=None: collectives,
        "_jax.make_gloo_tcp_collectives": lambda distributed_client, hostname: hostname,
        "register_backend_factory": lambda name, factory, **_: made.append((name, factory)),
    }
    real = {name: _jax.private("lib" if "gloo" in name else "xla_bridge", name) for name in parts}
    assert "hostname: str" in real["_jax.make_gloo_tcp_collectives"].__doc__
    assert next(iter(inspect.signature(real["make_cpu_client"]).parameters)) == "collectives"
    monkeypatch.setattr(_jax._runtime, "private", lambda module, name: parts[name])
    _jax.use_gloo_at("127.0.0.5")
    [(name, make_client)] = made
    assert name == "cpu" and make_client() is None
    clients.append("client")
    assert make_client() == "127.0.0.5"


# Explaining a step.


def test_the_inputs_of_a_scan():
    def loop(c, init, xs):
        return jax.lax.scan(lambda carry, x: ((carry[0] + c * x, carry[1]), x), init, xs)

    arguments = jnp.float32(2), (jnp.float32(0), jnp.int32(1)), jnp.ones(3)
    (scan,) = [e for e in jax.make_jaxpr(loop)(*arguments).eqns if e.primitive.name == "scan"]
    num_consts, num_carry = _jax.num_consts_and_carry(scan.params)
    assert len(scan.invars) == num_consts + num_carry + 1
    assert num_consts >= 1
    with pytest.raises(UnsupportedJaxError, match="scan"):
        _jax.num_consts_and_carry({})


def equations_of(fn, mesh, *args):
    """The operations of a function that is mapped over two devices."""
    mapped = jax.shard_map(
        fn, mesh=mesh, in_specs=PartitionSpec("axis"), out_specs=PartitionSpec("axis"), check_vma=False
    )
    return jax.make_jaxpr(mapped)(*args).eqns[0].params["jaxpr"].eqns


def test_collectives_and_functions_that_hide_them(mesh):
    def fn(x):
        y = jax.lax.psum(x, "axis") + jax.lax.all_gather(x.sum(), "axis").sum() + jax.lax.axis_index("axis")
        y, _ = jax.lax.scan(lambda c, _: (jax.lax.pmax(c, "axis"), None), y, None, length=2)
        y, _ = jax.lax.scan(lambda c, _: (c * jax.lax.axis_index("axis"), None), y, None, length=2)
        return y

    equations = equations_of(fn, mesh, jnp.ones(2))
    assert [e.primitive.name for e in equations if _jax.is_collective(e)] == ["psum", "all_gather"]
    assert [_jax.hides_collectives(e) for e in equations if e.primitive.name == "scan"] == [True, False]


def test_the_functions_that_a_program_calls(mesh):
    @jax.custom_jvp
    def with_jvp(x):
        return x * 2

    @jax.custom_vjp
    def with_vjp(x):
        return x * 2

    with_jvp.defjvps(lambda t, _, x: t)
    with_vjp.defvjp(lambda x: (x, None), lambda _, c: (c,))
    for function in (jax.jit(lambda x: x * 2), with_jvp, with_vjp):
        (equation,) = jax.make_jaxpr(function)(1.0).eqns
        program, constants = _jax.called_program(equation)
        assert [e.primitive.name for e in program.eqns] == ["mul"] and not constants
    names = []
    for function in (lambda x: x * 2, lambda x: jax.lax.psum(x, "axis")):
        (equation,) = equations_of(jax.checkpoint(function), mesh, jnp.ones(2))
        called = _jax.called_program(equation)
        names.append(called and [e.primitive.name for e in called[0].eqns])
    assert names == [None, ["psum"]]


def test_a_collective_is_run_with_other_operands(mesh):
    """Also where it has a constant."""

    def fn(x):
        (equation,) = jax.make_jaxpr(lambda: jax.lax.psum(_jax.staged(2.0), "axis"))().eqns[-1:]
        (total,) = _jax.run_collective(equation, [x])
        return total

    mapped = jax.shard_map(fn, mesh=mesh, in_specs=PartitionSpec("axis"), out_specs=PartitionSpec("axis"))
    np.testing.assert_array_equal(jax.jit(mapped)(jnp.arange(2.0)), [1, 1])


def test_effects_of_operations():
    (plain,) = jax.make_jaxpr(lambda x: x * 2)(1.0).eqns
    (printing,) = jax.make_jaxpr(lambda x: jax.debug.print("{}", x))(1.0).eqns
    assert not _jax.has_effect(plain) and _jax.has_effect(printing)
    assert _jax.is_array_type(plain.outvars[0].aval)
    (made, *_) = jax.make_jaxpr(lambda x: jax.new_ref(x)[...])(1.0).eqns
    assert not _jax.is_array_type(made.outvars[0].aval)


def test_a_constant_is_staged():
    found = []
    jax.make_jaxpr(lambda: found.append((_jax.staged(3), _jax.staged(np.ones(2)))))()
    assert all(map(_jax.is_tracer, found[0]))


def test_the_size_of_an_axis_is_a_number(mesh):
    """Where JAX adds up ones to find it out, in the gradient of `all_gather`."""
    mapped = jax.shard_map(
        jax.grad(lambda x: jax.lax.all_gather(x, "axis", tiled=True).sum()),
        mesh=mesh,
        in_specs=PartitionSpec("axis"),
        out_specs=PartitionSpec("axis"),
        check_vma=False,
    )
    np.testing.assert_array_equal(jax.jit(mapped)(jnp.ones(2)), [2, 2])


def test_a_traced_program_is_run():
    program = jax.make_jaxpr(lambda x, y: [x + y, x * y])(1.0, 2.0)
    assert _jax.run_program(program.jaxpr, [jnp.float32(3), jnp.float32(4)]) == [7, 12]


def test_an_array_without_a_value():
    shape = jax.eval_shape(lambda x: x + _jax.unknown((2, 3), np.dtype("float32")).sum(), jnp.float32(1))
    assert shape.shape == ()
    assert jax.eval_shape(lambda: _jax.unknown((2, 3), np.dtype("int8"))).dtype == jnp.int8


@pytest.mark.parametrize("dtype", ["float32", "int8"])
def test_values_that_were_unknown_become_inputs(mesh, dtype):
    three = jnp.full(2, 3.0, dtype)
    traces = []

    def step(x):
        traces.append(x)
        weights, _ = (_jax.unknown((2,), np.dtype(dtype), key) for key in (7, 8))
        total = jax.shard_map(
            lambda x: jax.lax.psum(x * weights, "axis"),
            mesh=mesh,
            in_specs=PartitionSpec("axis"),
            out_specs=PartitionSpec(),
            check_vma=False,
        )
        return total(x) + three, weights, x

    keys, program = _jax.inputs_of(jax.make_jaxpr(step)(jnp.ones(4, dtype)))
    run = jax.jit(lambda values: program(values), donate_argnums=0)
    values = [jnp.arange(size, dtype=dtype) for size in (2, 2, 4)]
    lowered = run.lower(values)
    total, weights, x = run(values)
    assert keys == [7, 8]
    np.testing.assert_array_equal(total, [3, 4 + 3])
    np.testing.assert_array_equal(weights, [0, 1])
    np.testing.assert_array_equal(x, [0, 1, 2, 3])
    assert len(traces) == 1
    assert "call @" in lowered.as_text()


def test_planned_devices_are_devices_to_compile_for():
    devices = _jax.planned_cpu_devices(12)
    assert len(devices) == 12
    assert not set(devices) & set(jax.devices())
    mesh = Mesh(np.asarray(devices), ("axis",))
    x = jax.ShapeDtypeStruct((24,), jnp.float32, sharding=NamedSharding(mesh, PartitionSpec("axis")))
    program = jax.jit(jnp.sum).lower(x).compile()
    assert program.memory_analysis().argument_size_in_bytes == 8
    assert "all-reduce" in program.as_text()


def test_operations_with_the_line_of_an_equation():
    def line_of(fn):
        (equation, *_) = jax.make_jaxpr(fn)(1.0).jaxpr.eqns
        return equation

    earlier = line_of(lambda x: x * 2)

    def here(x):
        with _jax.at_source_of(earlier):
            return x + 1

    assert line_of(here).source_info.traceback == earlier.source_info.traceback
    assert line_of(lambda x: x + 1).source_info.traceback != earlier.source_info.traceback


def test_source_lines_in_programs():
    with _jax.with_source_lines():
        text = jax.jit(lambda x: jnp.sin(x) * 3).lower(1.0).compile().as_text()
    assert "test_jax_internals.py" in text


# Recording.


def recorded(fn, x):
    """The result of `fn(x)`, recorded, and its gradient."""
    recording = Recording()
    with _jax.at_trace(recording):
        watched = recording.watch(x)
        y = fn(x)
    recording.is_open = False
    found = recording.find(y)
    (gradient,) = recording.transposed([found], [watched])([jnp.ones_like(found.primal)])
    return y, gradient


@jax.custom_jvp
def doubled_slope(x):
    return x**2


doubled_slope.defjvp(lambda primals, tangents: (primals[0] ** 2, 4.0 * primals[0] * tangents[0]))


RECORDED = {
    "operations": lambda x: jnp.sin(x) * x,
    "jit": jax.jit(lambda x: jnp.sin(x) * x),
    "custom_jvp": doubled_slope,
    "checkpoint": jax.checkpoint(lambda x: jnp.sin(x) * x),
    "scan": lambda x: jax.lax.scan(lambda c, _: (c * x, None), x, None, length=2)[0],
}


def test_residuals_that_are_inputs_exist_since_jax_0_11_1():
    """LinearizeTrace.structured_residuals."""
    assert hasattr(Recording(), "structured_residuals") == (jax.__version_info__ >= (0, 11, 1))


def test_a_recording_without_its_residuals_is_an_error(monkeypatch):
    """A tape must not take it for a recording that has none: gradients would be wrong."""
    monkeypatch.setattr(jax, "__version_info__", (0, 12, 0))
    with pytest.raises(UnsupportedJaxError, match=r"LinearizeTrace\.structured_residuals.*private part"):
        _recording._residual_inputs(object())


@pytest.mark.parametrize("name", RECORDED)
@pytest.mark.parametrize("wrap", [lambda f: f, jax.jit], ids=["eager", "jit"])
def test_a_recording_is_differentiated_as_a_function(name, wrap):
    fn, x = RECORDED[name], jnp.float32(0.7)
    ours, theirs = wrap(lambda x: recorded(fn, x))(x), jax.value_and_grad(fn)(x)
    np.testing.assert_allclose(ours, theirs, rtol=1e-5)


def test_a_recorded_value_stands_for_its_plain_value_afterwards():
    x = jnp.float32(3.0)
    y, _ = recorded(lambda x: x * x, x)
    assert type(y) is Recorded
    assert type(y + 1.0) is _jax.ArrayImpl  # EvalTrace, or the arguments of an operation
    assert jax.jit(lambda: y * 2.0)() == 18.0  # a constant of a program
    assert jax.jit(lambda z: z * y)(y) == 81.0
    assert jax.grad(lambda z: z * y)(1.0) == 9.0
    assert jax.jit(lambda x: recorded(lambda x: x * x, x)[0])(x) == 9.0  # a result of a program


def test_a_recorded_value_can_be_differentiated_around_the_recording():
    def fn(x):
        y, slope = recorded(lambda x: x**3, x)
        return y + slope

    assert jax.grad(fn)(jnp.float32(2.0)) == 3 * 4.0 + 6 * 2.0
    assert jax.vmap(fn)(jnp.arange(2.0)).tolist() == [0.0, 4.0]


def test_whether_there_is_a_tpu():
    assert _jax.has_tpu() == (jax.devices()[0].platform == "tpu")


# Interrupts.


def test_a_trace_that_an_interrupt_took_is_restored():
    """trace_ctx.set_trace: JAX 0.11 leaves a thread without a trace if Ctrl-C comes in between."""
    strategy = rx.MirroredStrategy(["CPU:0", "CPU:1"])
    step = rx.function(lambda: strategy.run(lambda: jnp.ones(())))
    for use in (strategy.scope, step, lambda: strategy.run(lambda: jnp.ones(()))):
        _jax._traces.set_trace(None)
        try:
            use()
            assert _jax.current_trace() is _jax.eval_trace
        finally:
            _jax._traces.set_trace(_jax.eval_trace)


# Constants of programs.


def test_the_constants_in_a_program():
    """core.Jaxpr, core.ClosedJaxpr and its consts, and util.weakref_lru_cache."""
    first, second, third = jnp.arange(3.0), jnp.ones(3), jnp.zeros(3)

    def fn(x):
        x = jax.lax.cond(x[0] > 1, jax.jit(lambda x: x * first), lambda x: x, x)
        x = jax.lax.scan(lambda c, _: (jax.jit(lambda c: c + second)(c), None), x, length=2)[0]
        return jax.checkpoint(jax.jit(lambda x: x - third))(x)

    (call,) = jax.make_jaxpr(jax.jit(fn))(first).eqns
    for _ in range(2):
        found = _jax.constants_in(call.params)
        assert {id(constant) for constant in found} == {id(first), id(second), id(third)}
    assert _jax.constants_in({"shape": (3,), "name": "fn"}) == []


def test_a_program_without_constants_to_ask_for_is_an_error(monkeypatch):
    """A tape must not take it for a program that has none: gradients would be missing."""

    class Renamed:
        eqns = ()

    monkeypatch.setattr(_jax._programs, "_ClosedJaxpr", Renamed)
    with pytest.raises(UnsupportedJaxError, match=r"ClosedJaxpr\.consts.*private part"):
        _jax.constants_in({"jaxpr": Renamed()})


# The coordination service.


def test_a_renamed_coordination_service_is_an_error_of_the_first_worker(monkeypatch):
    """The coordinator's own process has no JAX to say so, and its messages are not shown."""
    module, name = _jax.service_function()
    monkeypatch.delattr(f"{module}.{name}")
    with pytest.raises(UnsupportedJaxError, match=name):
        start_coordinator("localhost:1", ["only"], ClusterOptions())


# Literals.


def test_literals_among_the_inputs_of_an_equation():
    """core.Literal and its val."""
    jaxpr = jax.make_jaxpr(lambda x: 2.0 * jnp.ones(3) * x)(1.0).jaxpr
    inputs = [(equation.primitive.name, atom) for equation in jaxpr.eqns for atom in equation.invars]
    literals = [(name, float(atom.val)) for name, atom in inputs if _jax.is_literal(atom)]
    assert ("mul", 2.0) in literals and ("broadcast_in_dim", 1.0) in literals
    variables = {atom for _, atom in inputs if not _jax.is_literal(atom)}
    assert {*jaxpr.invars} <= variables
