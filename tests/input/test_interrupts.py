"""Exceptions that signal handlers raise in `next(iterator)`, at any moment: no batch is lost or doubled."""

import json
import os
import random
import signal
import threading
import time

import numpy as np
import pytest

import replicax as rx

NUM_BATCHES = 300
NUM_INTERRUPTS = 50  # in each test; a pass is repeated until there were as many
SECONDS = 60  # or until it takes too long

# An exception that arrives in a finalizer is reported by Python and goes no further.
pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")


class Alarm(Exception):
    """Raised by the handler of SIGALRM."""


@pytest.fixture(scope="module")
def two():
    return rx.MirroredStrategy(["CPU:0", "CPU:1"])


def rows():
    return np.arange(4 * NUM_BATCHES, dtype=np.float32).reshape(NUM_BATCHES, 4)


def generator(seconds=0.0):
    def batches():
        for batch in rows():
            if seconds:
                time.sleep(seconds)
            yield batch

    return batches


DATASETS = {
    "arrays": lambda: rx.from_arrays(rows().reshape(-1)).batch(4),
    "shuffled arrays": lambda: rx.from_arrays(rows().reshape(-1)).shuffle(seed=1).batch(4),
    "list": lambda: list(rows()),
    "function": generator,
    "slow function": lambda: generator(2e-4),
    "generator": lambda: generator()(),
}


class Interrupts:
    """Raises an exception at random times while `on` is true, which each exception makes false."""

    def __init__(self, kind):
        self.kind, self.on, self.num_raised = kind, False, 0
        self._deadline = time.monotonic() + SECONDS

    def enough(self):
        return self.num_raised >= NUM_INTERRUPTS or (self.num_raised and time.monotonic() > self._deadline)

    def handle(self, signum, frame):
        if self.on:
            self.on = False
            self.num_raised += 1
            raise self.kind

    def ask(self, found, function, argument):
        """Add what `function(argument)` gives to `found`; False if an exception came instead.

        `extend` does so in one call into C. Anything else here could lose batches itself.
        """
        try:
            self.on = True
            found.extend(map(function, (argument,)))
            self.on = False
        except self.kind:
            return False
        return True


@pytest.fixture
def alarms():
    """Interrupts by SIGALRM, a few microseconds to two milliseconds apart."""
    source, interrupts = random.Random(0), Interrupts(Alarm)

    def arm():
        signal.setitimer(
            signal.ITIMER_REAL, 1e-6 + source.choice([2e-5, 1e-4, 5e-4, 2e-3]) * source.random()
        )

    def handle(signum, frame):
        arm()
        interrupts.handle(signum, frame)

    before = signal.signal(signal.SIGALRM, handle)
    arm()
    yield interrupts
    signal.signal(signal.SIGALRM, signal.SIG_IGN)  # the handler would set the timer again
    signal.setitimer(signal.ITIMER_REAL, 0)
    signal.signal(signal.SIGALRM, before)


def read_all(iterator, interrupts, pause=0.0):
    """All batches of `iterator`, which is asked again after each exception."""
    found, deadline = [], time.monotonic() + 120
    while time.monotonic() < deadline:
        count = len(found)
        if interrupts.ask(found, next, iterator) and len(found) == count:
            return found
        time.sleep(pause)
    raise TimeoutError(f"only {len(found)} batches have come")


def values(strategy, batches):
    return [np.concatenate([np.asarray(x) for x in strategy.local_results(b)]).tolist() for b in batches]


def expected(strategy, name, **options):
    return values(strategy, strategy.distribute_dataset(DATASETS[name](), rx.InputOptions(**options)))


@pytest.mark.parametrize("buffer_size", [0, 1, 2])
@pytest.mark.parametrize("name", DATASETS)
def test_no_batch_is_lost_or_doubled(two, alarms, name, buffer_size):
    wanted = expected(two, name)
    options = rx.InputOptions(per_replica_buffer_size=buffer_size)
    while not alarms.enough():
        iterator = iter(two.distribute_dataset(DATASETS[name](), options))
        found = read_all(iterator, alarms, pause=5e-5)
        assert values(two, found) == wanted
        assert iterator.stats().steps == NUM_BATCHES
        assert iterator.stats().examples == iterator.state()["examples"] == 4 * NUM_BATCHES


