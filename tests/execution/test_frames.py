"""An eager replica is ordinary Python: few frames, the user's lines, debuggers, exceptions, threads."""

import gc
import io
import pdb
import sys
import traceback
import weakref
from pathlib import Path

import greenlet
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from tests.threads import in_threads

import replicax as rx

PACKAGE = str(Path(rx.__file__).parent)


def mirrored(num_replicas=2):
    return rx.MirroredStrategy([f"CPU:{i}" for i in range(num_replicas)])


STRATEGIES = {
    "default": rx.get_strategy,
    "one device": lambda: rx.OneDeviceStrategy("CPU:0"),
    "mirrored x 1": lambda: mirrored(1),
    "mirrored x 2": lambda: mirrored(2),
    "mirrored x 8": lambda: mirrored(8),
    "central": lambda: rx.CentralStorageStrategy(["CPU:0", "CPU:1"], parameter_device="CPU:0"),
}


def frames_up():
    """The frames from the caller outwards, across greenlets that wait for each other."""
    frame, here = sys._getframe(1), greenlet.getcurrent()
    while frame is not None:
        yield frame
        frame = frame.f_back
        if frame is None and here.parent is not None:
            here = here.parent
            frame = here.gr_frame


def own_frames_up_to(name):
    """The number of Replicax's frames between the caller and the nearest function called `name`."""
    count = 0
    for frame in frames_up():
        if frame.f_code.co_name == name and not frame.f_code.co_filename.startswith(PACKAGE):
            return count
        count += frame.f_code.co_filename.startswith(PACKAGE)
    raise AssertionError(f"{name} is not on the stack")


@pytest.mark.parametrize("kind", STRATEGIES)
def test_few_frames_between_run_and_the_replica_function(kind):
    strategy = STRATEGIES[kind]()
    counts = []

    def users_step():
        strategy.run(lambda: counts.append(own_frames_up_to("users_step")))

    users_step()
    assert len(counts) == strategy.num_replicas_in_sync
    assert all(0 < count <= 8 for count in counts), counts


def test_few_frames_between_run_and_a_merge_function():
    strategy = mirrored()
    counts = []

    def merge_fn(strategy):
        counts.append(own_frames_up_to("users_step"))

    def users_step():
        strategy.run(lambda: rx.get_replica_context().merge_call(merge_fn))

    users_step()
    assert len(counts) == 1 and counts[0] <= 8, counts


# Tracebacks.


@pytest.mark.parametrize("mode", ["eager", "compiled"])
@pytest.mark.parametrize("kind", STRATEGIES)
def test_traceback_shows_the_users_line(kind, mode):
    strategy = STRATEGIES[kind]()

    def replica_fn(x):
        raise KeyError("the user's own mistake")

    def step(x):
        return strategy.run(replica_fn, args=(x,))

    step = rx.function(step) if mode == "compiled" else step
    with pytest.raises(KeyError, match="the user's own mistake") as caught:
        step(jnp.ones(2))
    names = [entry.name for entry in traceback.extract_tb(caught.value.__traceback__)]
    lines = [entry.line for entry in traceback.extract_tb(caught.value.__traceback__)]
    assert names[-1] == "replica_fn"
    assert lines[-1] == 'raise KeyError("the user\'s own mistake")'
    assert names.count("replica_fn") == 1


def test_traceback_of_an_exception_in_a_merge_function():
    strategy = mirrored()

    def merge_fn(strategy):
        raise KeyError("in the merge")

    with pytest.raises(KeyError, match="in the merge") as caught:
        strategy.run(lambda: rx.get_replica_context().merge_call(merge_fn))
    names = [entry.name for entry in traceback.extract_tb(caught.value.__traceback__)]
    assert names[-1] == "merge_fn"


# Plain Python.


def test_python_control_flow_on_values(capsys):
    strategy = mirrored()

    def replica_fn(x):
        ctx = rx.get_replica_context()
        if ctx.replica_id_in_sync_group == 0:
            print("first", float(x))
        total = 0.0
        for item in x * jnp.ones(2):
            total += float(item) if item > 1 else 0.0
        return total

    x = strategy.distribute_values_from_function(lambda ctx: ctx.replica_id_in_sync_group + 1.0)
    result = strategy.run(replica_fn, args=(x,))
    assert strategy.local_results(result) == (0.0, 4.0)
    assert capsys.readouterr().out == "first 1.0\n"


