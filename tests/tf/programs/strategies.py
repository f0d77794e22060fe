"""Strategies, distributed values and input."""

from .running import each, raised, two


def rows_as_a_tensor(tf):
    rows = tf.IndexedSlices(tf.constant([[1.0, 2.0], [3.0, 4.0]]), tf.constant([2, 0]), tf.constant([3, 2]))
    return (
        tf.convert_to_tensor(rows),
        tf.reduce_sum(rows),
        rows.shape.as_list() if hasattr(rows.shape, "as_list") else list(rows.shape),
        rows.dtype.name,
        tf.add(rows, 1.0),
    )


def experimental_names(tf):
    distribute = tf.distribute
    with_one_device = distribute.OneDeviceStrategy("CPU:0")
    experimental = distribute.experimental
    return (
        isinstance(two(tf), experimental.CentralStorageStrategy),
        isinstance(with_one_device, experimental.MultiWorkerMirroredStrategy),
        isinstance(with_one_device, experimental.TPUStrategy),
        isinstance(with_one_device, experimental.ParameterServerStrategy),
        isinstance(distribute.MultiWorkerMirroredStrategy(), experimental.MultiWorkerMirroredStrategy),
        isinstance(
            experimental.MultiWorkerMirroredStrategy(
                communication=experimental.CollectiveCommunication.AUTO
            ),
            distribute.MultiWorkerMirroredStrategy,
        ),
        isinstance(experimental.CentralStorageStrategy(["CPU:0"]), experimental.CentralStorageStrategy),
    )


def no_devices(tf):
    return raised(lambda: tf.distribute.MirroredStrategy(devices=[]), ValueError, AssertionError)


def no_tpu(tf):
    def connect():
        resolver = tf.distribute.cluster_resolver.TPUClusterResolver()
        tf.config.experimental_connect_to_cluster(resolver)
        tf.tpu.experimental.initialize_tpu_system(resolver)
        return tf.distribute.TPUStrategy(resolver)

    try:
        strategy = connect()
    except ValueError:
        strategy = tf.distribute.get_strategy()
    return strategy.num_replicas_in_sync


def no_tpu_by_an_empty_name(tf):
    resolver = tf.distribute.cluster_resolver.TPUClusterResolver
    return raised(lambda: resolver(tpu=""), ValueError)


def topology_from_coordinates(tf):
    coordinates = [[[0, 0, 0, 0], [0, 0, 0, 1]], [[0, 1, 0, 0], [0, 1, 0, 1]]]
    topology = tf.tpu.experimental.Topology(mesh_shape=[1, 2, 1, 2], device_coordinates=coordinates)
    copied = tf.tpu.experimental.Topology(serialized=topology.serialized())
    return [
        (t.num_tasks, t.num_tpus_per_task, list(t.mesh_shape), t.mesh_rank, t.device_coordinates)
        for t in (topology, copied)
    ]


def version_1_iterator(tf):
    strategy = tf.compat.v1.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
    iterator = strategy.make_dataset_iterator(tf.data.Dataset.range(4).batch(4))
    iterator.initializer  # noqa: B018 - an operation, in graphs
    return each(strategy, next(iterator)), raised(lambda: next(iterator), StopIteration)


def reduction_to_one_device(tf):
    strategy = two(tf)
    ops = tf.distribute.ReductionToOneDevice(reduce_to_device="CPU:1")
    per_replica = strategy.run(
        lambda: tf.cast(tf.distribute.get_replica_context().replica_id_in_sync_group, tf.float32) + 1.0
    )
    total = ops.reduce(tf.distribute.ReduceOp.SUM, per_replica, destinations="CPU:0")
    mirrored = ops.reduce(tf.distribute.ReduceOp.MEAN, per_replica, destinations=per_replica)
    return total, each(strategy, mirrored)


def update_non_slot(tf):
    strategy = two(tf)
    with strategy.scope():
        v = tf.Variable(1.0)
        devices = strategy.extended.non_slot_devices([v])
        result = strategy.extended.update_non_slot(devices, lambda x: x + 1.0, args=(tf.constant(2.0),))
        return each(strategy, result)


def on_read_reductions(tf):
    def reduced(strategy, aggregation):
        with strategy.scope():
            v = tf.Variable(
                0.0, synchronization=tf.VariableSynchronization.ON_READ, aggregation=aggregation
            )

        def write():
            replica = tf.distribute.get_replica_context().replica_id_in_sync_group
            v.assign(tf.cast(replica, tf.float32) + 1.0)

        strategy.run(write)
        return v.read_value()

    return [
        reduced(two(tf), aggregation)
        for aggregation in (
            tf.VariableAggregation.SUM,
            tf.VariableAggregation.MEAN,
            tf.VariableAggregation.ONLY_FIRST_REPLICA,
        )
    ]


