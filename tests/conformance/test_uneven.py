"""Replicas whose values have different shapes: the same numbers eager, compiled and in NumPy.

Replica i has `SIZES[i]` rows, as in a last batch that does not divide evenly or that is too small.
"""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import replicax as rx

from .helpers import AGGREGATIONS, ON_READ, close, each, parts, rid, variable

SIZES = {"partial": [2, 1, 1, 1, 1, 1, 1, 1], "empty": [2, 0, 1, 0, 3, 0, 0, 0]}


@pytest.fixture(params=SIZES)
def sizes(request, several):
    return SIZES[request.param][: several.num_replicas_in_sync]


def batch(i, size):
    return np.arange(size * 3, dtype=np.float32).reshape(size, 3) * (i + 1) + 1


def batches(sizes):
    return [batch(i, size) for i, size in enumerate(sizes)]


def distribute(strategy, sizes):
    return each(strategy, lambda i: batch(i, sizes[i]))


def step_of(strategy, mode, sizes, replica_fn):
    return mode(lambda x: strategy.run(replica_fn, args=(x,)))(distribute(strategy, sizes))


def ragged(strategy, value):
    return [np.asarray(part) for part in strategy.local_results(value)]


def test_results_keep_their_shapes(several, mode, sizes):
    def replica_fn(x):
        assert x.ndim == 2
        return {"double": 2 * x, "sum": x.sum(), "id": rid()}

    found = step_of(several, mode, sizes, replica_fn)
    for actual, expected in zip(ragged(several, found["double"]), batches(sizes), strict=True):
        close(actual, 2 * expected)
    close(parts(several, found["sum"]), [x.sum() for x in batches(sizes)])
    close(parts(several, found["id"]), range(len(sizes)))


def test_results_are_on_their_devices(several, mode, sizes):
    found = step_of(several, mode, sizes, lambda x: x + 1)
    devices = [f"CPU:{d.id}" for part in several.local_results(found) for d in part.devices()]
    assert devices == list(several.extended.worker_devices)


def test_reduce_with_an_axis(several, mode, sizes, subtests):
    """MEAN divides by the true number of rows."""
    cases = list(itertools.product(["SUM", "MEAN"], [0, (0, 1), -2]))
    step = mode(lambda x: [several.reduce(op, x, axis=axis) for op, axis in cases])
    everything = np.concatenate(batches(sizes))
    for (op, axis), found in zip(cases, step(distribute(several, sizes)), strict=True):
        with subtests.test(op=op, axis=axis):
            over = axis if isinstance(axis, tuple) else 0
            close(found, (np.sum if op == "SUM" else np.mean)(everything, axis=over))


def test_reduce_of_losses_in_the_same_step(several, mode, sizes):
    def step(x):
        losses = several.run(lambda x: (x**2).mean(axis=1), args=(x,))
        return several.reduce("MEAN", losses, axis=0)

    found = mode(step)(distribute(several, sizes))
    close(found, (np.concatenate(batches(sizes)) ** 2).mean())


def test_mean_of_integers_with_an_axis(several, mode, sizes):
    x = each(several, lambda i: np.full(sizes[i], i, np.int32))
    found = mode(lambda x: several.reduce("MEAN", x, axis=0))(x)
    close(found, np.repeat(np.arange(len(sizes)), sizes).mean())
    assert found.dtype == jnp.float32


def test_reduce_without_an_axis(several, mode, sizes):
    with pytest.raises(ValueError, match=r"\[2,3\].*axis=0.*gather"):
        mode(lambda x: several.reduce("SUM", x, axis=None))(distribute(several, sizes))
    n = several.num_replicas_in_sync
    close(several.reduce("SUM", each(several, float), axis=None), n * (n - 1) / 2)


def test_gather(several, mode, sizes):
    found = mode(lambda x: several.gather({"x": x}, axis=0))(distribute(several, sizes))
    close(found["x"], np.concatenate(batches(sizes)))


