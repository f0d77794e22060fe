"""`fit`, `evaluate` and `predict` give the numbers of one device, also where others are known to fail."""

import contextlib
import json

import jax
import numpy as np
import pytest

keras = pytest.importorskip("keras")

import replicax as rx  # noqa: E402
import replicax.integrations.keras  # noqa: E402
from replicax.integrations.keras import DistributedVariable, _executions, strategy_of  # noqa: E402

from .keras_models import (  # noqa: E402
    X,
    Y,
    assert_same,
    fit,
    make_model,
    one_device,
    one_device_history,
    one_device_report,
    report,
    strategy_of_kind,
    weights_of,
)

# Keras' own: NumPy asks its variables for more than they know.
pytestmark = pytest.mark.filterwarnings("ignore:__array__ implementation doesn't accept:DeprecationWarning")


@pytest.mark.parametrize("kind", [1, 2, 3])
@pytest.mark.parametrize(("model", "optimizer"), [("mlp", "adam"), ("bn", "adam"), ("dropout", "sgd")])
def test_ten_rows_in_batches_of_four(model, optimizer, kind):
    with strategy_of_kind(kind).scope():
        ours = make_model(model, optimizer)
    history = fit(ours)  # outside of the scope, as everything after it
    for name, values in one_device_history(model, optimizer).items():
        np.testing.assert_allclose(history[name], values, rtol=1e-5)
    assert_same(weights_of(ours), one_device(model, optimizer))
    if optimizer == "adam" and kind > 1:
        (evaluated, predicted), expected = report(ours), one_device_report(model, optimizer)
        assert_same(evaluated, expected[0])
        assert predicted.shape == (5, 1)
        assert_same(predicted, expected[1])


@pytest.mark.parametrize("kind", ["one_device", "central"])
def test_other_strategies(kind):
    strategy = strategy_of_kind(kind)
    with strategy.scope():
        ours = make_model("bn", "adam")
    fit(ours)
    assert_same(weights_of(ours), one_device("bn", "adam"))
    kernel = ours.trainable_variables[0].replicax_variable
    assert kernel.device == (strategy.parameter_device or kernel.device)
    assert kernel.read_value().devices() == {jax.devices()[1 if kind == "one_device" else 0]}


def test_inside_of_the_scope():
    with strategy_of_kind(2).scope():
        ours = make_model("mlp", "sgd")
        fit(ours)
        assert len(ours.evaluate(X, Y, batch_size=4, verbose=0)) == 2
    assert_same(weights_of(ours), one_device("mlp", "sgd"))


def test_work_is_divided_if_the_batch_is():
    seen = []

    class Step(keras.Sequential):
        def train_step(self, state, data):
            jax.debug.inspect_array_sharding(data[0], callback=seen.append)
            return super().train_step(state, data)

    with strategy_of_kind(2).scope():
        model = Step([keras.Input((4,)), keras.layers.Dense(1)])
        model.compile("sgd", "mse")
    model.fit(X, Y, batch_size=4, epochs=1, verbose=0, shuffle=False)
    parts = {sharding.shard_shape((4, 4)) for sharding in seen}
    assert (2, 4) in parts


def test_run_eagerly():
    def trained():
        keras.utils.set_random_seed(0)
        model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
        model.compile("sgd", "mse", run_eagerly=True)
        return [model.fit(X[:4], Y[:4], batch_size=4, verbose=0).history["loss"], *model.get_weights()]

    expected = trained()
    with strategy_of_kind(2).scope():
        assert_same(trained(), expected)


def test_batch_norm_sees_the_whole_batch():
    rows = np.arange(32.0, dtype=np.float32).reshape(8, 4)
    with strategy_of_kind(2).scope():
        layer = keras.layers.BatchNormalization(momentum=0.5)
        model = keras.Sequential([keras.Input((4,)), layer, keras.layers.Dense(1)])
        model.compile(keras.optimizers.SGD(1e-4), "mse")
    model.fit(rows, rows.sum(1), batch_size=4, shuffle=False, verbose=0)
    # What TensorFlow has on both of two replicas with BatchNormalization(synchronized=True).
    assert_same([layer.moving_mean.value], [[12.5, 13.25, 14.0, 14.75]])


def test_mixed_precision():
    def trained():
        keras.utils.set_random_seed(0)
        dense = keras.layers.Dense(1, dtype="mixed_float16")
        model = keras.Sequential([keras.Input((4,)), dense])
        model.compile(keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD(0.01)), "mse")
        return [fit(model)["loss"], *weights_of(model)]

    expected = trained()
    with strategy_of_kind(2).scope():
        assert_same(trained(), expected, tolerance=1e-3)


