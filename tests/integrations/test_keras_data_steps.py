"""`train_step(self, data)` and similar steps, as TensorFlow's Keras has them."""

import functools

import numpy as np
import pytest

keras = pytest.importorskip("keras")

import replicax as rx  # noqa: E402
import replicax.integrations.keras  # noqa: E402

from .keras_models import assert_same, fit, report, strategy_of_kind  # noqa: E402


class _OfData(keras.Sequential):
    def train_step(self, data):
        x, y, _ = keras.utils.unpack_x_y_sample_weight(data)
        with rx.GradientTape() as tape:
            predicted = self(x, training=True)
            loss = self.compute_loss(x=x, y=y, y_pred=predicted)
        gradients = tape.gradient(loss, self.trainable_variables)
        self.optimizer.apply_gradients(zip(gradients, self.trainable_variables, strict=True))
        self._loss_tracker.update_state(loss, sample_weight=x.shape[0])
        return self.compute_metrics(x, y, predicted)


class _OfKeras(keras.Sequential):
    def train_step(self, data):
        return super().train_step(data)

    def test_step(self, data):
        return super().test_step(data)

    def predict_step(self, data):
        return super().predict_step(data)


def _made(kind):
    keras.utils.set_random_seed(0)
    model = kind(
        [
            keras.Input((4,)),
            keras.layers.Dense(5, activation="tanh", kernel_regularizer="l2"),
            keras.layers.BatchNormalization(momentum=0.7),
            keras.layers.Dropout(0.5, seed=3),
            keras.layers.Dense(1),
        ]
    )
    model.compile(keras.optimizers.Adam(0.05), "mse", metrics=["mae"])
    return model


def _results(model):
    history = fit(model, epochs=1)
    state = [np.asarray(v.value) for v in (*model.variables, *model.optimizer.variables)]
    return [history["loss"], history["mae"], *state]


@functools.cache
def _expected():
    return _results(_made(keras.Sequential))


@pytest.mark.parametrize("kind", [_OfData, _OfKeras])
def test_they_give_what_keras_gives(kind):
    with strategy_of_kind(2).scope():
        model = _made(kind)
    assert_same(_results(model), _expected())


def test_evaluate_and_predict():
    (evaluated, predicted), (expected, others) = report(_made(_OfKeras)), report(_made(keras.Sequential))
    assert_same([*evaluated, *predicted], [*expected, *others])


@pytest.mark.parametrize("kind", [_OfData, _OfKeras])
def test_without_a_scope(kind):
    assert_same(_results(_made(kind)), _expected())


@pytest.mark.parametrize("options", [{"run_eagerly": True}, {"steps_per_execution": 2}], ids=str)
def test_with_other_ways_to_run(options):
    def trained(kind):
        with strategy_of_kind(3).scope():
            model = _made(kind)
            model.compile(keras.optimizers.Adam(0.05), "mse", metrics=["mae"], **options)
        return _results(model)

    assert_same(trained(_OfData), trained(keras.Sequential))


def test_a_step_of_a_base_class():
    class Derived(_OfData):
        def train_step(self, data):
            return {**super().train_step(data), "twice": 2.0}

    model = _made(Derived)
    assert fit(model, epochs=1)["twice"] == [2.0]


def test_an_optimizer_that_keras_does_not_keep_is_refused():
    class TwoOptimizers(keras.Sequential):
        def train_step(self, data):
            x, y = data
            with rx.GradientTape() as tape:
                loss = self.compute_loss(x=x, y=y, y_pred=self(x, training=True))
            gradients = tape.gradient(loss, self.trainable_variables)
            self.other.apply_gradients(zip(gradients, self.trainable_variables, strict=True))
            return {"loss": loss}

    model = TwoOptimizers([keras.Input((4,)), keras.layers.Dense(1)])
    model.other = keras.optimizers.SGD(0.1)
    model.other.build(model.trainable_variables)
    model.compile("sgd", "mse")
    with pytest.raises(RuntimeError, match=r"train_step.*writes \['sgd.*iteration.*`model.optimizer`"):
        fit(model)
