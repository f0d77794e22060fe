"""`tf.random` on JAX. The same seed gives different numbers than in TensorFlow.

`tf.random.uniform` and similar functions draw from a random stream of the process, so they work only
outside of compiled functions. Inside, and in replicas, use a `Generator`, whose state is a variable, or the
stateless functions.
"""

from __future__ import annotations

import enum
from typing import Any, final

import jax
import jax.numpy as jnp
import numpy as np

from replicax._recording import is_transforming
from replicax.contexts import get_replica_context, has_strategy
from replicax.errors import ContextError
from replicax.tf import dtypes
from replicax.tf._missing import refuse
from replicax.tf._op import array, op, static
from replicax.types import VariableAggregation, VariableSynchronization
from replicax.variables import Variable

__all__ = [
    "Algorithm",
    "Generator",
    "categorical",
    "gamma",
    "get_global_generator",
    "normal",
    "poisson",
    "set_global_generator",
    "set_seed",
    "shuffle",
    "split",
    "stateless_categorical",
    "stateless_normal",
    "stateless_truncated_normal",
    "stateless_uniform",
    "truncated_normal",
    "uniform",
]


@final
class _Stream:
    """The process's random stream: a seed, and the number of keys drawn."""

    def __init__(self) -> None:
        self.set_seed(None)

    def set_seed(self, seed: int | None) -> None:
        """Restart the stream; without a seed, from a random one."""
        self._is_random = seed is None
        self._seed = np.random.SeedSequence().generate_state(1)[0] if seed is None else seed
        self._count = 0

    def next_key(self, what: str, seed: int | None) -> jax.Array:
        """A new key; with `seed`, from a separate stream that is the same in every run."""
        if is_transforming():
            raise ContextError(
                f"tf.random.{what} in a compiled function would draw its numbers once, during the trace, "
                "and return the same ones in every step. Use a tf.random.Generator, or "
                "tf.random.stateless_uniform."
            )
        self._count += 1
        base = 0 if self._is_random and seed is not None else self._seed
        key = jax.random.fold_in(jax.random.key(int(base) % 2**32), self._count)
        return key if seed is None else jax.random.fold_in(key, seed)


_stream = _Stream()


