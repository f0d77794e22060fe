"""Randomness: keys of replicas, and keys of examples that do not depend on the replicas."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import replicax as rx

from .helpers import mirrored, parts

KEY = jax.random.key(7)


def bits(key):
    return jax.random.bits(key, (2,))


def test_every_replica_has_a_key_of_its_own(strategy, mode):
    found = mode(lambda: strategy.run(lambda: bits(rx.get_replica_context().rng(KEY))))()
    found = parts(strategy, found)
    n = strategy.num_replicas_in_sync
    assert len({tuple(part) for part in found}) == n
    for i, part in enumerate(found):
        np.testing.assert_array_equal(part, bits(jax.random.fold_in(KEY, i)))


def test_eager_and_compiled_keys_are_the_same(several):
    def replica_fn():
        return bits(rx.get_replica_context().rng(KEY))

    for one, other in zip(
        parts(several, several.run(replica_fn)),
        parts(several, several.run(rx.function(replica_fn))),
        strict=True,
    ):
        np.testing.assert_array_equal(one, other)


def test_raw_keys_work_too(two, mode):
    raw = jax.random.PRNGKey(3)
    found = mode(lambda: two.run(lambda: jax.random.bits(rx.get_replica_context().rng(raw))))()
    first, second = parts(two, found)
    assert first != second


def test_the_key_of_an_example_depends_on_its_index_alone():
    whole = rx.example_keys(KEY, np.arange(10))
    some = rx.example_keys(KEY, jnp.array([3, 7]))
    np.testing.assert_array_equal(jax.random.key_data(whole)[jnp.array([3, 7])], jax.random.key_data(some))
    assert len({tuple(row) for row in np.asarray(jax.random.key_data(whole))}) == 10


def test_no_examples_have_no_keys():
    assert rx.example_keys(KEY, jnp.zeros(0, jnp.int32)).shape == (0,)


@pytest.mark.parametrize("partial_batch", ["exact", "pad"])
def test_dropout_does_not_depend_on_the_number_of_replicas(strategy, mode, partial_batch):
    data = {"x": np.ones((11, 5), np.float32), "index": np.arange(11, dtype=np.int32)}
    options = rx.InputOptions(partial_batch=partial_batch)

    def dropout(batch, number):
        keys = rx.example_keys(jax.random.fold_in(KEY, number), batch["index"])
        keep = jax.vmap(lambda key: jax.random.bernoulli(key, 0.5, (5,)))(keys)
        return jnp.where(keep, batch["x"], 0)

    step = mode(lambda batch, number: strategy.run(dropout, args=(batch, number)))
    found = []
    dataset = rx.from_arrays(data).shuffle(seed=2).batch(8)
    order = []
    for number, batch in enumerate(strategy.distribute_dataset(dataset, options)):
        found.append(strategy.gather(step(batch, jnp.int32(number)), axis=0))
    for number, batch in enumerate(dataset):
        order.append(dropout(batch, number))
    for actual, expected in zip(found, order, strict=True):
        np.testing.assert_array_equal(actual, expected)
    assert 0 < np.mean(np.concatenate(found)) < 1


def test_the_step_number_makes_epochs_differ():
    first, second = (
        np.asarray(jax.random.key_data(rx.example_keys(jax.random.fold_in(KEY, n), np.arange(4))))
        for n in (0, 1)
    )
    assert not np.any(np.all(first == second, axis=-1))


def test_keys_of_replicas_differ_from_those_of_examples_only_by_their_use():
    """Both fold a number into a key: give them different keys."""
    strategy = mirrored(2)
    own = parts(strategy, strategy.run(lambda: bits(rx.get_replica_context().rng(KEY))))
    np.testing.assert_array_equal(own[1], bits(rx.example_keys(KEY, jnp.array([1]))[0]))
