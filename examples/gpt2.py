"""GPT-2 in bfloat16, as fast as JAX can: cuDNN's attention, float32 parameters, bfloat16 scores.

Without arguments, it trains a tiny model on the bytes of this file. To train the model with 124 million
parameters on a GPU:

    python examples/gpt2.py --size 124M --rows 16 --steps 200 [--text FILE]
"""

import argparse
import dataclasses
import time
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

import replicax as rx


@dataclasses.dataclass(frozen=True)
class Shape:
    layers: int
    heads: int
    width: int
    context: int
    words: int


SIZES = {
    "tiny": Shape(layers=2, heads=2, width=32, context=32, words=128),
    "124M": Shape(layers=12, heads=12, width=768, context=1024, words=50304),  # a multiple of 128
}


def initial_values(shape: Shape) -> dict[str, Any]:
    rng, width = np.random.default_rng(0), shape.width

    def matrix(*sizes: int, scale: float = 0.02) -> np.ndarray:
        return scale * rng.standard_normal(sizes, np.float32)

    def norm() -> dict[str, np.ndarray]:
        return {"scale": np.ones(width, np.float32), "bias": np.zeros(width, np.float32)}

    def dense(inputs: int, outputs: int, scale: float = 0.02) -> dict[str, np.ndarray]:
        return {"kernel": matrix(inputs, outputs, scale=scale), "bias": np.zeros(outputs, np.float32)}

    def block() -> dict[str, Any]:
        last = 0.02 * (2 * shape.layers) ** -0.5  # the sum over all blocks stays as large as one
        return {
            "norm1": norm(),
            "qkv": dense(width, 3 * width),
            "mix": dense(width, width, last),
            "norm2": norm(),
            "up": dense(width, 4 * width),
            "down": dense(4 * width, width, last),
        }

    return {
        "words": matrix(shape.words, width),
        "places": matrix(shape.context, width),
        "blocks": [block() for _ in range(shape.layers)],
        "norm": norm(),
    }


def apply_norm(params: dict[str, jax.Array], x: jax.Array) -> jax.Array:
    wide = jax.nn.standardize(x.astype(jnp.float32), epsilon=1e-5)
    return (wide * params["scale"] + params["bias"]).astype(x.dtype)


def apply_dense(params: dict[str, jax.Array], x: jax.Array) -> jax.Array:
    return x @ params["kernel"] + params["bias"]


def attend(block: dict[str, Any], x: jax.Array, heads: int) -> jax.Array:
    rows, length, width = x.shape
    qkv = apply_dense(block["qkv"], x).reshape(rows, length, 3, heads, width // heads)
    on_gpu = jax.default_backend() == "gpu" and x.dtype == jnp.bfloat16
    mixed = jax.nn.dot_product_attention(
        qkv[:, :, 0],
        qkv[:, :, 1],
        qkv[:, :, 2],
        is_causal=True,
        implementation="cudnn" if on_gpu else "xla",
    )
    return apply_dense(block["mix"], mixed.reshape(x.shape))


def average_losses(params: dict[str, Any], rows: jax.Array, shape: Shape) -> jax.Array:
    """Return the average next-token cross-entropy of each row of tokens."""
    tokens, following = rows[:, :-1], rows[:, 1:]
    x = params["words"][tokens] + params["places"][: tokens.shape[1]]
    for block in params["blocks"]:
        x = x + attend(block, apply_norm(block["norm1"], x), shape.heads)
        wide = jax.nn.gelu(apply_dense(block["up"], apply_norm(block["norm2"], x)))
        x = x + apply_dense(block["down"], wide)
    scores = apply_norm(params["norm"], x) @ params["words"].T
    # The scores stay in bfloat16, which halves the largest array of the step; their sum is float32.
    chosen = jnp.take_along_axis(scores, following[..., None], axis=-1)[..., 0]
    totals = jax.nn.logsumexp(scores.astype(jnp.float32), axis=-1)
    return jnp.mean(totals - chosen.astype(jnp.float32), axis=-1)


def make_optimizer(steps: int) -> optax.GradientTransformation:
    rate = optax.warmup_cosine_decay_schedule(0, 6e-4, min(100, steps // 4), max(steps, 4))

    def has_two_axes(array: jax.Array) -> bool:
        return array.ndim == 2

    def matrices(params: Any) -> Any:
        return jax.tree.map(has_two_axes, params)

    return optax.chain(
        optax.clip_by_global_norm(1.0),
        optax.adamw(rate, 0.9, 0.95, weight_decay=0.1, mask=matrices),
    )


def make_step(strategy: rx.Strategy, shape: Shape, steps: int) -> Any:
    """Create a model, and return a compiled step that trains it and returns the loss."""
    with strategy.scope():
        params = rx.create_variables(initial_values(shape))
        optimizer = rx.Optimizer(make_optimizer(steps))

    def loss_fn(rows: jax.Array) -> jax.Array:
        return rx.compute_average_loss(average_losses(rx.read_values(params), rows, shape))

    def replica_step(rows: jax.Array) -> jax.Array:
        loss, gradients = rx.value_and_grad(loss_fn, params, precision=rx.MixedPrecision("bfloat16"))(rows)
        optimizer.apply_gradients(gradients, params)
        return loss

    @rx.function
    def train_step(rows: Any) -> jax.Array:
        return strategy.reduce("SUM", strategy.run(replica_step, args=(rows,)), axis=None)

    return train_step


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--size", choices=list(SIZES), default="tiny")
    parser.add_argument("--rows", type=int, default=16, help="of a batch")
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--text", type=Path, default=Path(__file__), help="learns the bytes of this file")
    options = parser.parse_args()
    rx.set_cpu_devices(2)  # lets one CPU pose as two devices; machines with GPUs use those
    strategy, shape = rx.MirroredStrategy(), SIZES[options.size]

    text = np.frombuffer(options.text.read_bytes(), np.uint8).astype(np.int32) % shape.words
    length = shape.context + 1
    text = np.resize(text, max(len(text), 2 * length))  # short texts are repeated
    windows = np.lib.stride_tricks.sliding_window_view(text, length)
    dataset = rx.from_arrays(windows).shuffle(seed=0).repeat().batch(options.rows)
    train_step = make_step(strategy, shape, options.steps)

    first, loss, start = np.inf, np.inf, time.perf_counter()
    with iter(strategy.distribute_dataset(dataset)) as batches:
        for step in range(options.steps):
            loss = train_step(next(batches))
            if step == 0:
                first, start = float(loss), time.perf_counter()
            if step % 20 == 0 or step == options.steps - 1:
                print(f"step {step:4d}  loss {float(loss):.3f}")
    seconds = (time.perf_counter() - start) / max(1, options.steps - 1)
    print(f"{seconds * 1e3:.1f} ms and {options.rows * shape.context:,} words per step")
    assert float(loss) < first, "the loss did not fall"


if __name__ == "__main__":
    main()
