"""A small character-level language model in plain JAX functions: it memorizes a text.

The parameters are a dict of arrays: `rx.create_variables` turns them into variables, and
`rx.read_values` reads the arrays back.
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

import replicax as rx

rx.set_cpu_devices(4)  # lets one CPU pose as four devices; machines with GPUs use those
strategy = rx.MirroredStrategy()

TEXT = """\
a replica is a copy of the model that works on its own part of the batch.
a worker is a process that holds some of the replicas.
a strategy decides where variables live and how replicas talk to each other.
every replica computes the gradients of its own part.
the optimizer adds the gradients of all replicas, so the copies stay equal.
a step ends when all replicas have done their part.
"""
CONTEXT, WIDTH, HEADS, LAYERS = 32, 48, 4, 2
BATCH_SIZE, STEPS = 32, 250

letters = sorted(set(TEXT))
codes = np.array([letters.index(letter) for letter in TEXT], np.int32)
windows = np.stack([codes[i : i + CONTEXT + 1] for i in range(len(codes) - CONTEXT)])
examples = rx.from_arrays(windows).shuffle(seed=0).repeat().batch(BATCH_SIZE)


# The model.


def make_params(rng: np.random.Generator) -> dict[str, Any]:
    def matrix(*shape: int) -> np.ndarray:
        return (rng.normal(size=shape) / np.sqrt(shape[0])).astype(np.float32)

    def layer() -> dict[str, np.ndarray]:
        return {
            "qkv": matrix(WIDTH, 3 * WIDTH),
            "mix": matrix(WIDTH, WIDTH),
            "up": matrix(WIDTH, 4 * WIDTH),
            "down": matrix(4 * WIDTH, WIDTH),
        }

    return {
        "letters": 0.1 * matrix(len(letters), WIDTH),
        "places": 0.1 * matrix(CONTEXT, WIDTH),
        "layers": [layer() for _ in range(LAYERS)],
        "out": matrix(WIDTH, len(letters)),
    }


def normalize(x: jax.Array) -> jax.Array:
    return x * jax.lax.rsqrt(jnp.mean(x**2, axis=-1, keepdims=True) + 1e-6)


def attend(layer: dict[str, jax.Array], x: jax.Array) -> jax.Array:
    batch, length, _ = x.shape
    qkv = (x @ layer["qkv"]).reshape(batch, length, 3, HEADS, WIDTH // HEADS)
    query, key, value = qkv[:, :, 0], qkv[:, :, 1], qkv[:, :, 2]
    scores = jnp.einsum("bqhd,bkhd->bhqk", query, key) / np.sqrt(WIDTH // HEADS)
    past = jnp.tril(jnp.ones((length, length), bool))
    weights = jax.nn.softmax(jnp.where(past, scores, -1e9))
    mixed = jnp.einsum("bhqk,bkhd->bqhd", weights, value).reshape(batch, length, WIDTH)
    return mixed @ layer["mix"]


def predict(params: dict[str, Any], x: jax.Array) -> jax.Array:
    """Return, for each position of each row, the logits of the next letter."""
    hidden = params["letters"][x] + params["places"][: x.shape[1]]
    for layer in params["layers"]:
        hidden = hidden + attend(layer, normalize(hidden))
        hidden = hidden + jax.nn.gelu(normalize(hidden) @ layer["up"]) @ layer["down"]
    return normalize(hidden) @ params["out"]


# Training.

with strategy.scope():
    params = rx.create_variables(make_params(np.random.default_rng(0)))
    optimizer = rx.Optimizer(
        optax.chain(
            optax.clip_by_global_norm(1.0),
            optax.adam(optax.warmup_cosine_decay_schedule(0, 5e-3, 20, STEPS)),
        )
    )
variables = jax.tree.leaves(params, is_leaf=lambda x: isinstance(x, rx.Variable))


def loss_fn(rows: jax.Array) -> jax.Array:
    scores = predict(rx.read_values(params), rows[:, :-1])
    losses = optax.softmax_cross_entropy_with_integer_labels(scores, rows[:, 1:])
    return rx.compute_average_loss(jnp.mean(losses, axis=1))  # over the examples of all replicas


@rx.function
def train_step(rows: Any) -> jax.Array:
    def replica_step(rows: jax.Array) -> jax.Array:
        loss, gradients = rx.value_and_grad(loss_fn, variables)(rows)
        optimizer.apply_gradients(zip(gradients, variables, strict=True))
        return loss

    return strategy.reduce("SUM", strategy.run(replica_step, args=(rows,)), axis=None)


loss: jax.Array | float = np.inf
with iter(strategy.distribute_dataset(examples)) as batches:
    for step in range(STEPS):
        loss = train_step(next(batches))
        if step % 50 == 0 or step == STEPS - 1:
            print(f"step {step:3d}  loss {float(loss):.3f}")


# Generate text: always take the likeliest letter.


@rx.function
def likeliest(rows: jax.Array, last: jax.Array) -> jax.Array:
    return predict(rx.read_values(params), rows)[0, last].argmax()


prompt = "a strategy "
written = [letters.index(letter) for letter in prompt]
while len(written) < 76:
    rows = np.zeros((1, CONTEXT), np.int32)
    tail = written[-CONTEXT:]
    rows[0, : len(tail)] = tail
    written.append(int(likeliest(jnp.asarray(rows), jnp.int32(len(tail) - 1))))
text = "".join(letters[code] for code in written)
print(text)
assert loss < 0.5, f"the loss is {loss}"
assert text.startswith("a strategy decides where variables live"), text
