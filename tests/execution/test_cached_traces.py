"""Replica id, keys and masks inside functions whose traces JAX caches (jit, checkpoint, scan)."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import replicax as rx

KEY = jax.random.key(0)
EXAMPLES = np.arange(1, 25, dtype=np.float32)


def mirrored(count):
    return rx.MirroredStrategy([f"CPU:{i}" for i in range(count)])


@jax.jit
def replica_id(x):
    return x + rx.get_replica_context().replica_id_in_sync_group


@jax.jit
def noise(x):
    return x + jax.random.uniform(rx.get_replica_context().rng(KEY))


@jax.jit
def in_scan(x):
    def body(carry, y):
        return carry + y + rx.get_replica_context().replica_id_in_sync_group, None

    return jax.lax.scan(body, 0.0, jnp.stack([x]))[0]


@jax.jit
def count(x):
    return x * rx.get_strategy().num_replicas_in_sync


def values(strategy, fn):
    return [float(x) for x in strategy.local_results(strategy.run(fn, args=(jnp.float32(0),)))]


@pytest.mark.parametrize("kept", [replica_id, noise, in_scan])
def test_replicas_know_themselves_in_a_kept_trace(kept):
    outside = float(kept(jnp.float32(0)))
    for n in (2, 3, 2):
        strategy = mirrored(n)
        eager = values(strategy, kept)
        for _ in range(2):
            compiled = rx.function(lambda strategy=strategy: strategy.run(kept, args=(jnp.float32(0),)))()
            assert [float(x) for x in strategy.local_results(compiled)] == eager
        assert len(set(eager)) == n and eager[0] == outside


def test_the_number_of_replicas_in_a_kept_trace():
    assert float(count(jnp.float32(1))) == 1
    for n in (2, 3, 2):
        strategy = mirrored(n)
        step = rx.function(lambda strategy=strategy: strategy.run(count, args=(jnp.float32(1),)))
        assert float(strategy.local_results(step())[0]) == n
    assert float(count(jnp.float32(1))) == 1


@jax.jit
def average(x):
    return rx.compute_average_loss(x)


@pytest.mark.parametrize("n", [1, 2])
def test_the_mask_of_a_padded_batch_in_a_kept_trace(n):
    strategy = mirrored(n)
    assert float(average(EXAMPLES[: 4 // n])) == EXAMPLES[: 4 // n].mean()  # a trace of that shape
    for partial_batch, rows in (("exact", 4), ("pad", 7), ("pad", 3), ("pad", 7)):
        step = rx.function(lambda x: strategy.reduce("SUM", strategy.run(average, args=(x,)), axis=None))
        options = rx.InputOptions(partial_batch=partial_batch)
        batches = strategy.distribute_dataset(rx.from_arrays(EXAMPLES[:rows]).batch(4), options)
        found = [float(step(x)) for x in batches]
        assert found == [EXAMPLES[:rows][i : i + 4].mean() for i in range(0, rows, 4)]


@jax.checkpoint
def summed(w, x):
    return rx.get_replica_context().all_reduce("SUM", jnp.sum(x * w))


def test_eager_replicas_meet_in_a_kept_trace_again_and_again():
    strategy = mirrored(2)
    with strategy.scope():
        w = rx.Variable(2.0)
    gradient = rx.grad(lambda x: summed(w.value, x), w)
    for scale in (1, 2, 3):
        x = strategy.distribute_values_from_function(
            lambda context, scale=scale: jnp.float32(scale * (1 + context.replica_id_in_sync_group))
        )
        # The sum of each replica depends on both replicas' rows, and each sums it.
        assert [float(g) for g in strategy.local_results(strategy.run(gradient, args=(x,)))] == [
            2 * scale,
            4 * scale,
        ]
