"""Keras' layers, losses, metrics and optimizers in loops of one's own, inside of `strategy.run`."""

import sys

import jax.numpy as jnp
import numpy as np
import optax
import pytest

keras = pytest.importorskip("keras")

import replicax as rx  # noqa: E402
import replicax.integrations.keras  # noqa: E402
from replicax.integrations.keras import DistributedVariable, require_keras  # noqa: E402

from .keras_models import X, Y, assert_same, make_model, one_device, strategy_of_kind  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore:__array__ implementation doesn't accept:DeprecationWarning")

MODES = pytest.mark.parametrize("compiled", [False, True], ids=["eager", "compiled"])


def _replica_id():
    return rx.get_replica_context().replica_id_in_sync_group


def _train(strategy, model, optimizer, compiled, epochs=2):
    """Two epochs in batches of four: 4, 4 and 2 rows."""
    loss_fn = keras.losses.MeanSquaredError(reduction="none")

    def replica_step(x, y):
        def loss(x, y):
            return rx.compute_average_loss(loss_fn(y, model(x, training=True)))

        value, gradients = rx.value_and_grad(loss, model.trainable_variables)(x, y)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
        return value

    def step(x, y):
        return strategy.reduce("SUM", strategy.run(replica_step, args=(x, y)), axis=None)

    step = rx.function(step) if compiled else step
    dataset = strategy.distribute_dataset(rx.from_arrays((X, Y)).batch(4))
    return [float(step(*batch)) for _ in range(epochs) for batch in dataset]


@pytest.mark.parametrize(
    ("kind", "compiled"),
    [(2, False), (2, True), (3, True), ("central", True), ("one_device", True)],
)
def test_a_loop_with_keras_optimizer_equals_fit(kind, compiled):
    strategy = strategy_of_kind(kind)
    with strategy.scope():
        model = make_model("mlp", "adam")
    _train(strategy, model, model.optimizer, compiled)
    expected = one_device("mlp", "adam")
    assert_same([np.array(v) for v in (*model.weights, *model.optimizer.variables)], expected)


@MODES
def test_a_loop_with_rx_optimizer_equals_fit(compiled):
    strategy = strategy_of_kind(2)
    with strategy.scope():
        model, optimizer = make_model("mlp", "sgd"), rx.Optimizer(optax.sgd(0.05))
    losses = _train(strategy, model, optimizer, compiled)
    assert losses[-1] < losses[0]
    assert_same(model.get_weights(), one_device("mlp", "sgd")[: len(model.weights)])


def test_a_model_that_is_built_by_its_shape():
    strategy = strategy_of_kind(2)
    with strategy.scope():
        model, optimizer = keras.Sequential([keras.layers.Dense(1)]), keras.optimizers.SGD(0.05)
        model.build((None, 4))
    losses = _train(strategy, model, optimizer, compiled=True)
    assert losses[-1] < losses[0]


@MODES
def test_batch_norm_on_a_replica_without_rows(compiled):
    strategy = strategy_of_kind(3)
    with strategy.scope():
        model = make_model("bn", "sgd")
    assert np.isfinite(_train(strategy, model, model.optimizer, compiled)).all()  # 4, 4 and 2 rows
    assert all(np.isfinite(w).all() for w in model.get_weights())
    averages = model.layers[1].moving_mean.replicax_variable
    before = [np.array(part) for part in strategy.local_results(averages)]

    def replica_step(x):
        return model(x, training=True)

    step = lambda x: strategy.run(replica_step, args=(x,))  # noqa: E731
    (batch,) = strategy.distribute_dataset([X[:2]])
    results = strategy.local_results((rx.function(step) if compiled else step)(batch))
    assert [part.shape for part in results] == [(1, 1), (1, 1), (0, 1)]
    after = [np.array(part) for part in strategy.local_results(averages)]
    assert [np.array_equal(a, b) for a, b in zip(after, before, strict=True)] == [False, False, True]


def test_batch_norm_of_nothing_outside_of_replicas_is_keras_own():
    layer = keras.layers.BatchNormalization()
    assert layer(np.ones((0, 4), np.float32), training=True).shape == (0, 4)
    assert np.isnan(layer.moving_mean.value).all()


