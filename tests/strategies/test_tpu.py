"""`TPUStrategy` on devices that stand in for TPU cores, and setting it up as the documentation does."""

import logging

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import replicax as rx
from replicax.cluster import (
    ClusterSpec,
    SimpleClusterResolver,
    TPUClusterResolver,
    _tpu,
    connect_to_cluster,
    initialize_tpu_system,
    shutdown_tpu_system,
)
from replicax.errors import ClusterError, ContextError, DeviceError

MODES = {"eager": lambda fn: fn, "compiled": rx.function}


@pytest.fixture(params=MODES)
def mode(request):
    return MODES[request.param]


# The documented programs.


def set_up(computation_shape, num_replicas):
    """How every documented example begins."""
    resolver = TPUClusterResolver("local")
    connect_to_cluster(resolver)
    topology = initialize_tpu_system(resolver)
    assignment = rx.DeviceAssignment.build(
        topology, computation_shape=computation_shape, num_replicas=num_replicas
    )
    return rx.TPUStrategy(resolver, experimental_device_assignment=assignment)


def test_assign_to_logical_device():
    strategy = set_up([1, 1, 1, 2], num_replicas=4)
    iterator = iter([jnp.arange(4.0)])

    @rx.function()
    def step_fn(inputs):
        output = jnp.add(inputs, inputs)
        output = strategy.experimental_assign_to_logical_device(output, 0)
        return output

    result = strategy.run(step_fn, args=(next(iterator),))
    assert len(strategy.local_results(result)) == 4
    for part in strategy.local_results(result):
        np.testing.assert_array_equal(part, [0, 2, 4, 6])


