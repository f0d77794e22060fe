"""Training in several processes gives the numbers of one device, eagerly and compiled.

Every process also trains alone, on one device with the whole batch, and compares.
"""

import jax
import jax.numpy as jnp
import numpy as np
import optax
from tests.multiprocess.cases import depends_on

import replicax as rx

EXAMPLES, BATCH, HIDDEN = 24, 12, 300


def data():
    random = np.random.default_rng(0)
    x = random.normal(size=(EXAMPLES, 8)).astype(np.float32)
    return x, np.sum(x, axis=1, keepdims=True)


def train(strategy, mode, optimizer, hidden=HIDDEN, epochs=2, batch=BATCH, together=False):
    """Losses, the mean loss as a metric, and the weights; with the steps of an epoch `together`, or not."""
    several = strategy.num_replicas_in_sync > 1
    # Every process has another initial value; that of the first one counts.
    key = jax.random.key(jax.process_index() if several else 0)
    with strategy.scope():
        params = rx.create_variables(
            {
                "w": 0.3 * jax.random.normal(key, (8, hidden)),
                "b": jnp.zeros(1),
                "v": jnp.ones((hidden, 1)) / 300,
            }
        )
        optimizer, mean_loss = rx.Optimizer(optimizer), rx.Mean("loss")

    def loss_fn(x, y):
        p = rx.read_values(params)
        errors = jnp.sum((jnp.tanh(x @ p["w"]) @ p["v"] + p["b"] - y) ** 2, axis=-1)
        mean_loss.update_state(errors)
        return rx.compute_average_loss(errors)

    def replica_step(x, y):
        loss, gradients = rx.value_and_grad(loss_fn, params)(x, y)
        optimizer.apply_gradients(zip(gradients.values(), params.values(), strict=True))
        return loss

    @mode
    def step(x, y):
        return strategy.reduce("SUM", strategy.run(replica_step, args=(x, y)), axis=None)

    dataset = strategy.distribute_dataset(rx.from_arrays(data()).batch(batch))
    if together:
        losses = [float(loss) for _ in range(epochs) for loss in step.many(*zip(*dataset, strict=True))]
    else:
        losses = [float(step(*batch)) for _ in range(epochs) for batch in dataset]
    return losses, float(mean_loss.result()), {name: v.numpy() for name, v in params.items()}


def assert_like_one_device(strategy, mode, optimizer, **kwargs):
    found = train(strategy, mode, optimizer, **kwargs)
    alone = train(rx.OneDeviceStrategy("CPU:0"), mode, optimizer, **kwargs)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=2e-5, atol=1e-6), found, alone)


@depends_on("workers")
def check_sgd(strategy, mode):
    assert_like_one_device(strategy, mode, optax.sgd(0.003))


# With its default eps, Adam turns the last bit of a gradient near zero, which depends on the order in which
# the workers' parts are added, into a whole step.
EPS = 1e-3


def check_adam(strategy, mode):
    assert_like_one_device(strategy, mode, optax.adam(0.01, eps=EPS))


@depends_on("workers")
def check_adam_with_megabytes(strategy, mode):
    assert_like_one_device(strategy, mode, optax.adam(0.001, eps=EPS), hidden=40_000, epochs=1)


def check_many_steps_in_one_program(strategy, mode):
    """Two whole batches and a partial one, bit for bit as if one by one."""
    if mode is rx.function:
        runs = [
            train(strategy, mode, optax.adam(0.01), hidden=8, batch=10, together=together)
            for together in (False, True)
        ]
        jax.tree.map(np.testing.assert_array_equal, *runs)


def check_a_report(strategy, mode):
    """Every process reports on its own devices."""
    if mode is rx.function:
        step = rx.function(lambda x: strategy.reduce("SUM", strategy.run(jnp.sum, args=(x,)), axis=None))
        dataset = strategy.distribute_dataset(rx.from_arrays(data()[0]).batch(BATCH).repeat())
        report = rx.report(step, dataset, num_steps=3)
        assert list(report.devices) == [f"CPU:{i}" for i in range(jax.local_device_count())]
        assert report.num_steps == 3 and report.speedup is None


@depends_on("workers")
def check_uneven_rows(strategy, mode):
    """Replicas with different numbers of rows: each process feeds its own, the mean is exact."""
    ids = range(strategy.num_replicas_in_sync)
    parts = [np.arange(1.0 + i, dtype=np.float32) + 10 * i for i in ids]
    rows = strategy.distribute_values_from_function(lambda ctx: parts[ctx.replica_id_in_sync_group])
    with strategy.scope():
        w = rx.Variable(1.0, aggregation=rx.VariableAggregation.SUM)
    weights, everything = 1.0, np.concatenate(parts)
    count = len(everything)
    for _ in range(3):
        errors = strategy.run(lambda x: (x * w.value - 1) ** 2, args=(rows,))
        np.testing.assert_allclose(
            float(strategy.reduce("MEAN", errors, axis=0)),
            np.mean((everything * weights - 1) ** 2),
            rtol=1e-5,
        )
        strategy.run(lambda x: w.assign_sub(jnp.sum(2e-4 * x * (x * w.value - 1)) / count), args=(rows,))
        weights -= 2e-4 * np.mean(everything * (everything * weights - 1))
    np.testing.assert_allclose(w.numpy(), weights, rtol=1e-5)


def check_moving_averages(strategy, mode):
    with strategy.scope():
        w = rx.Variable(jnp.zeros(3))
        ema = rx.ExponentialMovingAverage([w], decay=0.5)
    w.assign(jnp.full(3, 4.0), read_value=False)
    mode(lambda: strategy.run(ema.update))()
    mode(ema.update)()
    assert float(ema.averages[0].numpy()[0]) == 3.0
    with ema.applied():
        assert float(w.numpy()[0]) == 3.0
    assert float(w.numpy()[0]) == 4.0
    assert "[4., 4., 4.]" in w._repr_html_()  # without communication
