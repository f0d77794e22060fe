"""Variables that are partitioned over the logical devices of a replica: tensor parallelism."""

import re

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import replicax as rx

WIDTH, HEADS, HIDDEN, LENGTH, BATCH = 16, 4, 32, 6, 4
RULES = {"/(q|k|v|mlp_in)$": [1, 4], "/mlp_bias$": [4], "/(out|mlp_out)$": [4, 1]}
MODEL_AXIS, REPLICA_AXIS = "[2,4]<=[8]", "{{0,4},{1,5},{2,6},{3,7}}"
"""The groups of devices that communicate: the four of a replica, or the two replicas."""

STRATEGIES = {
    "mirrored": lambda: rx.MirroredStrategy(logical_devices=4, partition_rules=RULES),
    "optimizer": lambda: rx.ShardedStrategy(
        shard="optimizer", logical_devices=4, partition_rules=RULES, min_shard_bytes=1
    ),
    "all": lambda: rx.ShardedStrategy(
        shard="all", logical_devices=4, partition_rules=RULES, min_shard_bytes=1
    ),
}


def shard_shapes(variable):
    """The shapes of what the devices have of a variable."""
    array = variable._store.arrays[variable._place]
    return {shard.data.shape for shard in array.addressable_shards}


def initial_block(rng):
    def matrix(rows, columns):
        return (rng.normal(size=(rows, columns)) / np.sqrt(rows)).astype(np.float32)

    square = {name: matrix(WIDTH, WIDTH) for name in ("q", "k", "v", "out")}
    mlp = {"mlp_in": matrix(WIDTH, HIDDEN), "mlp_out": matrix(HIDDEN, WIDTH)}
    return square | mlp | {"mlp_bias": np.zeros(HIDDEN, np.float32), "scale": np.ones(WIDTH, np.float32)}


def block(p, x):
    """A transformer block."""

    def norm(x):
        return (x - x.mean(-1, keepdims=True)) / jnp.sqrt(x.var(-1, keepdims=True) + 1e-5) * p["scale"]

    y = norm(x)
    q, k, v = ((y @ p[name]).reshape(*x.shape[:2], HEADS, -1) for name in "qkv")
    weights = jax.nn.softmax(jnp.einsum("bshd,bthd->bhst", q, k) / np.sqrt(q.shape[-1]))
    x = x + jnp.einsum("bhst,bthd->bshd", weights, v).reshape(x.shape) @ p["out"]
    return x + jax.nn.gelu(norm(x) @ p["mlp_in"] + p["mlp_bias"]) @ p["mlp_out"]


class Trainer:
    """Transformer blocks under a strategy."""

    def __init__(self, strategy, num_blocks=1):
        rng = np.random.default_rng(0)
        self.strategy = strategy
        with strategy.scope():
            self.params = rx.create_variables({f"block_{i}": initial_block(rng) for i in range(num_blocks)})
            self.optimizer = rx.Optimizer(optax.chain(optax.clip_by_global_norm(1.0), optax.adam(1e-2)))
        x = rng.normal(size=(BATCH, LENGTH, WIDTH)).astype(np.float32)
        (self.batch,) = strategy.distribute_dataset(rx.from_arrays(x).batch(BATCH))

    def forward(self, x):
        for name in sorted(self.params):
            x = block(self.params[name], x)
        return x

    def replica_step(self, x):
        def loss():
            return rx.compute_average_loss(
                jnp.mean((self.forward(x) - jnp.roll(x, 1, -1)) ** 2, axis=(1, 2))
            )

        return self.optimizer.minimize(loss, self.params, return_norm=True)

    def step(self, x):
        losses, norms = self.strategy.run(self.replica_step, args=(x,))
        norm = self.strategy.local_results(norms)[0] if self.strategy.num_replicas_in_sync > 1 else norms
        return self.strategy.reduce("SUM", losses, axis=None), norm

    def values(self):
        return jax.tree.map(np.asarray, rx.read_values(self.params))


@pytest.fixture(scope="module")
def on_one_device():
    """Losses, gradient norms and parameters of three steps."""
    trainer = Trainer(rx.OneDeviceStrategy("CPU:0"))
    step = rx.function(trainer.step)
    numbers = [step(trainer.batch) for _ in range(3)]
    return np.array(numbers), trainer.values()


