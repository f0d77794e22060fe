"""Replicas of several devices: annotations change where numbers are computed, never the numbers."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import replicax as rx
from replicax.errors import ContextError, DeviceError
from replicax.topology import ReplicaMesh

SHAPES = {
    "4x2": ([1, 1, 1, 2], 4),
    "2x4": ([1, 1, 2, 2], 2),
    "1x8": ([1, 2, 2, 2], 1),
    "2x2": ([1, 1, 1, 2], 2),
}
MODES = {"eager": lambda fn: fn, "compiled": rx.function}
SPLITS = {2: [[1, 2], [2, 1]], 4: [[1, 4], [4, 1], [2, 2]], 8: [[1, 8], [8, 1], [2, 4], [4, 2]]}
SUM = rx.VariableAggregation.SUM


def strategy_of(name):
    shape, num_replicas = SHAPES[name]
    assignment = rx.DeviceAssignment.build(rx.Topology(), shape, num_replicas=num_replicas)
    return rx.TPUStrategy(experimental_device_assignment=assignment)


def logical_devices(strategy):
    return strategy.mesh.num_logical_devices


@pytest.fixture(params=SHAPES)
def strategy(request):
    return strategy_of(request.param)


@pytest.fixture(params=MODES)
def mode(request):
    return MODES[request.param]


def numbers(*shape, seed=0):
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


def shards(strategy, rows):
    """Equal parts of the rows for the replicas."""
    parts = np.split(rows, strategy.num_replicas_in_sync)
    return strategy.distribute_values_from_function(
        lambda ctx: jnp.asarray(parts[ctx.replica_id_in_sync_group])
    )


def gathered(strategy, value):
    return np.concatenate([np.asarray(part) for part in strategy.local_results(value)])


def program_text(step, *args):
    """The program of a compiled step as it runs on each device."""
    step(*args)
    (program,) = step._programs.values()
    return program.lower(jax.tree.leaves((args, {}))).compile().as_text()


# The mesh.


@pytest.mark.parametrize("count", [1, 2, 3, 4, 6, 8])
def test_one_axis_for_each_prime_factor(count):
    mesh = ReplicaMesh([jax.devices()[:count]])
    assert mesh.num_replicas == 1
    assert mesh.num_logical_devices == count
    assert (
        mesh.mesh.devices.shape
        == {
            1: (1,),
            2: (1, 2),
            3: (1, 3),
            4: (1, 2, 2),
            6: (1, 2, 3),
            8: (1, 2, 2, 2),
        }[count]
    )


@pytest.mark.parametrize(
    "partition",
    [(8,), (1, 2, 4, 1), (2, 2, 2), (4, 1, 2), (1, 8)],
)
def test_every_partition_of_eight_is_expressible(partition):
    mesh = ReplicaMesh([jax.devices()])
    sharding = jax.sharding.NamedSharding(mesh.mesh, mesh.partition_spec(partition))
    shape = tuple(8 * i for i in range(1, len(partition) + 1))
    assert sharding.shard_shape(shape) == tuple(s // p for s, p in zip(shape, partition, strict=True))


@pytest.mark.parametrize("partition", [(2, 3), (3, 2), (6, 1), (1, 6)])
def test_mixed_factors(partition):
    mesh = ReplicaMesh([jax.devices()[:6]])
    sharding = jax.sharding.NamedSharding(mesh.mesh, mesh.partition_spec(partition))
    assert sharding.shard_shape((6, 6)) == (6 // partition[0], 6 // partition[1])


# Values.


def test_the_numbers_do_not_change(strategy, mode):
    x, w = numbers(16, 8), numbers(8, 8, seed=1)
    for partition in SPLITS[logical_devices(strategy)]:

        def replica_fn(x, partition=partition):
            split = strategy.split_to_logical_devices(x, partition)
            hidden = strategy.split_to_logical_devices(jnp.tanh(split @ w), partition)
            whole = strategy.replicate_to_logical_devices(hidden)
            return strategy.assign_to_logical_device(whole.sum(axis=1), logical_devices(strategy) - 1)

        # Each replica has as many rows as the largest partition needs.
        rows = np.tile(x, (strategy.num_replicas_in_sync, 1))
        found = mode(lambda rows, f=replica_fn: strategy.run(f, args=(rows,)))(shards(strategy, rows))
        np.testing.assert_allclose(
            gathered(strategy, found), np.tanh(rows @ w).sum(axis=1), rtol=1e-4, atol=1e-5
        )


def test_images_in_tiles(mode):
    """[1, 2, 4, 1] over eight devices, through a convolution, whose tiles need each other's borders."""
    strategy = strategy_of("1x8")
    images, kernel = numbers(2, 8, 16, 3), numbers(3, 3, 3, 4, seed=1)

    def convolve(images):
        return jax.lax.conv_general_dilated(
            images, kernel, (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC")
        )

    def replica_fn(images):
        return convolve(strategy.split_to_logical_devices(images, [1, 2, 4, 1]))

    found = mode(lambda images: strategy.run(replica_fn, args=(images,)))(images)
    np.testing.assert_allclose(np.asarray(found), convolve(images), rtol=1e-4, atol=1e-5)


def test_structures_are_annotated_leaf_by_leaf(strategy, mode):
    n = logical_devices(strategy)
    batch = {"x": jnp.ones((n, 3)), "y": (jnp.zeros((n, 1)), None)}

    def replica_fn():
        split = strategy.split_to_logical_devices(batch, [n, 1])
        whole = strategy.replicate_to_logical_devices(split)
        return strategy.assign_to_logical_device(whole, 0)

    found = mode(lambda: strategy.run(replica_fn))()
    assert found["y"][1] is None
    for part in strategy.local_results(found["x"]):
        np.testing.assert_array_equal(part, np.ones((n, 3)))


def test_variables_and_numbers_can_be_annotated(strategy, mode):
    n = logical_devices(strategy)
    with strategy.scope():
        v = rx.Variable(np.arange(n, dtype=np.float32))

    def replica_fn():
        return strategy.split_to_logical_devices(v, [n]) * strategy.assign_to_logical_device(2.0, 0)

    found = mode(lambda: strategy.run(replica_fn))()
    for part in strategy.local_results(found):
        np.testing.assert_array_equal(part, 2.0 * np.arange(n))


def test_gradients(strategy, mode):
    x, w = numbers(16, 8), numbers(8, 8, seed=1)
    partition = SPLITS[logical_devices(strategy)][-1]

    def loss(w, x, annotate):
        return jnp.sum(annotate(jnp.tanh(annotate(x) @ annotate(w))) ** 2)

    def replica_fn(x):
        def annotate(a):
            return strategy.split_to_logical_devices(a, partition)

        return jax.grad(loss, argnums=(0, 1))(jnp.asarray(w), x, annotate)

    found = mode(lambda: strategy.run(replica_fn, args=(jnp.asarray(x),)))()
    expected = jax.grad(loss, argnums=(0, 1))(jnp.asarray(w), jnp.asarray(x), lambda a: a)
    for value, reference in zip(found, expected, strict=True):
        for part in strategy.local_results(value):
            np.testing.assert_allclose(part, reference, rtol=1e-4, atol=1e-5)


def test_inside_of_jax_transformations(strategy, mode):
    n = logical_devices(strategy)
    x = numbers(3, n)

    def replica_fn():
        def double(row):
            return 2 * strategy.split_to_logical_devices(row, [n])

        _, scanned = jax.lax.scan(lambda carry, row: (carry, double(row)), 0, jnp.asarray(x))
        return jax.vmap(double)(jnp.asarray(x)), scanned, jax.jit(double)(jnp.asarray(x[0]))

    mapped, scanned, jitted = mode(lambda: strategy.run(replica_fn))()
    for value, expected in ((mapped, 2 * x), (scanned, 2 * x), (jitted, 2 * x[0])):
        for part in strategy.local_results(value):
            np.testing.assert_allclose(part, expected)


def test_split_values_meet_other_replicas(strategy, mode):
    """all_reduce, all_gather, writes, merge_call and reductions of sharded values."""
    n, replicas = logical_devices(strategy), strategy.num_replicas_in_sync
    with strategy.scope():
        v = rx.Variable(np.zeros((n, 2), np.float32), aggregation=SUM)
        local = rx.Variable(
            np.zeros((n, 2), np.float32),
            aggregation=SUM,
            synchronization=rx.VariableSynchronization.ON_READ,
        )

    def largest(strategy, x):
        return jnp.max(jnp.stack(strategy.local_results(x)), axis=0)

    def replica_fn():
        ctx = rx.get_replica_context()
        x = strategy.split_to_logical_devices(jnp.full((n, 2), ctx.replica_id_in_sync_group + 1.0), [n, 1])
        v.assign_add(x)
        local.assign_add(x)
        return x, ctx.all_reduce("SUM", x), ctx.all_gather(x, axis=0), ctx.merge_call(largest, args=(x,))

    @mode
    def step():
        x, summed, joined, merged = strategy.run(replica_fn)
        return (
            strategy.reduce("SUM", x, axis=None),
            strategy.reduce("MEAN", x, axis=0),
            strategy.gather(x, axis=1),
            strategy.reduce("MEAN", summed, axis=None),
            strategy.reduce("MEAN", joined, axis=None),
            strategy.reduce("MEAN", merged, axis=None),
        )

    total, mean, joined_outside, summed, joined, merged = step()
    ids = np.arange(1, replicas + 1, dtype=np.float32)
    full = np.full((n, 2), ids.sum())
    np.testing.assert_allclose(total, full)
    np.testing.assert_allclose(mean, np.full(2, ids.mean()))
    np.testing.assert_allclose(joined_outside, np.tile(np.repeat(ids, 2), (n, 1)))
    np.testing.assert_allclose(summed, full)
    np.testing.assert_allclose(joined, np.repeat(np.repeat(ids, n)[:, None], 2, axis=1))
    np.testing.assert_allclose(merged, np.full((n, 2), ids.max()))
    np.testing.assert_allclose(np.asarray(v), full)
    np.testing.assert_allclose(np.asarray(local), full)


def test_an_array_in_parts_outside_of_its_strategy():
    """An eager replica may return a sharded value; another strategy's variables hold the whole of it."""
    strategy, other = strategy_of("1x8"), rx.MirroredStrategy(["CPU:0", "CPU:1"])
    x = np.arange(16, dtype=np.float32)
    parts = strategy.run(lambda: strategy.split_to_logical_devices(jnp.asarray(x), [8]))
    plain = rx.Variable(np.zeros(16, np.float32))
    plain.assign(parts)
    with other.scope():
        mirrored = rx.Variable(parts)
        np.testing.assert_array_equal(plain.read_value(), x)
    np.testing.assert_array_equal(np.asarray(mirrored), x)
    np.testing.assert_array_equal(strategy.gather(parts, axis=0), x)
    assert float(strategy.reduce("SUM", parts, axis=0)) == x.sum()


def test_unequal_shapes(mode):
    """Replicas with different numbers of rows, as of a last partial batch."""
    strategy = strategy_of("2x4")
    w = numbers(8, 8)

    def replica_fn(x):
        return strategy.split_to_logical_devices(x, [1, 4]) @ w

    rows = [numbers(3, 8, seed=1), numbers(2, 8, seed=2)]
    x = strategy.distribute_values_from_function(
        lambda ctx: jnp.asarray(rows[ctx.replica_id_in_sync_group])
    )
    found = strategy.local_results(mode(lambda x: strategy.run(replica_fn, args=(x,)))(x))
    for part, row in zip(found, rows, strict=True):
        np.testing.assert_allclose(part, row @ w, rtol=1e-4, atol=1e-5)


# Where they are computed.


def test_eager_arrays_lie_in_parts(strategy):
    n = logical_devices(strategy)
    seen = []

    def replica_fn():
        x = strategy.split_to_logical_devices(jnp.ones((2 * n, 3)), [n, 1])
        whole = strategy.replicate_to_logical_devices(x)
        seen.append(
            (x.addressable_shards[0].data.shape, x.devices(), whole.is_fully_replicated, whole.devices())
        )

    strategy.run(replica_fn)
    for (part, devices, replicated, also), row in zip(seen, strategy.mesh.replica_devices, strict=True):
        assert part == (2, 3)
        assert devices == also == set(row)
        assert replicated


@pytest.mark.parametrize("name", ["4x2", "1x8"])
def test_a_split_matrix_product_is_divided(name):
    """Split along the axis that is summed over: each device multiplies its part, and they add up."""
    strategy = strategy_of(name)
    n, rows = logical_devices(strategy), 3
    w = jnp.asarray(numbers(64, 5))

    def step_of(annotate):
        def replica_fn(x):
            return annotate(x) @ w

        return rx.function(lambda x: strategy.run(replica_fn, args=(x,)))

    x = shards(strategy, numbers(rows * strategy.num_replicas_in_sync, 64, seed=1))
    whole = program_text(step_of(lambda x: x), x)
    split = program_text(step_of(lambda x: strategy.split_to_logical_devices(x, [1, n])), x)
    part = f"f32[{rows},{64 // n}]"
    assert "all-reduce" not in whole
    assert part not in whole
    assert "all-reduce" in split
    assert part in split


def test_results_of_a_step_are_whole(strategy):
    n = logical_devices(strategy)
    step = rx.function(
        lambda: strategy.run(lambda: strategy.split_to_logical_devices(jnp.ones((n, 2)), [n, 1]) * 2)
    )
    for part in strategy.local_results(step()):
        assert part.shape == (n, 2)
        assert len(part.devices()) == 1


# Training.


@pytest.mark.parametrize("name", ["4x2", "2x2", "1x8"])
def test_training_equals_one_device(name, mode):
    strategy = strategy_of(name)
    n = logical_devices(strategy)
    x, y = numbers(28, 16), numbers(28, 4, seed=1)
    first, second = 0.3 * numbers(16, 16, seed=2), 0.3 * numbers(16, 4, seed=3)

    def losses(w, x, y, annotate):
        hidden = annotate(jnp.tanh(x @ w[0]))
        return jnp.sum((hidden @ w[1] - y) ** 2, axis=1)

    weights = [jnp.asarray(first), jnp.asarray(second)]
    transformation = optax.adam(1e-2)
    state = transformation.init(weights)
    batches = [(x[i : i + 12], y[i : i + 12]) for i in range(0, 28, 12)] * 3
    expected = []
    for batch in batches:
        value, grads = jax.value_and_grad(lambda w, b: losses(w, *b, lambda h: h).mean())(weights, batch)
        updates, state = transformation.update(grads, state, weights)
        weights = optax.apply_updates(weights, updates)
        expected.append(float(value))

    with strategy.scope():
        variables = [rx.Variable(first), rx.Variable(second)]
        optimizer = rx.Optimizer(transformation)

    @mode
    def train_step(batch):
        def replica_step(batch):
            def loss():
                own = losses(variables, *batch, lambda h: strategy.split_to_logical_devices(h, [1, n]))
                return rx.compute_average_loss(own)

            value, grads = rx.value_and_grad(loss, variables)()
            optimizer.apply_gradients(zip(grads, variables, strict=True))
            return value

        return strategy.reduce("SUM", strategy.run(replica_step, args=(batch,)), axis=None)

    found = []
    for _ in range(3):
        dataset = rx.from_arrays((x, y)).batch(12)  # 12, 12 and 4 rows
        found += [float(train_step(batch)) for batch in strategy.distribute_dataset(dataset)]
    np.testing.assert_allclose(found, expected, rtol=1e-5)
    for variable, reference in zip(variables, weights, strict=True):
        np.testing.assert_allclose(np.asarray(variable), reference, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("partial_batch", ["exact", "pad"])
def test_datasets(strategy, mode, partial_batch):
    """Every example once, in order, whatever the number of replicas and of their devices."""
    rows = numbers(21, 3)
    options = rx.InputOptions(partial_batch=partial_batch)
    dataset = strategy.distribute_dataset(rx.from_arrays(rows).batch(8), options)
    step = mode(lambda batch: strategy.run(lambda b: jnp.sum(b, axis=1), args=(batch,)))
    sums = [float(strategy.reduce("SUM", step(batch), axis=0)) for batch in dataset]
    expected = [rows[i : i + 8].sum() for i in range(0, 21, 8)]
    np.testing.assert_allclose(sums, expected, rtol=1e-4, atol=1e-5)


# One device for each replica: every other strategy.

ONE_DEVICE = {
    "default": rx.get_strategy,
    "one_device": lambda: rx.OneDeviceStrategy("CPU:1"),
    "mirrored": lambda: rx.MirroredStrategy(["CPU:0", "CPU:1"]),
    "central": lambda: rx.CentralStorageStrategy(["CPU:0", "CPU:1"], "CPU:0"),
    "tpu": lambda: rx.TPUStrategy(),
}


@pytest.mark.parametrize("name", ONE_DEVICE)
def test_on_one_device_values_come_back_unchanged(name, mode):
    strategy = ONE_DEVICE[name]()
    x = np.ones((2, 3), np.float32)

    def replica_fn():
        array = jnp.asarray(x)
        assert strategy.assign_to_logical_device(array, 0) is array
        assert strategy.split_to_logical_devices(array, [1, 1]) is array
        assert strategy.replicate_to_logical_devices(array) is array
        assert strategy.experimental_split_to_logical_devices(5.0, []) == 5.0
        for wrong in (
            lambda: strategy.assign_to_logical_device(array, 1),
            lambda: strategy.split_to_logical_devices(array, [2, 1]),
            lambda: strategy.split_to_logical_devices(array, [1]),
        ):
            with pytest.raises(ValueError, match="logical_device"):
                wrong()
        return array

    found = mode(lambda: strategy.run(replica_fn))()
    for part in strategy.local_results(found):
        np.testing.assert_array_equal(part, x)


# What is refused.


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda s, x: s.assign_to_logical_device(x, 2), r"pass 0 <= id < 2"),
        (lambda s, x: s.assign_to_logical_device(x, -1), r"logical_device_id=-1"),
        (lambda s, x: s.assign_to_logical_device(x, 0.5), r"logical_device_id=0.5"),
        (lambda s, x: s.split_to_logical_devices(x, [1, 4]), r"makes 4 parts.*has 2 logical"),
        (lambda s, x: s.split_to_logical_devices(x, [1, 1]), r"makes 1 parts"),
        (
            lambda s, x: s.split_to_logical_devices(x, [2]),
            r"shape \(4, 3\). Pass one number for each of its 2",
        ),
        (lambda s, x: s.split_to_logical_devices(x, [1, 1, 2]), r"each of its 2 axes"),
        (lambda s, x: s.split_to_logical_devices(x, [1, 2]), r"can't split axis 1.*into 2 equal"),
        (lambda s, x: s.split_to_logical_devices(x, 2), r"list of positive integers; got 2"),
        (lambda s, x: s.split_to_logical_devices(x, [-1, -2]), r"list of positive integers"),
        (lambda s, x: s.split_to_logical_devices(x, [[1, 2]]), r"list of positive integers"),
    ],
)
def test_what_does_not_fit_is_refused(call, message, mode):
    strategy = strategy_of("2x2")
    with pytest.raises(ValueError, match=message) as caught:
        mode(lambda: strategy.run(lambda: call(strategy, jnp.ones((4, 3)))))()
    assert isinstance(caught.value, DeviceError)


