"""Training programs of the kinds that TensorFlow's tutorials and guides have, with small made-up data.

Each runs with the default strategy and with one, two and three replicas. Mirrored strategies of TensorFlow
disturb each other in one process: record `'*_default'`, `'*_1'`, and each of the others (`keras_2`) alone.
"""

import os
import tempfile

import numpy as np

from .running import each


def _strategy(tf, replicas):
    if replicas == "default":
        return tf.distribute.get_strategy()
    if replicas == 1:
        return tf.distribute.OneDeviceStrategy("CPU:0")
    return tf.distribute.MirroredStrategy([f"CPU:{i}" for i in range(replicas)])


def _images(count=24, size=6):
    numbers = np.arange(count * size * size, dtype=np.float32)
    images = np.sin(numbers).reshape(count, size, size, 1)
    return images.astype(np.float32), (np.arange(count) % 3).astype(np.int64)


def _fixed(seed):
    """An initializer that gives the same numbers in every backend."""

    def initialize(shape, dtype=None, **_):
        count = int(np.prod(shape))
        return (0.3 * np.cos(seed + np.arange(count))).reshape(tuple(shape)).astype(np.float32)

    return initialize


def _custom_training(tf, strategy):
    """A convolutional model in a loop of one's own, with metrics and a checkpoint."""
    images, labels = _images()
    batch = 12
    dataset = tf.data.Dataset.from_tensor_slices((images, labels)).batch(batch)
    train = strategy.experimental_distribute_dataset(dataset)
    test = strategy.experimental_distribute_dataset(dataset)
    with strategy.scope():
        loss_object = tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True, reduction="none")
        test_loss = tf.keras.metrics.Mean(name="test_loss")
        accuracy = tf.keras.metrics.SparseCategoricalAccuracy(name="accuracy")
        model = tf.keras.Sequential(
            [
                tf.keras.Input((6, 6, 1)),
                tf.keras.layers.Conv2D(2, 3, activation="relu", kernel_initializer=_fixed(1)),
                tf.keras.layers.MaxPooling2D(),
                tf.keras.layers.Flatten(),
                tf.keras.layers.Dense(3, kernel_initializer=_fixed(2)),
            ]
        )
        optimizer = tf.keras.optimizers.Adam(learning_rate=0.01)
        optimizer.build(model.trainable_variables)
        checkpoint = tf.train.Checkpoint(optimizer=optimizer, model=model)

    def compute_loss(labels, predictions):
        per_example = loss_object(labels, predictions)
        return tf.nn.compute_average_loss(per_example, global_batch_size=batch)

    def train_step(inputs):
        images, labels = inputs
        with tf.GradientTape() as tape:
            predictions = model(images, training=True)
            loss = compute_loss(labels, predictions)
        gradients = tape.gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
        accuracy.update_state(labels, predictions)
        return loss

    def test_step(inputs):
        images, labels = inputs
        test_loss.update_state(loss_object(labels, model(images, training=False)))

    @tf.function
    def distributed_train_step(inputs):
        losses = strategy.run(train_step, args=(inputs,))
        return strategy.reduce(tf.distribute.ReduceOp.SUM, losses, axis=None)

    @tf.function
    def distributed_test_step(inputs):
        return strategy.run(test_step, args=(inputs,))

    results = []
    prefix = os.path.join(tempfile.mkdtemp(), "ckpt")
    for _ in range(2):
        total, batches = 0.0, 0
        for inputs in train:
            total += distributed_train_step(inputs)
            batches += 1
        for inputs in test:
            distributed_test_step(inputs)
        results.append((total / batches, test_loss.result(), accuracy.result()))
        test_loss.reset_state()
        accuracy.reset_state()
    path = checkpoint.save(prefix)
    before = [w.numpy() for w in model.weights]
    model.layers[-1].kernel.assign(np.zeros((8, 3), np.float32))
    checkpoint.restore(path)
    restored = all(np.allclose(a, w.numpy()) for a, w in zip(before, model.weights, strict=True))
    return results, restored


