"""Variables: reading, writing, parts."""

from .running import each, raised, two


def value_as_a_method(tf):
    v = tf.Variable([1.0, 2.0])
    return v.value(), v.value() + 1.0, tf.reduce_sum(v.value())


def value_as_a_method_in_a_function(tf):
    v = tf.Variable(3.0)

    @tf.function
    def double():
        return v.value() * 2.0

    return double()


def value_as_a_method_in_replicas(tf):
    strategy = two(tf)
    with strategy.scope():
        v = tf.Variable(3.0)
    return each(strategy, strategy.run(lambda: v.value() + 1.0)), v.value()


def assign_with_all_arguments(tf):
    v = tf.Variable(1.0)
    first = float(v.assign(2.0, False, "write", True))
    second = v.assign(3.0, use_locking=True, name="write", read_value=False)
    return first, second is None, v


def assign_add_by_keyword(tf):
    v = tf.Variable(1.0)
    v.assign_add(delta=2.0, use_locking=False, name="more", read_value=True)
    v.assign_sub(delta=0.5)
    return v


def assign_in_replicas_with_all_arguments(tf):
    strategy = two(tf)
    with strategy.scope():
        v = tf.Variable(1.0, aggregation=tf.VariableAggregation.SUM)
    strategy.run(lambda: v.assign_add(tf.constant(1.0), use_locking=False, name="more", read_value=False))
    return v


def scatters(tf):
    def after(method):
        v = tf.Variable([1.0, 2.0, 4.0])
        rows = tf.IndexedSlices(tf.constant([3.0]), tf.constant([1]), tf.constant([3]))
        getattr(v, method)(rows, use_locking=False, name="rows")
        return v

    names = ("add", "sub", "mul", "div", "min", "max", "update")
    return {name: after(f"scatter_{name}") for name in names}


def scatter_nd(tf):
    def after(method):
        v = tf.Variable([[1.0, 2.0], [3.0, 4.0]])
        getattr(v, method)([[0, 1], [1, 0]], [2.5, 2.5], name="places")
        return v

    names = ("add", "sub", "update", "max", "min")
    return {name: after(f"scatter_nd_{name}") for name in names}


def scatter_nd_of_rows(tf):
    v = tf.Variable([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]])
    return v.scatter_nd_update([[2], [0]], [[9.0, 9.0], [8.0, 8.0]])


def batch_scatter_update(tf):
    v = tf.Variable([[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]])
    v.batch_scatter_update(tf.IndexedSlices(tf.constant([[9.0], [8.0]]), tf.constant([[0], [2]])))
    return v


def sparse_read(tf):
    v = tf.Variable([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]])
    return v.sparse_read([2, 0]), v.sparse_read(tf.constant([1]), name="rows")


def gather_nd(tf):
    v = tf.Variable([[1.0, 2.0], [3.0, 4.0]])
    return v.gather_nd([[0, 1], [1, 0]]), v.gather_nd([[1]], name="places")


def slices(tf):
    v = tf.Variable([[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]])
    v[0, 1].assign(20.0)
    v[:, 0].assign([10.0, 40.0])
    v[1, 1:].assign([5.0, 1.0])
    return v, v[0], v[:, 1]


def slices_in_a_function(tf):
    v = tf.Variable([1.0, 2.0, 3.0])

    @tf.function
    def step(x):
        v[1].assign(x)
        v[2:].assign([x * 2.0])
        return v[0]

    return step(tf.constant(5.0)), v


def shapes(tf):
    v = tf.Variable(tf.zeros([2, 3]))
    shape = v.shape
    return (
        shape.as_list(),
        shape.rank,
        shape.ndims,
        shape.num_elements(),
        shape[0],
        shape == (2, 3),
        len(shape),
    )


def shapes_of_mirrored_variables(tf):
    with two(tf).scope():
        v = tf.Variable(tf.zeros([4, 1]))
    return v.shape.as_list(), v.shape.rank, v.get_shape().as_list()


def tensor_shapes(tf):
    shape = tf.TensorShape([None, 3])
    return (
        shape.as_list(),
        shape.rank,
        shape.is_fully_defined(),
        shape.is_compatible_with([2, 3]),
        shape.concatenate([4]).as_list(),
        shape[1:].as_list(),
        tf.TensorShape([2, 3]).num_elements(),
        shape.merge_with([5, None]).as_list(),
    )


def initial_value(tf):
    v = tf.Variable(1.0)
    return raised(lambda: v.initial_value, RuntimeError)


def no_aggregation(tf):
    strategy = two(tf)
    with strategy.scope():
        v = tf.Variable(1.0, aggregation=None, synchronization=tf.VariableSynchronization.ON_WRITE)
    return v.aggregation.name


def mean_of_integers(tf):
    def make():
        with two(tf).scope():
            return tf.Variable(1, aggregation=tf.VariableAggregation.MEAN)

    return raised(make, ValueError), tf.Variable(1, aggregation=tf.VariableAggregation.MEAN)


def mean_of_integers_on_one_device(tf):
    strategy = tf.distribute.OneDeviceStrategy("CPU:0")
    with strategy.scope():
        v = tf.Variable(10, aggregation=tf.VariableAggregation.MEAN)
    strategy.run(lambda: v.assign_add(1))
    return v


def different_names_in_replicas(tf):
    strategy = two(tf)

    def create():
        replica = tf.distribute.get_replica_context().replica_id_in_sync_group
        return tf.Variable(1.0, name=f"v{int(replica)}")

    return raised(lambda: strategy.run(create), RuntimeError, ValueError)


def wrong_values(tf):
    v = tf.Variable([1.0, 2.0])
    return raised(lambda: v.assign([1.0, 2.0, 3.0]), ValueError)


def references(tf):
    v = tf.Variable(1.0)
    return v.ref() == v.ref(), v.ref().deref() is v, len({v.ref(), v.ref()}), v.is_initialized()