def test_gather_along_the_last_axis(several, mode, sizes):
    x = each(several, lambda i: batch(i, sizes[i]).T)
    found = mode(lambda x: several.gather(x, axis=-1))(x)
    close(found, np.concatenate(batches(sizes)).T)


def test_gather_along_another_axis(several, mode, sizes):
    with pytest.raises(ValueError, match=r"axis=1.*\[2,3\]"):
        mode(lambda x: several.gather(x, axis=1))(distribute(several, sizes))


def test_all_reduce(several, mode, sizes):
    def replica_fn(x):
        context = rx.get_replica_context()
        total, count = context.all_reduce("SUM", [x.sum(axis=0), x.shape[0]])
        return total / count, context.all_reduce("MEAN", x.sum())

    mean, mean_of_sums = step_of(several, mode, sizes, replica_fn)
    n = several.num_replicas_in_sync
    close(parts(several, mean), [np.concatenate(batches(sizes)).mean(axis=0)] * n)
    close(parts(several, mean_of_sums), [np.mean([x.sum() for x in batches(sizes)])] * n)


def test_all_reduce_of_different_shapes(several, mode, sizes):
    with pytest.raises(ValueError, match="the same shape"):
        step_of(several, mode, sizes, lambda x: rx.get_replica_context().all_reduce("SUM", x))


def test_all_gather(several, mode, sizes):
    found = step_of(several, mode, sizes, lambda x: rx.get_replica_context().all_gather(x, 0))
    n = several.num_replicas_in_sync
    close(parts(several, found), [np.concatenate(batches(sizes))] * n)


def test_gradient_of_all_reduce(several, mode, sizes):
    def loss(w, x):
        return rx.get_replica_context().all_reduce("SUM", (w * x).sum()) * (rid() + 1)

    n = several.num_replicas_in_sync
    found = step_of(several, mode, sizes, lambda x: jax.grad(loss)(1.0, x))
    close(parts(several, found), [x.sum() * n * (n + 1) / 2 for x in batches(sizes)])


def test_gradient_of_all_gather(several, mode, sizes):
    def loss(x):
        everything = rx.get_replica_context().all_gather(x, 0)
        weights = np.arange(everything.size, dtype=np.float32).reshape(everything.shape)
        return (weights * everything).sum() * (rid() + 1)

    found = step_of(several, mode, sizes, jax.grad(loss))
    n = several.num_replicas_in_sync
    weights = np.arange(3 * sum(sizes)).reshape(-1, 3) * n * (n + 1) / 2
    expected = np.split(weights, np.cumsum(sizes)[:-1])
    for actual, wanted in zip(ragged(several, found), expected, strict=True):
        close(actual, wanted)


def test_merge_call(several, mode, sizes):
    def merge_fn(strategy, x, total):
        assert isinstance(x, rx.PerReplica)
        largest = max(part.shape[0] for part in strategy.local_results(x))
        return strategy.reduce("SUM", total, axis=None) * largest, x

    def replica_fn(x):
        return rx.get_replica_context().merge_call(merge_fn, args=(x, x.sum()))

    scaled, mine = step_of(several, mode, sizes, replica_fn)
    n = several.num_replicas_in_sync
    total = np.concatenate(batches(sizes)).sum() * max(sizes)
    close(parts(several, scaled), [total] * n)
    for actual, expected in zip(ragged(several, mine), batches(sizes), strict=True):
        close(actual, expected)


