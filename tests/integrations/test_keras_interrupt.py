"""Ctrl-C during `fit`, `evaluate` and `predict` leaves the state of before or after a step."""

import contextlib
import functools
import gc
import random
import signal
import sys
import threading
import time
import traceback

import jax.numpy as jnp
import numpy as np
import pytest

keras = pytest.importorskip("keras")

import replicax as rx  # noqa: E402
from replicax._jax import ThreadSettings  # noqa: E402
from replicax.integrations.keras import DistributedVariable, _run  # noqa: E402

from .keras_models import strategy_of_kind  # noqa: E402

# Keras' own: NumPy asks its variables for more than they know.
pytestmark = pytest.mark.filterwarnings("ignore:__array__ implementation doesn't accept:DeprecationWarning")

_RATE = 2.0**-6
_X, _Y = np.ones((8, 2), np.float32), np.zeros((8, 1), np.float32)


class _Counting(keras.layers.Layer):
    """Every step subtracts `_RATE` from each weight, exactly, and adds 1 to the counter."""

    def __init__(self, num_weights, shape=(3,)):
        super().__init__()
        self._shape_of_each, self.num_weights = shape, num_weights

    def build(self, _):
        self.parts = [
            self.add_weight(shape=self._shape_of_each, initializer="zeros") for _ in range(self.num_weights)
        ]
        self.count = self.add_weight(shape=(), initializer="zeros", trainable=False, dtype="int32")

    def call(self, x, training=False):
        if training:
            self.count.assign_add(1)
        return x[:, :1] * 0 + sum(jnp.sum(part.value) for part in self.parts)


def _make(num_weights=20, strategy=None, **options):
    with (strategy or strategy_of_kind(2)).scope():
        layer = _Counting(num_weights, **options)
        model = keras.Sequential([keras.Input((2,)), layer])
        model.compile(keras.optimizers.SGD(_RATE), loss=lambda y, predicted: predicted[:, 0])
    return model, layer


def _check(model, layer):
    """Raise unless all variables are those of one number of steps."""
    steps = int(model.optimizer.iterations)
    assert int(layer.count) == steps
    for part in layer.parts:
        np.testing.assert_array_equal(part.numpy(), np.full(part.shape, -_RATE * steps, np.float32))
    return steps


@pytest.fixture(autouse=True)
def _ctrl_c():
    """Python's own handler of SIGINT, which a process in the background does not have."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.fixture(autouse=True)
def _no_threads_of_callbacks():
    """Keras' callbacks end their threads when they are garbage collected."""
    before = set(threading.enumerate())
    yield
    gc.collect()
    for thread in set(threading.enumerate()) - before:
        if thread.ident is not None:
            thread.join(10)


@pytest.fixture(autouse=True)
def _settings():
    """JAX's settings of this thread, which an interrupt inside of JAX may leave changed."""
    settings = ThreadSettings()
    yield
    settings.restore()


class _Synchronous(keras.callbacks.Callback):
    """Makes Keras call callbacks in this thread: an interrupt may block the thread pool that it uses."""

    def on_train_batch_end(self, batch, logs=None):
        pass

    on_test_batch_end = on_predict_batch_end = on_train_batch_end


@contextlib.contextmanager
def _interrupted_after(seconds):
    """SIGALRM handled like Ctrl-C: `signal.default_int_handler` is Python's own handler of SIGINT.

    Python ignores an exception that comes in a finalizer, so there is another one five seconds later.
    """
    before = signal.signal(signal.SIGALRM, signal.default_int_handler)
    try:
        signal.setitimer(signal.ITIMER_REAL, seconds, 5.0)
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


