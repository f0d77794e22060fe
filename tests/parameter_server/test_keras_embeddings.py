"""Keras' `Embedding` on parameter servers: steps fetch and send the rows that they look up."""

import jax.numpy as jnp
import numpy as np
import pytest

keras = pytest.importorskip("keras")

from tests.parameter_server.local import local_strategy  # noqa: E402

import replicax as rx  # noqa: E402
import replicax.integrations.keras  # noqa: E402
from replicax import tf  # noqa: E402

ROWS, WIDTH = 300, 4
ROW_BYTES = 4 * WIDTH
BATCHES = [
    (np.array([[0, 25], [50, 25], [0, 275], [299, 50]], np.int32), np.float32([[0], [1], [2], [3]])),
    (np.array([[7, 7], [7, 8], [8, 9], [50, 0]], np.int32), np.float32([[1], [0], [1], [2]])),
    (np.array([[1, 2], [3, 4], [5, 6], [7, 8]], np.int32), np.float32([[2], [2], [0], [1]])),
]


def make_model():
    keras.utils.set_random_seed(0)
    return keras.Sequential(
        [
            keras.Input((2,), dtype="int32"),
            keras.layers.Embedding(ROWS, WIDTH),
            keras.layers.Flatten(),
            keras.layers.Dense(1),
        ]
    )


def moved(strategy, what):
    return sum(server[f"bytes_{what}"] for server in strategy.statistics())


def training_step(strategy, model, optimizer):
    @tf.function
    def step(batch):
        def replica_step(batch):
            ids, y = batch
            with tf.GradientTape() as tape:
                per_example = tf.reduce_mean((model(ids, training=True) - y) ** 2, axis=1)
                loss = tf.nn.compute_average_loss(per_example)
            gradients = tape.gradient(loss, model.trainable_variables)
            optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
            return loss

        return strategy.reduce("SUM", strategy.run(replica_step, args=(batch,)), axis=None)

    return lambda batch: step(strategy.distribute_batch(batch))


@pytest.mark.parametrize(
    ("kind", "num_ps", "num_devices"),
    [(keras.optimizers.Adagrad, 2, 1), (keras.optimizers.SGD, 3, 2), (keras.optimizers.Adam, 2, 1)],
)
def test_a_step_moves_only_the_rows_it_looks_up(kind, num_ps, num_devices, monkeypatch):
    """And computes what Keras computes with the whole table."""
    plain = make_model()
    plain.compile(kind(0.1), "mse")
    partitioner = rx.FixedShardsPartitioner(num_ps)
    options = {"num_ps": num_ps, "partitioner": partitioner, "num_devices": num_devices}
    with local_strategy(monkeypatch, **options) as strategy:
        with strategy.scope():
            model, optimizer = make_model(), kind(0.1)
        step = training_step(strategy, model, optimizer)
        dense_bytes = 4 * plain.layers[-1].count_params()
        for i, (ids, y) in enumerate(BATCHES):
            before = moved(strategy, "pulled"), moved(strategy, "pushed")
            step((ids, y))
            rows = len(np.unique(ids)) * ROW_BYTES
            if i:  # the first step also fetches values, to be compiled
                assert moved(strategy, "pulled") - before[0] == rows + dense_bytes
                assert moved(strategy, "pushed") - before[1] < rows + dense_bytes * num_ps + 200
            plain.train_on_batch(ids, y)
            for variable, expected in zip(model.weights, plain.weights, strict=True):
                np.testing.assert_allclose(variable.numpy(), expected.numpy(), rtol=1e-5, atol=1e-6)


def test_outside_of_steps_and_with_other_dtypes(monkeypatch):
    with local_strategy(monkeypatch) as strategy, strategy.scope():
        layer = keras.layers.Embedding(ROWS, WIDTH, dtype="mixed_bfloat16")
        layer.build()
    table = layer.embeddings.numpy()
    before = moved(strategy, "pulled")
    found = layer(jnp.array([[1.0, 299.0]]))  # Keras accepts numbers of any dtype
    assert moved(strategy, "pulled") - before == 2 * ROW_BYTES
    assert found.dtype == jnp.bfloat16
    np.testing.assert_array_equal(found, table[[[1, 299]]].astype(jnp.bfloat16))
    layer.enable_lora(2)  # computes a table from others, of which all rows are needed
    np.testing.assert_array_equal(layer(jnp.array([5])), table[[5]].astype(jnp.bfloat16))
