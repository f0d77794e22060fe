"""A GPT whose activations do not fit next to its Adam state: explained, refused with advice, then trained.

Without arguments, the model is small and the CPU is declared to have little memory. On a GPU with 141 GB:

    python examples/explain_memory.py --width 3072 --layers 24 --heads 24 \\
        --context 1024 --words 50304 --rows 32
"""

import argparse
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

import replicax as rx
from replicax.errors import OutOfMemoryError

parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
for name, default in [("width", 64), ("layers", 4), ("heads", 4), ("context", 64), ("words", 256)]:
    parser.add_argument(f"--{name}", type=int, default=default)
parser.add_argument("--rows", type=int, default=16, help="of a batch, on each device")
parser.add_argument("--steps", type=int, default=3)
parser.add_argument("--memory", type=float, help="MiB of a device, if not what JAX says")
parser.add_argument("--page", type=Path, help="where to write the explanation for a browser")
options = parser.parse_args()

strategy = rx.MirroredStrategy(["GPU:0"] if jax.default_backend() == "gpu" else ["CPU:0"])
if strategy.mesh.platform == "cpu" and options.memory is None:
    options.memory = 32
device_memory = None if options.memory is None else round(options.memory * 2**20)
width, layers = options.width, options.layers


# The model.

keys = iter(jax.random.split(jax.random.key(0), 2 + 4 * layers))


def matrix(name: str, *shape: int) -> rx.Variable:
    key = next(keys)
    return rx.Variable(lambda: jax.random.normal(key, shape) * shape[0] ** -0.5, name=name)


with strategy.scope():
    embedding = matrix("embedding", options.words, width)
    places = matrix("places", options.context, width)
    blocks = [
        {
            "qkv": matrix(f"blocks/{i}/qkv", width, 3 * width),
            "mix": matrix(f"blocks/{i}/mix", width, width),
            "up": matrix(f"blocks/{i}/up", width, 4 * width),
            "down": matrix(f"blocks/{i}/down", 4 * width, width),
        }
        for i in range(layers)
    ]
    params = {"embedding": embedding, "places": places, "blocks": blocks}
    optimizer = rx.Optimizer(optax.adam(1e-4))


def normalize(x: jax.Array) -> jax.Array:
    return x * jax.lax.rsqrt(jnp.mean(x**2, axis=-1, keepdims=True) + 1e-6)


def attend(block: dict[str, jax.Array], x: jax.Array) -> jax.Array:
    rows, length, _ = x.shape
    qkv = (x @ block["qkv"]).reshape(rows, length, 3, options.heads, -1)
    query, key, value = qkv[:, :, 0], qkv[:, :, 1], qkv[:, :, 2]
    scores = jnp.einsum("bqhd,bkhd->bhqk", query, key) * query.shape[-1] ** -0.5
    past = jnp.tril(jnp.ones((length, length), bool))
    weights = jax.nn.softmax(jnp.where(past, scores, -1e9))
    return jnp.einsum("bhqk,bkhd->bqhd", weights, value).reshape(x.shape) @ block["mix"]


def apply_block(block: dict[str, jax.Array], x: jax.Array) -> jax.Array:
    x = x + attend(block, normalize(x))
    return x + jax.nn.gelu(normalize(x) @ block["up"]) @ block["down"]


def loss_fn(rows: jax.Array) -> jax.Array:
    values: Any = rx.read_values(params)
    x = values["embedding"][rows] + values["places"]
    for block in values["blocks"]:
        x = apply_block(block, x)
    scores = normalize(x) @ values["embedding"].T
    losses = optax.softmax_cross_entropy_with_integer_labels(scores[:, :-1], rows[:, 1:])
    return rx.compute_average_loss(jnp.mean(losses, axis=1))


def make_step(microbatches: int) -> Callable[[Any], jax.Array]:
    def replica_step(rows: jax.Array) -> jax.Array:
        loss, gradients = rx.value_and_grad(loss_fn, params, microbatches=microbatches)(rows)
        optimizer.apply_gradients(gradients, params)
        return loss

    @rx.function
    def train_step(rows: Any) -> jax.Array:
        return strategy.reduce("SUM", strategy.run(replica_step, args=(rows,)), axis=None)

    return train_step


# What the step needs, before it runs.


def make_batch(rows: int) -> Any:
    tokens = np.random.default_rng(0).integers(options.words, size=(rows, options.context), dtype=np.int32)
    return strategy.distribute_batch(tokens)


rows = options.rows * strategy.num_replicas_in_sync
batch = make_batch(rows)

explanation = rx.explain(make_step(1), batch, device_memory=device_memory)
print(explanation)
assert explanation.fits is False, "choose a larger model, or less --memory"
if options.page is not None:
    print(f"\nin a browser: {explanation.save(options.page)}")

# Run it anyway: on a GPU, Replicax refuses it, and the variables keep their values.

before = float(jnp.sum(blocks[0]["mix"].value))
if options.memory is None:
    try:
        make_step(1)(batch)
    except OutOfMemoryError as error:
        print(f"\nrefused: {error}")
    else:
        raise AssertionError("the step ran, although it does not fit")
assert float(jnp.sum(blocks[0]["mix"].value)) == before

# Follow the advice: split the batch into as many microbatches as it takes. XLA on CPU computes all of them
# at the same time, so shrink the batch itself there.

microbatches = 1
while not explanation.fits:
    if strategy.mesh.platform == "cpu":
        rows //= 2
        batch = make_batch(rows)
    else:
        microbatches *= 2
    assert 1 <= microbatches <= rows, f"it does not fit even row by row: {explanation}"
    explanation = rx.explain(make_step(microbatches), batch, device_memory=device_memory)
needed = explanation.memory.peak / 2**20
print(f"\nwith {rows} rows in {microbatches} parts it fits: {needed:,.0f} MiB on each device")

train_step = make_step(microbatches)
losses = []
for step in range(options.steps):
    start = time.perf_counter()
    losses.append(float(train_step(batch)))
    print(f"step {step}  loss {losses[-1]:.3f}  {time.perf_counter() - start:.2f} s")
stats = strategy.mesh.local_devices[0].memory_stats()
if stats:
    print(f"most bytes in use, as JAX measured them: {stats['peak_bytes_in_use'] / 2**20:,.0f} MiB")
assert losses[-1] < losses[0], losses
