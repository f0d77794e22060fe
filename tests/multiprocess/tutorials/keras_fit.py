"""The program of TensorFlow's tutorial about Keras on several workers, with what it does after training.

The dataset is repeated and has global batches, and the model is built and compiled in the scope. After
training, every worker saves the model and a checkpoint, the chief's checkpoint is restored, and training
goes on. Last, a new model is trained with `BackupAndRestore`.
"""

import json
import os
import sys

from tests.multiprocess.tutorials import images
from tests.multiprocess.tutorials.folders import is_chief, path_to_write
from tests.multiprocess.tutorials.namespace import tf

folder, num_epochs, num_steps_per_epoch = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
num_workers = len(json.loads(os.environ["TF_CONFIG"])["cluster"]["worker"])

strategy = tf.distribute.MultiWorkerMirroredStrategy()
tf.keras.utils.set_random_seed(1)  # not in the tutorial: all runs start with the same weights

dataset = images.make_dataset().repeat().batch(64 * num_workers)
with strategy.scope():
    model = images.build_and_compile_model()


def fit(model, epochs, steps, **kwargs):
    """`model.fit`, which also prints what it came to with all digits."""
    history = model.fit(dataset, epochs=epochs, steps_per_epoch=steps, verbose=0, **kwargs).history
    for i, (accuracy, loss) in enumerate(zip(history["accuracy"], history["loss"], strict=True)):
        print(f"Epoch: {i}, accuracy: {accuracy:f}, train_loss: {loss:f}.")


fit(model, num_epochs, num_steps_per_epoch)

resolver = strategy.cluster_resolver
model_path = os.path.join(folder, "keras-model.keras")
write_model_path = path_to_write(model_path, resolver)
model.save(write_model_path)
if not is_chief(resolver):
    tf.io.gfile.rmtree(os.path.dirname(write_model_path))

checkpoint_dir = os.path.join(folder, "ckpt")
write_checkpoint_dir = path_to_write(checkpoint_dir, resolver)
checkpoint = tf.train.Checkpoint(model=model)
checkpoint_manager = tf.train.CheckpointManager(checkpoint, directory=write_checkpoint_dir, max_to_keep=1)
checkpoint_manager.save()
if not is_chief(resolver):
    tf.io.gfile.rmtree(write_checkpoint_dir)

checkpoint.restore(tf.train.latest_checkpoint(checkpoint_dir))
fit(model, 2, num_steps_per_epoch // 3)

with strategy.scope():
    model = images.build_and_compile_model()
backup = tf.keras.callbacks.BackupAndRestore(backup_dir=os.path.join(folder, "backup"))
fit(model, num_epochs, num_steps_per_epoch, callbacks=[backup])