def _keras_fit(tf, strategy):
    """`compile` and `fit` with callbacks that change the learning rate and save weights."""
    images, labels = _images()
    folder = tempfile.mkdtemp()
    with strategy.scope():
        model = tf.keras.Sequential(
            [
                tf.keras.Input((6, 6, 1)),
                tf.keras.layers.Conv2D(2, 3, activation="relu", kernel_initializer=_fixed(1)),
                tf.keras.layers.Flatten(),
                tf.keras.layers.Dense(3, kernel_initializer=_fixed(2)),
            ]
        )
        model.compile(
            loss=tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True),
            optimizer=tf.keras.optimizers.SGD(0.1),
            metrics=["accuracy"],
        )
    rates = []

    class Rates(tf.keras.callbacks.Callback):
        def on_epoch_end(self, epoch, logs=None):
            rates.append(float(self.model.optimizer.learning_rate.numpy()))

    callbacks = [
        tf.keras.callbacks.ModelCheckpoint(os.path.join(folder, "w.weights.h5"), save_weights_only=True),
        tf.keras.callbacks.LearningRateScheduler(lambda epoch: 0.1 if epoch < 1 else 0.05),
        Rates(),
    ]
    dataset = tf.data.Dataset.from_tensor_slices((images, labels)).batch(12)
    history = model.fit(dataset, epochs=2, callbacks=callbacks, verbose=0)
    evaluated = model.evaluate(dataset, verbose=0)
    before = model.predict(images[:2], verbose=0)
    model.layers[-1].kernel.assign(np.zeros((32, 3), np.float32))
    model.load_weights(os.path.join(folder, "w.weights.h5"))
    return (
        history.history["loss"],
        rates,
        evaluated,
        np.allclose(before, model.predict(images[:2], verbose=0)),
    )


def _input(tf, strategy):
    """What each replica gets: from a dataset, from a function, and by values."""
    global_batch = 6
    dataset = tf.data.Dataset.from_tensors(([1.0], [1.0])).repeat(18).batch(global_batch)
    sizes = [
        [part.shape[0] for part in each(strategy, x)]
        for x, _ in strategy.experimental_distribute_dataset(dataset)
    ]

    def dataset_fn(context):
        size = context.get_per_replica_batch_size(global_batch)
        numbers = tf.data.Dataset.range(12).repeat()
        return numbers.shard(context.num_input_pipelines, context.input_pipeline_id).batch(size).take(4)

    from_function = strategy.distribute_datasets_from_function(dataset_fn)

    @tf.function
    def total(batch):
        return strategy.reduce(
            tf.distribute.ReduceOp.SUM, strategy.run(lambda x: tf.reduce_sum(x), args=(batch,)), axis=None
        )

    totals = [total(batch) for batch in from_function]
    iterator = iter(strategy.experimental_distribute_dataset(tf.data.Dataset.range(12).batch(6)))
    by_next = [total(next(iterator)), total(iterator.get_next())]
    optional = iterator.get_next_as_optional()
    values = strategy.experimental_distribute_values_from_function(
        lambda context: tf.constant(float(context.replica_id_in_sync_group))
    )
    doubled = each(strategy, strategy.run(lambda x: x * 2, args=(values,)))
    return sizes, totals, by_next, bool(optional.has_value()), doubled


def _save_and_load(tf, strategy):
    """Weights that go from one strategy to another, through checkpoints and files of weights."""
    images, labels = _images(12)
    images = images.reshape(12, 36)

    def build():
        model = tf.keras.Sequential(
            [tf.keras.Input((36,)), tf.keras.layers.Dense(3, kernel_initializer=_fixed(3))]
        )
        model.compile("sgd", tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True))
        return model

    folder = tempfile.mkdtemp()
    with strategy.scope():
        model = build()
    model.fit(images, labels, batch_size=6, epochs=1, shuffle=False, verbose=0)
    model.save(os.path.join(folder, "model.keras"), zipped=True)
    model.save_weights(os.path.join(folder, "model.weights.h5"))
    expected = model.predict(images[:3], verbose=0)
    other = tf.distribute.OneDeviceStrategy("CPU:0")
    with other.scope():
        loaded = tf.keras.models.load_model(
            os.path.join(folder, "model.keras"), custom_objects={"initialize": _fixed(3)}, compile=False
        )
    again = build()
    again.load_weights(os.path.join(folder, "model.weights.h5"))
    return (
        expected,
        np.allclose(expected, loaded.predict(images[:3], verbose=0)),
        np.allclose(expected, again.predict(images[:3], verbose=0)),
    )