# An exception that comes while Python runs a finalizer is reported, and ignored, by Python itself.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("wanted", [12, pytest.param(200, marks=pytest.mark.long)])
@pytest.mark.parametrize("kind", ["fit", "fit in groups", "evaluate", "predict", "train_on_batch"])
def test_at_random_times(kind, wanted):
    model, layer = _make()
    if kind == "fit in groups":
        model.steps_per_execution = 3
    runs = {
        "evaluate": lambda: model.evaluate(_X, _Y, batch_size=2, verbose=0, callbacks=[_Synchronous()]),
        "predict": lambda: model.predict(_X, batch_size=2, verbose=0, callbacks=[_Synchronous()]),
        "train_on_batch": lambda: model.train_on_batch(_X, _Y),
    }
    fit = functools.partial(model.fit, callbacks=[_Synchronous()])
    run = runs.get(kind, lambda: fit(_X, _Y, batch_size=2, epochs=20, verbose=0))
    run()
    steps, num_interrupted, moments = [_check(model, layer)], 0, random.Random(0)
    start = time.monotonic()
    # At most `wanted / 4` seconds; on a busy machine as many as ten interrupts take.
    while num_interrupted < wanted and time.monotonic() - start < (
        wanted / 4 if num_interrupted >= 10 else 150
    ):
        try:
            with _interrupted_after(moments.uniform(0.001, 0.1)):
                for _ in range(50):
                    run()
        except KeyboardInterrupt:
            num_interrupted += 1
        except IndexError as error:
            # NumPy ignored the interrupt, which left JAX's list of the shards of an output incomplete.
            assert kind == "predict" and traceback.extract_tb(error.__traceback__)[-1].name == "_value"
            num_interrupted += 1
        steps.append(_check(model, layer))
    assert num_interrupted >= 10
    assert keras.distribution.distribution() is None and not rx.has_strategy()
    assert steps == sorted(steps) and (kind in ("evaluate", "predict") or steps[-1] > steps[0])


class _Interrupter:
    """Raises KeyboardInterrupt at the n-th line of Keras' trainer or the integration that is run."""

    def __init__(self, number):
        self.left = number

    def __call__(self, frame, event, argument):
        name = frame.f_code.co_filename
        if not name.endswith("backend/jax/trainer.py") and "integrations/keras" not in name:
            return None
        if event == "line":
            self.left -= 1
            if self.left == 0:
                raise KeyboardInterrupt
        return self

    @contextlib.contextmanager
    def active(self):
        before = sys.gettrace()
        sys.settrace(self)
        try:
            yield
        finally:
            sys.settrace(before)


