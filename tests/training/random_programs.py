"""Random programs of a few operations on two matrices, for comparing ways to differentiate them."""

import jax
import jax.numpy as jnp
import numpy as np

SIZE = 3


def _looped(a, b):
    return jax.lax.scan(lambda c, row: (jnp.tanh(c @ b) + row, c.sum()), a, b)[0]


@jax.custom_vjp
def _clipped(x):
    return x


_clipped.defvjp(lambda x: (x, None), lambda _, g: (jnp.clip(g, -0.1, 0.1),))

OPERATIONS = {
    "add": lambda a, b: a + b,
    "product": lambda a, b: a * b,
    "matmul": lambda a, b: a @ b.T / SIZE,
    "sin": lambda a, b: jnp.sin(a) * b,
    "softmax": lambda a, b: jax.nn.softmax(a) - b,
    "relu": lambda a, b: jax.nn.relu(a) + b[:1],
    "logsumexp": lambda a, b: a - jax.nn.logsumexp(b, axis=1, keepdims=True),
    "jit": jax.jit(lambda a, b: (jnp.cos(a) + b) / 2.0),
    "jit of two": lambda a, b: jax.jit(lambda p, q: (p * q, p + q))(a, b)[1],
    "scan": _looped,
    "cond": lambda a, b: jax.lax.cond(a.sum() > 0.0, lambda: a * 2.0, lambda: b),
    "vmap": lambda a, b: jax.vmap(lambda p, q: p * q.sum())(a, b),
    "grad": lambda a, b: jax.grad(lambda p: jnp.sum(jnp.tanh(p) * b))(a),
    "checkpoint": lambda a, b: jax.checkpoint(lambda p, q: jnp.tanh(p @ q) / 2.0)(a, b),
    "custom": lambda a, b: _clipped(a) + b,
    "gather": lambda a, b: a[jnp.argsort(b[:, 0])],
    "write": lambda a, b: a.at[0].set(b[1]),
    "constant": lambda a, b: jax.lax.stop_gradient(a) + b,
    "where": lambda a, b: jnp.where(a > b, a, b),
    "sort": lambda a, b: jnp.sort(a, axis=0) * b,
}


def matrices(seed):
    """Two matrices to differentiate with respect to."""
    numbers = np.random.default_rng(seed).normal(size=(2, SIZE, SIZE))
    return tuple(numbers.astype(np.float32))


def program(seed, length=6):
    """A function from two matrices and an offset to a scalar, and the names of its operations."""
    chosen = np.random.default_rng(seed)
    names = [str(name) for name in chosen.choice([*OPERATIONS], length)]
    operands = [tuple(chosen.integers(0, 2 + i, 2)) for i in range(length)]

    def run(a, b, offset):
        values = [a + 0.0, b + offset]
        for name, (i, j) in zip(names, operands, strict=True):
            values.append(OPERATIONS[name](values[i], values[j]))
        return jnp.mean(sum(values[2:]) ** 2)

    return run, names
