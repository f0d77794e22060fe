"""Reading ahead: how far, in which context, and that nothing is left behind when it ends."""

import gc
import itertools
import subprocess
import sys
import textwrap
import threading
import time

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import replicax as rx
from replicax.errors import InputError
from replicax.input import _feed

BUFFERS = [0, 1, 2, 3]


def mirrored(n):
    return rx.MirroredStrategy([f"CPU:{i}" for i in range(n)])


@pytest.fixture
def two():
    return mirrored(2)


@pytest.fixture(params=BUFFERS)
def buffer(request):
    return request.param


@pytest.fixture(params=[0, 2])
def options(request):
    """Reading when a batch is asked for, and ahead."""
    return rx.InputOptions(per_replica_buffer_size=request.param)


class Reader:
    """Batches of two rows, with a count of what was read and whether the reading was ended."""

    def __init__(self, count=1000, fail_at=None, seconds=0.0):
        self.count, self.fail_at, self.seconds = count, fail_at, seconds
        self.num_read, self.num_ended, self.threads = 0, 0, set()

    def __call__(self):
        try:
            for i in range(self.count):
                if i == self.fail_at:
                    raise OSError(f"disk {i} is broken")
                if self.seconds:
                    time.sleep(self.seconds)
                self.num_read += 1
                self.threads.add(threading.current_thread().name)
                yield np.full(2, i, np.float32)
        finally:
            self.num_ended += 1


def feeders():
    return [t for t in threading.enumerate() if t.name.startswith("replicax")]


def numbers(strategy, batches):
    return [float(strategy.local_results(batch)[0][0]) for batch in batches]


def wait_until(condition, seconds=5.0):
    deadline = time.monotonic() + seconds
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.005)
    return condition()


# Nothing is left behind.


def test_exhaustion_ends_the_thread_and_the_reader(two, options):
    reader = Reader(5)
    assert numbers(two, two.distribute_dataset(reader, options)) == [0, 1, 2, 3, 4]
    assert not feeders()
    assert reader.num_ended == 1


def test_an_exhausted_iterator_stays_exhausted(two, options):
    iterator = iter(two.distribute_dataset(Reader(2), options))
    assert len(list(iterator)) == 2
    for _ in range(3):
        assert next(iterator, "nothing") == "nothing"
    assert not feeders()


def test_leaving_the_loop_ends_the_thread_and_the_reader(two, options):
    reader = Reader()
    for i, _ in enumerate(two.distribute_dataset(reader, options)):
        if i == 3:
            break
    assert not feeders()
    assert reader.num_ended == 1


def test_deleting_an_iterator_ends_the_thread_and_the_reader(two, options):
    reader = Reader()
    iterator = iter(two.distribute_dataset(reader, options))
    next(iterator)
    del iterator
    assert not feeders()
    assert reader.num_ended == 1


def test_closing_ends_the_thread_and_the_reader(two, options):
    reader = Reader()
    iterator = iter(two.distribute_dataset(reader, options))
    next(iterator)
    for _ in range(2):
        iterator.close()
        assert not feeders()
        assert reader.num_ended == 1


def test_closing_before_the_first_batch_reads_nothing(two, options):
    reader = Reader()
    iterator = iter(two.distribute_dataset(reader, options))
    iterator.close()
    assert reader.num_read == 0
    assert not feeders()


def test_a_with_block_ends_the_thread_and_the_reader(two, options):
    reader = Reader()
    with iter(two.distribute_dataset(reader, options)) as iterator:
        assert numbers(two, itertools.islice(iterator, 3)) == [0, 1, 2]
    assert not feeders()
    assert reader.num_ended == 1


def test_an_iterator_in_a_cycle_is_collected(two, options):
    class Trainer:
        pass

    reader, trainer = Reader(), Trainer()
    trainer.myself, trainer.iterator = trainer, iter(two.distribute_dataset(reader, options))
    next(trainer.iterator)
    del trainer
    gc.collect()
    assert not feeders()
    assert reader.num_ended == 1


