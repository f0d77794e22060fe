"""Training with `ShardedStrategy`: the numbers of one device, with a part of the state on each device.

`python -m tests.training.test_sharded` trains for 200 steps on 1, 2, 3, 4 and 8 devices, beside
`MirroredStrategy`.
"""

import collections
import re
import time

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from tests.training import test_one_device_equals_many as networks

import replicax as rx
from replicax.errors import VariableError
from replicax.variables._traced_value import TracedValue, trace_value

SHARD = ["optimizer", "all"]


def sharded(n, shard="all", min_shard_bytes=1, **options):
    devices = [f"CPU:{i}" for i in range(n)]
    return rx.ShardedStrategy(devices, shard, min_shard_bytes=min_shard_bytes, **options)


@pytest.fixture(autouse=True)
def _no_hints(caplog):
    caplog.set_level("ERROR", "replicax")


# The same numbers.


@pytest.mark.parametrize(("name", "shard", "n"), [("cnn", "all", 3), ("transformer", "optimizer", 4)])
def test_training_has_the_losses_of_one_device_at_every_step(name, shard, n):
    training = networks.Training(name, sharded(n, shard), rx.function)
    networks.agrees(name, training.run("pad"))
    networks.end_as_on_one_device(name, training)


def test_training_that_gathers_once_has_the_losses_of_one_device():
    training = networks.Training("transformer", sharded(3, gather_again=False), rx.function)
    networks.agrees("transformer", training.run("exact", epochs=1))


@pytest.mark.parametrize(("name", "mode"), [("mlp", networks.eager), ("transformer", rx.function)])
def test_uneven_batches_have_the_losses_of_one_device(name, mode):
    training = networks.Training(name, sharded(3), mode)
    networks.agrees(name, training.run("exact", epochs=1))


TRANSFORMATIONS = {
    "adamw": optax.adamw(1e-2, weight_decay=0.1),
    "clipped": optax.chain(optax.clip_by_global_norm(0.1), optax.adam(1e-2)),
    "adafactor": optax.adafactor(1e-2, min_dim_size_to_factor=4),
    "lamb": optax.lamb(1e-2),
    "lars": optax.lars(1e-1),
    "lion": optax.lion(1e-3),
    "ema": optax.chain(optax.adam(1e-2), optax.ema(0.9)),
    "masked": optax.masked(optax.adam(1e-2), {"w": True, "b": False, "out": True}),
    "by label": optax.multi_transform(
        {"fast": optax.sgd(0.1, momentum=0.9), "slow": optax.rmsprop(1e-3)},
        {"w": "fast", "b": "slow", "out": "slow"},
    ),
    "several steps": optax.MultiSteps(
        optax.adam(optax.cosine_decay_schedule(1e-2, 10)), 2
    ).gradient_transformation(),
}


def parameters():
    rng = np.random.default_rng(0)
    shapes = {"w": (6, 16), "b": (16,), "out": (16, 5)}
    return {name: rng.normal(size=shape).astype(np.float32) / 4 for name, shape in shapes.items()}


def regression(params, x, y):
    return jnp.mean((jnp.tanh(x @ params["w"] + params["b"]) @ params["out"] - y) ** 2, axis=-1)


def batches(rows=12):
    rng = np.random.default_rng(1)
    shapes = ((6 * rows, 6), (6 * rows, 5))
    return rx.from_arrays(tuple(rng.normal(size=shape).astype(np.float32) for shape in shapes)).batch(rows)


def train(strategy, replica_step):
    @rx.function
    def step(batch):
        return strategy.reduce("SUM", strategy.run(replica_step, args=batch), axis=None)

    return [float(step(batch)) for batch in strategy.distribute_dataset(batches())], step


@pytest.mark.parametrize(
    ("name", "shard"),
    [*((name, "all") for name in TRANSFORMATIONS), ("clipped", "optimizer"), ("lamb", "optimizer")],
)
def test_optax_sees_whole_parameters(name, shard):
    transformation = TRANSFORMATIONS[name]
    strategy = sharded(3, shard)
    with strategy.scope():
        params = rx.create_variables(parameters())
        optimizer = rx.Optimizer(transformation)

    def replica_step(x, y):
        loss = lambda: rx.compute_average_loss(regression(rx.read_values(params), x, y))  # noqa: E731
        return optimizer.minimize(loss, params)

    losses, _ = train(strategy, replica_step)
    expected = parameters()
    state = transformation.init(expected)
    for i, (x, y) in enumerate(batches()):
        loss, gradients = jax.value_and_grad(lambda p, x=x, y=y: jnp.mean(regression(p, x, y)))(expected)
        updates, state = transformation.update(gradients, state, expected)
        expected = optax.apply_updates(expected, updates)
        np.testing.assert_allclose(losses[i], loss, rtol=1e-5)
    for key, value in rx.read_values(params).items():
        np.testing.assert_allclose(value, expected[key], rtol=1e-5, atol=1e-6, err_msg=key)