def average_loss(tf):
    strategy = two(tf)
    in_replicas = strategy.run(lambda: tf.nn.compute_average_loss(tf.constant([1.0, 3.0])))
    return each(strategy, in_replicas), tf.nn.compute_average_loss(tf.constant([1.0, 3.0]))


def distributed_types(tf):
    strategy = two(tf)
    distributed = tf.types.experimental.distributed
    per_replica = strategy.run(lambda: tf.distribute.get_replica_context().replica_id_in_sync_group)
    with strategy.scope():
        v = tf.Variable(1.0)
    return (
        isinstance(per_replica, distributed.PerReplica),
        isinstance(v, distributed.Mirrored),
        isinstance(per_replica, tf.distribute.DistributedValues),
        isinstance(1.0, distributed.PerReplica),
    )


def operations_on_plain_values(tf):
    ops = tf.distribute.ReductionToOneDevice()
    reduce_op = tf.distribute.ReduceOp
    strategy = two(tf)
    mirrored = strategy.run(lambda: tf.constant(2.0))
    pairs = [(tf.constant(4.0), "CPU:1"), (mirrored, mirrored)]
    return (
        ops.reduce(reduce_op.SUM, tf.constant(3.0), destinations="CPU:1"),
        ops.reduce(reduce_op.MEAN, 3.0, destinations="CPU:0"),
        [each(strategy, result) for result in ops.batch_reduce(reduce_op.SUM, pairs)],
    )


def accumulation_functions(tf):
    ops = tf.distribute.ReductionToOneDevice(
        accumulation_fn=lambda values: tf.reduce_max(tf.stack(values), axis=0)
    )
    devices = [f"CPU:{i}" for i in range(4)]
    strategy = tf.distribute.MirroredStrategy(devices, cross_device_ops=ops)
    reduce_op = tf.distribute.ReduceOp
    per_replica = strategy.run(
        lambda: tf.cast(tf.distribute.get_replica_context().replica_id_in_sync_group, tf.float32)
    )
    # On CPUs, TensorFlow's `strategy.reduce` does not use the strategy's operations.
    in_replicas = strategy.run(
        lambda: tf.distribute.get_replica_context().all_reduce(reduce_op.SUM, tf.constant(3.0))
    )
    return (
        ops.reduce(reduce_op.SUM, per_replica, destinations="CPU:0"),
        ops.reduce(reduce_op.MEAN, per_replica, destinations="CPU:0"),
        each(strategy, in_replicas),
    )


def update_non_slot_with_a_variable(tf):
    strategy = tf.distribute.experimental.CentralStorageStrategy(["CPU:0", "CPU:1"], "CPU:0")
    with strategy.scope():
        v = tf.Variable(1.0)
        with tf.device("CPU:0"):
            tensor = tf.constant(5.0)
        return [strategy.extended.update_non_slot(where, lambda: tf.constant(2.0)) for where in (v, tensor)]


def _replica_id(tf):
    return tf.cast(tf.distribute.get_replica_context().replica_id_in_sync_group, tf.float32)


def reductions_of_on_read_variables(tf):
    strategy = two(tf)
    results = []
    for aggregation in (tf.VariableAggregation.SUM, tf.VariableAggregation.MEAN):
        with strategy.scope():
            v = tf.Variable(
                0.0, synchronization=tf.VariableSynchronization.ON_READ, aggregation=aggregation
            )
        strategy.run(lambda v=v: v.assign(_replica_id(tf) + 1.0))
        results += [
            strategy.reduce(op, v, axis=None)
            for op in (tf.distribute.ReduceOp.SUM, tf.distribute.ReduceOp.MEAN)
        ]
    return results


def unbatched_data_on_one_device(tf):
    strategy = tf.distribute.OneDeviceStrategy("CPU:0")
    scalars = strategy.experimental_distribute_dataset(tf.data.Dataset.range(3))
    pairs = tf.data.Dataset.from_tensor_slices(([[1.0, 2.0], [3.0, 4.0]], [0, 1]))
    pairs = strategy.experimental_distribute_dataset(pairs)
    total = [strategy.run(lambda x: x + 1, args=(x,)) for x in scalars]
    return total, [[x, y] for x, y in pairs]


def batches_on_the_host(tf):
    strategy = two(tf)
    options = tf.distribute.InputOptions(experimental_fetch_to_device=False)
    dataset = strategy.experimental_distribute_dataset(tf.data.Dataset.range(8).batch(4), options)
    return [[part.numpy() for part in each(strategy, batch)] for batch in dataset]


def text_in_batches(tf):
    words = tf.data.Dataset.from_tensor_slices(["a", "bc", "d"])
    strategy = two(tf)
    distributed = strategy.experimental_distribute_dataset(words.batch(2))
    return (
        [word.numpy().decode() for word in words],
        [[word.decode() for word in batch.numpy()] for batch in words.batch(2)],
        [
            [word.decode() for word in part.numpy()]
            for batch in distributed
            for part in each(strategy, batch)
        ],
    )