@pytest.mark.parametrize("fail_at", [0, 1, 4])
def test_a_reader_that_fails_ends_the_thread(two, options, fail_at):
    reader = Reader(5, fail_at=fail_at)
    iterator = iter(two.distribute_dataset(reader, options))
    with pytest.raises(OSError, match=f"disk {fail_at} is broken"):
        list(iterator)
    assert not feeders()
    assert reader.num_ended == 1


def test_the_thread_has_ended_when_an_error_arrives_even_if_closing_takes_long(two):
    class Batches:
        def __iter__(self):
            return self

        def __next__(self):
            raise OSError("disk is broken")

        def close(self):
            time.sleep(0.3)

    with pytest.raises(OSError, match="disk is broken"):
        next(iter(two.distribute_dataset(lambda: Batches())))
    assert not feeders()


@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit, ValueError])
def test_an_exception_of_the_consumer_ends_the_thread_and_the_reader(two, options, error):
    reader = Reader()
    with pytest.raises(error):
        for _ in two.distribute_dataset(reader, options):
            raise error
    gc.collect()
    assert not feeders()
    assert reader.num_ended == 1


@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit])
def test_an_interruption_in_the_reader_reaches_the_consumer(two, options, error):
    def batches():
        yield np.zeros(2)
        raise error("from the reader")

    iterator = iter(two.distribute_dataset(batches, options))
    next(iterator)
    with pytest.raises(error, match="from the reader"):
        next(iterator)
    assert not feeders()


def test_restoring_ends_the_reading_before(two, options):
    reader = Reader()
    iterator = iter(two.distribute_dataset(reader, options))
    next(iterator)
    state = iterator.state()
    next(iterator)
    iterator.restore(state)
    assert reader.num_ended == 1
    assert numbers(two, [next(iterator)]) == [1]
    iterator.close()
    assert reader.num_ended == 2
    assert not feeders()


def test_finally_blocks_of_a_generator_run_on_closing(two, options):
    steps = []

    def batches():
        with open(__file__) as file:
            try:
                while True:
                    yield np.zeros(2)
            finally:
                steps.append(file.closed)
        steps.append(file.closed)

    iterator = iter(two.distribute_dataset(batches(), options))
    next(iterator)
    iterator.close()
    assert steps == [False]


def test_an_error_on_closing_is_not_lost(two):
    """Neither in silence nor in another thread."""

    def batches():
        try:
            while True:
                yield np.zeros(2)
        finally:
            raise OSError("could not close")

    iterator = iter(two.distribute_dataset(batches))
    next(iterator)
    with pytest.raises(OSError, match="could not close"):
        iterator.close()


def test_closing_does_not_wait_for_ever_for_a_reader_that_hangs(two, monkeypatch):
    monkeypatch.setattr(_feed, "_CLOSING_SECONDS", 0.1)
    release = threading.Event()

    def batches():
        yield np.zeros(2)
        release.wait(30)
        yield np.zeros(2)

    iterator = iter(two.distribute_dataset(batches))
    next(iterator)
    began = time.monotonic()
    iterator.close()
    assert time.monotonic() - began < 20
    release.set()
    assert wait_until(lambda: not feeders())


def test_closing_from_another_thread_lets_a_waiting_consumer_go(two):
    """Whether it still gets a batch or not, it does not wait for ever."""
    for i in range(100):
        iterator = iter(two.distribute_dataset(Reader(), rx.InputOptions(per_replica_buffer_size=1)))

        def consume(iterator=iterator):
            try:
                for _ in iterator:
                    pass
            except InputError:
                pass

        consumer = threading.Thread(target=consume, daemon=True)
        consumer.start()
        time.sleep(0.0005 * (i % 7))
        iterator.close()
        consumer.join(10)
        assert not consumer.is_alive()


# How far it reads.