def test_several_steps_at_once_equal_as_many_alone_bit_for_bit(monkeypatch):
    """Ten rows in batches of two make three steps, then two; of batches of four, the last is alone."""
    counts = []
    scan_calls = _executions.scan_calls

    def counting(step, state, batches):
        counts.append(len(batches))
        return scan_calls(step, state, batches)

    monkeypatch.setattr(_executions, "scan_calls", counting)

    def trained(steps_per_execution):
        with strategy_of_kind(2).scope():
            ours = make_model("wide", "adam", steps_per_execution=steps_per_execution)
        history = fit(ours, batch_size=2, validation_data=(X, Y), validation_batch_size=4)
        return history, ours.predict(X, batch_size=4, verbose=0), weights_of(ours)

    alone = trained(1)
    assert not counts
    jax.tree.map(np.testing.assert_array_equal, trained(3), alone)
    assert set(counts) == {2, 3}


def test_several_steps_at_once_are_those_of_one_device():
    with strategy_of_kind(2).scope():
        ours = make_model("mlp", "sgd", steps_per_execution=3)
    fit(ours)
    assert_same(weights_of(ours), one_device("mlp", "sgd"))


def test_compiled_outside_of_the_scope_with_an_optimizer_from_outside():
    with strategy_of_kind(2).scope():
        ours = make_model("mlp", "adam")
    ours.compile(keras.optimizers.Adam(0.05), loss="mse", metrics=["mae"])
    fit(ours)
    assert_same(weights_of(ours), one_device("mlp", "adam"))
    assert all(isinstance(v, DistributedVariable) for v in ours.optimizer.variables)


@pytest.mark.filterwarnings("error:Detected a mix of local")
@pytest.mark.parametrize(
    ("metric", "where"), [("AUC", "outside"), ("BinaryAccuracy", "before"), ("BinaryAccuracy", "weighted")]
)
def test_metrics_from_outside_of_the_scope(metric, where):
    labels = (Y > 0).astype(np.float32)

    def trained(strategy):
        keras.utils.set_random_seed(0)
        scope = strategy.scope if strategy else contextlib.nullcontext
        found = getattr(keras.metrics, metric)(name="found")
        with scope():
            model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1, "sigmoid")])
            if where == "before":
                model.compile("adam", "binary_crossentropy", metrics=[found])
        if where != "before":
            kind = "weighted_metrics" if where == "weighted" else "metrics"
            model.compile("adam", "binary_crossentropy", **{kind: [found]})
        options = {"batch_size": 4, "verbose": 0}
        evaluated = model.evaluate(X, labels, **options)
        history = model.fit(X, labels, shuffle=False, validation_data=(X, labels), epochs=2, **options)
        on_batch = model.train_on_batch(X, labels)
        return [evaluated, history.history["found"], history.history["val_found"], on_batch]

    assert_same(trained(strategy_of_kind(2)), trained(None))


def test_a_model_from_outside_becomes_the_strategys_in_its_scope():
    strategy = strategy_of_kind(2)
    ours = make_model("mlp", "adam")
    first = ours.fit(X, Y, batch_size=4, epochs=1, shuffle=False, verbose=0)  # plain Keras
    assert strategy_of(ours) is None and len(first.history["loss"]) == 1
    with strategy.scope():
        ours.fit(X, Y, batch_size=4, epochs=1, shuffle=False, verbose=0)
    assert strategy_of(ours) is strategy
    assert_same(weights_of(ours), one_device("mlp", "adam"))
    with pytest.raises(rx.errors.ContextError, match="Only one strategy"), strategy_of_kind(3).scope():
        fit(ours)


@pytest.mark.parametrize("name", ["compile", "fit", "predict"])
def test_methods_for_all_replicas_are_refused_in_steps(name):
    strategy = strategy_of_kind(2)
    with strategy.scope():
        ours = make_model("mlp", "sgd")

    def call():
        getattr(ours, name)(*(() if name == "compile" else (X,)))

    with pytest.raises(rx.errors.ContextError, match=f"`{name}` of .* was called in a replica function"):
        strategy.run(call)
    with pytest.raises(rx.errors.ContextError, match=f"`{name}` of .* that is being compiled"):
        rx.function(call)()


def test_a_model_of_two_strategies_is_refused():
    with strategy_of_kind(2).scope():
        layer = keras.layers.Dense(1)
        layer.build((None, 4))
    with strategy_of_kind(3).scope():
        model = keras.Sequential([keras.Input((4,)), layer])
        model.compile("sgd", "mse")
    with pytest.raises(rx.errors.ContextError, match="was created in the scope of another strategy"):
        fit(model)