def test_split_to_logical_devices():
    strategy = set_up([1, 2, 2, 2], num_replicas=1)
    images = np.random.default_rng(0).normal(size=(16, 4, 8, 3)).astype(np.float32)
    dataset = strategy.experimental_distribute_dataset(rx.from_arrays(images).batch(16))
    kernel = jnp.ones((3, 3, 3, 2))

    def model(inputs):
        return jax.lax.conv_general_dilated(
            inputs, kernel, (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC")
        )

    iterator = iter(dataset)

    @rx.function()
    def step_fn(inputs):
        inputs = strategy.experimental_split_to_logical_devices(inputs, [1, 2, 4, 1])
        output = model(inputs)
        return output

    result = strategy.run(step_fn, args=(next(iterator),))
    np.testing.assert_allclose(result, model(images), rtol=1e-4, atol=1e-4)


def replicated_step(strategy, partition):
    """The example of `experimental_replicate_to_logical_devices`; it splits images and labels alike."""

    def model(inputs):
        images, _ = inputs
        return jnp.mean(images, axis=3, keepdims=True)

    def loss_fn(labels, output):
        return jnp.mean((labels - output) ** 2)

    @rx.function()
    def step_fn(inputs):
        images, labels = inputs
        images = strategy.experimental_split_to_logical_devices(inputs, partition)
        output = model(inputs)
        labels = strategy.experimental_replicate_to_logical_devices(labels)
        output = strategy.experimental_replicate_to_logical_devices(output)
        loss = loss_fn(labels, output)
        del images
        return loss

    rng = np.random.default_rng(0)
    images, labels = rng.normal(size=(4, 4, 8, 3)), rng.normal(size=(4, 4, 8, 1))
    inputs = [(images.astype(np.float32), labels.astype(np.float32))]
    result = strategy.run(step_fn, args=(next(iter(inputs)),))
    expected = np.mean((labels - images.mean(axis=3, keepdims=True)) ** 2)
    for part in strategy.local_results(result):
        np.testing.assert_allclose(part, expected, rtol=1e-5)


def test_replicate_to_logical_devices():
    replicated_step(set_up([1, 2, 2, 2], num_replicas=1), [1, 2, 4, 1])
    replicated_step(set_up([1, 1, 1, 2], num_replicas=4), [1, 2, 1, 1])


def test_the_documented_numbers_of_replicate_contradict_each_other():
    """The example splits 8 ways with 2 logical devices, which the documentation of split rules out."""
    with pytest.raises(ValueError, match="makes 8 parts"):
        replicated_step(set_up([1, 1, 1, 2], num_replicas=4), [1, 2, 4, 1])


def test_values_placed_on_devices_and_distributed(mode):
    for strategy in (rx.TPUStrategy(), set_up([1, 1, 1, 2], num_replicas=4)):
        worker_devices = strategy.extended.worker_devices
        values = []
        for i in range(strategy.num_replicas_in_sync):
            device = jax.devices()[int(worker_devices[i].partition(":")[2])]
            values.append(jax.device_put(jnp.array(1.0), device))

        def value_fn(ctx, values=values):
            return values[ctx.replica_id_in_sync_group]

        distributed = strategy.experimental_distribute_values_from_function(value_fn)
        with strategy.scope():
            v = rx.Variable(2.0)
        found = mode(lambda x, s=strategy, v=v: s.run(lambda x: x + v, args=(x,)))(distributed)
        assert [float(part) for part in strategy.local_results(found)] == [3.0] * len(values)


# The strategy.


def test_a_replica_on_each_core():
    strategy = rx.TPUStrategy()
    assert strategy.num_replicas_in_sync == 8
    assert strategy.extended.worker_devices == tuple(f"CPU:{i}" for i in range(8))
    assert isinstance(strategy.cluster_resolver, TPUClusterResolver)
    resolver = TPUClusterResolver("local")
    assert rx.TPUStrategy(resolver).cluster_resolver is resolver
    assert rx.TPUStrategy().mesh is strategy.mesh


def test_groups_of_cores():
    strategy = set_up([1, 1, 2, 2], num_replicas=2)
    assert strategy.num_replicas_in_sync == 2
    assert strategy.extended.worker_devices == ("CPU:0", "CPU:4")
    assert repr(strategy) == (
        "TPUStrategy([['CPU:0', 'CPU:1', 'CPU:2', 'CPU:3'], ['CPU:4', 'CPU:5', 'CPU:6', 'CPU:7']])"
    )
    names = []
    strategy.run(lambda: names.append(rx.get_replica_context().devices))
    assert names == [("CPU:0", "CPU:1", "CPU:2", "CPU:3"), ("CPU:4", "CPU:5", "CPU:6", "CPU:7")]


@pytest.mark.parametrize(("shape", "num_replicas"), [(None, 8), ([1, 1, 1, 2], 4), ([1, 2, 2, 2], 1)])
def test_variables_are_mirrored(shape, num_replicas, mode):
    strategy = set_up(shape, num_replicas)
    with strategy.scope():
        v = rx.Variable([1.0, 2.0], aggregation=rx.VariableAggregation.MEAN)
        count = rx.Variable(
            0, synchronization=rx.VariableSynchronization.ON_READ, aggregation=rx.VariableAggregation.SUM
        )
    assert isinstance(v, rx.MirroredVariable)
    assert isinstance(count, rx.SyncOnReadVariable)
    assert len(v.copies) == num_replicas

    def replica_fn():
        v.assign_add(jnp.ones(2) * (rx.get_replica_context().replica_id_in_sync_group + 1))
        count.assign_add(2)
        return v.read_value()

    step = mode(lambda: strategy.run(replica_fn))
    for _ in range(3):
        step()
    mean = 3 * (num_replicas + 1) / 2
    np.testing.assert_allclose(np.asarray(v), [1 + mean, 2 + mean])
    assert int(count) == 6 * num_replicas
    strategy.extended.update(v, lambda v, x: v.assign(x), args=(jnp.zeros(2),))
    np.testing.assert_allclose(np.asarray(v), [0, 0])
    v.assign([5.0, 6.0])
    np.testing.assert_allclose(np.asarray(v), [5, 6])


def test_the_host_is_not_busier_than_with_one_device_each():
    """A compiled step with several devices per replica takes the same fast path as any other."""
    strategy = set_up([1, 2, 2, 2], num_replicas=1)
    with strategy.scope():
        v = rx.Variable(jnp.zeros(3), aggregation=rx.VariableAggregation.SUM)
    step = rx.function(lambda x: strategy.run(lambda x: v.assign_add(x), args=(x,)))
    (batch,) = strategy.distribute_dataset(rx.from_arrays(np.ones((3, 3), np.float32)).batch(3))
    for row in (batch[0], batch[1], batch[2]):
        step(row)
    assert step.num_programs == 1
    np.testing.assert_allclose(np.asarray(v), 3 * np.ones(3))


def test_the_partitioning_flag(mode):
    """XLA partitions in any case; with the flag, assigning to one device is ruled out."""
    assignment = rx.DeviceAssignment.build(rx.Topology(), [1, 1, 1, 2], num_replicas=2)
    strategy = rx.TPUStrategy(
        experimental_device_assignment=assignment, experimental_spmd_xla_partitioning=True
    )
    x = jnp.ones((2, 4))

    def replica_fn():
        return strategy.replicate_to_logical_devices(strategy.split_to_logical_devices(x, [1, 2]) * 2)

    for part in strategy.local_results(mode(lambda: strategy.run(replica_fn))()):
        np.testing.assert_array_equal(part, 2 * x)
    with pytest.raises(ValueError, match="experimental_spmd_xla_partitioning"):
        mode(lambda: strategy.run(lambda: strategy.assign_to_logical_device(x, 0)))()


def test_replicas_must_fit_on_a_host():
    class Core:
        platform = "tpu"

        def __init__(self, task):
            self.process_index = task

    assignment = rx.DeviceAssignment.build(rx.Topology(), [1, 1, 1, 2])
    assignment.__dict__["devices"] = ((Core(0), Core(1)),)
    with pytest.raises(DeviceError, match="cores of several processes"):
        rx.TPUStrategy(experimental_device_assignment=assignment)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"tpu_cluster_resolver": "my-tpu"}, "TPUClusterResolver"),
        ({"experimental_device_assignment": [[0, 1]]}, "DeviceAssignment"),
    ],
)
def test_arguments_of_another_kind(arguments, message):
    with pytest.raises(TypeError, match=message):
        rx.TPUStrategy(**arguments)