def test_variables_written(several, mode, sizes, subtests):
    made = {how: variable(several, [1.0, 2.0, 3.0], aggregation=how) for how in AGGREGATIONS}

    def replica_fn(x):
        total = x.sum(axis=0)
        for v in made.values():
            v.assign_add(total)
        return {aggregation: v.read_value() for aggregation, v in made.items()}

    step = mode(lambda x: several.run(replica_fn, args=(x,)))
    n = several.num_replicas_in_sync
    found = [step(distribute(several, sizes)) for _ in range(2)]
    for aggregation, v in made.items():
        with subtests.test(aggregation=aggregation):
            added = AGGREGATIONS[aggregation]([x.sum(axis=0) for x in batches(sizes)])
            for k, returned in enumerate(found, start=1):
                close(parts(several, returned[aggregation]), [np.array([1, 2, 3]) + k * added] * n)
            close(parts(several, v), [np.array([1, 2, 3]) + 2 * added] * n)


def test_on_read_variables_written(mirrored, mode):
    sizes = SIZES["empty"][: mirrored.num_replicas_in_sync]
    v = variable(mirrored, 0, synchronization=ON_READ, aggregation=rx.VariableAggregation.SUM)

    def replica_fn(x):
        v.assign_add(x.shape[0])
        return v.read_value()

    step = mode(lambda x: mirrored.run(replica_fn, args=(x,)))
    step(distribute(mirrored, sizes))
    close(parts(mirrored, step(distribute(mirrored, sizes))), 2 * np.array(sizes))
    close(parts(mirrored, v), 2 * np.array(sizes))
    close(v, 2 * sum(sizes))


def test_rows_scattered(several, mode, sizes):
    v = variable(several, np.zeros((8, 3)), aggregation=rx.VariableAggregation.SUM)

    def replica_fn(x):
        return v.scatter_add(rx.IndexedSlices(x, jnp.full(x.shape[0], rid())))

    step_of(several, mode, sizes, replica_fn)
    expected = np.zeros((8, 3))
    for i, x in enumerate(batches(sizes)):
        expected[i] += x.sum(axis=0)
    close(v, expected)


def test_indexed_slices_reduced(several, mode, sizes):
    def step(x):
        rows = several.run(lambda x: rx.IndexedSlices(x, jnp.full(x.shape[0], rid())), args=(x,))
        return several.reduce("SUM", rows, axis=None)

    found = mode(step)(distribute(several, sizes))
    close(found.values, np.concatenate(batches(sizes)))
    close(found.indices, np.repeat(np.arange(len(sizes)), sizes))


def test_shapes_that_start_equal_and_then_differ(several, mode):
    """One step function serves both kinds of batches, with the same state."""
    v = variable(several, 0.0, aggregation=rx.VariableAggregation.SUM)
    step = mode(lambda x: several.run(lambda x: v.assign_add(x.sum()), args=(x,)))
    n = several.num_replicas_in_sync
    even, uneven = [1] * n, SIZES["partial"][:n]
    expected = 0.0
    for sizes in (even, uneven, even, uneven):
        step(distribute(several, sizes))
        expected += sum(x.sum() for x in batches(sizes))
        close(v, expected)


def test_different_dtypes(several, mode):
    x = each(several, lambda i: np.full(2, i + 1, np.int32 if i == 0 else np.float32))
    found = mode(lambda x: several.run(lambda x: x.sum() / 2, args=(x,)))(x)
    close(parts(several, found), np.arange(several.num_replicas_in_sync) + 1)


def test_all_empty(several, mode):
    x = each(several, lambda i: np.zeros((0, 3)))

    def step(x):
        total = several.reduce("SUM", several.run(lambda x: x + 1, args=(x,)), axis=0)
        return total, several.gather(x, axis=0)

    total, everything = mode(step)(x)
    close(total, np.zeros(3))
    assert everything.shape == (0, 3)


def test_replica_ids(several, mode):
    """Each replica sees its own id, although a compiled step traces them one after the other."""
    n = several.num_replicas_in_sync
    sizes = SIZES["partial"][:n]
    found = step_of(several, mode, sizes, lambda x: x.sum() + 10 * rid())
    close(parts(several, found), [x.sum() + 10 * i for i, x in enumerate(batches(sizes))])
