"""`rx.GradientTape` against `rx.value_and_grad` on Keras models with batch normalization and dropout."""

import jax
import numpy as np
import pytest

keras = pytest.importorskip("keras")

import replicax as rx  # noqa: E402
import replicax.integrations.keras  # noqa: E402

from .keras_models import X, Y, assert_same, strategy_of_kind  # noqa: E402


def _model():
    keras.utils.set_random_seed(0)
    return keras.Sequential(
        [
            keras.Input((4,)),
            keras.layers.Dense(5, activation="tanh", kernel_regularizer="l2"),
            keras.layers.BatchNormalization(momentum=0.7),
            keras.layers.Dropout(0.5, seed=3),
            keras.layers.Dense(1),
        ]
    )


def _loss(model, x, y):
    losses = keras.losses.MeanSquaredError(reduction="none")(y, model(x, training=True))
    return rx.compute_average_loss(losses) + rx.scale_regularization_loss(sum(model.losses))


def _with_tape(model, x, y):
    with rx.GradientTape() as tape:
        loss = _loss(model, x, y)
    return loss, tape.gradient(loss, model.trainable_variables)


def _with_function(model, x, y):
    return rx.value_and_grad(lambda: _loss(model, x, y), model.trainable_variables)()


def _trained(gradients, strategy, compiled, steps=2):
    """The losses and gradients of each replica, and all variables in the end."""
    with strategy.scope():
        model, optimizer = _model(), keras.optimizers.Adam(0.05)
        optimizer.build(model.trainable_variables)

    def replica_step(x, y):
        loss, found = gradients(model, x, y)
        optimizer.apply_gradients(zip(found, model.trainable_variables, strict=True))
        return loss, found

    step = lambda x, y: strategy.run(replica_step, args=(x, y))  # noqa: E731
    step = rx.function(step) if compiled else step
    batches = list(strategy.distribute_dataset(rx.from_arrays((X[:6], Y[:6])).batch(6)))
    results = [jax.tree.map(np.asarray, strategy.local_results(step(*batches[0]))) for _ in range(steps)]
    state = [np.asarray(v.value) for v in (*model.variables, *optimizer.variables)]
    return jax.tree.leaves([results, state])


@pytest.mark.parametrize(
    ("kind", "compiled"),
    [
        ("one_device", True),
        pytest.param("one_device", False, marks=pytest.mark.long),
        (2, False),
        (2, True),
        pytest.param(3, False, marks=pytest.mark.long),
        pytest.param(3, True, marks=pytest.mark.long),
        ("central", True),
    ],
)
def test_a_tape_gives_what_value_and_grad_gives(kind, compiled):
    ours = _trained(_with_tape, strategy_of_kind(kind), compiled)
    assert_same(ours, _trained(_with_function, strategy_of_kind(kind), compiled))


def test_without_a_scope():
    """The variables are plain ones of Keras; a tape watches them, too."""
    model = _model()
    with rx.GradientTape() as tape:
        loss = _loss(model, X, Y)
    found = tape.gradient(loss, model.trainable_variables)
    expected, gradients = _with_function(_model(), X, Y)
    assert_same([loss, *found], [expected, *gradients])


def test_of_a_layer_that_is_not_used():
    used, unused = keras.layers.Dense(1), keras.layers.Dense(1)
    for layer in (used, unused):
        layer.build((None, 4))
    with rx.GradientTape() as tape:
        loss = used(X).sum()
    gradient, none = tape.gradient(loss, [used.kernel, unused.kernel])
    assert_same([gradient[:, 0]], [X.sum(axis=0)])
    assert none is None
