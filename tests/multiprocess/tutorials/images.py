"""The part that both tutorials share: images of digits, and two models.

The tutorials download MNIST. Here scikit-learn's digits, enlarged to 28 by 28 and moved about, take its
place: 9,000 images, enough for the 70 steps of 128 rows that an epoch has.
"""

import numpy as np
from sklearn.datasets import load_digits
from tests.multiprocess.tutorials.namespace import tf

NUM_IMAGES = 9000


def load_data():
    """Images (uint8, 28 by 28) and labels, the same in every process."""
    digits, labels = load_digits(return_X_y=True)
    random = np.random.default_rng(0)
    rows = random.integers(len(digits), size=NUM_IMAGES)
    images = np.zeros((NUM_IMAGES, 28, 28), np.uint8)
    for image, row, (top, left) in zip(images, rows, random.integers(5, size=(NUM_IMAGES, 2)), strict=True):
        image[top : top + 24, left : left + 24] = np.kron(digits[row].reshape(8, 8) * 15.9, np.ones((3, 3)))
    return images, labels[rows]


def make_dataset():
    """All images, shuffled, as float32 from 0 to 1, with integer labels."""
    images, labels = load_data()
    pairs = images / np.float32(255), labels.astype(np.int64)
    return tf.data.Dataset.from_tensor_slices(pairs).shuffle(60000)


def dataset_of_worker(global_batch_size, context):
    """For `distribute_datasets_from_function`: every worker reads its own images."""
    batch_size = context.get_per_replica_batch_size(global_batch_size)
    return make_dataset().shard(context.num_input_pipelines, context.input_pipeline_id).batch(batch_size)


def build_model():
    """A convolution and two dense layers, which give logits."""
    return tf.keras.Sequential(
        [
            tf.keras.Input(shape=(28, 28)),
            tf.keras.layers.Reshape(target_shape=(28, 28, 1)),
            tf.keras.layers.Conv2D(32, 3, activation="relu"),
            tf.keras.layers.Flatten(),
            tf.keras.layers.Dense(128, activation="relu"),
            tf.keras.layers.Dense(10),
        ]
    )


def build_and_compile_model():
    """The same, ready for `fit`."""
    model = build_model()
    model.compile(
        loss=tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        optimizer=tf.keras.optimizers.SGD(learning_rate=0.001),
        metrics=["accuracy"],
    )
    return model