@MODES
def test_an_optimizer_whose_slots_begin_with_python_numbers(compiled):
    strategy = strategy_of_kind(2)
    with strategy.scope():
        model = make_model("mlp", "sgd")
        optimizer = keras.optimizers.Adafactor(0.01)  # makes `Variable(0)` in its `build`
    plain = make_model("mlp", "sgd")
    plain.compile(keras.optimizers.Adafactor(0.01), "mse")
    plain.fit(X, Y, batch_size=4, epochs=2, shuffle=False, verbose=0)
    _train(strategy, model, optimizer, compiled)
    assert_same(model.get_weights(), plain.get_weights(), tolerance=1e-4)


def test_slots_stay_equal_and_are_made_once():
    strategy = strategy_of_kind(2)
    with strategy.scope():
        w = keras.Variable(np.ones(2, np.float32), name="w")
        optimizer = keras.optimizers.Adam(0.1)

    def replica_step():
        optimizer.apply_gradients([(jnp.full(2, 1.0) * (_replica_id() + 1), w)])

    strategy.run(replica_step)
    strategy.run(replica_step)
    assert int(optimizer.iterations) == 2
    for variable in (w, *optimizer.variables):
        first, second = strategy.local_results(variable.replicax_variable)
        assert np.array_equal(first, second)
    momentum = next(v for v in optimizer.variables if "momentum" in v.path)
    assert momentum.replicax_variable.aggregation is rx.VariableAggregation.ONLY_FIRST_REPLICA
    assert_same([momentum], [3 * (0.1 * 0.9 + 0.1) * np.ones(2)])  # 1 + 2, twice


def test_gradients_are_added_and_none_is_left_out():
    strategy = strategy_of_kind(2)
    with strategy.scope():
        a, b = keras.Variable(np.float32(1)), keras.Variable(np.float32(5))
        optimizer = keras.optimizers.SGD(1.0)
        optimizer.build([a, b])
    with pytest.warns(UserWarning, match="Gradients do not exist"):
        strategy.run(lambda: optimizer.apply([_replica_id() + 1.0, None], [a, b]))
    assert float(a) == -2 and float(b) == 5


@MODES
def test_metrics(compiled):
    strategy = strategy_of_kind(3)
    with strategy.scope():
        mean, accuracy = keras.metrics.Mean(), keras.metrics.SparseCategoricalAccuracy()

    def replica_fn():
        mean.update_state(jnp.array([1.0, 2.0]) * (_replica_id() + 1))
        accuracy.update_state(jnp.array([0]), jnp.array([[0.9, 0.1]]))

    def step():
        strategy.run(replica_fn)

    step = rx.function(step) if compiled else step
    step()
    step()
    assert float(mean.result()) == pytest.approx(3.0)
    assert float(accuracy.result()) == 1.0
    assert float(mean.variables[1].value) == pytest.approx(12)
    mean.reset_state()
    assert float(mean.result()) == 0.0


@MODES
def test_batch_norm_keeps_the_mean_of_the_replicas_averages(compiled):
    strategy = strategy_of_kind(2)
    with strategy.scope():
        layer = keras.layers.BatchNormalization(momentum=0.5)
        layer.build((None, 1))

    def step():
        return strategy.run(lambda: layer(jnp.array([[1.0], [3.0]]) * (1.0 + _replica_id()), training=True))

    step = rx.function(step) if compiled else step
    results = strategy.local_results(step())
    assert_same(results[0], results[1], tolerance=1e-3)  # each normalizes what it has
    assert_same([layer.moving_mean], [[1.5]])  # 0.5 * (2 + 4) / 2
    parts = strategy.local_results(layer.moving_mean.replicax_variable)
    assert [float(part.read_value()[0]) for part in parts] == [1.0, 2.0]


def test_layers_in_which_replicas_wait_for_each_other():
    strategy = strategy_of_kind("central")  # where the averages have one copy, which all replicas write
    with strategy.scope():
        layers = [keras.layers.BatchNormalization(momentum=0.5), keras.layers.Dropout(0.9, seed=1)]
        model = keras.Sequential([keras.Input((64,)), *layers])

    def replica_fn():
        return model(jnp.arange(128.0).reshape(2, 64) * (1.0 + _replica_id()), training=True)

    zeros = [float(jnp.mean(part == 0)) for part in strategy.local_results(strategy.run(replica_fn))]
    assert min(zeros) > 0.7  # both replicas know that they train
    assert_same([layers[0].moving_mean.value[0]], [0.5 * 1.5 * 32])
    assert model.layers[0].path == f"{model.name}/{model.layers[0].name}"


