"""`fit`, `evaluate` and `predict` read Replicax's datasets, and give the numbers of arrays."""

import contextlib
import gc
import warnings

import numpy as np
import pytest

keras = pytest.importorskip("keras")

import replicax as rx  # noqa: E402
import replicax.integrations.keras  # noqa: E402
from replicax import tf  # noqa: E402
from replicax.integrations.keras import _datasets  # noqa: E402

from .keras_models import (  # noqa: E402
    X,
    Y,
    assert_same,
    make_model,
    one_device,
    one_device_report,
    strategy_of_kind,
    weights_of,
)

pytestmark = [
    pytest.mark.filterwarnings("ignore:__array__ implementation doesn't accept:DeprecationWarning"),
    # What Keras says at the end of any input whose length it was not told.
    pytest.mark.filterwarnings("ignore:Your input ran out of data"),
]

WEIGHTS = np.arange(10, dtype=np.float32)
KINDS = pytest.mark.parametrize("kind", ["arrays", "files", "tf", "tf with unknown length"])


def _dataset(kind, arrays, tmp_path):
    """Batches of 4, 4 and 2 rows."""
    if kind == "arrays":
        return rx.from_arrays(arrays).batch(4)
    if kind == "files":
        for i, rows in enumerate([slice(7), slice(7, 10)]):
            np.savez(tmp_path / f"{i}.npz", *[array[rows] for array in arrays])
        return rx.from_files(tmp_path / "*.npz", _rows_of_file).batch(4)
    dataset = tf.data.Dataset.from_tensor_slices(arrays).batch(4).prefetch(2)
    return dataset if kind == "tf" else dataset.filter(lambda *_: True)


def _rows_of_file(path):
    with np.load(path) as arrays:
        return list(zip(*[arrays[name] for name in arrays.files], strict=True))


def _scope(num_replicas):
    return strategy_of_kind(num_replicas).scope() if num_replicas else contextlib.nullcontext()


@KINDS
@pytest.mark.parametrize("num_replicas", [None, 2, 3])
def test_the_numbers_of_arrays(kind, num_replicas, tmp_path):
    dataset = _dataset(kind, (X, Y), tmp_path)
    with _scope(num_replicas):
        ours = make_model("bn", "adam")
    ours.fit(dataset, epochs=2, verbose=0)
    assert_same(weights_of(ours), one_device("bn", "adam"))
    evaluated, predicted = one_device_report("bn", "adam")
    assert_same(ours.evaluate(dataset, verbose=0), evaluated)
    assert_same(ours.predict(dataset, verbose=0)[:5], predicted)


@pytest.mark.parametrize("num_replicas", [None, 2])
def test_validation_data_and_sample_weights(num_replicas, tmp_path):
    def trained(*args, **options):
        model = make_model("mlp", "sgd")
        return list(model.fit(*args, epochs=2, shuffle=False, verbose=0, **options).history.values())

    expected = trained(
        X, Y, batch_size=4, sample_weight=WEIGHTS, validation_data=(X[:6], Y[:6]), validation_batch_size=4
    )
    weighted = _dataset("tf", (X, Y, WEIGHTS), tmp_path)
    with _scope(num_replicas):
        found = trained(weighted, validation_data=rx.from_arrays((X[:6], Y[:6])).batch(4))
    assert_same(found, expected)


@pytest.mark.parametrize("y", [(Y > 0)[:, 0].astype(np.int64), (Y > 0).astype(np.float32)])
def test_class_weights(y):
    def trained(*args, **options):
        model = make_model("mlp", "sgd")
        return model.fit(*args, class_weight={0: 0.5, 1: 3.0}, verbose=0, shuffle=False, **options).history

    assert_same(trained(rx.from_arrays((X, y)).batch(4))["loss"], trained(X, y, batch_size=4)["loss"])
    with pytest.raises(rx.errors.InputError, match="Leave out `class_weight`"):
        trained(rx.from_arrays((X, y, WEIGHTS)).batch(4))


def test_inputs_only_and_inputs_by_name():
    with _scope(2):
        a, b = keras.Input((4,), name="a"), keras.Input((1,), name="b")
        model = keras.Model({"a": a, "b": b}, keras.layers.Concatenate()([a, b]))
    expected = np.concatenate([X, Y], axis=1)
    inputs = rx.from_arrays({"a": X, "b": Y})
    assert_same(model.predict(inputs.batch(4), verbose=0), expected)
    assert_same(make_model().predict(rx.from_arrays(X).batch(4), verbose=0).shape, (10, 1))


def test_wide_numbers_become_those_of_the_device():
    with _scope(2):
        ours = make_model("mlp", "sgd")
    ours.fit(tf.data.Dataset.from_tensor_slices((X.astype(np.float64), Y)).batch(4), epochs=2, verbose=0)
    assert_same(weights_of(ours), one_device("mlp", "sgd"))