def test_two_strategies_do_not_mix():
    one, other = set_up([1, 1, 1, 2], 4), set_up([1, 1, 2, 2], 2)
    with one.scope(), pytest.raises(ContextError):
        other.run(lambda: 1)


# The resolver.


@pytest.mark.parametrize("tpu", [None, ""])
def test_no_tpu(tpu):
    with pytest.raises(ValueError, match=r"this machine has no TPU.*tpu='local'"):
        TPUClusterResolver(tpu)


def test_the_devices_of_this_process():
    resolver = TPUClusterResolver("local")
    assert resolver.devices == tuple(jax.devices())
    assert not resolver.cluster_spec()
    assert resolver.master() == ""
    assert resolver.master(rpc_layer="grpc") == "grpc://"
    assert resolver.num_accelerators() == {"TPU": 8}
    assert (resolver.task_type, resolver.task_id) == (None, None)
    with pytest.raises(ClusterError):
        resolver.master("worker", 0)


@pytest.mark.parametrize(
    "arguments",
    [
        {"tpu": "my-tpu"},
        {"tpu": "grpc://10.0.0.2:8470"},
        {"zone": "us-central1-b"},
        {"project": "my-project"},
        {"coordinator_name": "chief"},
        {"coordinator_address": "10.0.0.1:8470"},
        {"credentials": object()},
        {"service": object()},
        {"discovery_url": "https://example.com"},
    ],
)
def test_a_tpu_elsewhere_is_refused_by_name(arguments):
    (name,) = arguments
    with pytest.raises(ClusterError, match=rf"TPUClusterResolver\({name}=.*TPU VM.*jax\.distributed"):
        TPUClusterResolver(**arguments)


def test_other_job_names_are_refused():
    with pytest.raises(ClusterError, match="job_name='tpu_worker'"):
        TPUClusterResolver(job_name="tpu_worker")


def test_setting_up():
    resolver = TPUClusterResolver.connect("local")
    topology = initialize_tpu_system()
    assert topology.mesh_shape == initialize_tpu_system(resolver).mesh_shape == (1, 2, 2, 2)
    assert shutdown_tpu_system(resolver) is None
    for function in (initialize_tpu_system, shutdown_tpu_system):
        with pytest.raises(TypeError, match="TPUClusterResolver"):
            function("my-tpu")


def test_only_this_process_is_connected_to():
    connect_to_cluster(ClusterSpec({}))
    spec = ClusterSpec({"worker": ["host0:1", "host1:1"]})
    for cluster in (spec, SimpleClusterResolver(spec)):
        with pytest.raises(ClusterError, match="worker"):
            connect_to_cluster(cluster)
    with pytest.raises(TypeError, match="ClusterSpec"):
        connect_to_cluster("host0:1")


def test_one_warning_that_cpus_stand_in(caplog):
    _tpu._warn_of_stand_ins.cache_clear()
    with caplog.at_level(logging.WARNING, "replicax"):
        rx.TPUStrategy()
        rx.TPUStrategy(TPUClusterResolver("local"))
        initialize_tpu_system()
    warnings = [record.getMessage() for record in caplog.records if "stand in" in record.getMessage()]
    assert len(warnings) == 1
    assert "CPU" in warnings[0]
