"""`tf.random`: random numbers from JAX. The same seed gives other numbers than in TensorFlow.

`tf.random.uniform` and similar functions draw from one stream of this process, so they are for code outside
compiled functions. Inside, and in replicas, use a `Generator`, whose state is a variable, or the stateless
functions.
"""

from __future__ import annotations

from typing import Any, final

import jax
import jax.numpy as jnp
import numpy as np

from replicax._recording import is_transforming
from replicax.contexts import get_replica_context, has_strategy
from replicax.errors import ContextError
from replicax.tf import dtypes
from replicax.tf._missing import refuse
from replicax.tf._op import array, op
from replicax.types import VariableAggregation, VariableSynchronization
from replicax.variables import Variable

__all__ = [
    "Generator",
    "normal",
    "set_seed",
    "shuffle",
    "stateless_normal",
    "stateless_uniform",
    "truncated_normal",
    "uniform",
]


@final
class _Stream:
    """The random stream of this process: a seed, and the number of keys drawn."""

    def __init__(self) -> None:
        self.set_seed(None)

    def set_seed(self, seed: int | None) -> None:
        """Restart the stream; without a seed, from a random one."""
        self._is_random = seed is None
        self._seed = np.random.SeedSequence().generate_state(1)[0] if seed is None else seed
        self._count = 0

    def next_key(self, what: str, seed: int | None) -> jax.Array:
        """A new key; with `seed`, from a separate stream that is the same in every run of the program."""
        if is_transforming():
            raise ContextError(
                f"tf.random.{what} in a compiled function would draw its numbers once, while it is traced, "
                "and give the same ones in every step. Use a tf.random.Generator, or "
                "tf.random.stateless_uniform."
            )
        self._count += 1
        base = 0 if self._is_random and seed is not None else self._seed
        key = jax.random.fold_in(jax.random.key(int(base) % 2**32), self._count)
        return key if seed is None else jax.random.fold_in(key, seed)


_stream = _Stream()


def set_seed(seed: int) -> None:
    """Restart the random stream of this process from a seed.

    >>> from replicax import tf
    >>> tf.random.set_seed(1)
    >>> x = tf.random.uniform([2])
    >>> tf.random.set_seed(1)
    >>> bool((tf.random.uniform([2]) == x).all())
    True
    """
    _stream.set_seed(seed)


def _shape(shape: Any) -> tuple[int, ...]:
    return tuple(int(n) for n in np.atleast_1d(np.asarray(shape, dtype=int)))


def _uniform(key: Any, shape: Any, minval: Any, maxval: Any, dtype: Any) -> jax.Array:
    dtype = dtypes.on_device(dtype)
    if jnp.issubdtype(dtype, jnp.integer):
        if maxval is None:
            raise ValueError("tf.random.uniform: pass maxval for an integer dtype.")
        return jax.random.randint(key, _shape(shape), minval, maxval, dtype)
    return jax.random.uniform(key, _shape(shape), dtype, minval, 1.0 if maxval is None else maxval)


def _normal(key: Any, shape: Any, mean: Any, stddev: Any, dtype: Any) -> jax.Array:
    return mean + stddev * jax.random.normal(key, _shape(shape), dtypes.on_device(dtype))


def _truncated(key: Any, shape: Any, mean: Any, stddev: Any, dtype: Any) -> jax.Array:
    return mean + stddev * jax.random.truncated_normal(key, -2, 2, _shape(shape), dtypes.on_device(dtype))


@op
def uniform(
    shape: Any, minval: Any = 0, maxval: Any = None, dtype: Any = dtypes.float32, seed: int | None = None
) -> jax.Array:
    """Uniformly distributed numbers from `minval` up to `maxval`."""
    return _uniform(_stream.next_key("uniform", seed), shape, minval, maxval, dtype)


@op
def normal(
    shape: Any, mean: Any = 0.0, stddev: Any = 1.0, dtype: Any = dtypes.float32, seed: int | None = None
) -> jax.Array:
    """Normally distributed numbers."""
    return _normal(_stream.next_key("normal", seed), shape, mean, stddev, dtype)


@op
def truncated_normal(
    shape: Any, mean: Any = 0.0, stddev: Any = 1.0, dtype: Any = dtypes.float32, seed: int | None = None
) -> jax.Array:
    """Normally distributed numbers at most two standard deviations from the mean."""
    return _truncated(_stream.next_key("truncated_normal", seed), shape, mean, stddev, dtype)