def test_nothing_is_read_before_the_first_batch_is_asked_for(two, buffer):
    reader = Reader()
    dataset = two.distribute_dataset(reader, rx.InputOptions(per_replica_buffer_size=buffer))
    iterator = iter(dataset)
    assert dataset.cardinality == rx.UNKNOWN_CARDINALITY
    assert iterator.state()["examples"] == 0
    time.sleep(0.05)
    assert reader.num_read == 0
    assert not feeders()


def test_it_reads_ahead_by_the_size_of_the_buffer(two, buffer):
    reader = Reader()
    options = rx.InputOptions(per_replica_buffer_size=buffer)
    with iter(two.distribute_dataset(reader, options)) as iterator:
        for taken in range(1, 6):
            next(iterator)
            assert wait_until(lambda taken=taken: reader.num_read >= taken + buffer)
            time.sleep(0.02)
            assert taken + buffer <= reader.num_read <= taken + buffer + bool(buffer)


def test_a_generator_is_read_by_one_other_thread(two, buffer):
    """Which no signal handler can interrupt: a generator that raises is at its end."""
    reader = Reader(5)
    list(two.distribute_dataset(reader, rx.InputOptions(per_replica_buffer_size=buffer)))
    assert len(reader.threads) == 1
    assert threading.current_thread().name not in reader.threads


def test_the_buffer_does_not_change_what_is_read(two, buffer):
    options = rx.InputOptions(per_replica_buffer_size=buffer)
    rows = np.arange(50, dtype=np.float32)
    dataset = two.distribute_dataset(rx.from_arrays(rows).batch(2), options)
    assert numbers(two, dataset) == rows[::2].tolist()
    assert numbers(two, two.distribute_dataset(Reader(20), options)) == list(range(20))


# Where the reader runs.


def test_the_reader_runs_in_the_default_context(two, options):
    seen = []

    def batches():
        for _ in range(3):
            seen.append((rx.has_strategy(), rx.get_strategy().num_replicas_in_sync))
            yield np.zeros(2)

    with two.scope():
        list(two.distribute_dataset(batches, options))
        list(two.distribute_datasets_from_function(lambda ctx: batches, options))
    assert set(seen) == {(False, 1)}


def test_looking_at_the_element_spec_reads_in_the_default_context(two):
    seen = []

    def batches():
        seen.append(rx.has_strategy())
        yield np.zeros(2)

    with two.scope():
        two.distribute_dataset(batches).element_spec  # noqa: B018
        two.distribute_dataset(batches()).element_spec  # noqa: B018
    assert seen == [False, False]


def test_a_dataset_function_runs_in_the_default_context(two):
    seen = []

    def dataset_fn(context):
        seen.append(rx.has_strategy())
        return [np.zeros(1)] * 2

    with two.scope():
        two.distribute_datasets_from_function(dataset_fn)
    assert seen == [False]


def test_a_strategy_that_was_set_stays_set_for_the_user(two, options):
    with two.scope():
        for _ in two.distribute_dataset(Reader(2), options):
            assert rx.get_strategy() is two


def test_64_bits_in_the_users_thread_hold_for_batches(two, options):
    rows = np.arange(8, dtype=np.float64)
    with jax.enable_x64(True):
        for dataset in (rx.from_arrays(rows).shuffle(seed=1).batch(4), lambda: iter([rows, rows[:3]])):
            for batch in two.distribute_dataset(dataset, options):
                assert {part.dtype for part in two.local_results(batch)} == {np.dtype(np.float64)}
    for batch in two.distribute_dataset(rx.from_arrays(rows).batch(4), options):
        assert {part.dtype for part in two.local_results(batch)} == {np.dtype(np.float32)}


# How long it took.


def test_stats_count_steps_and_examples(two, options):
    iterator = iter(two.distribute_dataset(rx.from_arrays(np.arange(7)).batch(3), options))
    assert iterator.stats() == rx.InputStats()
    next(iterator)
    assert (iterator.stats().steps, iterator.stats().examples) == (1, 3)
    list(iterator)
    assert (iterator.stats().steps, iterator.stats().examples) == (3, 7)
    assert "3 steps, 7 examples" in str(iterator.stats())