def test_only_arrays_are_annotated(mode):
    strategy = strategy_of("2x2")
    with pytest.raises(TypeError, match="takes arrays"):
        mode(lambda: strategy.run(lambda: strategy.replicate_to_logical_devices({"name": "x"})))()


CALLS = {
    "assign": lambda s, x: s.assign_to_logical_device(x, 0),
    "split": lambda s, x: s.split_to_logical_devices(x, [1, 2]),
    "replicate": lambda s, x: s.replicate_to_logical_devices(x),
}


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
def test_only_in_a_replica_function(call):
    strategy, x = strategy_of("2x2"), jnp.ones((4, 2))
    with pytest.raises(ContextError, match=r"strategy\.run"):
        call(strategy, x)
    with strategy.scope(), pytest.raises(ContextError, match=r"cross-replica context.*strategy\.run"):
        call(strategy, x)
    with pytest.raises(ContextError, match="cross-replica context"):
        strategy.run(lambda: rx.get_replica_context().merge_call(lambda s: call(s, x)))
    other = rx.MirroredStrategy(["CPU:0", "CPU:1"])
    with pytest.raises(ContextError, match="a replica function of MirroredStrategy"):
        other.run(lambda: call(strategy, x))


@pytest.mark.parametrize(
    "name", ["assign_to_logical_device", "split_to_logical_devices", "replicate_to_logical_devices"]
)
def test_aliases(name):
    assert getattr(rx.Strategy, f"experimental_{name}") is getattr(rx.Strategy, name)
