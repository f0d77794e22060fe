"""One device equals N replicas: the same loop, seeds and data give the same losses at every step.

The reference is plain JAX and optax on whole batches. There are 200 steps: forty epochs of four full
batches and one of five rows, which does not divide by the number of replicas and leaves three of eight
without any. The rates are small and the networks smooth, so that training does not make rounding
grow: what is compared is float32 arithmetic in another order.
"""

import functools
import logging
import math
import time

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import replicax as rx

BATCH = 24
REST = 5
BATCHES = 5
EPOCHS = 40
ROWS = (BATCHES - 1) * BATCH + REST
EPSILON = 1e-3
MOMENTUM = 0.9
DROPOUT = 0.1
KEY = 17
MEAN = rx.VariableAggregation.MEAN


@pytest.fixture(autouse=True)
def _quick_to_compile(caplog):
    """Steps of a few thousand multiplications: compiling them well takes longer than running them."""
    caplog.set_level(logging.ERROR, "replicax")
    jax.config.update("jax_disable_most_optimizations", True)
    yield
    jax.config.update("jax_disable_most_optimizations", False)


def cross_entropy(logits, labels):
    return -jnp.take_along_axis(jax.nn.log_softmax(logits), labels[:, None], axis=1)[:, 0]


def uniform(rng, *shape):
    """Weights for inputs of variance one."""
    return (rng.uniform(-1, 1, size=shape) / math.sqrt(math.prod(shape[:-1]))).astype(np.float32)


# The networks: `losses` gives one loss for each example. `normalise(name, x)` and `keys` are all that one
# device and replicas do differently.


class MLP:
    transformation = optax.sgd(0.02, momentum=0.9)

    def data(self, rng):
        x = rng.normal(size=(ROWS, 6)).astype(np.float32)
        noise = rng.normal(size=ROWS)
        return {"x": x, "y": (np.sin(x[:, 0]) + x[:, 1] * x[:, 2] + noise).astype(np.float32)}

    def weights(self, rng):
        return {"hidden": uniform(rng, 6, 16), "bias": np.zeros(16, np.float32), "out": uniform(rng, 16, 1)}

    def moving(self):
        return {}

    def losses(self, weights, batch, normalise, keys):
        hidden = jnp.tanh(batch["x"] @ weights["hidden"] + weights["bias"])
        return ((hidden @ weights["out"])[:, 0] - batch["y"]) ** 2


class CNN:
    transformation = optax.sgd(0.02, momentum=0.9)

    def data(self, rng):
        labels = rng.integers(3, size=ROWS)
        waves = np.sin(np.arange(8)[:, None] * 0.4 * (1 + labels)[:, None, None] + np.arange(8) * 0.3)
        x = waves[..., None] + rng.normal(size=(ROWS, 8, 8, 1))
        return {"x": x.astype(np.float32), "y": labels.astype(np.int32)}

    def weights(self, rng):
        return {
            "first": uniform(rng, 3, 3, 1, 4),
            "second": uniform(rng, 3, 3, 4, 6),
            "scale": np.ones(4, np.float32),
            "offset": np.zeros(4, np.float32),
            "out": uniform(rng, 6, 3),
        }

    def moving(self):
        return {
            name: {"mean": np.zeros(size, np.float32), "variance": np.ones(size, np.float32)}
            for name, size in (("first", 4), ("second", 6))
        }

    def losses(self, weights, batch, normalise, keys):
        hidden = normalise("first", convolve(batch["x"], weights["first"], 1))
        hidden = jnp.tanh(hidden * weights["scale"] + weights["offset"])
        hidden = jnp.tanh(normalise("second", convolve(hidden, weights["second"], 2)))
        return cross_entropy(jnp.mean(hidden, axis=(1, 2)) @ weights["out"], batch["y"])


def convolve(x, kernel, stride):
    return jax.lax.conv_general_dilated(
        x, kernel, (stride, stride), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC")
    )


class Transformer:
    transformation = optax.adam(optax.cosine_decay_schedule(2e-3, 300), eps=1e-4)
    words, length, width, heads = 11, 8, 16, 2

    def data(self, rng):
        x = rng.integers(self.words, size=(ROWS, self.length)).astype(np.int32)
        flipped = rng.random(ROWS) < 0.2
        labels = ((x[:, 0] + x[:, 3]) % 2) ^ flipped
        return {"x": x, "y": labels.astype(np.int32)}

    def weights(self, rng):
        d = self.width
        return {
            "words": 0.5 * rng.normal(size=(self.words, d)).astype(np.float32),
            "places": 0.5 * rng.normal(size=(self.length, d)).astype(np.float32),
            "qkv": uniform(rng, d, 3 * d),
            "mix": uniform(rng, d, d),
            "up": uniform(rng, d, 2 * d),
            "down": uniform(rng, 2 * d, d),
            "out": uniform(rng, d, 2),
        }

    def moving(self):
        return {}

    def losses(self, weights, batch, normalise, keys):
        logits = jax.vmap(functools.partial(self.logits, weights))(batch["x"], keys)
        return cross_entropy(logits, batch["y"])

    def logits(self, weights, x, key):
        """Of one example."""
        hidden = weights["words"][x] + weights["places"]
        attended = self.attention(weights, layer_norm(hidden))
        hidden = hidden + dropout(jax.random.fold_in(key, 0), attended)
        grown = jax.nn.gelu(layer_norm(hidden) @ weights["up"]) @ weights["down"]
        hidden = hidden + dropout(jax.random.fold_in(key, 1), grown)
        return jnp.mean(layer_norm(hidden), axis=0) @ weights["out"]

    def attention(self, weights, x):
        size = self.width // self.heads
        qkv = (x @ weights["qkv"]).reshape(self.length, 3, self.heads, size)
        scores = jnp.einsum("qhd,khd->hqk", qkv[:, 0], qkv[:, 1]) / math.sqrt(size)
        mixed = jnp.einsum("hqk,khd->qhd", jax.nn.softmax(scores), qkv[:, 2])
        return mixed.reshape(self.length, self.width) @ weights["mix"]


