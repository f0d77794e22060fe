"""The C module: its lock, which calls it handles, and that it neither leaks nor keeps anything alive."""

import gc
import shutil
import signal
import subprocess
import sys
import threading
import time
import weakref
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from tests.environment import of_programs

import replicax as rx
from replicax import _native
from replicax.variables import Store, exclusive

native = pytest.mark.skipif(not _native.is_built, reason="there was no C compiler at the installation")
locks = pytest.mark.parametrize("make", [_native.Lock, threading.RLock], ids=["Lock", "RLock"])


def in_thread(fn):
    """What `fn` returns in another thread."""
    results = []
    thread = threading.Thread(target=lambda: results.append(fn()))
    thread.start()
    thread.join(30)
    return results[0]


@locks
def test_a_lock_can_be_acquired_again_by_its_owner_only(make):
    lock = make()
    with lock:
        assert lock.acquire()
        assert not in_thread(lambda: lock.acquire(blocking=False))
        lock.release()
        assert not in_thread(lambda: lock.acquire(timeout=0.01))
    assert in_thread(lambda: lock.acquire(timeout=10) and (lock.release() or True))


@locks
def test_a_timeout_is_kept(make):
    lock = make()
    with lock:
        start = time.monotonic()
        assert not in_thread(lambda: lock.acquire(timeout=0.2))
        assert 0.15 < time.monotonic() - start < 5


@locks
def test_only_the_owner_releases_a_lock(make):
    lock = make()
    with pytest.raises(RuntimeError):
        lock.release()

    def release():
        with pytest.raises(RuntimeError):
            lock.release()
        return True

    with lock:
        assert in_thread(release)


@locks
def test_an_exception_releases_the_lock(make):
    lock = make()
    with pytest.raises(KeyError), lock:
        raise KeyError
    assert in_thread(lambda: lock.acquire(timeout=1) and (lock.release() or True))


@locks
def test_threads_take_turns(make):
    lock, total = make(), [0]

    def count():
        for _ in range(2000):
            with lock:
                before = total[0]
                time.sleep(0)  # another thread may run here
                total[0] = before + 1

    threads = [threading.Thread(target=count) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert total == [8000]


def is_free(lock):
    return in_thread(lambda: lock.acquire(blocking=False) and (lock.release() or True))


def test_several_locks_are_held_together():
    locks, ready = (_native.Lock(), _native.Lock()), []
    block = lambda: _native.hold(locks, ready=lambda: ready.append(list(map(is_free, locks))))  # noqa: E731
    with block(), block():
        assert not any(map(is_free, locks))
    assert ready == [[False, False]] * 2
    with pytest.raises(KeyError), block():
        raise KeyError
    assert all(map(is_free, locks))
    with _native.hold(()):
        pass


def test_a_late_lock_may_be_waited_for_or_given_up():
    first, second = _native.Lock(), _native.Lock()
    calls, started, may_end = [], threading.Event(), threading.Event()

    def late():
        calls.append(is_free(first))
        if len(calls) == 3:
            raise TimeoutError("late")

    def other():
        with second:
            started.set()
            may_end.wait(30)

    thread = threading.Thread(target=other)
    thread.start()
    started.wait(30)
    with pytest.raises(TimeoutError, match="late"), _native.hold((first, second), 0.01, late):
        raise AssertionError("not reached")
    assert calls == [False] * 3
    assert is_free(first)
    threading.Timer(0.1, may_end.set).start()
    with _native.hold((first, second), 0.01, lambda: None):
        assert not is_free(second)
    thread.join()


def test_an_error_before_the_block_releases_the_locks():
    lock = _native.Lock()
    with pytest.raises(ZeroDivisionError), _native.hold((lock,), ready=lambda: 1 / 0):
        raise AssertionError("not reached")
    assert is_free(lock)


@native
@pytest.mark.parametrize("arguments", [([],), ((threading.RLock(),),), ((), "soon")])
def test_what_can_not_be_held(arguments):
    with pytest.raises(TypeError):
        _native.hold(*arguments)


def test_interrupts_leave_no_lock_locked():
    """A signal handler raises at random points of a loop that does little but acquire and release."""
    stores = [Store() for _ in range(3)]
    blocks = [stores[0].exclusive, lambda: exclusive(stores)]

    class Stop(Exception):
        pass

    is_armed = False

    def handler(*_):
        nonlocal is_armed
        if is_armed:
            is_armed = False
            raise Stop

    previous = signal.signal(signal.SIGALRM, handler)
    gc.disable()  # Python ignores exceptions in JAX's callback for it
    try:
        for number in range(600):
            try:
                is_armed = True
                signal.setitimer(signal.ITIMER_REAL, 1e-4 + number % 100 * 1e-6)
                while True:
                    with blocks[number % 2]():
                        pass
            except Stop:
                pass
            assert all(is_free(store.lock) for store in stores), number
    finally:
        is_armed = False
        gc.enable()
        signal.signal(signal.SIGALRM, previous)


@locks
def test_an_interrupt_ends_the_wait_for_a_lock(make):
    lock, held, done = make(), threading.Event(), threading.Event()

    def hold():
        with lock:
            held.set()
            done.wait(30)

    thread = threading.Thread(target=hold)
    thread.start()
    held.wait(30)
    before = signal.signal(signal.SIGALRM, signal.default_int_handler)
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.1)
        with pytest.raises(KeyboardInterrupt):
            lock.acquire()
        # A handler that returns does not end it.
        signal.signal(signal.SIGALRM, lambda *_: None)
        signal.setitimer(signal.ITIMER_REAL, 0.05, 0.05)
        assert not lock.acquire(timeout=0.3)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
        done.set()
        thread.join(30)
    assert lock.acquire(timeout=10)


