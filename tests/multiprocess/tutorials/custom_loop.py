"""The program of TensorFlow's tutorial about a custom training loop on several workers.

It makes the calls of that program in their order: `tf.GradientTape` in a step that takes an iterator,
`compute_average_loss`, a Keras optimizer and metric, and a checkpoint of model, epoch and step.
"""

import json
import os
import sys

from tests.multiprocess.tutorials import images
from tests.multiprocess.tutorials.folders import is_chief, path_to_write
from tests.multiprocess.tutorials.namespace import tf

folder, num_epochs, num_steps_per_epoch = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
num_workers = len(json.loads(os.environ["TF_CONFIG"])["cluster"]["worker"])
global_batch_size = 64 * num_workers

strategy = tf.distribute.MultiWorkerMirroredStrategy()
tf.keras.utils.set_random_seed(1)  # not in the tutorial: all runs start with the same weights

with strategy.scope():
    model = images.build_model()
    dataset = strategy.distribute_datasets_from_function(
        lambda context: images.dataset_of_worker(global_batch_size, context)
    )
    optimizer = tf.keras.optimizers.RMSprop(learning_rate=0.001)
    train_accuracy = tf.keras.metrics.SparseCategoricalAccuracy(name="train_accuracy")


@tf.function
def train_step(iterator):
    def step_fn(inputs):
        x, y = inputs
        with tf.GradientTape() as tape:
            predictions = model(x, training=True)
            losses = tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True, reduction="none")(
                y, predictions
            )
            loss = tf.nn.compute_average_loss(losses, global_batch_size=global_batch_size)
        grads = tape.gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(zip(grads, model.trainable_variables, strict=True))
        train_accuracy.update_state(y, predictions)
        return loss

    per_replica_losses = strategy.run(step_fn, args=(next(iterator),))
    return strategy.reduce(tf.distribute.ReduceOp.SUM, per_replica_losses, axis=None)


epoch = tf.Variable(initial_value=tf.constant(0, dtype=tf.dtypes.int64), name="epoch")
step_in_epoch = tf.Variable(initial_value=tf.constant(0, dtype=tf.dtypes.int64), name="step_in_epoch")
resolver = strategy.cluster_resolver
checkpoint_dir = os.path.join(folder, "ckpt")
write_checkpoint_dir = path_to_write(checkpoint_dir, resolver)
checkpoint = tf.train.Checkpoint(model=model, epoch=epoch, step_in_epoch=step_in_epoch)
checkpoint_manager = tf.train.CheckpointManager(checkpoint, directory=write_checkpoint_dir, max_to_keep=1)

latest_checkpoint = tf.train.latest_checkpoint(checkpoint_dir)
if latest_checkpoint:
    checkpoint.restore(latest_checkpoint)

while epoch.numpy() < num_epochs:
    iterator = iter(dataset)
    total_loss, num_batches = 0.0, 0
    while step_in_epoch.numpy() < num_steps_per_epoch:
        total_loss += train_step(iterator)
        num_batches += 1
        step_in_epoch.assign_add(1)
    train_loss = total_loss / num_batches
    accuracy = train_accuracy.result()
    print(f"Epoch: {int(epoch.numpy())}, accuracy: {float(accuracy):f}, train_loss: {float(train_loss):f}.")
    train_accuracy.reset_state()
    checkpoint_manager.save()
    if not is_chief(resolver):
        tf.io.gfile.rmtree(write_checkpoint_dir)
    epoch.assign_add(1)
    step_in_epoch.assign(0)
