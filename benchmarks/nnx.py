"""What a step with a Flax NNX model costs the host.

The model has 400 variables and nearly nothing to compute. The three sides train it alike, on one device,
and are checked to agree first:

    flat leaves   `jax.jit` over a flat list of the model's arrays, donated: the least that JAX can do
    Replicax      the model adopted by `replicax.integrations.flax`, in a step of `rx.function`
    nnx.jit       Flax's own, which takes the model apart and puts it together at every call

    python benchmarks/nnx.py [--quick] [--only host,replicas] [--json FILE] [--no-check]

    host       the calling thread's time until a step's call returns, on one device
    replicas   the same on two replicas, against `jax.jit(jax.shard_map(...))` over flat leaves
"""

from __future__ import annotations

import sys
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx
from harness import Step, compare, host_seconds, run, take_turns
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from rows import Row

import replicax as rx
from replicax.integrations import flax as rx_flax

NUM_LAYERS = 200  # of two variables each
SIZE = 4
LEARNING_RATE = 1e-3


class Deep(nnx.Module):
    def __init__(self) -> None:
        rngs = nnx.Rngs(0)
        self.layers = nnx.List([nnx.Linear(SIZE, SIZE, rngs=rngs) for _ in range(NUM_LAYERS)])

    def __call__(self, x: Any) -> Any:
        for layer in self.layers:
            x = x + 0.1 * layer(x)
        return x


def mean_square(model: Any, x: Any) -> Any:
    return jnp.mean(model(x) ** 2)


def make_batch() -> np.ndarray:
    return np.random.default_rng(0).normal(size=(2 * SIZE, SIZE)).astype(np.float32)


# The three sides.


def with_flat_leaves(num_devices: int) -> Step:
    """By hand: stochastic gradient descent over a flat list of arrays, which are donated."""
    graph, state = nnx.split(Deep())
    leaves, treedef = jax.tree.flatten(state)

    def step(leaves: list[Any], x: Any) -> Any:
        def loss_fn(leaves: list[Any]) -> Any:
            return mean_square(nnx.merge(graph, jax.tree.unflatten(treedef, leaves)), x)

        loss, gradients = jax.value_and_grad(loss_fn)(leaves)
        if num_devices > 1:
            flat = jnp.concatenate([loss[None], *(g.reshape(-1) for g in gradients)])
            flat = jax.lax.pmean(flat, "replica")
            loss, parts = flat[0], jnp.split(flat[1:], np.cumsum([g.size for g in gradients])[:-1])
            gradients = [part.reshape(g.shape) for part, g in zip(parts, gradients, strict=True)]
        return loss, [p - LEARNING_RATE * g for p, g in zip(leaves, gradients, strict=True)]

    mesh = Mesh(np.array(jax.devices()[:num_devices]), ("replica",))
    whole, rows = PartitionSpec(), PartitionSpec("replica")
    if num_devices > 1:
        specs: dict[str, Any] = {"in_specs": (whole, rows), "out_specs": whole}
        step = jax.shard_map(step, mesh=mesh, check_vma=False, **specs)
    jitted = jax.jit(step, donate_argnums=0)
    leaves = [jnp.copy(jax.device_put(leaf, NamedSharding(mesh, whole))) for leaf in leaves]
    x = jax.device_put(make_batch(), NamedSharding(mesh, rows))

    def call() -> Any:
        nonlocal leaves
        loss, leaves = jitted(leaves, x)
        return loss

    return call


def with_replicax(num_devices: int) -> Step:
    strategy = rx.MirroredStrategy([f"CPU:{i}" for i in range(num_devices)])
    with strategy.scope():
        model = rx_flax.adopt(Deep())
        optimizer = rx.Optimizer(optax.sgd(LEARNING_RATE), reduce="MEAN")
    params = rx_flax.variables(model)

    def replica_step(x: Any) -> Any:
        loss, gradients = rx.value_and_grad(lambda x: mean_square(model, x), params)(x)
        optimizer.apply_gradients(zip(gradients, params, strict=True))
        return loss

    @rx.function
    def step(x: Any) -> Any:
        return strategy.reduce("MEAN", strategy.run(replica_step, args=(x,)), axis=None)

    (batch,) = strategy.distribute_dataset(rx.from_arrays(make_batch()).batch(2 * SIZE))
    return lambda: step(batch)


def with_nnx_jit() -> Step:
    model = Deep()
    optimizer = nnx.Optimizer(model, optax.sgd(LEARNING_RATE), wrt=nnx.Param)

    @nnx.jit
    def step(model: Any, optimizer: Any, x: Any) -> Any:
        loss, gradients = nnx.value_and_grad(mean_square)(model, x)
        optimizer.update(model, gradients)
        return loss

    x = jnp.asarray(make_batch())
    return lambda: step(model, optimizer, x)


# Measuring.


def check_agreement(contenders: dict[str, Step]) -> None:
    losses = {name: [float(step()) for _ in range(3)] for name, step in contenders.items()}
    for name, values in losses.items():
        np.testing.assert_allclose(values, losses["flat leaves"], rtol=1e-5, err_msg=name)


def bench_host(quick: bool) -> list[Row]:
    contenders = {
        "flat leaves": with_flat_leaves(1),
        "Replicax": with_replicax(1),
        "nnx.jit": with_nnx_jit(),
    }
    check_agreement(contenders)
    num_rounds, num_steps = (7, 20) if quick else (25, 40)
    rounds = take_turns(contenders, host_seconds, num_rounds=num_rounds, num_steps=num_steps)
    what = "host time of a step, NNX model of 400 variables"
    return [
        compare(rounds, what, "Replicax", ["flat leaves"]),
        compare(rounds, what, "Replicax", ["nnx.jit"]),
    ]


def bench_replicas(quick: bool) -> list[Row]:
    contenders = {"flat leaves": with_flat_leaves(2), "Replicax": with_replicax(2)}
    check_agreement(contenders)
    num_rounds, num_steps = (7, 20) if quick else (25, 40)
    rounds = take_turns(contenders, host_seconds, num_rounds=num_rounds, num_steps=num_steps)
    what = "host time of a step on two replicas, NNX model of 400 variables"
    return [compare(rounds, what, "Replicax", ["flat leaves"])]


BENCHMARKS = {"host": bench_host, "replicas": bench_replicas}

if __name__ == "__main__":
    sys.exit(run("What a step with a Flax NNX model costs the host.", BENCHMARKS, num_devices=2))
