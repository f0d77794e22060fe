"""The custom training loop that TensorFlow users know, with `replicax.tf` in place of `tensorflow`.

One thing differs: the optimizer and the metrics are Replicax's, because this is not a Keras model.
`custom_training.py` is the same program in plain Replicax.
"""

import tempfile
from typing import Any

import jax
import optax
from images import make_images, make_weights

import replicax as rx
import replicax.tf as tf

# One CPU poses as two devices; machines with GPUs use those.
(cpu,) = tf.config.list_physical_devices("CPU")
tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 2)

strategy = tf.distribute.MirroredStrategy()
print(f"Number of devices: {strategy.num_replicas_in_sync}")

BATCH_SIZE_PER_REPLICA = 32
GLOBAL_BATCH_SIZE = BATCH_SIZE_PER_REPLICA * strategy.num_replicas_in_sync
EPOCHS = 4

train_dataset = tf.data.Dataset.from_tensor_slices(make_images(1000, seed=1)).batch(GLOBAL_BATCH_SIZE)
test_dataset = tf.data.Dataset.from_tensor_slices(make_images(300, seed=2)).batch(GLOBAL_BATCH_SIZE)
train_dist_dataset = strategy.experimental_distribute_dataset(train_dataset)
test_dist_dataset = strategy.experimental_distribute_dataset(test_dataset)


class Model(tf.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = {
            name: (tf.Variable(kernel, name=f"{name}/kernel"), tf.Variable(bias, name=f"{name}/bias"))
            for name, (kernel, bias) in make_weights().items()
        }

    def __call__(self, images: jax.Array) -> jax.Array:
        x = images
        for name in ("conv1", "conv2"):
            kernel, bias = self.layers[name]
            x = tf.nn.relu(tf.nn.conv2d(x, kernel, strides=1, padding="SAME") + bias)
            x = tf.nn.max_pool2d(x, ksize=2, strides=2, padding="VALID")
        x = tf.reshape(x, [x.shape[0], -1])
        kernel, bias = self.layers["dense1"]
        x = tf.nn.relu(tf.matmul(x, kernel) + bias)
        kernel, bias = self.layers["dense2"]
        return tf.matmul(x, kernel) + bias


with strategy.scope():
    model = Model()
    optimizer = rx.Optimizer(optax.adam(3e-3))
    test_loss = rx.Mean(name="test_loss")
    train_accuracy = rx.SparseCategoricalAccuracy(name="train_accuracy")
    test_accuracy = rx.SparseCategoricalAccuracy(name="test_accuracy")
    checkpoint = tf.train.Checkpoint(optimizer=optimizer, model=model)


def compute_losses(labels: jax.Array, predictions: jax.Array) -> jax.Array:
    return tf.nn.sparse_softmax_cross_entropy_with_logits(labels=labels, logits=predictions)


def train_step(inputs: tuple[jax.Array, jax.Array]) -> jax.Array:
    images, labels = inputs
    with tf.GradientTape() as tape:
        predictions = model(images)
        loss = tf.nn.compute_average_loss(compute_losses(labels, predictions))
    gradients = tape.gradient(loss, model.trainable_variables)
    optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
    train_accuracy.update_state(labels, predictions)
    return loss


def test_step(inputs: tuple[jax.Array, jax.Array]) -> None:
    images, labels = inputs
    predictions = model(images)
    test_loss.update_state(compute_losses(labels, predictions))
    test_accuracy.update_state(labels, predictions)


@tf.function
def distributed_train_step(dataset_inputs: Any) -> jax.Array:
    per_replica_losses = strategy.run(train_step, args=(dataset_inputs,))
    return strategy.reduce(tf.distribute.ReduceOp.SUM, per_replica_losses, axis=None)


@tf.function
def distributed_test_step(dataset_inputs: Any) -> None:
    return strategy.run(test_step, args=(dataset_inputs,))


folder = tempfile.mkdtemp()
for epoch in range(EPOCHS):
    total_loss, num_batches = 0.0, 0
    for x in train_dist_dataset:
        total_loss += distributed_train_step(x)
        num_batches += 1
    for x in test_dist_dataset:
        distributed_test_step(x)
    path = checkpoint.save(f"{folder}/ckpt")
    print(
        f"Epoch {epoch + 1}, Loss: {total_loss / num_batches:.5f}, "
        f"Accuracy: {train_accuracy.result() * 100:.2f}, "
        f"Test Loss: {test_loss.result():.5f}, Test Accuracy: {test_accuracy.result() * 100:.2f}"
    )
    for metric in (test_loss, train_accuracy, test_accuracy):
        metric.reset_state()

# Restore the newest checkpoint into a new model, on one device, and evaluate it there.
with tf.distribute.OneDeviceStrategy("CPU:0").scope():
    model = Model()
    tf.train.Checkpoint(model=model).restore(tf.train.latest_checkpoint(folder)).expect_partial()
images, labels = make_images(300, seed=2)
correct = tf.argmax(model(tf.constant(images)), axis=1) == labels
print(f"Accuracy after restoring on one device: {tf.reduce_mean(tf.cast(correct, tf.float32)) * 100:.2f}")