def _advanced(tf, strategy):
    """A subclassed model, built by its first call in a compiled step."""
    images, labels = _images()

    class Model(tf.keras.Model):
        def __init__(self):
            super().__init__()
            self.conv = tf.keras.layers.Conv2D(2, 3, activation="relu", kernel_initializer=_fixed(1))
            self.flatten = tf.keras.layers.Flatten()
            self.dense = tf.keras.layers.Dense(3, kernel_initializer=_fixed(2))

        def call(self, x):
            return self.dense(self.flatten(self.conv(x)))

    with strategy.scope():
        model = Model()
        model(np.zeros((1, 6, 6, 1), np.float32))
        optimizer = tf.keras.optimizers.Adam()
        optimizer.build(model.trainable_variables)
        train_loss = tf.keras.metrics.Mean(name="train_loss")
        train_accuracy = tf.keras.metrics.SparseCategoricalAccuracy(name="train_accuracy")
        loss_object = tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True, reduction="none")

    def replica_step(images, labels):
        with tf.GradientTape() as tape:
            predictions = model(images, training=True)
            losses = loss_object(labels, predictions)
            loss = tf.nn.compute_average_loss(losses, global_batch_size=12)
        gradients = tape.gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
        train_loss(losses)
        train_accuracy(labels, predictions)

    @tf.function
    def train_step(images, labels):
        strategy.run(replica_step, args=(images, labels))

    dataset = tf.data.Dataset.from_tensor_slices((images, labels)).batch(12)
    results = []
    for _ in range(2):
        train_loss.reset_state()
        train_accuracy.reset_state()
        for images, labels in strategy.experimental_distribute_dataset(dataset):
            train_step(images, labels)
        results.append((train_loss.result(), train_accuracy.result()))
    return results


def _dcgan(tf, strategy):
    """Two models with an optimizer each, trained against each other with two tapes."""
    images, _ = _images(12)
    with strategy.scope():
        generator = tf.keras.Sequential(
            [
                tf.keras.Input((4,)),
                tf.keras.layers.Dense(3 * 3 * 2, use_bias=False, kernel_initializer=_fixed(1)),
                tf.keras.layers.LeakyReLU(),
                tf.keras.layers.Reshape((3, 3, 2)),
                tf.keras.layers.Conv2DTranspose(
                    1, 3, strides=2, padding="same", activation="tanh", kernel_initializer=_fixed(2)
                ),
            ]
        )
        discriminator = tf.keras.Sequential(
            [
                tf.keras.Input((6, 6, 1)),
                tf.keras.layers.Conv2D(2, 3, strides=2, padding="same", kernel_initializer=_fixed(3)),
                tf.keras.layers.LeakyReLU(),
                tf.keras.layers.Flatten(),
                tf.keras.layers.Dense(1, kernel_initializer=_fixed(4)),
            ]
        )
        generator_optimizer = tf.keras.optimizers.Adam(1e-2)
        discriminator_optimizer = tf.keras.optimizers.Adam(1e-2)
        generator_optimizer.build(generator.trainable_variables)
        discriminator_optimizer.build(discriminator.trainable_variables)
        cross_entropy = tf.keras.losses.BinaryCrossentropy(from_logits=True, reduction="none")

    def average(losses):
        return tf.nn.compute_average_loss(losses, global_batch_size=12)

    def replica_step(images, noise):
        with tf.GradientTape() as gen_tape, tf.GradientTape() as disc_tape:
            generated = generator(noise, training=True)
            real, fake = discriminator(images, training=True), discriminator(generated, training=True)
            gen_loss = average(cross_entropy(tf.ones_like(fake), fake))
            disc_loss = average(
                cross_entropy(tf.ones_like(real), real) + cross_entropy(tf.zeros_like(fake), fake)
            )
        gen_gradients = gen_tape.gradient(gen_loss, generator.trainable_variables)
        disc_gradients = disc_tape.gradient(disc_loss, discriminator.trainable_variables)
        generator_optimizer.apply_gradients(zip(gen_gradients, generator.trainable_variables, strict=True))
        pairs = zip(disc_gradients, discriminator.trainable_variables, strict=True)
        discriminator_optimizer.apply_gradients(pairs)
        return gen_loss, disc_loss

    @tf.function
    def train_step(images, noise):
        losses = strategy.run(replica_step, args=(images, noise))
        return [strategy.reduce(tf.distribute.ReduceOp.SUM, loss, axis=None) for loss in losses]

    noise = np.cos(np.arange(48, dtype=np.float32)).reshape(12, 4)
    dataset = tf.data.Dataset.from_tensor_slices((images, noise)).batch(12).repeat(3)
    return [train_step(*batch) for batch in strategy.experimental_distribute_dataset(dataset)]