@pytest.mark.parametrize("shard", SHARD)
def test_a_replica_sees_its_update_at_once(shard):
    def run(strategy):
        with strategy.scope():
            params = rx.create_variables(parameters())
            optimizer = rx.Optimizer(optax.chain(optax.clip_by_global_norm(0.1), optax.sgd(0.5)))

        def replica_step(x, y):
            loss = lambda: rx.compute_average_loss(regression(rx.read_values(params), x, y))  # noqa: E731
            for _ in range(2):
                _, gradients = rx.value_and_grad(loss, params)()
                norm = optimizer.apply_gradients(gradients, params, return_norm=True)
            seen = sum(jnp.sum(v.value) for v in jax.tree.leaves(params, is_leaf=is_variable))
            return loss() + norm + seen * optimizer.iterations.value

        return train(strategy, replica_step)[0], rx.read_values(params)

    is_variable = lambda x: isinstance(x, rx.Variable)  # noqa: E731
    losses, values = run(sharded(2, shard))
    wanted, expected = run(rx.MirroredStrategy(["CPU:0", "CPU:1"]))
    np.testing.assert_allclose(losses, wanted, rtol=1e-5)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6), values, expected)


@pytest.mark.parametrize("shard", SHARD)
def test_loss_scale_microbatches_and_auxiliary_results(shard):
    def run(strategy):
        with strategy.scope():
            params = rx.create_variables(parameters())
            average = rx.Variable(np.zeros(16, np.float32), aggregation="MEAN", trainable=False)
            optimizer = rx.Optimizer(optax.adam(1e-2), loss_scale=rx.DynamicLossScale(initial_scale=8.0))

        def loss(x, y):
            average.assign(jnp.mean(x @ params["w"], axis=0))
            value = rx.compute_average_loss(regression(rx.read_values(params), x, y))
            return optimizer.scale_loss(value), {"name": "loss", "value": value}

        def replica_step(x, y):
            (_, aux), gradients = rx.value_and_grad(loss, params, has_aux=True, microbatches=2)(x, y)
            assert aux[0]["name"] == "loss"
            norm = optimizer.apply_gradients(gradients, params, return_norm=True)
            return norm + sum(part["value"] for part in aux)

        return train(strategy, replica_step)[0], rx.read_values({**params, "average": average})

    losses, values = run(sharded(2, shard))
    wanted, expected = run(rx.MirroredStrategy(["CPU:0", "CPU:1"]))
    np.testing.assert_allclose(losses, wanted, rtol=1e-5)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6), values, expected)


@pytest.mark.parametrize("shard", SHARD)
def test_rows_of_an_embedding(shard):
    def run(strategy):
        with strategy.scope():
            table = rx.Variable(np.arange(40, dtype=np.float32).reshape(10, 4))
            optimizer = rx.Optimizer(optax.adam(0.1))

        def replica_step(x, y):
            rows = jnp.arange(3) + rx.get_replica_context().replica_id_in_sync_group
            gradient = rx.IndexedSlices(jnp.ones((3, 4)) * jnp.mean(x), rows, (10, 4))
            optimizer.apply_gradients([(gradient, table)])
            return jnp.sum(table.value[rows])

        return train(strategy, replica_step)[0], table.numpy()

    losses, values = run(sharded(3, shard))
    wanted, expected = run(rx.MirroredStrategy(["CPU:0", "CPU:1", "CPU:2"]))
    np.testing.assert_allclose(losses, wanted, rtol=1e-5)
    np.testing.assert_allclose(values, expected, rtol=1e-5)


# What each device holds, read from the compiled program.

WIDTH, LAYERS, DEVICES = 64, 12, 4
PARAMETER_BYTES = 4 * LAYERS * WIDTH**2


def deep_step(strategy):
    rng = np.random.default_rng(0)
    with strategy.scope():
        layers = [rx.Variable(rng.normal(size=(WIDTH, WIDTH)).astype(np.float32)) for _ in range(LAYERS)]
        optimizer = rx.Optimizer(optax.adam(1e-3))

    def replica_step(x):
        def loss():
            hidden = x
            for weights in layers:
                hidden = jnp.tanh(hidden @ weights)
            return rx.compute_average_loss(jnp.mean(hidden**2, axis=-1))

        return optimizer.minimize(loss, layers)

    @rx.function
    def step(x):
        return strategy.reduce("SUM", strategy.run(replica_step, args=(x,)), axis=None)

    batch = strategy.distribute_values_from_function(lambda ctx: np.ones((2, WIDTH), np.float32))
    return step.lower(batch).compile()