def test_at_any_line():
    model, layer = _make(num_weights=3)
    model.fit(_X, _Y, batch_size=4, epochs=1, verbose=0)

    def fit():
        model.fit(_X, _Y, batch_size=4, epochs=2, verbose=0)

    counter = _Interrupter(10**9)
    with counter.active():
        fit()
    num_lines = 10**9 - counter.left
    assert num_lines > 500
    for number in range(1, num_lines, max(1, num_lines // 150)):
        with pytest.raises(KeyboardInterrupt), _Interrupter(number).active():
            fit()
        _check(model, layer)
        assert keras.distribution.distribution() is None and not rx.has_strategy()


def test_twice_in_a_row():
    """A second Ctrl-C while the first one's write-back is under way."""
    model, layer = _make()
    model.fit(_X, _Y, batch_size=4, epochs=1, verbose=0)
    written = []

    def interrupted_write(self, array):
        written.append(self)
        if len(written) in (5, 8, 12):
            raise KeyboardInterrupt
        write(self, array)

    write = DistributedVariable._write_replicated
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(DistributedVariable, "_write_replicated", interrupted_write)
        with pytest.raises(KeyboardInterrupt):
            model.fit(_X, _Y, batch_size=4, epochs=1, verbose=0)
    assert len(written) >= 8
    assert _check(model, layer) == 4
    model.fit(_X, _Y, batch_size=4, epochs=1, verbose=0)
    assert _check(model, layer) == 6


def test_in_the_first_step(monkeypatch):
    """JAX's first call of a program runs Python after it has donated the arguments."""
    model, layer = _make()
    donated, sent = [], []
    donate = DistributedVariable._donate

    def keep_donated(*args):
        donated.append(donate(*args))
        return donated[-1]

    monkeypatch.setattr(DistributedVariable, "_donate", keep_donated)

    def send(*_):
        if not sent and donated and donated[0].is_deleted():
            sent.append(True)
            signal.raise_signal(signal.SIGINT)

    sys.setprofile(send)
    try:
        with pytest.raises(KeyboardInterrupt):
            model.fit(_X, _Y, batch_size=4, epochs=1, verbose=0)
    finally:
        sys.setprofile(None)
    assert sent
    assert _check(model, layer) == 1


def test_values_that_a_failed_step_has_lost(tmp_path):
    model, layer = _make(num_weights=3)
    model.fit(_X, _Y, batch_size=4, epochs=1, verbose=0)
    model.save_weights(tmp_path / "saved.weights.h5")

    def fail(state, iterator):
        for group in state:
            for array in group:
                array.delete()
        raise FloatingPointError("the devices are out of memory")

    model.train_function = fail
    with pytest.raises(FloatingPointError):
        model.fit(_X, _Y, batch_size=4, epochs=1, verbose=0)
    with pytest.raises(rx.errors.VariableError, match=r"is lost: .* Load the weights that were saved last"):
        model.get_weights()
    model.load_weights(tmp_path / "saved.weights.h5")
    assert _check(model, layer) == 2


def test_interrupted_before_the_first_step():
    """Also if the clean-up is interrupted: the next access to a variable completes it."""
    model, layer = _make(num_weights=3)

    def interrupt(*_):
        raise KeyboardInterrupt

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(_run.Run, "write_back", lambda run: interrupt() if run._taken else None)
        model.make_train_function = lambda: setattr(model, "train_function", interrupt)
        with pytest.raises(KeyboardInterrupt):
            model.fit(_X, _Y, batch_size=4, epochs=1, verbose=0)
    assert _check(model, layer) == 0


def test_steps_are_traced_once_for_each_shape():
    traced = []

    class Step(keras.Sequential):
        def train_step(self, state, data):
            traced.append(data[0].shape[0])
            return super().train_step(state, data)

    with strategy_of_kind(2).scope():
        model = Step([keras.Input((2,)), keras.layers.Dense(1)])
        model.compile("adam", "mse")
    for _ in range(2):
        model.fit(_X[:7], _Y[:7], batch_size=4, epochs=2, verbose=0)
    assert traced == [4, 3]


def test_handlers_of_signals_are_restored_and_called_afterwards():
    calls = []
    before = {number: signal.getsignal(number) for number in signal.valid_signals()}
    old = signal.signal(signal.SIGUSR1, lambda *_: calls.append("USR1"))
    try:
        with pytest.raises(KeyboardInterrupt), _run.signals_deferred():
            signal.raise_signal(signal.SIGUSR1)
            signal.raise_signal(signal.SIGINT)
            assert not calls
        assert calls == ["USR1"]
    finally:
        signal.signal(signal.SIGUSR1, old)
    assert {number: signal.getsignal(number) for number in signal.valid_signals()} == before


def test_a_variable_that_is_moved():
    """A model from outside keeps its value if it is interrupted while it is moved into a scope."""
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(3)])
    expected = model.get_weights()
    with pytest.MonkeyPatch.context() as patch, strategy_of_kind(2).scope() as strategy:

        def interrupted(*args, **kwargs):
            raise KeyboardInterrupt

        patch.setattr(strategy, "create_variable", interrupted, raising=False)
        with pytest.raises(KeyboardInterrupt):
            model.predict(_X, verbose=0)
    np.testing.assert_array_equal(model.get_weights()[0], expected[0])


def test_values_that_were_read_stay_valid():
    model, layer = _make(num_weights=3)
    model.fit(_X, _Y, batch_size=4, epochs=1, verbose=0)
    value, read = layer.parts[0].value, layer.parts[1].replicax_variable.read_value()
    count = layer.count.value
    model.fit(_X, _Y, batch_size=4, epochs=1, verbose=0)
    assert float(value[0]) == float(read[0]) == -2 * _RATE and int(count) == 2


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_several_hundred_variables_of_a_megabyte():
    model, layer = _make(num_weights=200, shape=(256, 1024))
    model.fit(_X, _Y, batch_size=4, epochs=1, verbose=0)
    with pytest.raises(KeyboardInterrupt), _interrupted_after(1.0):
        model.fit(_X, _Y, batch_size=4, epochs=10_000, verbose=0)
    assert _check(model, layer) > 2
    model.evaluate(_X[:7], _Y[:7], batch_size=4, verbose=0)
    assert model.predict(_X[:7], batch_size=4, verbose=0).shape == (7, 1)
    model.fit(_X, _Y, batch_size=4, epochs=1, verbose=0)
    _check(model, layer)