@pytest.mark.parametrize("built", [True, False])
def test_each_pass_has_its_order_whether_or_not_keras_looks_first(built):
    dataset = tf.data.Dataset.from_tensor_slices((X, Y)).shuffle(10, seed=1).batch(4)
    orders = [[x[0, 0] for x, _ in dataset.as_numpy_iterator()] for _ in range(3)]
    seen = []

    class Noting(keras.Sequential):
        def train_step(self, state, data):
            seen.append(float(data[0][0, 0]))
            return super().train_step(state, data)

    with _scope(2):
        model = Noting([keras.Input((4,))] * built + [keras.layers.Dense(1)])
        model.compile("sgd", "mse", run_eagerly=True)
    model.fit(dataset, epochs=2, verbose=0)
    model.fit(dataset, verbose=0)
    assert_same(seen, np.concatenate(orders))


def test_passes_are_forgotten_with_the_dataset():
    gc.collect()
    before = len(_datasets._num_passes)
    dataset = rx.from_arrays((X, Y)).batch(4)
    make_model().evaluate(dataset, verbose=0)
    assert len(_datasets._num_passes) == before + 1
    del dataset
    gc.collect()
    assert len(_datasets._num_passes) == before


@KINDS
def test_the_length_gives_the_steps(kind, tmp_path):
    class Steps(keras.callbacks.Callback):
        def on_train_begin(self, logs=None):
            steps.append(self.params["steps"])

    steps = []
    make_model().fit(_dataset(kind, (X, Y), tmp_path), callbacks=[Steps()], verbose=0)
    assert steps == [3 if kind in ("arrays", "tf") else None]


def test_a_known_length_ends_without_a_warning():
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        make_model().fit(rx.from_arrays((X, Y)).batch(4), epochs=2, verbose=0)


def test_an_endless_dataset_with_steps():
    with _scope(2):
        ours = make_model("mlp", "sgd")
    ours.fit(rx.from_arrays((X, Y)).batch(4).repeat(), epochs=2, steps_per_epoch=3, verbose=0)
    assert_same(weights_of(ours), one_device("mlp", "sgd"))


def test_several_steps_at_once():
    with _scope(2):
        ours = make_model("mlp", "sgd", steps_per_execution=2)
    ours.fit(rx.from_arrays((X, Y)).batch(4), epochs=2, verbose=0)
    assert_same(weights_of(ours), one_device("mlp", "sgd"))


def test_functions_of_the_dataset_see_no_strategy():
    seen = []

    def noting(x, y):
        seen.append(rx.has_strategy())
        return x, y

    with _scope(2):
        make_model().fit(tf.data.Dataset.from_tensor_slices((X, Y)).map(noting).batch(4), verbose=0)
    assert seen and not any(seen)


@pytest.mark.parametrize(
    "dataset",
    [
        rx.from_arrays((X, Y)),
        tf.data.Dataset.from_tensor_slices((X, Y)),
        tf.data.Dataset.from_tensor_slices((X, Y[:, 0])),
    ],
)
def test_single_examples_are_refused(dataset):
    for run in ("fit", "evaluate", "predict"):
        with pytest.raises(rx.errors.InputError, match=r"\.batch\("):
            getattr(make_model(), run)(dataset, verbose=0)


def test_distributed_datasets_are_refused():
    strategy = strategy_of_kind(2)
    with strategy.scope():
        model = make_model()
    distributed = strategy.distribute_dataset(rx.from_arrays((X, Y)).batch(4))
    for data in (distributed, iter(distributed)):
        with pytest.raises(rx.errors.InputError, match="Pass the dataset that you passed to"):
            model.fit(data, verbose=0)


def test_values_per_replica_are_refused():
    strategy = strategy_of_kind(2)
    with strategy.scope():
        model = make_model()
    parts = strategy.distribute_values_from_function(lambda context: X)
    with pytest.raises(rx.errors.InputError, match="Got a PerReplica"):
        model.predict(parts, verbose=0)
    with pytest.raises(rx.errors.InputError, match="Got a PerReplica"):
        model.fit(X, parts, verbose=0)


def test_empty_datasets_are_refused():
    rows = rx.from_arrays((X, Y))
    with pytest.raises(rx.errors.InputError, match="no batches"):
        make_model().fit(rows.batch(20, drop_remainder=True), verbose=0)
    unknown = tf.data.Dataset.from_tensor_slices((X, Y)).filter(lambda x, y: False).batch(4)
    for run in ("fit", "evaluate", "predict"):
        with pytest.raises(rx.errors.InputError, match="no batches"):
            getattr(make_model(), run)(unknown, verbose=0)


@pytest.mark.parametrize("extra", ["y", "sample_weight"])
def test_targets_beside_a_dataset_are_refused(extra):
    with pytest.raises(rx.errors.InputError, match=f"Leave out `{extra}`"):
        make_model().fit(rx.from_arrays((X, Y)).batch(4), **{extra: Y}, verbose=0)