def test_a_slow_consumer_hardly_waits(two):
    iterator = iter(two.distribute_dataset(Reader(10)))
    for _ in iterator:
        time.sleep(0.03)
    assert iterator.stats().steps == 10
    assert iterator.stats().wait_fraction < 0.3


def test_a_slow_reader_is_waited_for(two, options):
    iterator = iter(two.distribute_dataset(Reader(10, seconds=0.03), options))
    for _ in iterator:
        pass
    stats = iterator.stats()
    assert stats.wait_fraction > 0.7
    assert stats.first_wait_seconds >= 0.03
    assert stats.wait_seconds <= stats.seconds


# Where batches are.


@pytest.mark.parametrize("rows", [8, 5])
@pytest.mark.parametrize("n", [2, 3, 8])
def test_batches_are_on_their_replicas_devices(n, rows, options):
    strategy = mirrored(n)
    (batch,) = strategy.distribute_dataset([{"x": np.ones((rows, 2), np.float32)}], options)
    assert all(part.committed for part in batch["x"].components)
    found = strategy.run(lambda b: b["x"] * 1, args=(batch,))
    for value in (batch["x"], found):
        assert [part.devices() for part in value.components] == [{jax.devices("cpu")[i]} for i in range(n)]


def test_the_batches_of_one_device_are_committed_to_it(options):
    strategy = rx.OneDeviceStrategy("CPU:3")
    (batch,) = strategy.distribute_dataset([np.ones(4, np.float32)], options)
    assert isinstance(batch, jax.Array)
    assert batch.devices() == {jax.devices("cpu")[3]}
    assert batch.committed


def test_the_default_strategy_leaves_batches_to_jax(options):
    (batch,) = rx.get_strategy().distribute_dataset([np.ones(4, np.float32)], options)
    assert isinstance(batch, jax.Array)
    assert not batch.committed
    assert (batch + jax.device_put(jnp.ones(4), jax.devices("cpu")[5])).devices() == {jax.devices("cpu")[5]}


@pytest.mark.parametrize("rows", [4, 5])
@pytest.mark.parametrize("n", [1, 2, 3])
def test_batches_can_stay_in_host_memory(n, rows):
    strategy = mirrored(n)
    options = rx.InputOptions(fetch_to_device=False)
    x = np.arange(rows, dtype=np.float32)
    for dataset in ([x], rx.from_arrays(x).batch(8)):
        (batch,) = strategy.distribute_dataset(dataset, options)
        parts = batch.components if n > 1 else [batch]
        assert all(isinstance(part, np.ndarray) for part in parts)
        np.testing.assert_array_equal(np.concatenate(parts), x)
        assert float(strategy.reduce("SUM", strategy.run(jnp.sum, args=(batch,)), axis=None)) == x.sum()


@pytest.mark.parametrize("n", [1, 2, 3])
def test_changing_a_batch_in_host_memory_does_not_change_the_dataset(n):
    strategy, rows = mirrored(n), np.arange(7, dtype=np.float32)
    options = rx.InputOptions(fetch_to_device=False)
    for dataset in ([rows], rx.from_arrays(rows).batch(4)):
        for batch in strategy.distribute_dataset(dataset, options):
            for part in batch.components if n > 1 else [batch]:
                if part.flags.writeable:
                    part += 100
        np.testing.assert_array_equal(rows, np.arange(7))


def test_a_reader_may_use_its_buffer_again(two, options):
    def batches():
        buffer = np.empty(4, np.float32)
        for i in range(20):
            buffer[...] = i
            yield buffer

    found = list(two.distribute_dataset(batches, options))
    assert [np.asarray(batch.components[1]).tolist() for batch in found] == [[i, i] for i in range(20)]


# Many at once.


def test_many_iterators_at_once_do_not_disturb_each_other(two, options):
    dataset = two.distribute_dataset(Reader(6), options)
    iterators = [iter(dataset) for _ in range(12)]
    found = [[] for _ in iterators]
    for _ in range(6):
        for values, iterator in zip(found, iterators, strict=True):
            values += numbers(two, [next(iterator)])
    assert found == [list(range(6))] * 12
    assert [next(iterator, None) for iterator in iterators] == [None] * 12
    assert not feeders()