def _cvae(tf, strategy):
    """A variational autoencoder with a loss of its own; the noise is part of the data."""
    images, _ = _images(12)

    class CVAE(tf.keras.Model):
        def __init__(self, latent):
            super().__init__()
            self.encoder = tf.keras.Sequential(
                [
                    tf.keras.Input((6, 6, 1)),
                    tf.keras.layers.Flatten(),
                    tf.keras.layers.Dense(2 * latent, kernel_initializer=_fixed(1)),
                ]
            )
            self.decoder = tf.keras.Sequential(
                [
                    tf.keras.Input((latent,)),
                    tf.keras.layers.Dense(36, kernel_initializer=_fixed(2)),
                    tf.keras.layers.Reshape((6, 6, 1)),
                ]
            )

        def encode(self, x):
            mean, logvar = tf.split(self.encoder(x), num_or_size_splits=2, axis=1)
            return mean, logvar

        def reparameterize(self, mean, logvar, noise):
            return noise * tf.exp(logvar * 0.5) + mean

        def decode(self, z):
            return self.decoder(z)

    def log_normal(sample, mean, logvar):
        log2pi = tf.math.log(2.0 * np.pi)
        return tf.reduce_sum(-0.5 * ((sample - mean) ** 2.0 * tf.exp(-logvar) + logvar + log2pi), axis=1)

    with strategy.scope():
        model, optimizer = CVAE(2), tf.keras.optimizers.Adam(1e-2)
        optimizer.build(model.trainable_variables)

    def replica_step(x, noise):
        with tf.GradientTape() as tape:
            mean, logvar = model.encode(x)
            z = model.reparameterize(mean, logvar, noise)
            cross = tf.nn.sigmoid_cross_entropy_with_logits(logits=model.decode(z), labels=x)
            log_px = -tf.reduce_sum(cross, axis=[1, 2, 3])
            elbo = log_px + log_normal(z, 0.0, 0.0) - log_normal(z, mean, logvar)
            loss = tf.nn.compute_average_loss(-elbo, global_batch_size=12)
        gradients = tape.gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
        return loss

    @tf.function
    def train_step(x, noise):
        loss = strategy.run(replica_step, args=(x, noise))
        return strategy.reduce(tf.distribute.ReduceOp.SUM, loss, axis=None)

    noise = np.cos(np.arange(24, dtype=np.float32)).reshape(12, 2)
    dataset = (
        tf.data.Dataset.from_tensor_slices(((images > 0).astype(np.float32), noise)).batch(12).repeat(3)
    )
    return [train_step(*batch) for batch in strategy.experimental_distribute_dataset(dataset)]