def layer_norm(x):
    centred = x - jnp.mean(x, axis=-1, keepdims=True)
    return centred * jax.lax.rsqrt(jnp.mean(centred**2, axis=-1, keepdims=True) + EPSILON)


def dropout(key, x):
    return jnp.where(jax.random.bernoulli(key, 1 - DROPOUT, x.shape), x / (1 - DROPOUT), 0)


NETWORKS = {"mlp": MLP(), "cnn": CNN(), "transformer": Transformer()}


def dataset(network, epochs=EPOCHS):
    rows = network.data(np.random.default_rng(3)) | {"index": np.arange(ROWS, dtype=np.int32)}
    return rx.from_arrays(rows).shuffle(seed=5).batch(BATCH).repeat(epochs)


def initial(network):
    return network.weights(np.random.default_rng(4)), network.moving()


# One device, without Replicax.


@functools.cache
def one_device(name):
    """The loss of every step, and the weights and moving averages in the end."""
    network = NETWORKS[name]

    def loss_fn(weights, moving, batch, number):
        moved = {}

        def normalise(layer, x):
            mean, variance = jnp.mean(x, axis=(0, 1, 2)), jnp.var(x, axis=(0, 1, 2))
            new = {"mean": mean, "variance": variance}
            moved[layer] = jax.tree.map(lambda a, b: MOMENTUM * a + (1 - MOMENTUM) * b, moving[layer], new)
            return (x - mean) * jax.lax.rsqrt(variance + EPSILON)

        key = jax.random.fold_in(jax.random.key(KEY), number)
        keys = jax.vmap(lambda index: jax.random.fold_in(key, index))(batch["index"])
        return jnp.mean(network.losses(weights, batch, normalise, keys)), moved

    @jax.jit
    def step(weights, moving, state, batch, number):
        (loss, moved), gradients = jax.value_and_grad(loss_fn, has_aux=True)(weights, moving, batch, number)
        updates, state = network.transformation.update(gradients, state, weights)
        return loss, optax.apply_updates(weights, updates), moved, state

    weights, moving = initial(network)
    state, losses = network.transformation.init(weights), []
    for number, batch in enumerate(dataset(network)):
        loss, weights, moving, state = step(weights, moving, state, batch, number)
        losses.append(loss)
    return np.asarray(losses), weights, moving


# N replicas.


class Training:
    def __init__(self, name, strategy, mode):
        self.network, self.strategy = NETWORKS[name], strategy
        weights, moving = initial(self.network)
        with strategy.scope():
            self.weights = rx.create_variables(weights)
            self.moving = rx.create_variables(moving, trainable=False, aggregation=MEAN)
            self.optimizer = rx.Optimizer(self.network.transformation)
        self.variables = jax.tree.leaves(self.weights, is_leaf=lambda x: isinstance(x, rx.Variable))
        self.step = mode(self._step)

    def _step(self, batch):
        parts = self.strategy.run(self._replica_step, args=(batch,))
        return self.strategy.reduce("SUM", parts, axis=None)

    def _replica_step(self, batch):
        loss, gradients = rx.value_and_grad(self._loss, self.weights)(batch)
        self.optimizer.apply_gradients(zip(jax.tree.leaves(gradients), self.variables, strict=True))
        return loss

    def _loss(self, batch):
        key = jax.random.fold_in(jax.random.key(KEY), self.optimizer.iterations.value)
        keys = rx.example_keys(key, batch["index"])
        losses = self.network.losses(rx.read_values(self.weights), batch, self._normalise, keys)
        return rx.compute_average_loss(losses)

    def _normalise(self, layer, x):
        ctx = rx.get_replica_context()
        mask = ctx.example_mask
        rows = x.shape[0] if mask is None else jnp.sum(mask)
        where = None if mask is None else mask[:, None, None, None]
        total, rows = ctx.all_reduce("SUM", [jnp.sum(x, axis=(0, 1, 2), where=where), jnp.float32(rows)])
        count = rows * x.shape[1] * x.shape[2]
        mean = total / count
        squares = jnp.sum((x - mean) ** 2, axis=(0, 1, 2), where=where)
        variance = ctx.all_reduce("SUM", squares) / count
        for kind, new in (("mean", mean), ("variance", variance)):
            variable = self.moving[layer][kind]
            variable.assign(MOMENTUM * variable.value + (1 - MOMENTUM) * new)
        return (x - mean) * jax.lax.rsqrt(variance + EPSILON)

    def run(self, partial_batch, epochs=EPOCHS):
        options = rx.InputOptions(partial_batch=partial_batch)
        batches = self.strategy.distribute_dataset(dataset(self.network, epochs), options)
        return np.asarray([self.step(batch) for batch in batches])

    def copies_are_equal(self):
        for variable in self.variables:
            copies = [np.asarray(copy.value) for copy in self.strategy.local_results(variable)]
            if not all(np.array_equal(copy, copies[0]) for copy in copies):
                return False
        return True


