"""`tf.keras` under the default strategy, without a scope, and with two replicas."""

import tempfile

import numpy as np

from .running import each, two


def _data(tf):
    x = np.linspace(-1.0, 1.0, 32, dtype=np.float32).reshape(16, 2)
    return x, x @ np.array([[2.0], [-1.0]], np.float32) + 0.5


def _model(tf, size=1):
    return tf.keras.Sequential(
        [
            tf.keras.layers.Dense(3, activation="tanh", kernel_initializer="ones"),
            tf.keras.layers.Dense(size, kernel_initializer="ones"),
        ]
    )


def _steps(tf, strategy, model, optimizer, metric, count=3):
    x, y = _data(tf)

    def replica_step(x, y):
        with tf.GradientTape() as tape:
            losses = tf.reduce_sum((model(x, training=True) - y) ** 2, axis=1)
            loss = tf.nn.compute_average_loss(losses, global_batch_size=8)
        gradients = tape.gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
        metric.update_state(losses)
        return loss

    @tf.function
    def step(batch):
        losses = strategy.run(replica_step, args=batch)
        return strategy.reduce(tf.distribute.ReduceOp.SUM, losses, axis=None)

    dataset = tf.data.Dataset.from_tensor_slices((x, y)).repeat().batch(8).take(count)
    return [step(batch) for batch in strategy.experimental_distribute_dataset(dataset)]


def _trained(tf, strategy, build):
    with strategy.scope():
        model, optimizer = _model(tf), tf.keras.optimizers.SGD(0.1, momentum=0.9)
        metric = tf.keras.metrics.Mean()
        if build:
            model.build((None, 2))
            optimizer.build(model.trainable_variables)
    losses = _steps(tf, strategy, model, optimizer, metric)
    return losses, metric.result(), [w.numpy() for w in model.weights], optimizer.iterations


def default_strategy(tf):
    return _trained(tf, tf.distribute.get_strategy(), build=True)


def default_strategy_built_in_the_step(tf):
    return _trained(tf, tf.distribute.get_strategy(), build=False)


def two_replicas(tf):
    return _trained(tf, two(tf), build=True)


def no_scope_in_a_function(tf):
    x, y = _data(tf)
    model, optimizer = _model(tf), tf.keras.optimizers.Adam(0.1)
    metric = tf.keras.metrics.MeanSquaredError()
    model.build((None, 2))
    optimizer.build(model.trainable_variables)

    @tf.function
    def step(x, y):
        with tf.GradientTape() as tape:
            predicted = model(x, training=True)
            loss = tf.reduce_mean((predicted - y) ** 2)
        gradients = tape.gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
        metric.update_state(y, predicted)
        return loss

    losses = [step(tf.constant(x), tf.constant(y)) for _ in range(3)]
    return losses, metric.result(), model.weights[0].numpy()


def no_scope_and_batch_norm(tf):
    x, _ = _data(tf)
    model = tf.keras.Sequential(
        [
            tf.keras.Input((2,)),
            tf.keras.layers.BatchNormalization(momentum=0.5),
            tf.keras.layers.Dense(1, kernel_initializer="ones"),
        ]
    )

    @tf.function
    def step(x):
        return tf.reduce_mean(model(x, training=True))

    step(tf.constant(x + 3.0))
    step(tf.constant(x + 3.0))
    return [w.numpy() for w in model.layers[0].non_trainable_weights]


def no_scope_in_a_checkpoint(tf):
    model, optimizer = _model(tf), tf.keras.optimizers.Adam(0.1)
    model.build((None, 2))
    checkpoint = tf.train.Checkpoint(model=model, optimizer=optimizer)
    path = checkpoint.save(tempfile.mkdtemp() + "/ckpt")
    model.layers[0].kernel.assign(np.zeros((2, 3), np.float32))
    checkpoint.restore(path)
    return model.layers[0].kernel.numpy()


def restored_before_it_is_built(tf):
    saved = _model(tf)
    saved.build((None, 2))
    saved.layers[0].kernel.assign(np.full((2, 3), 7.0, np.float32))
    path = tf.train.Checkpoint(model=saved).save(tempfile.mkdtemp() + "/ckpt")
    model = _model(tf)
    tf.train.Checkpoint(model=model).restore(path)
    model(tf.zeros([1, 2]))
    return model.layers[0].kernel.numpy()


def fit_without_a_scope(tf):
    x, y = _data(tf)
    model = _model(tf)
    model.compile(optimizer=tf.keras.optimizers.SGD(0.1), loss="mse", metrics=["mae"])
    history = model.fit(x, y, batch_size=8, epochs=2, shuffle=False, verbose=0)
    return history.history["loss"], history.history["mae"], model.predict(x[:2], verbose=0)