@native
@pytest.mark.parametrize("arguments", [("timeout", 1, 2), (1, 2, 3)])
def test_a_lock_refuses_other_arguments(arguments):
    with pytest.raises(TypeError):
        _native.Lock().acquire(*arguments)
    with pytest.raises(TypeError):
        _native.Lock(1)


@pytest.fixture
def strategy():
    return rx.MirroredStrategy(["CPU:0", "CPU:1"])


@pytest.fixture
def counter(strategy):
    with strategy.scope():
        return rx.Variable(0.0, aggregation="SUM")


def per_replica(strategy, value=1.0):
    return strategy.distribute_values_from_function(lambda _: jnp.full(2, value))


@pytest.fixture
def python_calls(monkeypatch):
    """The arguments of all calls that are left to Python."""
    calls, call = [], rx.Function._call

    def recorded(self, *args, **kwargs):
        calls.append((args, kwargs))
        return call(self, *args, **kwargs)

    monkeypatch.setattr(rx.Function, "_call", recorded)
    return calls


@native
def test_warm_calls_do_not_call_python(strategy, counter, python_calls):
    @rx.function
    def step(x, y):
        strategy.run(lambda x: counter.assign_add(x.sum()), args=(x,))
        return strategy.run(lambda x, y: x + y, args=(x, y))

    x, y = per_replica(strategy), per_replica(strategy, 2.0)
    step(x, y)
    step(x, y)
    with strategy.scope():
        step(x, y)  # another program
        del python_calls[:]
        step(x, y)
    result = step(x, y)
    assert not python_calls
    assert float(counter) == 20
    np.testing.assert_array_equal(strategy.gather(result, axis=0), [3, 3, 3, 3])


@native
def test_variables_that_are_only_read_may_be_between_those_that_are_written(strategy):
    with strategy.scope():
        variables = [rx.Variable(float(i), aggregation="MEAN") for i in range(6)]
    frozen, trained = variables[1::2], variables[::2]

    @rx.function
    def step():
        for v in trained:
            v.assign_add(sum(f.value for f in frozen))

    for _ in range(3):
        step()
    assert isinstance(step.programs[0].run, _native.Program)
    assert [float(v) for v in variables] == [27, 1, 29, 3, 31, 5]


@native
def test_what_is_unusual_is_left_to_python(strategy, counter, python_calls):
    @rx.function
    def step(x, *more, **named):
        strategy.run(lambda: counter.assign_add(1.0))
        return x

    x = jnp.ones(2)
    step(x)
    step(x)
    calls = [
        lambda: step(2.0),
        lambda: step({"x": x}),
        lambda: step(x=x),
        lambda: step(np.ones(2)),
        lambda: step(x, *[x] * 16),
        lambda: step(jnp.ones(3)),
    ]
    for number, call in enumerate([*calls, *calls]):
        del python_calls[:]
        call()
        # An array of another shape is an unusual argument only once.
        assert len(python_calls) == (number != 11), number
    with jax.disable_jit():
        del python_calls[:]
        step(x)
        assert python_calls
    assert float(counter) == 2 * (2 + 12 + 1)


@native
def test_calls_in_replicas_and_traces_are_left_to_python(strategy, python_calls):
    double = rx.function(lambda x: 2 * x)
    x = jnp.ones(2)
    double(x)
    double(x)
    del python_calls[:]
    np.testing.assert_array_equal(jax.jit(double)(x), [2, 2])
    strategy.run(lambda: double(x))
    assert len(python_calls) == 3
    double(x)
    assert len(python_calls) == 3


def test_each_strategy_has_programs_of_its_own(strategy):
    other = rx.OneDeviceStrategy("CPU:1")
    replicas = rx.function(lambda x: x * rx.get_strategy().num_replicas_in_sync)
    x, found = jnp.ones(()), []
    for _ in range(3):
        with strategy.scope():
            found.append(float(replicas(x)))
            with strategy.scope():
                found.append(float(replicas(x)))
        with other.scope():
            found.append(float(replicas(x)))
        found.append(float(replicas(x)))
    assert found == [2, 2, 1, 1] * 3