class _Centred(keras.layers.Layer):
    """Less the mean over all replicas, for which they wait for each other."""

    def call(self, x):
        mean, replica = keras.ops.mean(x, axis=0), rx.get_replica_context()
        return x - (mean if replica is None else replica.all_reduce("MEAN", mean))


@MODES
def test_replicas_that_wait_in_a_layer_know_that_they_train(compiled):
    class Model(keras.Model):
        def __init__(self):
            super().__init__()
            self.centred, self.dropout = _Centred(), keras.layers.Dropout(0.9, seed=1)

        def call(self, x):
            return self.dropout(self.centred(x))  # which asks Keras whether it trains

    strategy, x = strategy_of_kind(2), jnp.arange(128.0).reshape(2, 64)
    with strategy.scope():
        model = Model()
        model(x)

    def step():
        return strategy.run(lambda: model(x, training=True))

    for part in strategy.local_results((rx.function(step) if compiled else step)()):
        assert float(jnp.mean(part == 0)) > 0.7
    plain = keras.layers.Dense(1, dtype="float32")
    assert plain(x).dtype == jnp.float32  # no precision of the step's is left
    with strategy.scope():
        assert float(jnp.mean(model(x) == 0)) < 0.1


@MODES
def test_losses_of_layers_are_the_replicas_own(compiled):
    strategy = strategy_of_kind(3)
    with strategy.scope():
        layer = keras.layers.Dense(1, activity_regularizer="l2", kernel_initializer="ones")
        model = keras.Sequential([keras.Input((4,)), layer])

    def replica_step(x):
        def loss_fn():
            examples = rx.compute_average_loss(model(x)[:, 0])  # here the replicas wait for each other
            return examples + 0 * sum(model.losses), sum(model.losses)

        (_, penalty), _ = rx.value_and_grad(loss_fn, model.trainable_variables, has_aux=True)()
        return penalty

    def step(batch):
        return strategy.run(replica_step, args=(batch,))

    (batch,) = strategy.distribute_dataset(rx.from_arrays(X[:5]).batch(5))  # two rows, two, and one
    penalties = strategy.local_results((rx.function(step) if compiled else step)(batch))
    expected = [0.01 * np.mean(rows.sum(1) ** 2) for rows in (X[:2], X[2:4], X[4:5])]
    assert_same(penalties, expected)


def test_batch_norm_twice_in_a_loss():
    strategy = strategy_of_kind(2)
    with strategy.scope():
        layer = keras.layers.BatchNormalization(momentum=0.5)
        layer.build((None, 1))

    def replica_step():
        def loss():
            return jnp.sum(layer(layer(jnp.array([[1.0], [3.0]]), training=True), training=True))

        return rx.grad(loss, layer.trainable_variables)()

    rx.function(lambda: strategy.run(replica_step))()
    assert_same([layer.moving_mean], [[0.5]])  # 2 / 2, and then half of it: the second mean is 0


@MODES
def test_replicas_draw_different_masks_and_the_first_that_of_one_device(compiled):
    expected = keras.layers.Dropout(0.5, seed=1)
    masks = [expected(jnp.ones(32), training=True) for _ in range(2)]
    strategy = strategy_of_kind(2)
    with strategy.scope():
        layer = keras.layers.Dropout(0.5, seed=1)

    def step():
        return strategy.run(lambda: layer(jnp.ones(32), training=True))

    step = rx.function(step) if compiled else step
    drawn = [strategy.local_results(step()) for _ in range(2)]
    for mask, (first, second) in zip(masks, drawn, strict=True):
        assert np.array_equal(first, mask)
        assert not np.array_equal(first, second)
    assert not np.array_equal(drawn[0][1], drawn[1][1])
    assert np.array_equal(layer.seed_generator.state, expected.seed_generator.state)


@MODES
def test_a_model_that_is_built_in_a_replica(compiled):
    strategy = strategy_of_kind(2)
    with strategy.scope():
        model = keras.Sequential([keras.layers.Dense(3), keras.layers.Dense(1)])

    def step(x):
        return strategy.run(model, args=(x,))

    step = rx.function(step) if compiled else step
    results = strategy.local_results(step(X[:2]))
    assert np.array_equal(results[0], results[1]) and len(model.weights) == 4
    assert all(isinstance(v, DistributedVariable) for v in model.weights)
    assert_same(results[0], model(X[:2]))