def fit_after_a_function(tf):
    x, y = _data(tf)
    model = _model(tf)
    model.compile(optimizer=tf.keras.optimizers.SGD(0.1), loss="mse")

    @tf.function
    def predict(x):
        return model(x)

    before = predict(tf.constant(x[:2]))
    model.fit(x, y, batch_size=8, epochs=1, shuffle=False, verbose=0)
    after = predict(tf.constant(x[:2]))
    return before, after, model.evaluate(x, y, verbose=0)


def losses_and_names(tf):
    keras = tf.keras
    y, p = np.array([[0.0], [1.0]], np.float32), np.array([[0.2], [0.6]], np.float32)
    none = keras.losses.BinaryCrossentropy(reduction="none")
    return none(y, p), keras.losses.MeanSquaredError()(y, p), keras.losses.MeanAbsoluteError()(y, p)


def sparse_categorical(tf):
    loss = tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True, reduction="none")
    return loss(np.array([1, 0]), np.array([[0.0, 1.0], [0.0, 1.0]], np.float32))


def imported_layers(tf):
    import importlib

    name = f"{tf.__name__}.keras" if tf.__name__.startswith("replicax") else "keras"
    layers, losses = (importlib.import_module(f"{name}.{part}") for part in ("layers", "losses"))
    return (
        layers.Dense is tf.keras.layers.Dense,
        losses.MeanSquaredError is tf.keras.losses.MeanSquaredError,
    )


def synchronized_batch_norm(tf):
    strategy = two(tf)
    with strategy.scope():
        layer = tf.keras.layers.BatchNormalization(momentum=0.5, synchronized=True)
        layer.build((None, 1))
    x = np.array([[0.0], [2.0], [4.0], [10.0]], np.float32)
    dataset = strategy.experimental_distribute_dataset(tf.data.Dataset.from_tensor_slices(x).batch(4))

    @tf.function
    def step(batch):
        return strategy.run(lambda x: layer(x, training=True), args=(batch,))

    (batch,) = list(dataset)
    results = each(strategy, step(batch))
    return results, layer.moving_mean.numpy(), layer.moving_variance.numpy()


def metrics_under_the_default_strategy(tf):
    strategy = tf.distribute.get_strategy()
    with strategy.scope():
        mean, accuracy = tf.keras.metrics.Mean(), tf.keras.metrics.SparseCategoricalAccuracy()

    @tf.function
    def step():
        def update():
            mean.update_state([1.0, 3.0])
            accuracy.update_state([1, 0], [[0.1, 0.9], [0.2, 0.8]])

        strategy.run(update)

    step()
    step()
    first = mean.result(), accuracy.result()
    mean.reset_state()
    return first, mean.result()


def _own_steps(tf):
    class Own(tf.keras.Sequential):
        def train_step(self, data):
            x, y = data
            with tf.GradientTape() as tape:
                predicted = self(x, training=True)
                loss = self.compute_loss(x=x, y=y, y_pred=predicted)
            gradients = tape.gradient(loss, self.trainable_variables)
            self.optimizer.apply_gradients(zip(gradients, self.trainable_variables, strict=True))
            for metric in self.metrics:
                if metric.name == "loss":
                    metric.update_state(loss)
                else:
                    metric.update_state(y, predicted)
            return {metric.name: metric.result() for metric in self.metrics if metric.name == "loss"}

        def test_step(self, data):
            return super().test_step(data)

        def predict_step(self, data):
            return 2.0 * super().predict_step(data)

    return Own


def _ramp(shape, dtype=None, **_):
    return np.linspace(0.5, 1.0, int(np.prod(shape)), dtype=np.float32).reshape(tuple(shape))


def _normalized(tf, kind):
    model = kind(
        [
            tf.keras.Input((2,)),
            tf.keras.layers.Dense(3, use_bias=False, kernel_initializer=_ramp, kernel_regularizer="l2"),
            tf.keras.layers.BatchNormalization(momentum=0.5),
            tf.keras.layers.Dense(1, kernel_initializer="ones"),
        ]
    )
    model.compile(optimizer=tf.keras.optimizers.Adam(0.1), loss="mse", metrics=["mae"])
    return model


def train_step_of_data(tf):
    x, y = _data(tf)
    model = _normalized(tf, _own_steps(tf))
    history = model.fit(x, y, batch_size=8, epochs=2, shuffle=False, verbose=0)
    return (
        history.history["loss"],
        model.evaluate(x, y, verbose=0),
        model.predict(x[:2], verbose=0),
        [w.numpy() for w in model.weights],
    )


def train_step_that_calls_keras(tf):
    class Counting(tf.keras.Sequential):
        def train_step(self, data):
            return {**super().train_step(data), "twice": 2.0}

    x, y = _data(tf)
    model = _normalized(tf, Counting)
    history = model.fit(x, y, batch_size=8, epochs=2, shuffle=False, verbose=0)
    return history.history["loss"], history.history["twice"], [w.numpy() for w in model.weights]