@pytest.mark.parametrize("buffer_size", [0, 2])
@pytest.mark.parametrize("name", ["arrays", "function"])
def test_the_state_tells_what_was_handed_out(two, alarms, name, buffer_size):
    """After every exception, whatever it interrupted."""
    wanted, options = expected(two, name), rx.InputOptions(per_replica_buffer_size=buffer_size)
    states = []
    while not alarms.enough():
        found = []
        with iter(two.distribute_dataset(DATASETS[name](), options)) as iterator:
            while len(found) < NUM_BATCHES:
                if not alarms.ask(found, next, iterator):
                    state, stats = iterator.state(), iterator.stats()
                    assert {state["examples"], 4 * stats.steps, stats.examples} == {4 * len(found)}
                    states.append((len(found), json.dumps(state)))
    for count, state in states[:: max(len(states) // 5, 1)]:
        other = iter(two.distribute_dataset(DATASETS[name](), options))
        other.restore(json.loads(state))
        assert values(two, other) == wanted[count:]


@pytest.mark.parametrize("buffer_size", [0, 2])
@pytest.mark.parametrize("name", ["arrays", "slow function"])
def test_keyboard_interrupts(two, name, buffer_size):
    """Sent by another thread; every later `next` goes on."""
    wanted, options = expected(two, name), rx.InputOptions(per_replica_buffer_size=buffer_size)
    interrupts, done = Interrupts(KeyboardInterrupt), threading.Event()

    def send():
        source = random.Random(1)
        while not done.wait(source.random() * 1e-3):
            os.kill(os.getpid(), signal.SIGINT)

    sender = threading.Thread(target=send)
    before = signal.signal(signal.SIGINT, interrupts.handle)
    try:
        sender.start()
        while not interrupts.enough():
            iterator = iter(two.distribute_dataset(DATASETS[name](), options))
            assert values(two, read_all(iterator, interrupts, pause=1e-4)) == wanted
    finally:
        done.set()
        sender.join()
        signal.signal(signal.SIGINT, before)


@pytest.mark.parametrize("method", ["get_next", "get_next_as_optional"])
def test_the_other_ways_to_ask_lose_nothing(two, alarms, method):
    wanted = expected(two, "arrays")
    while not alarms.enough():
        found = []
        with iter(two.distribute_dataset(DATASETS["arrays"]())) as iterator:
            while len(found) < NUM_BATCHES:
                alarms.ask(found, getattr(rx.DistributedIterator, method), iterator)
        if method == "get_next_as_optional":
            found = [optional.get_value() for optional in found]
        assert values(two, found) == wanted


def test_an_interrupted_wait_for_a_slow_reader_gets_its_batch_later(two):
    release = threading.Event()

    def batches():
        yield np.zeros(2, np.float32)
        release.wait(60)
        yield np.ones(2, np.float32)

    def handle(signum, frame):
        raise Alarm

    before = signal.signal(signal.SIGALRM, handle)
    try:
        for buffer_size in (0, 1, 2):
            release.clear()
            options = rx.InputOptions(per_replica_buffer_size=buffer_size)
            iterator = iter(two.distribute_dataset(batches(), options))
            next(iterator)
            for _ in range(3):
                signal.setitimer(signal.ITIMER_REAL, 0.05)
                with pytest.raises(Alarm):
                    next(iterator)
            assert iterator.state()["examples"] == 2
            release.set()
            assert values(two, iterator) == [[1, 1]]
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


@pytest.mark.parametrize("buffer_size", [0, 2])
def test_an_error_of_the_reader_is_not_taken_for_an_interrupt(two, buffer_size):
    def batches():
        yield np.zeros(2, np.float32)
        raise KeyboardInterrupt("from the reader")

    iterator = iter(two.distribute_dataset(batches, rx.InputOptions(per_replica_buffer_size=buffer_size)))
    next(iterator)
    for _ in range(3):
        with pytest.raises(KeyboardInterrupt, match="from the reader"):
            next(iterator)


def test_interrupts_leave_the_strategy_in_use(two, alarms):
    with two.scope():
        read_all(iter(two.distribute_dataset(DATASETS["arrays"]())), alarms)
        assert rx.get_strategy() is two
        assert rx.in_cross_replica_context()
    assert not rx.has_strategy()