@MODES
def test_recurrent_layers_read_variables_inside_of_a_scan(compiled):
    strategy = strategy_of_kind(2)
    with strategy.scope():
        layer = keras.layers.SimpleRNN(2)
        layer.build((None, 2, 1))
    x = np.ones((1, 2, 1), np.float32)

    def replica_step(x):
        if not compiled:
            return layer(x)
        return layer(x), rx.grad(lambda: jnp.sum(layer(x) ** 2), layer.trainable_variables)()

    def step(x):
        return strategy.run(replica_step, args=(x,))

    outputs = (rx.function(step) if compiled else step)(x)
    if compiled:
        outputs, gradients = outputs
        assert float(jnp.sum(jnp.abs(strategy.local_results(gradients[0])[0]))) > 0
    plain = keras.layers.SimpleRNN(2)
    plain.build((None, 2, 1))
    plain.set_weights(layer.get_weights())
    assert_same(strategy.local_results(outputs)[1], plain(x))


def test_how_variables_are_combined():
    def combined(variable):
        behind = variable.replicax_variable
        return behind.synchronization.name, behind.aggregation.name

    with strategy_of_kind(2).scope():
        optimizer, metric, weight = (
            keras.optimizers.Adam(),
            keras.metrics.Mean(),
            keras.Variable(np.ones(2)),
        )
        normalization, seeds = keras.layers.BatchNormalization(), keras.random.SeedGenerator(1)
        normalization.build((None, 1))
        optimizer.build([weight])
    assert {combined(v) for v in optimizer.variables} == {("ON_WRITE", "ONLY_FIRST_REPLICA")}
    assert {combined(v) for v in metric.variables} == {("ON_READ", "SUM")}
    assert combined(weight) == combined(normalization.gamma) == ("ON_WRITE", "NONE")
    assert combined(normalization.moving_mean) == ("ON_READ", "MEAN")
    assert combined(seeds.state) == ("ON_READ", "ONLY_FIRST_REPLICA")


def test_an_average_of_keras_is_a_replicas_part():
    strategy = strategy_of_kind(2)
    loss = keras.losses.MeanSquaredError()
    ones, zeros = np.ones((2, 1), np.float32), np.zeros((2, 1), np.float32)
    assert strategy.reduce("SUM", strategy.run(lambda: loss(ones, zeros)), axis=None) == 1.0
    assert loss(ones, zeros) == 1.0
    with strategy.scope():
        assert loss(ones, zeros) == 1.0


def test_loss_scale_optimizers_are_refused_in_replicas():
    strategy = strategy_of_kind(2)
    with strategy.scope():
        w = keras.Variable(np.float32(1))
        optimizer = keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD(0.1))
    with pytest.raises(NotImplementedError, match="DynamicLossScale"):
        strategy.run(lambda: optimizer.apply([jnp.float32(1)], [w]))


def test_variables_written_by_replicas():
    strategy = strategy_of_kind(2)
    with strategy.scope():
        total = keras.Variable(np.float32(1), trainable=False, aggregation="sum")
        weight = keras.Variable(np.float32(1))
    strategy.run(lambda: total.assign_add(_replica_id() + 1.0))
    assert float(total) == 4
    strategy.run(lambda: total.assign_sub(1.0))
    assert float(total) == 2
    with pytest.raises(rx.errors.VariableError, match="does not say how to combine"):
        strategy.run(lambda: weight.assign(_replica_id() + 1.0))


def test_constraints_hold_for_rx_optimizers():
    strategy = strategy_of_kind(2)
    with strategy.scope():
        layer = keras.layers.Dense(1, kernel_constraint="non_neg", kernel_initializer="ones")
        layer.build((None, 2))
        optimizer = rx.Optimizer(optax.sgd(1.0))
    gradients = [jnp.full((2, 1), 3.0), jnp.zeros(1)]
    strategy.run(lambda: optimizer.apply_gradients(zip(gradients, layer.trainable_variables, strict=True)))
    assert_same([layer.kernel], [np.zeros((2, 1))])


def test_values_of_keras_variables():
    with strategy_of_kind(2).scope():
        w = keras.Variable([1.0, 2.0])
    assert_same(rx.read_values({"w": w})["w"], [1.0, 2.0])