def a_loop_without_a_function(tf):
    x, y = _data(tf)
    model, optimizer = _model(tf), tf.keras.optimizers.SGD(0.1)
    losses = []
    for _ in range(3):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((model(tf.constant(x), training=True) - y) ** 2)
        gradients = tape.gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
        losses.append(loss)
    return losses, gradients, [w.numpy() for w in model.weights]


def created_in_a_scope_and_built_outside(tf):
    strategy, (x, y) = tf.distribute.OneDeviceStrategy("CPU:1"), _data(tf)
    with strategy.scope():
        model = _model(tf)
        model.compile(optimizer=tf.keras.optimizers.SGD(0.1), loss="mse")
    history = model.fit(x, y, batch_size=8, epochs=1, shuffle=False, verbose=0)
    return history.history["loss"], [w.numpy() for w in model.weights]


def everything_in_one_loop(tf):
    """Batch norm, regularization, a schedule, clipping, several metrics and a manager of checkpoints."""
    strategy, size = two(tf), 8
    x = np.sin(np.arange(64, dtype=np.float32)).reshape(32, 2)
    dataset = tf.data.Dataset.from_tensor_slices((x, (x.sum(1) > 0).astype(np.int64)))
    dataset = dataset.map(
        lambda x, y: (tf.cast(x, tf.float32) * 2.0, y), num_parallel_calls=tf.data.AUTOTUNE
    )
    dataset = dataset.cache().batch(size, drop_remainder=True).prefetch(tf.data.AUTOTUNE)
    with strategy.scope():
        inputs = tf.keras.Input((2,))
        regularizer = tf.keras.regularizers.L2(0.01)
        hidden = tf.keras.layers.Dense(4, kernel_initializer=_ramp, kernel_regularizer=regularizer)(inputs)
        normalized = tf.keras.layers.BatchNormalization()(hidden)
        outputs = tf.keras.layers.Dense(2, kernel_initializer=_ramp)(tf.keras.layers.ReLU()(normalized))
        model = tf.keras.Model(inputs, outputs)
        schedule = tf.keras.optimizers.schedules.PiecewiseConstantDecay([2, 4], [0.1, 0.05, 0.01])
        optimizer = tf.keras.optimizers.SGD(schedule, momentum=0.9, nesterov=True)
        optimizer.build(model.trainable_variables)
        accuracy, mean = tf.keras.metrics.SparseCategoricalAccuracy(), tf.keras.metrics.Mean()
        losses = tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True, reduction="none")
        steps = tf.Variable(0, trainable=False, aggregation=tf.VariableAggregation.ONLY_FIRST_REPLICA)
        checkpoint = tf.train.Checkpoint(model=model, optimizer=optimizer, steps=steps)
        manager = tf.train.CheckpointManager(checkpoint, tempfile.mkdtemp(), max_to_keep=1)
    checkpoint.restore(manager.latest_checkpoint)

    def replica_step(x, y):
        with tf.GradientTape() as tape:
            logits = model(x, training=True)
            each_loss = losses(y, logits)
            loss = tf.nn.compute_average_loss(each_loss, global_batch_size=size)
            loss += tf.nn.scale_regularization_loss(tf.add_n(model.losses))
        gradients = tape.gradient(loss, model.trainable_variables)
        gradients, _ = tf.clip_by_global_norm(gradients, 0.5)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
        accuracy.update_state(y, logits)
        mean.update_state(each_loss)
        steps.assign_add(1)
        return loss

    @tf.function
    def train_step(x, y):
        replica_losses = strategy.run(replica_step, args=(x, y))
        return strategy.reduce(tf.distribute.ReduceOp.SUM, replica_losses, axis=None)

    results = []
    for _ in range(2):
        epoch = [train_step(x, y) for x, y in strategy.experimental_distribute_dataset(dataset)]
        results.append((epoch, accuracy.result(), mean.result(), steps, optimizer.learning_rate))
        accuracy.reset_state()
        mean.reset_state()
        manager.save()
    before = [weight.numpy() for weight in model.weights]
    # In TensorFlow the copies of these differ, and `numpy()` is the first one. Ours is their mean.
    statistics = [
        np.mean([np.asarray(copy) for copy in each(strategy, weight.value)], axis=0)
        for weight in model.layers[2].non_trainable_variables
    ]
    model.layers[1].kernel.assign(np.zeros((2, 4), np.float32))
    checkpoint.restore(manager.latest_checkpoint).assert_existing_objects_matched()
    same = [np.allclose(a, weight.numpy()) for a, weight in zip(before, model.weights, strict=True)]
    return results, [w.numpy() for w in model.trainable_weights], statistics, same, len(manager.checkpoints)