def test_a_model_that_is_built_by_fit():
    strategy = strategy_of_kind(2)
    keras.utils.set_random_seed(0)
    with strategy.scope():
        model = keras.Sequential([keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    fit(model)
    assert all(isinstance(v, DistributedVariable) for v in (*model.weights, *model.optimizer.variables))
    assert model.weights[0].replicax_variable.distribute_strategy is strategy


def test_weights_of_samples_and_classes():
    labels = (Y[:, 0] > 0).astype(np.int32)

    def trained(**options):
        keras.utils.set_random_seed(0)
        model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(2, activation="softmax")])
        model.compile("sgd", "sparse_categorical_crossentropy", weighted_metrics=["accuracy"])
        history = model.fit(X, labels, batch_size=5, epochs=2, shuffle=False, verbose=0, **options).history
        return [*model.get_weights(), history["loss"], history["accuracy"]]

    for options in ({"class_weight": {0: 1.0, 1: 3.0}}, {"sample_weight": np.arange(10, dtype=np.float32)}):
        expected = trained(**options)
        with strategy_of_kind(3).scope():
            assert_same(trained(**options), expected)


class _Rows(keras.utils.PyDataset):
    def __len__(self):
        return 3

    def __getitem__(self, index):
        return X[index * 4 : index * 4 + 4], Y[index * 4 : index * 4 + 4]


def _generator():
    while True:
        for i in range(3):
            yield _Rows()[i]


def test_input_in_other_forms():
    expected = one_device("mlp", "sgd")
    for data, options in ((_Rows(), {}), (_generator(), {"steps_per_epoch": 3})):
        with strategy_of_kind(2).scope():
            ours = make_model("mlp", "sgd")
        ours.fit(data, epochs=2, shuffle=False, verbose=0, **options)
        assert_same(weights_of(ours), expected)


def test_validation_and_what_callbacks_see():
    class Keep(keras.callbacks.Callback):
        def __init__(self):
            super().__init__()
            self.epochs, self.batches, self.kernels = [], [], []

        def on_train_batch_end(self, batch, logs=None):
            self.batches.append(logs["loss"])
            self.kernels.append(np.array(self.model.weights[0]))

        def on_epoch_end(self, epoch, logs=None):
            self.epochs.append(dict(logs))

    def trained():
        model, keep = make_model("mlp", "sgd"), Keep()
        history = fit(model, validation_data=(X[:7], Y[:7]), callbacks=[keep])
        assert [logs["val_loss"] for logs in keep.epochs] == history["val_loss"]
        return [*keep.kernels, *keep.batches, *(list(logs.values()) for logs in keep.epochs)]

    expected = trained()
    with strategy_of_kind(2).scope():
        assert_same(trained(), expected)


def test_the_progress_bar(capsys):
    with strategy_of_kind(2).scope():
        ours = make_model("mlp", "sgd")
    fit(ours, verbose=1, epochs=1)
    assert "3/3" in capsys.readouterr().out


def test_backup_and_restore(tmp_path):
    class Stop(keras.callbacks.Callback):
        def on_epoch_begin(self, epoch, logs=None):
            if epoch == 1:
                raise KeyboardInterrupt

    def backup():
        return keras.callbacks.BackupAndRestore(tmp_path / "backup")

    strategy = strategy_of_kind(2)
    with strategy.scope():
        first = make_model("mlp", "adam")
    with pytest.raises(KeyboardInterrupt):
        fit(first, callbacks=[backup(), Stop()])
    with strategy.scope():
        second = make_model("mlp", "adam")
    history = fit(second, callbacks=[backup()])
    assert len(history["loss"]) == 1
    assert_same(weights_of(second), one_device("mlp", "adam"))


def test_saved_and_loaded_under_another_strategy(tmp_path):
    with strategy_of_kind(2).scope():
        first = make_model("bn", "adam")
    fit(first, epochs=1)
    first.save(tmp_path / "model.keras")
    first.save_weights(tmp_path / "model.weights.h5")
    with strategy_of_kind(3).scope():
        second = keras.models.load_model(tmp_path / "model.keras")
        third = make_model("bn", "adam")
        third.optimizer.build(third.trainable_variables)
    assert strategy_of(second).num_replicas_in_sync == 3
    fit(second, epochs=1)
    assert_same(weights_of(second), one_device("bn", "adam"))
    third.load_weights(tmp_path / "model.weights.h5")
    assert_same(third.get_weights(), first.get_weights(), tolerance=1e-6)
    plain = keras.models.load_model(tmp_path / "model.keras")
    assert_same(plain.get_weights(), first.get_weights(), tolerance=1e-6)