@op
def shuffle(value: Any, seed: int | None = None) -> jax.Array:
    """The rows in random order."""
    return jax.random.permutation(_stream.next_key("shuffle", seed), array(value))


def _stateless_key(seed: Any) -> Any:
    words = array(seed).astype(jnp.uint32)
    if words.shape != (2,):
        raise ValueError(f"A stateless seed consists of two integers, got shape {words.shape}.")
    return jax.random.wrap_key_data(words, impl="threefry2x32")


@op
def stateless_uniform(
    shape: Any, seed: Any, minval: Any = 0, maxval: Any = None, dtype: Any = dtypes.float32
) -> jax.Array:
    """Uniformly distributed numbers that depend only on `seed`, which is two integers.

    >>> from replicax import tf
    >>> tf.random.stateless_uniform([2], seed=[1, 2])
    Array([0.6828401 , 0.42186916], dtype=float32)
    """
    return _uniform(_stateless_key(seed), shape, minval, maxval, dtype)


@op
def stateless_normal(
    shape: Any, seed: Any, mean: Any = 0.0, stddev: Any = 1.0, dtype: Any = dtypes.float32
) -> jax.Array:
    """Normally distributed numbers that depend only on `seed`, which is two integers."""
    return _normal(_stateless_key(seed), shape, mean, stddev, dtype)


@final
class Generator:
    """A stream of random numbers whose state is a variable, so that compiled steps can draw from it.

    If it is created in a strategy's scope, each replica has its own state and draws different numbers.

    >>> from replicax import tf
    >>> generator = tf.random.Generator.from_seed(1)
    >>> generator.uniform([]) != generator.uniform([])
    Array(True, dtype=bool)
    """

    def __init__(self, state: Any) -> None:
        """Continue from `state`: the two integers of a key, and a count."""
        make: Any = Variable
        self.state = make(
            jnp.asarray(state, jnp.uint32),
            trainable=False,
            name="StateVar",
            synchronization=VariableSynchronization.ON_READ
            if has_strategy()
            else VariableSynchronization.AUTO,
            aggregation=VariableAggregation.ONLY_FIRST_REPLICA,
        )

    @classmethod
    def from_seed(cls, seed: int, alg: Any = None) -> Generator:
        """A stream determined by a seed."""
        if alg not in (None, "auto_select", "philox", "threefry"):
            raise ValueError(
                f"tf.random.Generator(alg={alg!r}): numbers come from JAX's threefry; leave `alg` out."
            )
        return cls(jnp.append(jax.random.key_data(jax.random.key(seed, impl="threefry2x32")), 0))

    @classmethod
    def from_non_deterministic_state(cls, alg: Any = None) -> Generator:
        """A stream with a random seed."""
        return cls.from_seed(int(np.random.SeedSequence().generate_state(1)[0]), alg)

    def _next_key(self) -> Any:
        state = array(self.state.read_value())
        self.state.assign(state.at[2].add(jnp.uint32(1)))
        key = jax.random.fold_in(jax.random.wrap_key_data(state[:2], impl="threefry2x32"), state[2])
        replica = get_replica_context()
        return key if replica is None else jax.random.fold_in(key, replica.replica_id_in_sync_group)

    def uniform(
        self, shape: Any, minval: Any = 0, maxval: Any = None, dtype: Any = dtypes.float32
    ) -> jax.Array:
        """Uniformly distributed numbers from `minval` up to `maxval`."""
        return _uniform(self._next_key(), shape, minval, maxval, dtype)

    def normal(
        self, shape: Any, mean: Any = 0.0, stddev: Any = 1.0, dtype: Any = dtypes.float32
    ) -> jax.Array:
        """Normally distributed numbers."""
        return _normal(self._next_key(), shape, mean, stddev, dtype)

    def truncated_normal(
        self, shape: Any, mean: Any = 0.0, stddev: Any = 1.0, dtype: Any = dtypes.float32
    ) -> jax.Array:
        """Normally distributed numbers at most two standard deviations from the mean."""
        return _truncated(self._next_key(), shape, mean, stddev, dtype)


__getattr__ = refuse(
    "tf.random", dict.fromkeys(("categorical", "gamma", "poisson"), "the function in `jax.random`")
)