def test_debugger_in_a_replica(monkeypatch):
    commands = io.StringIO("p x\nn\np y\nup\np where\nc\np x\nc\n")
    shown = io.StringIO()
    debuggers = []

    def break_here():
        debuggers.append(pdb.Pdb(stdin=commands, stdout=shown, nosigint=True, readrc=False))
        debuggers[-1].use_rawinput = False
        debuggers[-1].set_trace(sys._getframe(1))

    monkeypatch.setattr(sys, "breakpointhook", break_here)
    tracer = sys.gettrace()
    strategy = mirrored()

    def replica_fn(x):
        where = "in the helper's caller"
        return helper(x), where

    def helper(x):
        breakpoint()
        y = x * 10
        return y

    x = strategy.distribute_values_from_function(lambda ctx: 1 + ctx.replica_id_in_sync_group)
    try:
        results, _ = strategy.run(replica_fn, args=(x,))
    finally:
        sys.settrace(tracer)
    assert strategy.local_results(results) == (10, 20)
    text = shown.getvalue()
    assert "-> y = x * 10" in text
    assert "in the helper's caller" in text
    printed = [line.removeprefix("(Pdb) ").strip() for line in text.splitlines()]
    assert [line for line in printed if line in ("1", "2", "10")] == ["1", "10", "2"]


def test_generators_across_a_merge_call():
    strategy = mirrored()
    trace = []

    def numbers():
        for i in range(3):
            trace.append(i)
            yield i

    def replica_fn():
        ctx = rx.get_replica_context()
        return sum(int(ctx.all_reduce("SUM", jnp.int32(i))) for i in numbers())

    assert strategy.local_results(strategy.run(replica_fn)) in ((6, 6), (6,))
    assert trace == [0, 0, 1, 1, 2, 2]


# Order and exceptions.


@pytest.mark.parametrize("num_replicas", [2, 3])
def test_order_of_replicas_and_merges(num_replicas):
    strategy = mirrored(num_replicas)
    trace = []

    def replica_fn():
        ctx = rx.get_replica_context()
        replica = int(ctx.replica_id_in_sync_group)
        trace.append(f"a{replica}")
        ctx.merge_call(lambda strategy: trace.append("merge"))
        trace.append(f"b{replica}")

    strategy.run(replica_fn)
    ids = range(num_replicas)
    assert trace == [*(f"a{i}" for i in ids), "merge", *(f"b{i}" for i in ids)]


@pytest.mark.parametrize("mode", ["eager", "compiled"])
@pytest.mark.parametrize("kind", [kind for kind in STRATEGIES if kind != "default"])
def test_exception_of_a_merge_call_can_be_caught(kind, mode):
    strategy = STRATEGIES[kind]()

    def fail(strategy):
        raise KeyError("no")

    def replica_fn():
        ctx = rx.get_replica_context()
        try:
            ctx.merge_call(fail)
        except KeyError:
            return ctx.all_reduce("SUM", jnp.float32(1))
        return jnp.float32(-1)

    def step():
        return strategy.reduce("MEAN", strategy.run(replica_fn), axis=None)

    step = rx.function(step) if mode == "compiled" else step
    assert float(step()) == strategy.num_replicas_in_sync


def test_exception_in_one_replica_cancels_the_others():
    strategy = mirrored(3)
    trace = []

    def replica_fn():
        ctx = rx.get_replica_context()
        replica = int(ctx.replica_id_in_sync_group)
        try:
            ctx.merge_call(lambda strategy: None)
            trace.append(f"on {replica}")
            if replica == 1:
                raise KeyError("replica 1")
            ctx.merge_call(lambda strategy: trace.append("second merge"))
            trace.append(f"end {replica}")
        finally:
            trace.append(f"finally {replica}")

    with pytest.raises(KeyError, match="replica 1"):
        strategy.run(replica_fn)
    assert trace[:3] == ["on 0", "on 1", "finally 1"]
    assert sorted(trace[3:]) == ["finally 0", "finally 2"]
    assert [float(x) for x in strategy.local_results(strategy.run(lambda: jnp.float32(1) * 2))] == [2.0] * 3


def test_first_replica_fails_before_the_others_start():
    strategy = mirrored(3)
    started = []

    def replica_fn():
        started.append(int(rx.get_replica_context().replica_id_in_sync_group))
        raise KeyError("at once")

    with pytest.raises(KeyError, match="at once"):
        strategy.run(replica_fn)
    assert started == [0]