def test_methods_for_one_batch():
    def trained():
        model = make_model("mlp", "sgd")
        return [
            *model.train_on_batch(X[:4], Y[:4]),
            *model.train_on_batch(X[4:7], Y[4:7], sample_weight=np.ones(3)),
            *model.test_on_batch(X[:3], Y[:3]),
            model.predict_on_batch(X[:4]),
            *weights_of(model),
        ]

    expected = trained()
    with strategy_of_kind(2).scope():
        assert_same(trained(), expected)


def test_a_training_step_of_ones_own():
    def trained():
        class Custom(keras.Sequential):
            def train_step(self, state, data):
                logs, state = super().train_step(state, data)
                return {**logs, "twice": 2 * logs["loss"]}, state

        keras.utils.set_random_seed(0)
        model = Custom([keras.Input((4,)), keras.layers.Dense(1)])
        model.compile("adam", "mse")
        history = fit(model, batch_size=6)  # 6 rows for three devices, and then 4
        return [*model.get_weights(), history["loss"]]

    expected = trained()
    with strategy_of_kind(3).scope():
        assert_same(trained(), expected)


def test_functional_models_and_shared_layers():
    def trained():
        keras.utils.set_random_seed(0)
        shared = keras.layers.Dense(3)
        a, b = keras.Input((4,), name="a"), keras.Input((4,), name="b")
        joined = keras.layers.Concatenate()([shared(a), shared(b)])
        model = keras.Model([a, b], {"y": keras.layers.Dense(1, name="y")(joined)})
        model.compile("sgd", {"y": "mse"})
        model.fit({"a": X, "b": -X}, {"y": Y}, batch_size=5, shuffle=False, verbose=0)
        return [*model.get_weights(), model.predict({"a": X[:5], "b": X[:5]}, batch_size=5, verbose=0)["y"]]

    expected = trained()
    with strategy_of_kind(2).scope():
        assert_same(trained(), expected)


def test_gradients_accumulated_averages_kept_and_weights_constrained():
    def trained():
        keras.utils.set_random_seed(0)
        layer = keras.layers.Dense(1, kernel_constraint="non_neg", kernel_regularizer="l2")
        model = keras.Sequential([keras.Input((4,)), layer])
        model.compile(keras.optimizers.SGD(0.1, gradient_accumulation_steps=2, use_ema=True), "mse")
        fit(model)
        return weights_of(model)

    expected = trained()
    with strategy_of_kind(2).scope():
        assert_same(trained(), expected)


def test_early_stopping_and_checkpoints_of_keras(tmp_path):
    with strategy_of_kind(2).scope():
        ours = make_model("mlp", "sgd")
    stop = keras.callbacks.EarlyStopping("loss", mode="max", patience=0, restore_best_weights=True)
    keep = keras.callbacks.ModelCheckpoint(tmp_path / "{epoch}.weights.h5", save_weights_only=True)
    slower = keras.callbacks.LearningRateScheduler(lambda epoch, rate: rate / 2)
    history = fit(ours, epochs=5, callbacks=[stop, keep, slower])
    assert len(history["loss"]) == 2
    assert history["learning_rate"] == pytest.approx([0.025, 0.0125])
    assert sorted(path.name for path in tmp_path.iterdir()) == ["1.weights.h5", "2.weights.h5"]


def test_configurations_do_not_mention_the_strategy():
    plain = make_model("bn", "adam")
    with strategy_of_kind(2).scope():
        ours = make_model("bn", "adam")
    names = [layer.name for layer in plain.layers]
    assert ours.__class__ is plain.__class__
    assert len(json.dumps(ours.get_config())) > 0 and len(names) == len(ours.layers)


def test_plain_keras_is_left_alone():
    model = make_model("mlp", "sgd")
    fit(model)
    assert type(model.weights[0]) is keras.Variable
    assert keras.distribution.distribution() is None
    assert strategy_of(model) is None


def test_a_step_that_fails_does_not_lose_the_weights():
    class Failing(keras.Sequential):
        fails = True

        def train_step(self, state, data):
            if self.fails:
                raise KeyError("a mistake")
            return super().train_step(state, data)

    with strategy_of_kind(2).scope():
        model = Failing([keras.Input((4,)), keras.layers.Dense(1)])
        model.compile("sgd", "mse")
    before = model.get_weights()
    with pytest.raises(KeyError):
        fit(model)
    assert_same(model.get_weights(), before)
    model.fails, model.train_function = False, None
    fit(model)
    assert not np.array_equal(model.get_weights()[0], before[0])


def test_nothing_is_left_behind_by_a_fit_that_fails():
    with strategy_of_kind(2).scope():
        ours = make_model("mlp", "sgd")
    with pytest.raises(ValueError):
        ours.fit(X[:, :3], Y, verbose=0)
    assert keras.distribution.distribution() is None
    assert not rx.has_strategy()
    fit(ours)
    assert_same(weights_of(ours), one_device("mlp", "sgd"))
