"""Values inside `tf.function`: constants as shapes and axes, and what converts to tensors."""

from .running import each, raised, two


def constants_as_shapes(tf):
    @tf.function
    def step(x):
        size = tf.constant([2, 3])
        return tf.reshape(x, size), tf.zeros(size), tf.ones([size[0], 1]), tf.fill(size, 7.0)

    return step(tf.range(6))


def constants_as_axes(tf):
    @tf.function
    def step(x):
        axis = tf.constant(1)
        return (
            tf.reduce_sum(x, axis=axis),
            tf.reduce_max(x, axis=tf.constant([0, 1])),
            tf.concat([x, x], axis),
            tf.expand_dims(x, tf.constant(0)),
            tf.argmax(x, axis=axis),
            tf.stack([x, x], axis=0),
        )

    return step(tf.constant([[1.0, 2.0], [3.0, 4.0]]))


def constants_as_permutations(tf):
    @tf.function
    def step(x):
        return tf.transpose(x, tf.constant([1, 0])), tf.reverse(x, tf.constant([0]))

    return step(tf.constant([[1.0, 2.0], [3.0, 4.0]]))


def constants_as_sizes_and_repeats(tf):
    @tf.function
    def step(x):
        return (
            tf.tile(x, tf.constant([2])),
            tf.repeat(x, tf.constant(2)),
            tf.repeat(x, [1, 2]),
            tf.repeat(x, tf.constant([2, 1])),
            tf.one_hot(tf.constant([1, 0]), tf.constant(3)),
            tf.slice(x, tf.constant([1]), tf.constant([1])),
            tf.split(x, tf.constant([1, 1])),
            tf.pad(x, tf.constant([[1, 0]])),
            tf.linspace(0.0, 1.0, tf.constant(3)),
            tf.eye(tf.constant(2)),
        )

    return step(tf.constant([5.0, 6.0]))


def computed_shapes(tf):
    @tf.function
    def step(x):
        batch = tf.shape(x)[0]
        rest = tf.reduce_prod(tf.shape(x)[1:])
        half = tf.cast(batch, tf.int32) // 2
        joined = tf.concat([[batch], tf.constant([3, 2])], axis=0)
        return (
            tf.reshape(x, [batch, rest]),
            tf.zeros([half, tf.maximum(half, 1)]),
            tf.reshape(x, joined),
            tf.reshape(x, tf.stack([batch * 2, -1])),
            tf.range(batch * 2),
        )

    return step(tf.reshape(tf.range(24.0), [4, 2, 3]))


def captured_constants_as_shapes(tf):
    size = tf.constant([3, 2])
    count = tf.constant(2)

    @tf.function
    def step(x):
        return tf.reshape(x, size), tf.zeros([count]), tf.tile(x, [count])

    return step(tf.range(6))


def returned_constants(tf):
    @tf.function
    def step():
        return tf.constant(3), tf.constant([1, 2]), 5, tf.shape(tf.zeros([2, 4])), tf.constant(True)

    return step()


def constants_in_replicas(tf):
    strategy = two(tf)

    @tf.function
    def step():
        return strategy.run(lambda: (tf.zeros(tf.constant([2])), tf.constant(4) + 1))

    zeros, five = step()
    return each(strategy, zeros), each(strategy, five)


def integer_constants_compute(tf):
    @tf.function
    def step(x):
        i = tf.constant(0)
        i += 2
        return x * tf.cast(i, tf.float32), i * 3, tf.constant(7) // i

    return step(tf.constant(1.5))


def lists_of_tensors(tf):
    a, b = tf.constant(1.0), tf.Variable(2.0)

    @tf.function
    def step(x):
        return (
            tf.convert_to_tensor([x, a, b]),
            tf.identity([x, a]),
            tf.convert_to_tensor([[x, 1.0], [a, 2.0]]),
            tf.constant([3, 4]),
            tf.reduce_sum([x, a, b]),
        )

    return tf.convert_to_tensor([a, b]), tf.identity([a, b]), step(tf.constant(5.0))


def gather_of_a_captured_value(tf):
    strategy = two(tf)
    per_replica = strategy.experimental_distribute_values_from_function(
        lambda context: tf.range(context.replica_id_in_sync_group + 1)
    )

    @tf.function
    def step():
        return strategy.gather(per_replica, axis=0)

    return strategy.gather(per_replica, axis=0), step()


def reductions_of_nothing(tf):
    nothing = tf.zeros([0])
    return (
        str(float(tf.reduce_max(nothing))),
        str(float(tf.reduce_min(nothing))),
        tf.reduce_sum(nothing),
        tf.reduce_prod(nothing),
        tf.reduce_all(tf.zeros([0], tf.bool)),
        tf.reduce_max(tf.zeros([0], tf.int32)),
        [str(float(x)) for x in tf.reduce_max(tf.zeros([2, 0]), axis=1)],
        str(float(tf.reduce_mean(nothing))),
    )


def repeats(tf):
    x = tf.constant([[1, 2], [3, 4]])
    return (
        tf.repeat(x, 2),
        tf.repeat(x, [2, 1], axis=0),
        tf.repeat(x, repeats=tf.constant([1, 3]), axis=1),
        tf.repeat(["a", "b"][0:0] or [1.0], 3),
    )


def signatures(tf):
    @tf.function(input_signature=[tf.TensorSpec([None], tf.float32)])
    def total(x):
        return tf.reduce_sum(x)

    return total(tf.Variable([1.0, 2.0])), total([1.0, 2.0, 3.0]), total([1, 2]), total(tf.constant([5.0]))


def next_after_the_last(tf):
    strategy = two(tf)
    dataset = strategy.experimental_distribute_dataset(tf.data.Dataset.range(4).batch(4))
    iterator = iter(dataset)

    @tf.function
    def step(iterator):
        return strategy.run(lambda x: x * 2, args=(next(iterator),))

    first = each(strategy, step(iterator))
    return first, raised(lambda: step(iterator), tf.errors.OutOfRangeError)


def next_after_the_last_outside(tf):
    strategy = two(tf)
    iterator = iter(strategy.experimental_distribute_dataset(tf.data.Dataset.range(4).batch(4)))
    next(iterator)
    plain = iter(tf.data.Dataset.range(1))
    next(plain)
    return (
        raised(lambda: next(iterator), StopIteration),
        raised(lambda: iterator.get_next(), tf.errors.OutOfRangeError),
        raised(lambda: next(plain), StopIteration),
        raised(lambda: plain.get_next(), tf.errors.OutOfRangeError),
    )


def plain_iterators_in_a_function(tf):
    @tf.function
    def step(iterator):
        return next(iterator) + 1

    @tf.function
    def another(iterator):
        return iterator.get_next() * 10

    iterator = iter(tf.data.Dataset.range(4))
    read = [step(iterator), another(iterator), step(iterator), another(iterator)]
    return read, raised(lambda: step(iterator), tf.errors.OutOfRangeError)


def plain_datasets_in_a_function(tf):
    numbers = [1, 2, 3]

    @tf.function
    def total(dataset):
        result = tf.constant(0)
        for x in dataset:
            result += x
        return result

    signature = tf.TensorSpec([], tf.int32)
    dataset = tf.data.Dataset.from_generator(lambda: iter(numbers), output_signature=signature)
    first = total(dataset)
    numbers.append(4)
    return first, total(dataset)
