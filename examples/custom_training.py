"""A custom training loop: a small image classifier on all devices, with metrics and checkpoints.

`custom_training_tf.py` is the same program as TensorFlow users write it, with `replicax.tf`.
"""

import tempfile
from typing import Any

import jax
import jax.numpy as jnp
import optax
from images import make_images, make_weights

import replicax as rx

rx.set_cpu_devices(2)  # lets one CPU pose as two devices; machines with GPUs use those
strategy = rx.MirroredStrategy()
print(f"Number of devices: {strategy.num_replicas_in_sync}")

BATCH_SIZE = 32 * strategy.num_replicas_in_sync
EPOCHS = 4

train_dataset = strategy.distribute_dataset(rx.from_arrays(make_images(1000, seed=1)).batch(BATCH_SIZE))
test_dataset = strategy.distribute_dataset(rx.from_arrays(make_images(300, seed=2)).batch(BATCH_SIZE))


def predict(weights: Any, images: jax.Array) -> jax.Array:
    x = images
    for name in ("conv1", "conv2"):
        kernel, bias = weights[name]
        layout = ("NHWC", "HWIO", "NHWC")
        x = jax.lax.conv_general_dilated(x, kernel, (1, 1), "SAME", dimension_numbers=layout)
        x = jax.nn.relu(x + bias)
        x = x.reshape(x.shape[0], x.shape[1] // 2, 2, x.shape[2] // 2, 2, -1).max((2, 4))
    x = x.reshape(x.shape[0], -1)
    kernel, bias = weights["dense1"]
    x = jax.nn.relu(x @ kernel + bias)
    kernel, bias = weights["dense2"]
    return x @ kernel + bias


with strategy.scope():
    weights = rx.create_variables(make_weights())
    optimizer = rx.Optimizer(optax.adam(3e-3))
    test_loss = rx.Mean(name="test_loss")
    train_accuracy = rx.SparseCategoricalAccuracy(name="train_accuracy")
    test_accuracy = rx.SparseCategoricalAccuracy(name="test_accuracy")


def losses_and_scores(images: jax.Array, labels: jax.Array) -> tuple[jax.Array, jax.Array]:
    scores = predict(rx.read_values(weights), images)
    return optax.softmax_cross_entropy_with_integer_labels(scores, labels), scores


def replica_train_step(images: jax.Array, labels: jax.Array) -> jax.Array:
    def loss_fn() -> tuple[jax.Array, jax.Array]:
        losses, scores = losses_and_scores(images, labels)
        return rx.compute_average_loss(losses), scores

    (loss, scores), gradients = rx.value_and_grad(loss_fn, weights, has_aux=True)()
    optimizer.apply_gradients(gradients, weights)
    train_accuracy.update_state(labels, scores)
    return loss


def replica_test_step(images: jax.Array, labels: jax.Array) -> None:
    losses, scores = losses_and_scores(images, labels)
    test_loss.update_state(losses)
    test_accuracy.update_state(labels, scores)


@rx.function
def train_step(batch: Any) -> jax.Array:
    return strategy.reduce("SUM", strategy.run(replica_train_step, args=batch), axis=None)


@rx.function
def test_step(batch: Any) -> None:
    strategy.run(replica_test_step, args=batch)


folder = tempfile.mkdtemp()
manager = rx.CheckpointManager(rx.Checkpoint(optimizer=optimizer, weights=weights), folder)
for epoch in range(EPOCHS):
    losses = [train_step(batch) for batch in train_dataset]
    for batch in test_dataset:
        test_step(batch)
    manager.save(epoch)
    print(
        f"Epoch {epoch + 1}, Loss: {jnp.mean(jnp.array(losses)):.5f}, "
        f"Accuracy: {train_accuracy.result() * 100:.2f}, "
        f"Test Loss: {test_loss.result():.5f}, Test Accuracy: {test_accuracy.result() * 100:.2f}"
    )
    for metric in (test_loss, train_accuracy, test_accuracy):
        metric.reset_state()
manager.close()

# Restore the newest checkpoint into new variables, on one device, and evaluate them there.
with rx.OneDeviceStrategy("CPU:0").scope():
    weights = rx.create_variables(make_weights())
    rx.Checkpoint(weights=weights).restore(folder).expect_partial()
images, labels = make_images(300, seed=2)
correct = predict(rx.read_values(weights), jnp.asarray(images)).argmax(1) == labels
print(f"Accuracy after restoring on one device: {correct.mean() * 100:.2f}")