def test_cleanup_that_raises_does_not_hide_the_first_exception():
    strategy = mirrored(2)

    def replica_fn():
        ctx = rx.get_replica_context()
        if int(ctx.replica_id_in_sync_group) == 1:
            raise KeyError("the cause")
        try:
            ctx.merge_call(lambda strategy: None)
        finally:
            raise ValueError("in the cleanup")

    with pytest.raises((KeyError, ValueError)) as caught:
        strategy.run(replica_fn)
    seen, error = [], caught.value
    while error is not None:
        seen.append(type(error))
        error = error.__cause__ or error.__context__
    assert KeyError in seen


def test_cleanup_may_not_wait_for_others_again():
    strategy = mirrored(2)

    def replica_fn():
        ctx = rx.get_replica_context()
        if int(ctx.replica_id_in_sync_group) == 1:
            raise KeyError("the cause")
        try:
            ctx.merge_call(lambda strategy: None)
        finally:
            ctx.merge_call(lambda strategy: None)

    before = alive_replicas()
    with pytest.raises((KeyError, RuntimeError)):
        strategy.run(replica_fn)
    assert alive_replicas() - before == set()


def test_unequal_numbers_of_merge_calls():
    strategy = mirrored(2)

    def replica_fn():
        ctx = rx.get_replica_context()
        if int(ctx.replica_id_in_sync_group) == 0:
            ctx.merge_call(lambda strategy: None)

    before = alive_replicas()
    with pytest.raises(RuntimeError, match="merge_call"):
        strategy.run(replica_fn)
    assert alive_replicas() - before == set()


def test_keyboard_interrupt_in_a_replica():
    strategy = mirrored(2)
    ended = []

    def replica_fn():
        ctx = rx.get_replica_context()
        replica = int(ctx.replica_id_in_sync_group)
        try:
            if replica == 1:
                raise KeyboardInterrupt
            ctx.merge_call(lambda strategy: None)
        finally:
            ended.append(replica)

    with pytest.raises(KeyboardInterrupt):
        strategy.run(replica_fn)
    assert sorted(ended) == [0, 1]
    assert not rx.has_strategy()


def alive_replicas():
    """Greenlets that were started, have not ended, and are not the thread's own."""
    gc.collect()
    found = [o for o in gc.get_objects() if isinstance(o, greenlet.greenlet)]
    return {g for g in found if g.parent is not None and not g.dead and bool(g)}


@pytest.mark.parametrize("where", ["replica 0", "replica 1", "merge", "nowhere"])
def test_no_replica_is_left_alive(where):
    strategy = mirrored(3)

    def merge_fn(strategy):
        if where == "merge":
            raise KeyError(where)

    def replica_fn():
        ctx = rx.get_replica_context()
        ctx.merge_call(lambda strategy: None)
        if where == f"replica {int(ctx.replica_id_in_sync_group)}":
            raise KeyError(where)
        ctx.merge_call(merge_fn)

    before = alive_replicas()
    if where == "nowhere":
        strategy.run(replica_fn)
    else:
        with pytest.raises(KeyError, match=where):
            strategy.run(replica_fn)
    assert alive_replicas() - before == set()


# JAX's thread-local settings.


def _precision():
    return jax.config.jax_default_matmul_precision


def _device():
    return jax.config.jax_default_device


def _jit_disabled():
    return jax.config.jax_disable_jit


SETTINGS = {
    "matmul precision": (lambda i: jax.default_matmul_precision(["float32", "bfloat16"][i]), _precision),
    "device": (lambda i: jax.default_device(jax.devices("cpu")[4 + i]), _device),
    "disable_jit": (lambda i: jax.disable_jit(i == 0), _jit_disabled),
}


@pytest.mark.parametrize("setting", SETTINGS)
def test_settings_of_replicas_do_not_mix(setting):
    enter, read = SETTINGS[setting]
    strategy = mirrored()
    before = read()
    seen = {}

    def merge_fn(strategy):
        seen["merge"] = read()

    def replica_fn():
        ctx = rx.get_replica_context()
        replica = int(ctx.replica_id_in_sync_group)
        outside = read()
        with enter(replica):
            mine = read()
            ctx.all_reduce("SUM", jnp.float32(1))
            seen[replica, "after all_reduce"] = read() == mine
            ctx.merge_call(merge_fn)
            seen[replica, "after merge_call"] = read() == mine
        seen[replica, "after leaving"] = read() == outside
        return mine

    values = strategy.local_results(strategy.run(replica_fn))
    assert values[0] != values[1]
    merged = seen.pop("merge")
    assert merged == before
    assert all(seen.values()), seen
    assert read() == before