def close(got, expected):
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-5, rtol=1e-5), got, expected)


def collectives(program):
    """(kind, groups) of the collectives of a compiled program."""
    found = re.finditer(
        r" (all-\w+|reduce-scatter|collective-permute)\(.*?replica_groups=(\S+?), ", program
    )
    return [match.groups() for match in found]


@pytest.mark.parametrize("name", ["mirrored", "optimizer", "all"])
def test_a_transformer_on_2x4_devices_is_that_on_one(name, on_one_device):
    numbers, values = on_one_device
    trainer = Trainer(STRATEGIES[name]())
    step = rx.function(trainer.step)
    close(np.array([step(trainer.batch) for _ in range(3)]), numbers)
    close(trainer.values(), values)
    mlp_in, bias = (trainer.params["block_0"][key] for key in ("mlp_in", "mlp_bias"))
    rows = WIDTH // 2 if name == "all" else WIDTH
    assert shard_shapes(mlp_in) == {(rows, HIDDEN // 4)}
    assert shard_shapes(bias) == {(HIDDEN // 4,)}
    slots = {slot.name: shard_shapes(slot) for slot in trainer.optimizer.slots}
    rows = WIDTH if name == "mirrored" else WIDTH // 2
    assert slots["optimizer/1/0/mu/block_0/mlp_in:0"] == {(rows, HIDDEN // 4)}

    kinds = collectives(step.lower(trainer.batch).compile().as_text())
    assert {kind for kind, groups in kinds if groups == MODEL_AXIS} == {"all-reduce"}
    assert all(groups == REPLICA_AXIS for kind, groups in kinds if kind == "reduce-scatter")


def test_a_block_has_two_all_reduces_forward():
    trainer = Trainer(STRATEGIES["mirrored"](), num_blocks=2)
    forward = rx.function(lambda x: trainer.strategy.run(trainer.forward, args=(x,)))
    program = forward.lower(trainer.batch).compile().as_text()
    assert collectives(program) == [("all-reduce", MODEL_AXIS)] * 4  # two blocks


@pytest.mark.parametrize("name", [pytest.param("mirrored", marks=pytest.mark.long), "all"])
def test_eager_replicas_agree(name):
    results = []
    for strategy in (rx.OneDeviceStrategy("CPU:0"), STRATEGIES[name]()):
        with strategy.scope():
            params = rx.create_variables({"a": {"mlp_in": np.ones((4, 8)), "mlp_out": np.ones((8, 4))}})
            optimizer = rx.Optimizer(optax.sgd(0.1, momentum=0.9))

        def replica_step(x, params=params, optimizer=optimizer):
            mlp_in, mlp_out = params["a"]["mlp_in"], params["a"]["mlp_out"]
            return optimizer.minimize(lambda: jnp.sum((x @ mlp_in @ mlp_out) ** 2) / 1000, params)

        x = np.arange(16, dtype=np.float32).reshape(4, 4) / 16
        (batch,) = strategy.distribute_dataset(rx.from_arrays(x).batch(4))
        losses = [strategy.run(replica_step, args=(batch,)) for _ in range(2)]
        losses = [strategy.reduce("SUM", loss, axis=None) for loss in losses]
        results.append((losses, rx.read_values(params)))
    close(results[1], results[0])


def test_a_scan_over_stacked_layers():
    """Layers that are divided among the replicas and the devices of each, gathered one at a time."""
    results = []
    for strategy in (rx.OneDeviceStrategy("CPU:0"), STRATEGIES["all"]()):
        rng = np.random.default_rng(0)
        stacks = {"in": rng.normal(size=(3, 8, 16)) / 4, "out": rng.normal(size=(3, 16, 8)) / 4}
        with strategy.scope():
            partitions = {"in": [1, 1, 4], "out": [1, 4, 1]}
            if strategy.mesh.num_logical_devices == 1:
                partitions = dict.fromkeys(partitions)
            params = {
                name: rx.Variable(value, dtype=jnp.float32, partition=partitions[name])
                for name, value in stacks.items()
            }
            optimizer = rx.Optimizer(optax.sgd(0.1))

        def replica_step(x, params=params, optimizer=optimizer):
            def loss():
                def layer(x, p):
                    return x + jnp.tanh(x @ p["in"]) @ p["out"], None

                y, _ = jax.lax.scan(layer, x, rx.read_values(params))
                return rx.compute_average_loss(jnp.mean(y**2, axis=-1))

            return optimizer.minimize(loss, params)

        @rx.function
        def step(x, strategy=strategy, replica_step=replica_step):
            return strategy.reduce("SUM", strategy.run(replica_step, args=(x,)), axis=None)

        x = rng.normal(size=(4, 8)).astype(np.float32)
        (batch,) = strategy.distribute_dataset(rx.from_arrays(x).batch(4))
        results.append(([step(batch) for _ in range(2)], rx.read_values(params)))
    close(results[1], results[0])


# Reading and writing.


@pytest.fixture(params=["mirrored", "sharded", "one_replica"])
def strategy(request):
    devices = [f"CPU:{i}" for i in range(4)]
    if request.param == "mirrored":
        return rx.MirroredStrategy(devices, logical_devices=2)
    if request.param == "one_replica":
        return rx.MirroredStrategy(devices[:2], logical_devices=2)
    return rx.ShardedStrategy(devices, logical_devices=2, min_shard_bytes=1)


@pytest.mark.parametrize("compiled", [False, True])
def test_reading_and_writing(strategy, compiled):
    value = np.arange(24, dtype=np.float32).reshape(3, 8)
    with strategy.scope():
        v = rx.Variable(value, partition=[1, 2], aggregation="SUM")
    n, rows = strategy.num_replicas_in_sync, 2 if isinstance(strategy, rx.ShardedStrategy) else 3
    assert v.partition == (1, 2)
    assert isinstance(v, rx.ShardedVariable)
    assert shard_shapes(v) == {(rows, 4)}

    def step():
        before = strategy.reduce("SUM", strategy.run(lambda: jnp.sum(v * 1.0)), axis=None)
        strategy.run(lambda: v.assign_add(jnp.ones((3, 8))))
        v.scatter_add(rx.IndexedSlices(jnp.ones((1, 8)), jnp.array([2])))
        strategy.extended.update(v, lambda v, x: v.assign_sub(x), args=(10.0,))
        return before, v.read_value() * 1.0

    before, after = (rx.function(step) if compiled else step)()
    expected = value + n - 10
    expected[2] += 1
    assert float(before) == n * value.sum()
    np.testing.assert_array_equal(after, expected)
    np.testing.assert_array_equal(v.numpy(), expected)
    assert shard_shapes(v) == {(rows, 4)}
    v.assign(value)
    np.testing.assert_array_equal(v.numpy(), value)


def test_fewer_parts_than_devices_and_several_axes():
    with rx.MirroredStrategy(logical_devices=4).scope():
        partitions = [[2, 1], [1, 2], [2, 2], [4, 1], [1, 1]]
        shapes = [shard_shapes(rx.Variable(jnp.zeros((8, 8)), partition=p)) for p in partitions]
        plain = rx.Variable(jnp.zeros((8, 8)), partition=[1, 1])
    assert shapes == [{(4, 8)}, {(8, 4)}, {(4, 4)}, {(2, 8)}, {(8, 8)}]
    assert isinstance(plain, rx.MirroredVariable)


def test_a_partition_of_every_axis_leaves_none_for_the_replicas():
    with rx.ShardedStrategy(logical_devices=4, min_shard_bytes=1).scope():
        both = rx.Variable(jnp.zeros((8, 8)), partition=[2, 2])
    assert shard_shapes(both) == {(4, 4)}


def test_slots_of_other_shapes_are_not_partitioned():
    with rx.MirroredStrategy(logical_devices=4, partition_rules={"w": [1, 4]}).scope():
        params = rx.create_variables({"w": jnp.ones((256, 128)), "v": {"w": jnp.ones((128, 128))}})
        optimizer = rx.Optimizer(optax.adafactor(1e-2))
    optimizer.build(params)
    partitioned = {slot.name for slot in optimizer.slots if slot.partition is not None}
    assert {slot.shape for slot in optimizer.slots if slot.name in partitioned} <= {(256, 128), (128, 128)}
    assert any(slot.shape == (128,) for slot in optimizer.slots)


def test_a_checkpoint_fits_other_partitions(tmp_path):
    value = np.random.default_rng(0).normal(size=(8, 12)).astype(np.float32)
    with rx.MirroredStrategy(logical_devices=4).scope():
        saved = rx.Variable(value, partition=[1, 4])
    path = rx.Checkpoint(w=saved).save(str(tmp_path / "checkpoint"))
    for make, partition in [
        (lambda: rx.ShardedStrategy(logical_devices=2, min_shard_bytes=1), [2, 1]),
        (lambda: rx.OneDeviceStrategy("CPU:3"), None),
    ]:
        with make().scope():
            restored = rx.Variable(jnp.zeros((8, 12)), partition=partition)
        rx.Checkpoint(w=restored).restore(path).assert_consumed()
        np.testing.assert_array_equal(restored.numpy(), value)
    assert restored.partition is None


def test_batches_of_different_sizes():
    strategy = rx.MirroredStrategy(logical_devices=4)
    with strategy.scope():
        w = rx.Variable(np.ones((3, 8), np.float32), partition=[1, 4])

    @rx.function
    def step(x):
        return strategy.gather(strategy.run(lambda x: x @ w, args=(x,)), axis=0)

    x = np.arange(15, dtype=np.float32).reshape(5, 3)
    results = [step(batch) for batch in strategy.distribute_dataset(rx.from_arrays(x).batch(5))]
    np.testing.assert_allclose(np.concatenate(results), x @ np.ones((3, 8)))


# Mistakes.


def refused(message, make=lambda: rx.MirroredStrategy(logical_devices=4), shape=(8, 8), **arguments):
    with make().scope(), pytest.raises(rx.errors.VariableError, match=message):
        rx.Variable(jnp.zeros(shape), name="w", **arguments)


def test_wrong_partitions_are_explained():
    refused(r"'w:0' of shape \(8,\) has the partition \[1, 4\], but 1 axes", shape=(8,), partition=[1, 4])
    refused("axis 1 can't be divided into 4 equal parts", shape=(8, 6), partition=[1, 4])
    refused("makes 8 parts, but each replica of MirroredStrategy.* has 4 logical", partition=[1, 8])
    refused("number of parts must divide 4", shape=(9, 8), partition=[3, 1])
    refused("list of positive integers", partition=4)
    refused("list of positive integers", partition=[0, 4])
    refused("ON_READ", partition=[1, 4], synchronization="ON_READ")
    for make in (rx.MirroredStrategy, lambda: rx.OneDeviceStrategy("CPU:0"), rx.get_strategy):
        refused(r"has only one device.*MirroredStrategy\(logical_devices=4\)", make, partition=[1, 4])
    rules = {"^w": [1, 4]}
    refused(
        r"partition \[1, 4\] by the rule '\^w', but 1 axes",
        lambda: rx.MirroredStrategy(logical_devices=4, partition_rules=rules),
        shape=(8,),
    )
    rules |= {"w$": [4, 1]}
    refused(
        r"rules '\^w': \[1, 4\], 'w\$': \[4, 1\] all match",
        lambda: rx.MirroredStrategy(logical_devices=4, partition_rules=rules),
    )


def test_wrong_options_are_explained():
    with pytest.raises(rx.errors.DeviceError, match="8 devices can't be divided into replicas"):
        rx.MirroredStrategy(logical_devices=3)
    with pytest.raises(rx.errors.DeviceError, match="logical_devices=0"):
        rx.ShardedStrategy(logical_devices=0)
    with pytest.raises(ValueError, match="not a regular expression"):
        rx.MirroredStrategy(logical_devices=4, partition_rules={"(": [1, 4]})
    with pytest.raises(TypeError, match="must be a dict"):
        rx.MirroredStrategy(logical_devices=4, partition_rules=[("w", [1, 4])])
    with pytest.raises(rx.errors.VariableError, match=r"rule 'w' got the partition 'x'"):
        rx.MirroredStrategy(logical_devices=4, partition_rules={"w": "x"})