def test_threads_under_different_strategies_and_settings_get_their_own_programs(strategy):
    function = rx.function(lambda x: x + rx.get_strategy().num_replicas_in_sync)
    x, found = jnp.zeros(()), {}

    def call(strategy):
        with strategy.scope():
            for _ in range(200):
                found.setdefault(strategy, set()).add(float(function(x)))
                with jax.default_matmul_precision("highest"):
                    found[strategy].add(float(function(x)))

    strategies = [strategy, rx.OneDeviceStrategy("CPU:1")]
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        threads = [threading.Thread(target=call, args=(s,)) for s in strategies]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
    finally:
        sys.setswitchinterval(before)
    assert [found[s] for s in strategies] == [{2}, {1}]


def test_methods_find_their_own_programs():
    class Scale:
        def __init__(self, factor):
            self.factor = factor

        @rx.function
        def __call__(self, x):
            return self.factor * x

    two, three = Scale(2.0), Scale(3.0)
    x = jnp.ones(())
    assert [float(call(x)) for call in (two, three, two, three)] == [2, 3, 2, 3]


def program(store, jitted, **changes):
    """A `Program` that reads the first array of `store` and writes the second."""
    given = {"checked": None, "make_ready": None, "explain": lambda error: None, "result": list}
    given |= {"read": (0,), "written": (1,), "place": None, "plain": ()}
    return _native.Program(jitted=jitted, store=store, **(given | changes))


@pytest.fixture
def store():
    store = Store()
    store.arrays += ["read", "old", "another"]
    return store


@native
def test_a_program_gets_its_arrays_and_the_store_gets_new_ones(store):
    run = program(store, lambda *operands: (*operands, "new"))
    assert run(["argument"]) == [["read"], ["old"], "argument"]
    assert store.arrays == ["read", "new", "another"]
    assert run(list(range(1000))) == [["read"], ["new"], *range(1000)]


@native
def test_a_program_gets_hundreds_of_arrays():
    store = Store()
    store.arrays += [object() for _ in range(500)]
    before = list(store.arrays)
    new = tuple(object() for _ in range(300))
    read, written = tuple(range(100, 150)), tuple(range(150, 450))
    run = program(store, lambda *operands: (operands, *new), read=read, written=written)
    assert run([1, 2]) == [(before[100:150], before[150:450], 1, 2)]
    assert store.arrays == [*before[:150], *new, *before[450:]]


@native
def test_a_programs_arrays_may_be_anywhere_in_the_store():
    store = Store()
    store.arrays += list(range(10))
    run = program(store, lambda *operands: (operands, "a", "b", "c"), read=(1, 4), written=(0, 3, 9))
    assert run([]) == [([1, 4], [0, 3, 9])]
    assert store.arrays == ["a", 1, 2, "b", 4, 5, 6, 7, 8, "c"]


@native
def test_only_plain_arguments_that_are_committed_are_placed(store):
    placed = []

    def place(leaves):
        placed.append(leaves)
        return ["placed"]

    run = program(store, lambda *operands: (*operands, "new"), place=place, plain=(1,))
    device = jax.devices("cpu")[1]
    free, committed = jnp.ones(2), jax.device_put(jnp.ones(2), device)
    assert run([committed, free])[2:] == [committed, free]
    assert not placed
    for leaves in [[free, committed], [free, np.ones(2)], [free]]:
        assert run(leaves)[2:] == ["placed"]
        assert placed.pop() is not leaves


@native
def test_old_arrays_are_freed_after_the_new_ones_are_stored(store):
    class Array:
        pass

    store.arrays[1] = Array()
    found = []
    weakref.finalize(store.arrays[1], lambda: found.append(store.arrays[1]))
    program(store, lambda *_: ("new",))([])
    assert found == ["new"]


@native
def test_arrays_that_are_removed_while_a_program_runs(store):
    def jitted(*_):
        store.arrays.clear()
        return ("new",)

    with pytest.raises(IndexError, match="removed"):
        program(store, jitted)([])
    assert not store.arrays


@native
def test_indices_that_do_not_exist_are_refused(store):
    with pytest.raises(ValueError, match="negative"):
        program(store, None, read=(0, -1))
    for changes in [{"written": (1, "2")}, {"read": [0]}, {"plain": (0.5,)}]:
        with pytest.raises(TypeError):
            program(store, None, **changes)
    for changes in [{"written": (3,)}, {"read": (0, 1000)}]:
        with pytest.raises(IndexError, match="fewer arrays"):
            program(store, None, **changes)([])