@pytest.mark.parametrize("kind", ["generator", "arrays"])
def test_threads_that_share_an_iterator_lose_nothing(two, options, kind):
    rows = np.arange(400, dtype=np.float32)
    dataset = Reader(200) if kind == "generator" else rx.from_arrays(rows).batch(2)
    wanted = list(range(200)) if kind == "generator" else rows[::2].tolist()
    iterator = iter(two.distribute_dataset(dataset, options))
    found = [[] for _ in range(4)]

    def consume(values):
        values.extend(numbers(two, iterator))

    threads = [threading.Thread(target=consume, args=(values,)) for values in found]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert sorted(itertools.chain(*found)) == wanted
    assert all(values == sorted(values) for values in found)
    assert iterator.stats().steps == 200
    assert iterator.stats().examples == 400


def test_passes_over_one_dataset_in_several_threads_are_each_complete(two, options):
    dataset = two.distribute_dataset(Reader(50), options)
    found = [[] for _ in range(4)]
    threads = [
        threading.Thread(target=lambda v=values: v.extend(numbers(two, dataset))) for values in found
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert found == [list(range(50))] * 4


# The end of the process.


@pytest.mark.parametrize("buffer_size", [0, 2])
@pytest.mark.parametrize("ending", ["", "raise RuntimeError('the end')", "sys.exit(3)"])
def test_a_process_ends_with_a_live_iterator(ending, buffer_size):
    program = f"""
        import sys
        import numpy as np
        import replicax as rx

        rx.set_cpu_devices(2)
        strategy = rx.MirroredStrategy()

        def batches():
            try:
                while True:
                    yield np.zeros(4)
            finally:
                print("closed")

        options = rx.InputOptions(per_replica_buffer_size={buffer_size})
        iterator = iter(strategy.distribute_dataset(batches, options))
        next(iterator)
        print("read")
        {ending}
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program)], capture_output=True, text=True, timeout=240
    )
    assert done.stdout.split() == ["read", "closed"]
    assert done.returncode == {"": 0, "raise": 1, "sys.e": 3}[ending[:5]]
    assert ("the end" in done.stderr) == ("the end" in ending)
    assert "Fatal" not in done.stderr


def test_a_process_ends_although_its_reader_hangs():
    program = """
        import time
        import numpy as np
        import replicax as rx
        from replicax.input import _feed

        _feed._CLOSING_SECONDS = 0.5
        rx.set_cpu_devices(2)
        strategy = rx.MirroredStrategy()

        def batches():
            yield np.zeros(4)
            time.sleep(1000)

        iterator = iter(strategy.distribute_dataset(batches))
        next(iterator)
        print("read")
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program)], capture_output=True, text=True, timeout=240
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "read\n", "")


def test_a_thread_that_can_not_be_started_is_an_error(two, monkeypatch, options):
    def start(self):
        raise RuntimeError("can't start new thread")

    iterator = iter(two.distribute_dataset(Reader(), options))
    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", start)
        for _ in range(2):
            with pytest.raises(RuntimeError, match="can't start new thread"):
                next(iterator)


def test_iterators_that_are_collected_in_any_thread_leave_no_thread_behind(two):
    """Also in one that is just starting another, and that the module threading must not get to know."""

    class Trainer:
        pass

    before, threshold = set(threading.enumerate()), gc.get_threshold()
    try:
        gc.set_threshold(20)
        for _ in range(500):
            trainer = Trainer()
            trainer.myself, trainer.iterator = trainer, iter(two.distribute_dataset(Reader(5)))
            next(trainer.iterator)
            del trainer
    finally:
        gc.set_threshold(*threshold)

    def have_ended():
        gc.collect()  # does nothing while another thread collects
        return set(threading.enumerate()) <= before

    assert wait_until(have_ended), set(threading.enumerate()) - before