def collectives(program):
    """How many collectives of each kind a compiled program has."""
    kinds = "all-gather|all-reduce|reduce-scatter|collective-permute|all-to-all"
    return collections.Counter(re.findall(rf"= \S+ ({kinds})\(", program.as_text()))


@pytest.mark.parametrize(("shard", "copies"), [("optimizer", 1 + 2 / DEVICES), ("all", 3 / DEVICES)])
def test_bytes_on_each_device(shard, copies):
    memory = deep_step(sharded(DEVICES, shard)).memory_analysis()
    assert memory.argument_size_in_bytes == pytest.approx(copies * PARAMETER_BYTES, rel=0.05)
    assert memory.output_size_in_bytes == pytest.approx(copies * PARAMETER_BYTES, rel=0.05)


def test_parameters_are_gathered_one_by_one():
    program = deep_step(sharded(DEVICES))
    # Forward, and backward for all but the first layer, whose input needs no gradient.
    assert collectives(program) == {"all-gather": 2 * LAYERS - 1, "reduce-scatter": LAYERS, "all-reduce": 1}
    assert program.memory_analysis().temp_size_in_bytes < 0.5 * PARAMETER_BYTES


def test_parameters_can_be_gathered_once():
    program = deep_step(sharded(DEVICES, gather_again=False))
    assert collectives(program) == {"all-gather": LAYERS, "reduce-scatter": LAYERS, "all-reduce": 1}


def test_gather_again_is_true_or_false():
    with pytest.raises(TypeError, match="gather_again='no': pass True or False"):
        sharded(2, gather_again="no")


def test_gradients_are_reduced_to_shards():
    program = deep_step(sharded(DEVICES, "optimizer"))
    assert collectives(program) == {"all-gather": LAYERS, "reduce-scatter": LAYERS, "all-reduce": 1}


# Large state is computed in its shards.


def test_a_function_with_a_shape_is_computed_in_shards():
    key = jax.random.key(0)
    calls = []

    def value():
        calls.append(None)
        return 0.02 * jax.random.normal(key, (1023, 64))

    strategy = sharded(DEVICES)
    with strategy.scope():
        variable = rx.Variable(value, shape=(1023, 64))
    assert len(calls) == 1
    traced = trace_value(value, None, "v")
    program = traced.program(variable.layout).lower(traced.args).compile()
    assert program.output_shardings == variable.layout.sharding(strategy.mesh)
    assert not re.search(r"\[(102[34],64|\d+,102[34])\]", program.as_text())
    np.testing.assert_allclose(variable.numpy(), value(), rtol=1e-6)


def test_functions_with_a_shape_that_are_not_jax():
    with sharded(2).scope():
        array = rx.Variable(lambda: np.ones((8, 4), np.float32), shape=(8, 4))
        half = rx.Variable(lambda: jnp.ones((8, 4)), shape=(8, 4), dtype=jnp.bfloat16)
        with pytest.raises(VariableError, match="shape="):
            rx.Variable(lambda: jnp.ones((8, 4)), shape=(8, 5))
        with pytest.raises(jax.errors.ConcretizationTypeError) as raised:
            rx.Variable(lambda: jnp.ones((8, 4)) * float(jnp.ones(())), shape=(8, 4), name="w")
    assert "Leave out shape= to" in raised.value.__notes__[-1]
    assert (array.dtype, half.dtype) == (jnp.float32, jnp.bfloat16)
    np.testing.assert_array_equal(array.numpy(), half.numpy())


@pytest.mark.parametrize("shard", SHARD)
def test_slots_are_computed_in_shards(shard, monkeypatch):
    computed = []
    compute = TracedValue.computed
    monkeypatch.setattr(TracedValue, "computed", lambda self: computed.append(self.shape) or compute(self))
    with sharded(4, shard).scope():
        params = rx.create_variables(parameters())
        optimizer = rx.Optimizer(optax.chain(optax.adam(0.1), optax.ema(0.9)))
        optimizer.build(params)
    assert all(isinstance(slot, rx.ShardedVariable) for slot in optimizer.slots if slot.shape)
    assert set(computed) <= {()}


@pytest.mark.parametrize("size", [-1, 1.5, True, "64"])
def test_the_smallest_size_is_a_number_of_bytes(size):
    with pytest.raises(ValueError, match=r"min_shard_bytes=.*number of bytes"):
        rx.ShardedStrategy(["CPU:0", "CPU:1"], min_shard_bytes=size)


# Scans over stacked layers.


