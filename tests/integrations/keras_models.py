"""Small Keras models, and what plain Keras makes of them on one device."""

import functools

import keras
import numpy as np

import replicax as rx

X = np.random.default_rng(0).normal(size=(10, 4)).astype(np.float32)
Y = (X @ np.array([[1.0], [-2.0], [3.0], [0.5]], np.float32) + 0.25).astype(np.float32)


def strategy_of_kind(kind):
    if kind == "one_device":
        return rx.OneDeviceStrategy("CPU:1")
    if kind == "central":
        return rx.CentralStorageStrategy(["CPU:1", "CPU:2"], parameter_device="CPU:0")
    return rx.MirroredStrategy([f"CPU:{i}" for i in range(kind)])


def make_model(kind="mlp", optimizer="sgd", seed=0, **options):
    keras.utils.set_random_seed(seed)
    # Made one by one: every layer takes the next of Keras' random seeds.
    layers = {
        "mlp": lambda: [],
        "bn": lambda: [keras.layers.BatchNormalization(momentum=0.7)],
        "dropout": lambda: [keras.layers.Dropout(0.5, seed=3)],
        "large": lambda: [keras.layers.Dense(512, activation="tanh") for _ in range(2)],  # a megabyte
        "wide": lambda: [
            keras.layers.Dense(512, activation="tanh"),
            keras.layers.BatchNormalization(momentum=0.7),
            keras.layers.Dropout(0.5, seed=3),
        ],
    }[kind]
    model = keras.Sequential(
        [keras.Input((4,)), keras.layers.Dense(5, activation="relu"), *layers(), keras.layers.Dense(1)]
    )
    made = {"sgd": keras.optimizers.SGD, "adam": keras.optimizers.Adam}[optimizer](0.05)
    model.compile(made, loss="mse", metrics=["mae"], **options)
    return model


def fit(model, **options):
    options = {"batch_size": 4, "epochs": 2, "shuffle": False, "verbose": 0, **options}
    return model.fit(X, Y, **options).history


def weights_of(model):
    return [np.asarray(v.value) for v in (*model.weights, *model.optimizer.variables)]


def report(model):
    """What `evaluate` and `predict` give."""
    evaluated = model.evaluate(X, Y, batch_size=4, verbose=0)
    return evaluated, model.predict(X[:5], batch_size=4, verbose=0)


@functools.cache
def _trained_by_one_device(kind, optimizer):
    model = make_model(kind, optimizer)
    return model, fit(model), weights_of(model)


def one_device(kind, optimizer):
    """The weights that plain Keras comes to."""
    return _trained_by_one_device(kind, optimizer)[2]


def one_device_history(kind, optimizer):
    return _trained_by_one_device(kind, optimizer)[1]


@functools.cache
def one_device_report(kind, optimizer):
    return report(_trained_by_one_device(kind, optimizer)[0])


def assert_same(ours, theirs, tolerance=1e-5):
    for a, b in zip(ours, theirs, strict=True):
        np.testing.assert_allclose(a, b, rtol=tolerance, atol=tolerance)