def test_checkpoints_fit_any_number_of_replicas(tmp_path):
    def made(kind):
        with strategy_of_kind(kind).scope():
            model = make_model("bn", "adam")
            model.optimizer.build(model.trainable_variables)
        return model

    first, second = made(2), made(3)
    first.fit(X, Y, batch_size=4, epochs=1, verbose=0)
    rx.Checkpoint(model=first, optimizer=first.optimizer).save(tmp_path / "checkpoint")
    rx.Checkpoint(model=second, optimizer=second.optimizer).restore(
        tmp_path / "checkpoint"
    ).assert_consumed()
    assert_same(second.get_weights(), first.get_weights(), tolerance=1e-6)
    assert_same(second.optimizer.variables, first.optimizer.variables, tolerance=1e-6)


def test_checkpoints_in_the_middle_of_fit(tmp_path):
    strategy = strategy_of_kind(2)
    with strategy.scope():
        model = make_model("mlp", "adam")
    checkpoint = rx.Checkpoint(model=model, optimizer=model.optimizer)

    class Save(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            checkpoint.save(tmp_path / str(batch))

    model.fit(X, Y, batch_size=4, epochs=1, shuffle=False, verbose=0, callbacks=[Save()])
    first = make_model("mlp", "adam")
    first.train_on_batch(X[:4], Y[:4])
    checkpoint.restore(tmp_path / "0").assert_consumed()
    assert_same(model.get_weights(), first.get_weights())
    checkpoint.restore(tmp_path / "2")
    model.fit(X, Y, batch_size=4, epochs=1, shuffle=False, verbose=0)
    assert_same(model.get_weights(), one_device("mlp", "adam")[: len(model.weights)])


def test_what_was_made_outside_is_taken_over_without_a_strategy(tmp_path):
    model = make_model("mlp", "sgd")
    before = model.get_weights()
    checkpoint = rx.Checkpoint(model=model)
    path = checkpoint.save(tmp_path)
    loss, gradients = rx.value_and_grad(lambda: model(X).sum(), model.trainable_variables)()
    assert len(gradients) == len(model.trainable_variables) and np.isfinite(loss)
    model.set_weights([0 * weight for weight in before])
    checkpoint.restore(path).assert_consumed()
    assert_same(model.get_weights(), before)


@pytest.mark.parametrize("compiled", [False, True])
def test_what_was_made_outside_is_not_written_by_replicas(compiled):
    strategy, metric = strategy_of_kind(2), keras.metrics.Mean()
    model = keras.Sequential([keras.Input((4,)), keras.layers.BatchNormalization()])
    before = model.get_weights()
    for write in (lambda: metric.update_state([1.0]), lambda: model(X, training=True)):

        def step(write=write):
            strategy.run(lambda: (write(), None)[1])

        with pytest.raises(rx.errors.ContextError, match="outside of that strategy's scope"):
            (rx.function(step) if compiled else step)()
    assert_same(model.get_weights(), before)
    metric.update_state([3.0])  # as without a strategy
    assert float(metric.result()) == 3


def test_an_optimizer_from_outside_in_a_compiled_step():
    strategy, optimizer = strategy_of_kind(2), keras.optimizers.SGD(0.1)
    with strategy.scope():
        w = keras.Variable([1.0, 2.0])
    step = rx.function(lambda: strategy.run(lambda: optimizer.apply([w.value], [w])))
    with pytest.raises(rx.errors.ContextError, match=r"'sgd.*/iteration' is written in a step of"):
        step()
    assert_same([w.value], [[1.0, 2.0]])


def test_the_value_in_a_compiled_step_is_not_a_constant():
    strategy = strategy_of_kind(2)
    with strategy.scope():
        w = keras.Variable(np.float32(1))

    @rx.function
    def step():
        return strategy.reduce("SUM", strategy.run(lambda: w.value * 2), axis=None)

    assert float(step()) == 4
    w.assign(3.0)
    assert float(step()) == 12


def test_copies():
    import copy

    with strategy_of_kind(2).scope():
        w = keras.Variable([1.0, 2.0])
    other = copy.deepcopy(w)
    other.assign([5.0, 6.0])
    assert_same([w.value, other.value], [[1.0, 2.0], [5.0, 6.0]])
    assert isinstance(other, DistributedVariable)


def test_without_keras(monkeypatch):
    monkeypatch.setitem(sys.modules, "keras", None)
    with pytest.raises(ImportError, match=r"pip install 'replicax\[keras\]'"):
        require_keras()


def test_keras_on_another_backend(monkeypatch):
    monkeypatch.setattr("keras.backend.backend", lambda: "torch")
    with pytest.raises(ImportError, match="KERAS_BACKEND=jax in the environment before"):
        require_keras()