def stacked_step(strategy, *, again=False, change=lambda gradient: gradient):
    """A step of layers in one stack; `again` scans through it twice."""
    rng = np.random.default_rng(0)
    with strategy.scope():
        stack = rx.Variable((rng.normal(size=(LAYERS, WIDTH, WIDTH)) / 8).astype(np.float32))
        bias = rx.Variable(np.zeros((LAYERS, WIDTH), np.float32))
        # Adam divides by the gradient's size plus `eps`. A few gradients are nearly zero (1e-8, others are
        # 1e-3), and with the default `eps` of 1e-8 their rounding errors would become visible.
        optimizer = rx.Optimizer(optax.adam(1e-3, eps=1e-6))

    @jax.checkpoint
    def layer(hidden, parameters):
        weights, bias = parameters
        return jnp.tanh(hidden @ weights.astype(hidden.dtype) + bias), jnp.mean(hidden)

    def replica_step(x):
        def loss():
            hidden, means = jax.lax.scan(layer, x, (stack.value, bias.value))
            if again:
                hidden, _ = jax.lax.scan(layer, hidden[:, ::-1], (stack.value, bias.value), reverse=True)
            return rx.compute_average_loss(jnp.mean(hidden**2, axis=-1) + jnp.sum(means))

        value, gradients = rx.value_and_grad(loss, [stack, bias])()
        optimizer.apply_gradients(zip(map(change, gradients), [stack, bias], strict=True))
        return value

    @rx.function
    def step(x):
        return strategy.reduce("SUM", strategy.run(replica_step, args=(x,)), axis=None)

    rows = np.random.default_rng(1).normal(size=(2 * DEVICES, WIDTH)).astype(np.float32)
    (batch,) = strategy.distribute_dataset(rx.from_arrays(rows).batch(len(rows)))
    return step, batch, stack


def test_a_scan_gathers_one_layer_at_a_time():
    step, batch, _ = stacked_step(sharded(DEVICES, min_shard_bytes=4096))
    program = step.lower(batch).compile()
    gathered = re.findall(r"= \w+\[([\d,]*)\]\S* (all-gather|reduce-scatter)\(", program.as_text())
    assert sorted(gathered) == [
        ("16,64", "reduce-scatter"),
        ("64,64", "all-gather"),
        ("64,64", "all-gather"),
    ]
    memory, biases = program.memory_analysis(), 4 * LAYERS * WIDTH
    held = 3 * (PARAMETER_BYTES / DEVICES + biases)
    assert memory.argument_size_in_bytes == pytest.approx(held, rel=0.05)
    assert memory.temp_size_in_bytes < 0.6 * PARAMETER_BYTES


@pytest.mark.parametrize("gather_again", [True, False])
@pytest.mark.parametrize("how", [{}, {"again": True}, {"change": lambda gradient: 2 * gradient}])
def test_scans_have_the_numbers_of_mirrored_training(how, gather_again):
    def train(strategy):
        step, batch, stack = stacked_step(strategy, **how)
        return [float(step(batch)) for _ in range(3)], stack.numpy()

    losses, values = train(sharded(DEVICES, gather_again=gather_again))
    wanted, expected = train(networks.mirrored(DEVICES))
    np.testing.assert_allclose(losses, wanted, rtol=1e-5)
    np.testing.assert_allclose(values, expected, atol=1e-6)


# 200 steps beside `MirroredStrategy`.


def trained(name, strategy, partial_batch):
    """The losses of 200 steps, and all variables in the end."""
    training = networks.Training(name, strategy, rx.function)
    losses = training.run(partial_batch)
    networks.agrees(name, losses)
    networks.end_as_on_one_device(name, training)
    return losses, jax.tree.leaves(rx.read_values((training.weights, training.moving)))


def deviation(found, expected):
    """The largest difference, in parts of the largest number of its array."""
    pairs = zip(found, expected, strict=True)
    return max(float(np.max(np.abs(a - b)) / np.max(np.abs(b))) for a, b in pairs)


def compare_with_mirrored(name, n, partial_batch):
    expected = trained(name, networks.mirrored(n), partial_batch)
    for shard in SHARD:
        started = time.monotonic()
        losses, values = trained(name, sharded(n, shard), partial_batch)
        np.testing.assert_allclose(losses, expected[0], rtol=1e-5, atol=0)
        for found, wanted in zip(values, expected[1], strict=True):
            np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-5)
        print(
            f"{name}, {shard}, {n} devices, {partial_batch}, {len(losses)} steps: "
            f"losses off by {np.max(np.abs(losses / expected[0] - 1)):.1e}, "
            f"variables by {deviation(values, expected[1]):.1e}, {time.monotonic() - started:.0f} s",
            flush=True,
        )


def main():
    for name in ("cnn", "transformer"):
        for n in (1, 2, 3, 4, 8):
            for partial_batch in ("pad", "exact"):
                compare_with_mirrored(name, n, partial_batch)


if __name__ == "__main__":
    rx.set_cpu_devices(8)
    jax.config.update("jax_disable_most_optimizations", True)
    main()
