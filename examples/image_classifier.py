"""An image classifier in Flax NNX, with batch normalization, dropout, a schedule and the best checkpoint.

Needs Flax: pip install 'replicax[flax]'. `custom_training.py` is a similar program without it.
"""

import tempfile
from typing import Any

import jax
import jax.numpy as jnp
import optax
from flax import nnx
from images import NUM_CLASSES, SIZE, make_images

import replicax as rx
from replicax.integrations import flax as rx_flax

rx.set_cpu_devices(4)  # lets one CPU pose as four devices; machines with GPUs use those
strategy = rx.MirroredStrategy()
print(f"Number of devices: {strategy.num_replicas_in_sync}")

BATCH_SIZE = 16 * strategy.num_replicas_in_sync
EPOCHS = 3
NUM_EXAMPLES = 1000  # not a multiple of the batch size: the last batch is smaller

one_shape = rx.InputOptions(partial_batch="pad")  # one program for all batches; padding does not count
examples = rx.from_arrays(make_images(NUM_EXAMPLES, seed=1)).shuffle(seed=0)  # reshuffled in every epoch
train_dataset = strategy.distribute_dataset(examples.batch(BATCH_SIZE), one_shape)
test_examples = rx.from_arrays(make_images(300, seed=2))
test_dataset = strategy.distribute_dataset(test_examples.batch(BATCH_SIZE), one_shape)


class Classifier(nnx.Module):
    def __init__(self, rngs: nnx.Rngs) -> None:
        self.conv1 = nnx.Conv(1, 8, (3, 3), rngs=rngs)
        self.norm1 = rx_flax.SyncBatchNorm(8, momentum=0.9, rngs=rngs)  # over all replicas' examples
        self.conv2 = nnx.Conv(8, 16, (3, 3), rngs=rngs)
        self.norm2 = rx_flax.SyncBatchNorm(16, momentum=0.9, rngs=rngs)
        self.dropout = nnx.Dropout(0.2, rngs=rngs)  # different masks on every replica
        self.out = nnx.Linear(16 * (SIZE // 4) ** 2, NUM_CLASSES, rngs=rngs)

    def __call__(self, images: jax.Array) -> jax.Array:
        x = nnx.max_pool(nnx.relu(self.norm1(self.conv1(images))), (2, 2), (2, 2))
        x = nnx.max_pool(nnx.relu(self.norm2(self.conv2(x))), (2, 2), (2, 2))
        return self.out(self.dropout(x.reshape(x.shape[0], -1)))


steps_per_epoch = -(-NUM_EXAMPLES // BATCH_SIZE)
with strategy.scope():
    model = rx_flax.adopt(Classifier(nnx.Rngs(0)))  # the strategy holds its variables from here on
    optimizer = rx.Optimizer(optax.adamw(optax.cosine_decay_schedule(5e-3, EPOCHS * steps_per_epoch)))
    train_accuracy = rx.SparseCategoricalAccuracy(name="train_accuracy")
    test_accuracy = rx.SparseCategoricalAccuracy(name="test_accuracy")
params = rx_flax.variables(model)
inference = nnx.view(model, deterministic=True, use_running_average=True)  # the same variables


def replica_train_step(images: jax.Array, labels: jax.Array) -> jax.Array:
    def loss_fn(images: jax.Array) -> tuple[jax.Array, jax.Array]:
        scores = model(images)
        losses = optax.softmax_cross_entropy_with_integer_labels(scores, labels)
        return rx.compute_average_loss(losses), scores

    (loss, scores), gradients = rx.value_and_grad(loss_fn, params, has_aux=True)(images)
    optimizer.apply_gradients(zip(gradients, params, strict=True))
    train_accuracy.update_state(labels, scores)
    return loss


@rx.function
def train_step(batch: Any) -> jax.Array:
    return strategy.reduce("SUM", strategy.run(replica_train_step, args=batch), axis=None)


@rx.function
def test_step(batch: Any) -> None:
    def replica_test_step(images: jax.Array, labels: jax.Array) -> None:
        test_accuracy.update_state(labels, inference(images))

    strategy.run(replica_test_step, args=batch)


folder = tempfile.mkdtemp()
manager = rx.CheckpointManager(rx.Checkpoint(model=model, optimizer=optimizer), folder, max_to_keep=1)
best = 0.0
for epoch in range(EPOCHS):
    losses = [train_step(batch) for batch in train_dataset]
    for batch in test_dataset:
        test_step(batch)
    accuracy = float(test_accuracy.result())
    if accuracy > best:
        best = accuracy
        manager.save(epoch)
    print(
        f"Epoch {epoch + 1}, Loss: {jnp.mean(jnp.array(losses)):.4f}, "
        f"Accuracy: {train_accuracy.result() * 100:.1f}, Test Accuracy: {accuracy * 100:.1f}"
    )
    train_accuracy.reset_state()
    test_accuracy.reset_state()
manager.close()

# Restore the best model on one device, without replicas.
with rx.OneDeviceStrategy("CPU:0").scope():
    restored = rx_flax.adopt(Classifier(nnx.Rngs(1)))
    rx.Checkpoint(model=restored).restore(folder).expect_partial()
images, labels = make_images(300, seed=2)
scores = nnx.view(restored, deterministic=True, use_running_average=True)(jnp.asarray(images))
accuracy = float((scores.argmax(1) == labels).mean())
print(f"The best model on one device: {accuracy * 100:.1f}")
assert accuracy > 0.9 and abs(accuracy - best) < 0.01
