"""The program of TensorFlow's tutorial about parameter servers, with Keras' `fit`.

It makes the calls of that program in their order: a dataset function that gets an input context,
`compile` with several steps per execution, and the callbacks for TensorBoard, checkpoints and backups.
"""

import json
import os
import sys

import numpy as np
from namespace import tf

folder = sys.argv[1] if len(sys.argv) > 1 else "."


def main():
    strategy = tf.distribute.ParameterServerStrategy(
        num_ps=1,
        num_workers=2,
        variable_partitioner=tf.distribute.experimental.partitioners.MinSizePartitioner(max_shards=2),
    )

    def dataset_fn(input_context):
        global_batch_size = 64
        batch_size = input_context.get_per_replica_batch_size(global_batch_size)
        rng = np.random.default_rng(0)
        x = rng.uniform(size=(10, 10)).astype("float32")
        y = x.sum(1).astype("float32")
        dataset = tf.data.Dataset.from_tensor_slices((x, y)).shuffle(10).repeat()
        dataset = dataset.shard(input_context.num_input_pipelines, input_context.input_pipeline_id)
        dataset = dataset.batch(batch_size)
        return dataset.prefetch(2)

    input_dataset = strategy.distribute_datasets_from_function(dataset_fn)
    tf.keras.utils.set_random_seed(1)  # not in the tutorial: all runs start with the same weights
    with strategy.scope():
        model = tf.keras.models.Sequential([tf.keras.layers.Dense(1)])
        model.compile(tf.keras.optimizers.SGD(0.01), loss="mse", steps_per_execution=10)
    callbacks = [
        tf.keras.callbacks.TensorBoard(log_dir=os.path.join(folder, "log")),
        tf.keras.callbacks.ModelCheckpoint(
            filepath=os.path.join(folder, "ckpt.weights.h5"), save_weights_only=True
        ),
        tf.keras.callbacks.BackupAndRestore(backup_dir=os.path.join(folder, "backup")),
    ]
    history = model.fit(input_dataset, epochs=5, steps_per_epoch=20, callbacks=callbacks, verbose=2)
    result = {
        "losses": history.history["loss"],
        "iterations": int(model.optimizer.iterations.numpy()),
        "files": sorted(os.listdir(folder)),
    }
    print("RESULT", json.dumps(result), flush=True)


if __name__ == "__main__":
    main()