def mirrored(n):
    return rx.MirroredStrategy([f"CPU:{i}" for i in range(n)])


def eager(fn):
    return fn


def agrees(name, losses):
    expected = one_device(name)[0][: len(losses)]
    np.testing.assert_allclose(losses, expected, rtol=1e-5, atol=0)


def end_as_on_one_device(name, training):
    _, weights, moving = one_device(name)
    for kind, expected in ((training.weights, weights), (training.moving, moving)):
        for found, wanted in zip(
            jax.tree.leaves(rx.read_values(kind)), jax.tree.leaves(expected), strict=True
        ):
            np.testing.assert_allclose(np.asarray(found), wanted, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", NETWORKS)
def test_the_reference_learns(name):
    losses, _, _ = one_device(name)
    assert len(losses) == EPOCHS * BATCHES
    first, last = losses[: 2 * BATCHES].mean(), losses[-2 * BATCHES :].mean()
    assert 0.05 < last < 0.9 * first


@pytest.mark.parametrize("n", [1, 2, 3, 8])
@pytest.mark.parametrize("name", NETWORKS)
def test_padded_training_has_the_losses_of_one_device_at_every_step(name, n):
    training = Training(name, mirrored(n), rx.function)
    agrees(name, training.run("pad"))
    end_as_on_one_device(name, training)
    assert training.copies_are_equal()
    assert training.step.num_programs == 1


# With one replica there is nothing to divide; the strategies further down have one.
@pytest.mark.parametrize(
    ("name", "n"), [("mlp", 2), ("mlp", 3), ("mlp", 8), ("cnn", 3), ("cnn", 8), ("transformer", 3)]
)
def test_exact_training_has_the_losses_of_one_device_at_every_step(name, n):
    training = Training(name, mirrored(n), rx.function)
    agrees(name, training.run("exact"))
    end_as_on_one_device(name, training)
    assert training.copies_are_equal()
    assert training.step.num_programs == 2


@pytest.mark.parametrize("partial_batch", ["exact", "pad"])
@pytest.mark.parametrize(
    "make",
    [
        rx.get_strategy,
        lambda: rx.OneDeviceStrategy("CPU:1"),
        lambda: rx.CentralStorageStrategy(["CPU:0", "CPU:1"], "CPU:0"),
    ],
    ids=["default", "one_device", "central"],
)
@pytest.mark.parametrize("name", ["mlp", "cnn"])
def test_other_strategies_have_the_losses_of_one_device(name, make, partial_batch):
    training = Training(name, make(), rx.function)
    agrees(name, training.run(partial_batch))
    end_as_on_one_device(name, training)


# Eagerly each operation is compiled by itself, for each device and shape, and 200 steps would take minutes:
# these take the first epochs, which have full and partial batches, and leave out eight replicas. All 200
# steps on 1, 2, 3 and 8 replicas: `python -m tests.training.test_one_device_equals_many`.


@pytest.mark.parametrize(
    ("name", "n", "partial_batch", "epochs"),
    [
        ("mlp", 1, "pad", 2),
        ("mlp", 2, "pad", 4),
        ("mlp", 3, "exact", 4),
        pytest.param("transformer", 2, "exact", 1, marks=pytest.mark.long),
    ],
)
def test_eager_training_has_the_losses_of_one_device_at_every_step(name, n, partial_batch, epochs):
    training = Training(name, mirrored(n), eager)
    agrees(name, training.run(partial_batch, epochs))
    assert training.copies_are_equal()


def main():
    for name in NETWORKS:
        for n in (1, 2, 3, 8):
            started = time.monotonic()
            training = Training(name, mirrored(n), eager)
            losses = training.run("exact")
            agrees(name, losses)
            end_as_on_one_device(name, training)
            expected = one_device(name)[0]
            deviation = np.max(np.abs(losses - expected) / expected)
            took = f"{time.monotonic() - started:.0f} s"
            print(
                f"{name}, {n} replicas, {len(losses)} steps: off by {deviation:.1e}, {took}",
                flush=True,
            )


if __name__ == "__main__":
    rx.set_cpu_devices(8)
    jax.config.update("jax_disable_most_optimizations", True)
    main()