@pytest.mark.parametrize("setting", SETTINGS)
def test_settings_do_not_leak_from_a_failed_replica(setting):
    enter, read = SETTINGS[setting]
    strategy = mirrored()
    before = read()

    def replica_fn():
        ctx = rx.get_replica_context()
        with enter(int(ctx.replica_id_in_sync_group)):
            ctx.all_reduce("SUM", jnp.float32(1))
            if int(ctx.replica_id_in_sync_group) == 1:
                raise KeyError("stop")
            ctx.all_reduce("SUM", jnp.float32(1))

    with pytest.raises(KeyError):
        strategy.run(replica_fn)
    assert read() == before


def test_settings_of_the_caller_hold_in_replicas():
    strategy = mirrored()
    with jax.default_matmul_precision("float32"):
        seen = strategy.run(_precision)
    assert seen == "float32"


def test_values_are_made_on_the_replicas_device():
    strategy = mirrored(3)
    made = strategy.run(lambda: [d.id for d in jnp.zeros(2).devices()])
    assert strategy.local_results(made) == ([0], [1], [2])


# Threads.


@pytest.mark.parametrize("mode", ["eager", "compiled"])
@pytest.mark.parametrize("shared", [True, False])
def test_strategies_in_several_threads(mode, shared):
    common = mirrored()

    def work(number):
        strategy = common if shared else mirrored()
        with strategy.scope():
            v = rx.Variable(0.0, aggregation=rx.VariableAggregation.SUM)

        def step():
            strategy.run(lambda: v.assign_add(jnp.float32(number)))

        step = rx.function(step) if mode == "compiled" else step
        for _ in range(5):
            step()
            assert not rx.has_strategy()
        return float(v.value)

    totals = in_threads(*(lambda n=n: work(n) for n in range(4)))
    assert totals == [0.0, 10.0, 20.0, 30.0]


def test_a_scope_is_of_one_thread():
    strategy = mirrored()
    with strategy.scope():
        assert in_threads(rx.has_strategy) == [False]


def test_run_from_a_thread_started_by_a_replica():
    strategy = mirrored()
    assert strategy.run(lambda: in_threads(rx.in_cross_replica_context)[0]) is False


# Many replicas, and how they are freed.


def test_hundreds_of_strategies():
    totals = set()
    for _ in range(300):
        strategy = mirrored()
        ids = strategy.run(lambda: rx.get_replica_context().replica_id_in_sync_group + 1)
        totals.add(int(strategy.reduce("SUM", ids, axis=None)))
    assert totals == {3}


KINDS = {
    "mirrored": lambda: rx.Variable(np.zeros(4, np.float32), aggregation=rx.VariableAggregation.SUM),
    "sync on read": lambda: rx.Variable(
        np.zeros(4, np.float32),
        synchronization=rx.VariableSynchronization.ON_READ,
        aggregation=rx.VariableAggregation.SUM,
    ),
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("use", ["unused", "eager", "compiled", "compiled replicas", "failed"])
def test_variables_and_strategies_are_freed(kind, use):
    dropped = use_and_drop(KINDS[kind], use)
    gc.collect()
    assert [ref() for ref in dropped] == [None, None]


def use_and_drop(make, use):
    """Weak references to a variable and its strategy after their last use."""
    strategy = mirrored()
    with strategy.scope():
        v = make()

    def replica_fn():
        v.assign_add(jnp.ones(4))
        if use == "failed":
            raise KeyError

    def step():
        strategy.run(replica_fn)
        return v.read_value()

    if use == "eager":
        step()
    elif use == "compiled":
        compiled = rx.function(step)
        compiled()
        compiled()
    elif use == "compiled replicas":
        strategy.run(rx.function(replica_fn))
    elif use == "failed":
        with pytest.raises(KeyError):
            step()
    return weakref.ref(v), weakref.ref(strategy)


def test_compiled_function_is_freed():
    strategy = mirrored()
    with strategy.scope():
        v = rx.Variable(0.0, aggregation=rx.VariableAggregation.SUM)
    step = rx.function(lambda: strategy.run(lambda: v.assign_add(jnp.float32(1))))
    step()
    dropped = weakref.ref(step)
    del step
    gc.collect()
    assert dropped() is None
    assert float(v.value) == 2.0


def test_arrays_of_a_step_are_freed():
    strategy = mirrored()
    with strategy.scope():
        v = rx.Variable(jnp.zeros(1000), aggregation=rx.VariableAggregation.SUM)
    step = rx.function(lambda: strategy.run(lambda: v.assign_add(jnp.ones(1000), read_value=False)))
    step()
    gc.collect()
    before = len(jax.live_arrays())
    for _ in range(10):
        step()
    gc.collect()
    assert len(jax.live_arrays()) <= before