def set_seed(seed: int) -> None:
    """Restart the process's random stream from a seed.

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
        raise ValueError(f"A stateless seed must be two integers, got shape {words.shape}.")
    return jax.random.wrap_key_data(words, impl="threefry2x32")


@op
def stateless_uniform(
    shape: Any, seed: Any, minval: Any = 0, maxval: Any = None, dtype: Any = dtypes.float32
) -> jax.Array:
    """Uniformly distributed numbers that depend only on `seed`, two integers.

    >>> from replicax import tf
    >>> tf.random.stateless_uniform([2], seed=[1, 2])
    Array([0.6828401 , 0.42186916], dtype=float32)
    """
    return _uniform(_stateless_key(seed), shape, minval, maxval, dtype)


@op
def stateless_normal(
    shape: Any, seed: Any, mean: Any = 0.0, stddev: Any = 1.0, dtype: Any = dtypes.float32
) -> jax.Array:
    """Normally distributed numbers that depend only on `seed`, two integers."""
    return _normal(_stateless_key(seed), shape, mean, stddev, dtype)


class Algorithm(enum.Enum):
    """TensorFlow's names of algorithms; the numbers always come from JAX's threefry."""

    PHILOX = 1
    THREEFRY = 2
    AUTO_SELECT = 3


def _check_algorithm(alg: Any) -> None:
    known = (None, "auto_select", "philox", "threefry", 1, 2, 3)
    if alg not in known and not isinstance(alg, Algorithm):
        raise ValueError(
            f"tf.random.Generator(alg={alg!r}): numbers always come from JAX's threefry. Leave out `alg`."
        )


def _state_of(seed: Any) -> jax.Array:
    return jnp.append(jax.random.key_data(jax.random.key(seed, impl="threefry2x32")), 0)


@op
def stateless_truncated_normal(
    shape: Any, seed: Any, mean: Any = 0.0, stddev: Any = 1.0, dtype: Any = dtypes.float32
) -> jax.Array:
    """Truncated normal numbers that depend only on `seed`, two integers."""
    return _truncated(_stateless_key(seed), shape, mean, stddev, dtype)


def _categorical(key: Any, logits: Any, num_samples: Any, dtype: Any) -> jax.Array:
    x, count = array(logits), static(num_samples)
    drawn = jax.random.categorical(key, x, axis=-1, shape=(count, x.shape[0]))
    return drawn.T.astype(dtypes.on_device(dtype))


@op
def categorical(
    logits: Any, num_samples: Any, dtype: Any = dtypes.int64, seed: int | None = None
) -> jax.Array:
    """Draw `num_samples` classes for each row of `logits`, unnormalized log probabilities.

    >>> from replicax import tf
    >>> tf.random.categorical(tf.math.log([[0.5, 0.5]]), 4).shape
    (1, 4)
    """
    return _categorical(_stream.next_key("categorical", seed), logits, num_samples, dtype)


@op
def stateless_categorical(logits: Any, num_samples: Any, seed: Any, dtype: Any = dtypes.int64) -> jax.Array:
    """`categorical` with samples that depend only on `seed`, two integers."""
    return _categorical(_stateless_key(seed), logits, num_samples, dtype)


@op
def gamma(
    shape: Any, alpha: Any, beta: Any = None, dtype: Any = dtypes.float32, seed: int | None = None
) -> jax.Array:
    """Gamma-distributed numbers, an array of `shape` for each `alpha`."""
    a = array(alpha).astype(dtypes.on_device(dtype))
    drawn = jax.random.gamma(_stream.next_key("gamma", seed), a, (*_shape(shape), *a.shape))
    return drawn if beta is None else drawn / array(beta)


@op
def poisson(shape: Any, lam: Any, dtype: Any = dtypes.float32, seed: int | None = None) -> jax.Array:
    """Poisson-distributed numbers, an array of `shape` for each `lam`."""
    rate = array(lam)
    drawn = jax.random.poisson(_stream.next_key("poisson", seed), rate, (*_shape(shape), *rate.shape))
    return drawn.astype(dtypes.on_device(dtype))


@op
def split(seed: Any, num: int = 2) -> jax.Array:
    """Split a seed for stateless functions into several."""
    return jax.random.key_data(jax.random.split(_stateless_key(seed), num)).astype(jnp.int32)


@final
class Generator:
    """A stream of random numbers whose state is a variable, so that compiled steps can draw from it.

    Created in a strategy's scope, it has a state per replica, and replicas draw different numbers.

    >>> from replicax import tf
    >>> generator = tf.random.Generator.from_seed(1)
    >>> generator.uniform([]) != generator.uniform([])
    Array(True, dtype=bool)
    """

    def __init__(self, state: Any = None, alg: Any = None, *, copy_from: Generator | None = None) -> None:
        """Continue from `state`, the two integers of a key and a counter, or from another generator."""
        _check_algorithm(alg)
        if (state is None) == (copy_from is None):
            raise ValueError("tf.random.Generator takes either `state` or `copy_from`; see also from_seed.")
        state = copy_from.state.read_value() if copy_from is not None else state
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
        """Create a generator from a seed."""
        _check_algorithm(alg)
        return cls(_state_of(seed))

    @classmethod
    def from_non_deterministic_state(cls, alg: Any = None) -> Generator:
        """Create a generator with a random seed."""
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

    def uniform_full_int(self, shape: Any, dtype: Any = dtypes.uint64) -> jax.Array:
        """Integers from the whole range of a dtype."""
        found = dtypes.on_device(dtype)
        bits = jax.random.bits(self._next_key(), _shape(shape), f"uint{8 * found.itemsize}")
        return bits.view(found)

    def binomial(self, shape: Any, counts: Any, probs: Any, dtype: Any = dtypes.int32) -> jax.Array:
        """The number of successes in `counts` trials with probability `probs`."""
        drawn = jax.random.binomial(self._next_key(), array(counts), array(probs), _shape(shape))
        return drawn.astype(dtypes.on_device(dtype))

    def make_seeds(self, count: int = 1) -> jax.Array:
        """Seeds for stateless functions, as an array of shape (2, count)."""
        keys = jax.random.split(self._next_key(), count)
        return jax.random.key_data(keys).astype(jnp.int32).T

    def split(self, count: int = 1) -> list[Generator]:
        """Create several generators with independent streams."""
        keys = jax.random.key_data(jax.random.split(self._next_key(), count))
        return [Generator(jnp.append(key, 0)) for key in keys]

    def reset_from_seed(self, seed: int) -> None:
        """Restart from a seed."""
        self.reset(_state_of(seed))

    def reset(self, state: Any) -> None:
        """Continue from a state."""
        self.state.assign(jnp.asarray(state, jnp.uint32))

    def reset_from_key_counter(self, key: Any, counter: Any) -> None:
        """Not supported: a state here is two integers and a counter."""
        raise NotImplementedError(
            "Generator.reset_from_key_counter is not supported. Use reset_from_seed, or reset(state)."
        )

    def skip(self, delta: int) -> jax.Array:
        """Skip the numbers of `delta` calls; returns the state before."""
        state = array(self.state.read_value())
        self.state.assign(state.at[2].add(jnp.uint32(delta)))
        return state

    @property
    def key(self) -> jax.Array:
        """The key of the stream, two integers."""
        return array(self.state.read_value())[:2]

    @property
    def algorithm(self) -> int:
        """The number of the algorithm, threefry."""
        return Algorithm.THREEFRY.value


_global_generator: list[Generator] = []


def get_global_generator() -> Generator:
    """The process's generator, created with a random seed on first use.

    >>> from replicax import tf
    >>> tf.random.get_global_generator() is tf.random.get_global_generator()
    True
    """
    if not _global_generator:
        _global_generator.append(Generator.from_non_deterministic_state())
    return _global_generator[0]


def set_global_generator(generator: Generator) -> None:
    """Replace the process's generator."""
    _global_generator[:] = [generator]


__getattr__ = refuse(
    "tf.random",
    {
        "create_rng_state": "`tf.random.Generator.from_seed(seed).state`",
        "experimental": "the same names in `tf.random`",
        "log_uniform_candidate_sampler": "`jax.random.choice`",
        "stateless_binomial": "`jax.random.binomial`",
        "stateless_gamma": "`jax.random.gamma`",
        "stateless_poisson": "`jax.random.poisson`",
        "uniform_candidate_sampler": "`jax.random.choice`",
    },
)
