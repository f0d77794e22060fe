"""Your own training loop with Keras' layers, loss, metric and optimizer: pip install 'replicax[keras]'."""

import jax
import numpy as np

import replicax as rx
import replicax.integrations.keras  # before Keras: selects the JAX backend

# isort: split
import keras

rx.set_cpu_devices(4)
strategy = rx.MirroredStrategy()
with strategy.scope():
    model = keras.Sequential([keras.Input((8,)), keras.layers.Dense(32, "relu"), keras.layers.Dense(1)])
    optimizer = keras.optimizers.Adam(0.01)
    error = keras.metrics.MeanAbsoluteError()
squared = keras.losses.MeanSquaredError(reduction="none")  # one loss for each example


def replica_step(x: jax.Array, y: jax.Array) -> None:
    def loss_fn() -> tuple[jax.Array, jax.Array]:
        predicted = model(x, training=True)
        return rx.compute_average_loss(squared(y, predicted)), predicted

    (_, predicted), gradients = rx.value_and_grad(loss_fn, model.trainable_variables, has_aux=True)()
    optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
    error.update_state(y, predicted)


train_step = rx.function(lambda *batch: strategy.run(replica_step, args=batch))
x = np.random.default_rng(0).normal(size=(1000, 8)).astype(np.float32)
dataset = rx.from_arrays((x, np.sin(x.sum(axis=1, keepdims=True)))).shuffle(seed=0).batch(64)
for epoch in range(5):
    for batch in strategy.distribute_dataset(dataset):
        train_step(*batch)
    print(f"epoch {epoch}: mean absolute error {float(error.result()):.3f}")
    error.reset_state()