@native
def test_the_store_is_locked_while_a_program_runs(store):
    free = []

    def jitted(*_):
        free.append(in_thread(lambda: store.lock.acquire(blocking=False)))
        return ("new",)

    program(store, jitted)([])
    assert free == [False]
    assert in_thread(lambda: store.lock.acquire(blocking=False) and (store.lock.release() or True))


@native
def test_an_error_is_explained_and_changes_nothing(store):
    def fail(*_):
        raise KeyError("no")

    def explain(error):
        error.add_note("explained")

    with pytest.raises(KeyError, match="no") as caught:
        program(store, fail, explain=explain)([])
    assert caught.value.__notes__ == ["explained"]
    assert [entry.name for entry in caught.traceback][-1] == "fail"
    assert store.arrays == ["read", "old", "another"]
    assert in_thread(lambda: store.lock.acquire(blocking=False) and (store.lock.release() or True))


@native
def test_an_explanation_may_be_another_error(store):
    def fail(*_):
        raise KeyError("no")

    def explain(error):
        raise rx.errors.OutOfMemoryError("too large")

    with pytest.raises(rx.errors.OutOfMemoryError, match="too large") as caught:
        program(store, fail, explain=explain)([])
    assert isinstance(caught.value.__context__, KeyError)


@native
def test_a_store_with_views_is_made_ready(store):
    ready = []

    def make_ready():
        ready.append(store.arrays[1])
        store.views.clear()

    run = program(store, lambda *_: ("new",), make_ready=make_ready)
    run([])
    store.views[1] = "a view"
    run([])
    store.unfinished = lambda: None
    run([])
    assert ready == ["new", "new"]

    def fail():
        raise KeyError

    store.unfinished = fail
    with pytest.raises(KeyError):
        program(store, lambda *_: ("newer",), make_ready=fail)([])
    assert store.arrays[1] == "new"


@native
@pytest.mark.parametrize("returned", [None, (), ["new"], 1])
def test_a_program_must_return_results_and_arrays(store, returned):
    with pytest.raises(TypeError):
        program(store, lambda *_: returned)([])
    assert in_thread(lambda: store.lock.acquire(blocking=False) and (store.lock.release() or True))


@native
@pytest.mark.parametrize("reduced", [False, True])
def test_warm_calls_leak_nothing(strategy, counter, reduced):
    @rx.function
    def step(x):
        result = strategy.run(lambda x: x + counter.assign_add(x.sum()), args=(x,))
        return strategy.reduce("SUM", result, axis=None) if reduced else result

    x = per_replica(strategy)
    with strategy.scope():
        for _ in range(10):
            step(x)
        gc.collect()
        watched = [None, x._layout, x._array.aval, strategy, *step._known.values(), counter._store.arrays]
        arrays, counts = len(jax.live_arrays()), list(map(sys.getrefcount, watched))
        for _ in range(1000):
            step(x)
        gc.collect()
        after = list(map(sys.getrefcount, watched))
    assert len(jax.live_arrays()) == arrays
    assert [b - a for a, b in zip(counts[1:], after[1:], strict=True)] == [0] * len(watched[1:])
    assert abs(after[0] - counts[0]) < 500


def test_a_function_in_a_cycle_is_freed(strategy):
    def step(x):
        return 2 * x

    step.compiled = rx.function(step)
    x = jnp.ones(2)
    for _ in range(3):
        step.compiled(x)
    freed = weakref.ref(step.compiled)
    del step
    gc.collect()
    assert freed() is None


@native
def test_types_that_it_was_not_made_for_are_refused():
    others = ("trace_settings", "settings_number")
    settings = dict.fromkeys(
        ("trace_state", "eval_trace", "disable_jit", "number_check", "first_copy", *others)
    )
    given = {"per_replica": int, "array": int, "context_stack": rx.contexts.context_stack, **settings}
    with pytest.raises(AttributeError, match="__slots__"):
        _native.configure(**given)
    with pytest.raises(TypeError):
        _native.configure(**{**given, "array": 1})
    with pytest.raises(AttributeError, match="int"):
        program(1, None)


@native
def test_a_module_that_was_built_from_another_source_is_not_used(tmp_path):
    copy = tmp_path / "replicax"
    shutil.copytree(Path(rx.__file__).parent, copy, ignore=shutil.ignore_patterns("__pycache__"))
    program = "from replicax import _native; print(_native.__file__, _native.is_built)"

    def printed():
        environment = of_programs(PYTHONPATH=str(tmp_path))
        command = [sys.executable, "-c", program]
        return subprocess.run(
            command, env=environment, capture_output=True, text=True, check=True
        ).stdout.split()

    assert printed() == [str(copy / "_native" / "__init__.py"), "True"]
    with open(copy / "_native" / "_warm.c", "a") as source:
        source.write("/* changed */\n")
    assert printed() == [str(copy / "_native" / "__init__.py"), "False"]