def _distributed_training(tf, strategy):
    """The linear model of the guide: `fit`, then a loop of one's own."""
    with strategy.scope():
        model = tf.keras.Sequential(
            [
                tf.keras.Input((1,)),
                tf.keras.layers.Dense(1, kernel_initializer="ones", kernel_regularizer="l2"),
            ]
        )
        model.compile(loss="mse", optimizer="sgd")
    dataset = tf.data.Dataset.from_tensors(([1.0], [1.0])).repeat(12).batch(6)
    history = model.fit(dataset, epochs=2, verbose=0)
    evaluated = model.evaluate(dataset, verbose=0)
    with strategy.scope():
        optimizer = tf.keras.optimizers.SGD(learning_rate=0.1)
        optimizer.build(model.trainable_variables)
    loss_object = tf.keras.losses.MeanSquaredError(reduction="none")

    def replica_step(inputs):
        features, labels = inputs
        with tf.GradientTape() as tape:
            predictions = model(features, training=True)
            loss = tf.nn.compute_average_loss(loss_object(labels, predictions), global_batch_size=6)
            loss += tf.nn.scale_regularization_loss(model.losses[0])
        gradients = tape.gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
        return loss

    @tf.function
    def train_step(inputs):
        losses = strategy.run(replica_step, args=(inputs,))
        return strategy.reduce(tf.distribute.ReduceOp.SUM, losses, axis=None)

    losses = [train_step(inputs) for inputs in strategy.experimental_distribute_dataset(dataset)]
    return history.history["loss"], evaluated, losses, strategy.num_replicas_in_sync


def _tpu(tf, strategy):
    """How a program for TPUs begins, with its fallback, and several steps in one function."""
    try:
        resolver = tf.distribute.cluster_resolver.TPUClusterResolver()
        tf.config.experimental_connect_to_cluster(resolver)
        tf.tpu.experimental.initialize_tpu_system(resolver)
        strategy = tf.distribute.TPUStrategy(resolver)
    except ValueError:
        pass
    images, labels = _images(12)
    with strategy.scope():
        model = tf.keras.Sequential(
            [
                tf.keras.Input((6, 6, 1)),
                tf.keras.layers.Flatten(),
                tf.keras.layers.Dense(3, kernel_initializer=_fixed(1)),
            ]
        )
        optimizer = tf.keras.optimizers.SGD(0.1)
        optimizer.build(model.trainable_variables)
        loss_metric = tf.keras.metrics.Mean(name="training_loss")

    def per_replica(context):
        size = context.get_per_replica_batch_size(6)
        return (
            tf.data.Dataset.from_tensor_slices((images, labels)).batch(size, drop_remainder=True).repeat()
        )

    dataset = strategy.distribute_datasets_from_function(per_replica)

    @tf.function
    def train_multiple_steps(iterator, steps):
        def step_fn(inputs):
            images, labels = inputs
            with tf.GradientTape() as tape:
                logits = model(images, training=True)
                losses = tf.nn.sparse_softmax_cross_entropy_with_logits(labels=labels, logits=logits)
                loss = tf.nn.compute_average_loss(losses, global_batch_size=6)
            gradients = tape.gradient(loss, model.trainable_variables)
            optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
            loss_metric.update_state(loss * strategy.num_replicas_in_sync)

        for _ in range(steps):
            strategy.run(step_fn, args=(next(iterator),))

    train_multiple_steps(iter(dataset), 3)
    return loss_metric.result(), optimizer.iterations, [w.numpy() for w in model.weights]


def _on(program, replicas):
    return lambda tf: program(tf, _strategy(tf, replicas))


PROGRAMS = {
    "custom_training": _custom_training,
    "keras": _keras_fit,
    "input": _input,
    "save_and_load": _save_and_load,
    "quickstart_advanced": _advanced,
    "dcgan": _dcgan,
    "cvae": _cvae,
    "distributed_training": _distributed_training,
    "tpu": _tpu,
}

for _name, _program in PROGRAMS.items():
    for _replicas in ("default", 1, 2, 3):
        globals()[f"{_name}_{_replicas}"] = _on(_program, _replicas)
