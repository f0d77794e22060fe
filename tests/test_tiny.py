"""The smallest whole programs: a linear model is trained, on one and two replicas, in both modes.

Whatever the strategy and the mode, the losses and weights are those of a NumPy loop on one device.
"""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import replicax as rx

NUM_STEPS = 12
RATE = 0.1
MEAN = rx.VariableAggregation.MEAN
TRUE_WEIGHTS = np.array([1.0, -2.0, 3.0], np.float32)

_random = np.random.default_rng(0)
X = _random.normal(size=(16, 3)).astype(np.float32)
Y = (X @ TRUE_WEIGHTS + 0.5).astype(np.float32)


def numpy_training():
    """The losses, and the weights and bias at the end."""
    weights, bias, losses = np.zeros(3), 0.0, []
    for _ in range(NUM_STEPS):
        error = X.astype(np.float64) @ weights + bias - Y
        losses.append(np.mean(error**2))
        weights = weights - RATE * 2 * error @ X / len(X)
        bias = bias - RATE * 2 * np.mean(error)
    return losses, weights, bias


def squared_error(weights, bias, x, y):
    return jnp.mean((x @ weights + bias - y) ** 2)


gradients_of = jax.value_and_grad(squared_error, argnums=(0, 1))


def assert_trained_like_numpy(losses, weights, bias):
    expected_losses, expected_weights, expected_bias = numpy_training()
    losses = [float(loss) for loss in losses]
    assert all(after < before for before, after in itertools.pairwise(losses))
    np.testing.assert_allclose(losses, expected_losses, rtol=1e-5)
    np.testing.assert_allclose(weights.numpy(), expected_weights, rtol=1e-5)
    np.testing.assert_allclose(bias.numpy(), expected_bias, rtol=1e-5)


STRATEGIES = {
    "default": rx.get_strategy,
    "one device": lambda: rx.OneDeviceStrategy("CPU:1"),
    "mirrored x 1": lambda: rx.MirroredStrategy(["CPU:0"]),
    "mirrored x 2": lambda: rx.MirroredStrategy(["CPU:0", "CPU:1"]),
    "central storage x 2": lambda: rx.CentralStorageStrategy(["CPU:0", "CPU:1"], "CPU:0"),
}


@pytest.fixture(params=STRATEGIES)
def strategy(request):
    return STRATEGIES[request.param]()


@pytest.fixture(params=["eager", "compiled"])
def mode(request):
    """What to decorate a step with."""
    return {"eager": lambda fn: fn, "compiled": rx.function}[request.param]


def shard(strategy, array):
    rows = len(array) // strategy.num_replicas_in_sync
    return strategy.distribute_values_from_function(
        lambda context: array[context.replica_id_in_sync_group * rows :][:rows]
    )


def make_model(strategy):
    with strategy.scope():
        return rx.Variable(jnp.zeros(3), aggregation=MEAN), rx.Variable(0.0, aggregation=MEAN)


def train(strategy, mode, replica_step):
    """Call `replica_step(x, y) -> loss` in all replicas, `NUM_STEPS` times; the mean losses."""

    @mode
    def step(x, y):
        return strategy.reduce("MEAN", strategy.run(replica_step, args=(x, y)), axis=None)

    x, y = shard(strategy, X), shard(strategy, Y)
    return [step(x, y) for _ in range(NUM_STEPS)]


def test_replicas_assign_and_the_variables_average(strategy, mode):
    weights, bias = make_model(strategy)

    def replica_step(x, y):
        loss, (d_weights, d_bias) = gradients_of(weights.value, bias.value, x, y)
        weights.assign_sub(RATE * d_weights)
        bias.assign_sub(RATE * d_bias)
        return loss

    assert_trained_like_numpy(train(strategy, mode, replica_step), weights, bias)


def test_replicas_reduce_gradients_and_merge_to_update(strategy, mode):
    weights, bias = make_model(strategy)

    def apply(strategy, gradients):
        pairs = list(zip(gradients, (weights, bias), strict=True))
        for mean, (_, v) in zip(strategy.extended.batch_reduce_to("MEAN", pairs), pairs, strict=True):
            strategy.extended.update(v, lambda v, mean: v.assign_sub(RATE * mean), args=(mean,))

    def replica_step(x, y):
        loss, gradients = gradients_of(weights.value, bias.value, x, y)
        rx.get_replica_context().merge_call(apply, args=(gradients,))
        return loss

    assert_trained_like_numpy(train(strategy, mode, replica_step), weights, bias)


def test_the_loss_reduces_inside_the_gradient(strategy, mode):
    weights, bias = make_model(strategy)

    def replica_step(x, y):
        context = rx.get_replica_context()

        def global_loss(weights, bias):
            return context.all_reduce("MEAN", squared_error(weights, bias, x, y))

        # Every replica's loss is the mean, and the gradient adds up what all of them ask of this
        # replica: N times 1/N of the gradient of its own loss.
        loss, (d_weights, d_bias) = jax.value_and_grad(global_loss, argnums=(0, 1))(
            weights.value, bias.value
        )
        weights.assign_sub(RATE * d_weights)
        bias.assign_sub(RATE * d_bias)
        return loss

    assert_trained_like_numpy(train(strategy, mode, replica_step), weights, bias)


def test_gradients_leave_the_replicas_and_variables_are_written_outside(strategy, mode):
    weights, bias = make_model(strategy)

    @mode
    def step(x, y):
        results = strategy.run(lambda x, y: gradients_of(weights.value, bias.value, x, y), args=(x, y))
        loss, (d_weights, d_bias) = strategy.reduce("MEAN", results, axis=None)
        weights.assign_sub(RATE * d_weights)
        bias.assign_sub(RATE * d_bias)
        return loss

    x, y = shard(strategy, X), shard(strategy, Y)
    losses = [step(x, y) for _ in range(NUM_STEPS)]
    assert_trained_like_numpy(losses, weights, bias)


def test_a_replica_function_alone_is_compiled(strategy):
    weights, bias = make_model(strategy)

    @rx.function
    def replica_step(x, y):
        loss, (d_weights, d_bias) = gradients_of(weights.value, bias.value, x, y)
        weights.assign_sub(RATE * d_weights)
        bias.assign_sub(RATE * d_bias)
        return loss

    x, y = shard(strategy, X), shard(strategy, Y)
    losses = [
        strategy.reduce("MEAN", strategy.run(replica_step, args=(x, y)), axis=None)
        for _ in range(NUM_STEPS)
    ]
    assert_trained_like_numpy(losses, weights, bias)
