"""`strategy.reduce`: one array from what the replicas hold."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import replicax as rx

from .helpers import ON_READ, close, each, rid, rows, variable

REDUCE = {"SUM": np.sum, "MEAN": np.mean}


def stack(strategy, value_of=rows):
    return np.stack([np.asarray(value_of(i)) for i in range(strategy.num_replicas_in_sync)])


def test_axes(strategy, mode, subtests):
    """Over the replicas, and over the axes inside each replica's value."""
    cases = list(itertools.product(REDUCE, [None, 0, 1, -1, (0,), (0, 1), (0, -1)]))
    step = mode(lambda x: [strategy.reduce(op, x, axis=axis) for op, axis in cases])
    for (op, axis), found in zip(cases, step(each(strategy, rows)), strict=True):
        inside = () if axis is None else axis if isinstance(axis, tuple) else (axis,)
        with subtests.test(op=op, axis=axis):
            close(found, REDUCE[op](stack(strategy), axis=(0, *(a % 2 + 1 for a in inside))))


def test_of_a_run_in_the_same_step(strategy, mode):
    def step(x):
        losses = strategy.run(lambda x: x**2, args=(x,))
        return strategy.reduce("MEAN", losses, axis=0), strategy.reduce("SUM", losses, axis=None)

    mean, total = mode(step)(each(strategy, rows))
    close(mean, (stack(strategy) ** 2).mean(axis=(0, 1)))
    close(total, (stack(strategy) ** 2).sum(axis=0))


def test_scalars(strategy, mode):
    step = mode(lambda x: strategy.reduce("MEAN", x, axis=None))
    close(step(each(strategy, lambda i: i + 1.0)), (strategy.num_replicas_in_sync + 1) / 2)


def test_python_numbers(strategy, mode):
    x = strategy.distribute_values_from_function(lambda ctx: ctx.replica_id_in_sync_group + 1)
    n = strategy.num_replicas_in_sync
    close(mode(lambda x: strategy.reduce("SUM", x, axis=None))(x), n * (n + 1) / 2)


@pytest.mark.parametrize("op", ["sum", "Sum", "SUM", rx.ReduceOp.SUM])
def test_spellings_of_the_reduction(two, mode, op):
    close(mode(lambda x: two.reduce(op, x, axis=None))(each(two, float)), 1)


def test_integers(strategy, mode, subtests):
    def value_of(i):
        return np.array([2 * i, 5], np.int32)

    overs = {None: (0,), 0: (0, 1)}
    step = mode(lambda x: [[strategy.reduce(op, x, axis=axis) for op in REDUCE] for axis in overs])
    for (axis, over), (total, mean) in zip(overs.items(), step(each(strategy, value_of)), strict=True):
        with subtests.test(axis=axis):
            close(total, stack(strategy, value_of).sum(axis=over))
            close(mean, stack(strategy, value_of).mean(axis=over))
            assert total.dtype == jnp.int32
            assert mean.dtype == jnp.float32


@pytest.mark.parametrize("dtype", [jnp.bfloat16, jnp.float16, jnp.complex64])
def test_dtypes_stay_the_same(two, mode, dtype):
    x = each(two, lambda i: [i + 1, 2], dtype)
    step = mode(lambda x: [two.reduce(op, x, axis=None) for op in REDUCE])
    for found, expected in zip(step(x), ([3, 4], [1.5, 2]), strict=True):
        assert found.dtype == dtype
        np.testing.assert_array_equal(np.asarray(found).astype(np.complex64), expected)


def test_nests(strategy, mode):
    def step(x):
        values = strategy.run(lambda x: {"a": (x, [x[0] + rid()]), "b": x.sum()}, args=(x,))
        return strategy.reduce("SUM", values, axis=None)

    found = mode(step)(each(strategy, rows))
    everything = stack(strategy)
    n = strategy.num_replicas_in_sync
    close(found["a"][0], everything.sum(axis=0))
    close(found["a"][1][0], everything[:, 0].sum(axis=0) + n * (n - 1) / 2)
    close(found["b"], everything.sum())


def test_nests_with_an_axis(strategy, mode):
    step = mode(lambda x: strategy.reduce("MEAN", {"a": x, "b": [x]}, axis=0))
    found = step(each(strategy, rows))
    close(found["a"], stack(strategy).mean(axis=(0, 1)))
    close(found["b"][0], stack(strategy).mean(axis=(0, 1)))


def test_a_value_that_all_replicas_hold(strategy, mode, subtests):
    values = [2.0, 3, np.float32(2), np.arange(3.0)]
    step = mode(lambda: [[strategy.reduce(op, value, axis=None) for op in REDUCE] for value in values])
    for value, (total, mean) in zip(values, step(), strict=True):
        with subtests.test(value=value):
            close(total, np.asarray(value) * strategy.num_replicas_in_sync)
            close(mean, value)


def test_a_value_that_all_replicas_hold_with_an_axis(strategy, mode):
    x = np.arange(6, dtype=np.float32).reshape(2, 3)
    step = mode(lambda x: [strategy.reduce(op, x, axis=0) for op in ("SUM", "MEAN")])
    total, mean = step(jnp.asarray(x))
    close(total, x.sum(axis=0) * strategy.num_replicas_in_sync)
    close(mean, x.mean(axis=0))


def test_one_object_returned_by_all_replicas(strategy, mode):
    """The numbers do not depend on the identity of objects."""
    shared = jnp.float32(5)
    step = mode(lambda: strategy.reduce("SUM", strategy.run(lambda: (shared, 5.0)), axis=None))
    for total in step():
        close(total, 5 * strategy.num_replicas_in_sync)


def test_mirrored_values(several, mode):
    x = each(several, float)

    def step(x):
        total = several.extended.reduce_to("SUM", x, x)
        return several.reduce("SUM", total, axis=None), several.reduce("MEAN", total, axis=None)

    n = several.num_replicas_in_sync
    total, mean = mode(step)(x)
    close(total, n * n * (n - 1) / 2)
    close(mean, n * (n - 1) / 2)


def test_variables(strategy, mode):
    v = variable(strategy, [1.0, 2.0])
    step = mode(lambda: [strategy.reduce(op, v, axis=None) for op in ("SUM", "MEAN")])
    total, mean = step()
    close(total, strategy.num_replicas_in_sync * np.array([1, 2]))
    close(mean, [1, 2])


def test_parts_of_an_on_read_variable(mirrored, mode):
    v = variable(mirrored, 0.0, synchronization=ON_READ, aggregation=rx.VariableAggregation.MEAN)
    mirrored.run(lambda: v.assign(rid() + 1.0))
    n = mirrored.num_replicas_in_sync
    close(mode(lambda: mirrored.reduce("SUM", v, axis=None))(), n * (n + 1) / 2)


def test_indexed_slices(strategy, mode, subtests):
    def replica_fn():
        values = jnp.stack([jnp.full(2, 1.0), jnp.full(2, rid() + 1.0)])
        return rx.IndexedSlices(values, jnp.stack([jnp.int32(0), rid()]), dense_shape=(8, 2))

    def step():
        rows = strategy.run(replica_fn)
        return {op: strategy.reduce(op, rows, axis=None) for op in REDUCE}

    n = strategy.num_replicas_in_sync
    for op, found in mode(step)().items():
        with subtests.test(op=op):
            scale = n if op == "MEAN" else 1
            close(found.values, np.concatenate([[[1, 1], [i + 1, i + 1]] for i in range(n)]) / scale)
            close(found.indices, np.concatenate([[0, i] for i in range(n)]))
            assert found.dense_shape == (8, 2)
            dense = np.zeros((8, 2))
            for i in range(n):
                dense[0] += 1 / scale
                dense[i] += (i + 1) / scale
            close(found.to_dense(), dense)


def test_nothing(strategy, mode):
    assert mode(lambda: strategy.reduce("SUM", {"a": []}, axis=None))() == {"a": []}


def test_the_result_is_a_plain_array(strategy, mode):
    """It mixes with arrays on any device."""
    total = mode(lambda x: strategy.reduce("SUM", x, axis=None))(each(strategy, rows))
    assert isinstance(total, jax.Array)
    for device in jax.devices()[:2]:
        mixed = total + jax.device_put(np.float32(1), device)
        close(mixed, stack(strategy).sum(axis=0) + 1)


def test_many_values(two, mode):
    """More values than fit into one pack, of several dtypes, come back in their order."""
    x = [each(two, lambda i, k=k: np.full(k, i + k, [np.float32, np.int32][k % 2])) for k in range(9)]
    found = mode(lambda x: two.reduce("SUM", x, axis=None))(x)
    for k, total in enumerate(found):
        close(total, np.full(k, 2 * k + 1))
        assert total.dtype == [jnp.float32, jnp.int32][k % 2]


def test_gradients_through_a_compiled_step(strategy):
    """Inside a compiled step `run` and `reduce` can be differentiated as a whole."""
    x = each(strategy, rows)

    @rx.function
    def step(x, w):
        def loss(w):
            return strategy.reduce("SUM", strategy.run(lambda x: (w * x).sum(), (x,)), axis=None)

        return jax.grad(loss)(w)

    close(step(x, jnp.float32(2)), stack(strategy).sum())


@pytest.mark.parametrize("axis", [None, 0])
def test_a_mean_is_right_where_the_sum_would_not_fit(mode, axis, subtests):
    strategy = rx.MirroredStrategy(["CPU:0", "CPU:1", "CPU:2", "CPU:3"])
    large = {jnp.uint8: 100, jnp.int8: -100, jnp.int16: 30000, jnp.int32: 2**30, jnp.float16: 40000.0}

    def replica_fn():
        return [jnp.full(2, value, dtype) for dtype, value in large.items()]

    means = mode(lambda: strategy.reduce("MEAN", strategy.run(replica_fn), axis=axis))()
    for (dtype, value), mean in zip(large.items(), means, strict=True):
        with subtests.test(dtype=dtype):
            assert mean.dtype == (jnp.float16 if dtype == jnp.float16 else jnp.float32)
            np.testing.assert_allclose(np.asarray(mean, np.float64), float(jnp.asarray(value, dtype)))


def test_a_mean_over_many_small_floats():
    strategy = rx.MirroredStrategy(["CPU:0", "CPU:1"])
    for dtype in (jnp.float16, jnp.bfloat16):
        ones = strategy.run(lambda dtype=dtype: jnp.ones(40001, dtype))
        assert float(strategy.reduce("MEAN", ones, axis=0)) == 1.0


def test_rows_of_which_a_part_is_one_object_for_all_replicas(strategy, mode, subtests):
    n = strategy.num_replicas_in_sync
    same_rows, same_indices = jnp.full((2, 3), 5.0), jnp.array([0, 2])

    def replica_fn(x):
        own_indices = jnp.stack([rid() * 0, rid() * 0 + 2])
        return {
            "indices": rx.IndexedSlices(x, same_indices, dense_shape=(4, 3)),
            "values": rx.IndexedSlices(same_rows, own_indices, dense_shape=(4, 3)),
            "both": rx.IndexedSlices(same_rows, same_indices, dense_shape=(4, 3)),
        }

    @mode
    def step(x):
        rows = strategy.run(replica_fn, args=(x,))
        cases = itertools.product(REDUCE, rows)
        return {(op, shared): strategy.reduce(op, rows[shared], axis=None) for op, shared in cases}

    found = step(each(strategy, lambda i: np.full((2, 3), i + 1.0, np.float32)))
    assert len(found) == 6
    for (op, shared), reduced in found.items():
        with subtests.test(op=op, shared=shared):
            assert reduced.values.shape == (2 * n, 3) and reduced.indices.shape == (2 * n,)
            row = sum(i + 1 for i in range(n)) if shared == "indices" else 5.0 * n
            expected = np.array([row, 0, row, 0]) / (n if op == "MEAN" else 1)
            close(reduced.to_dense(), np.repeat(expected[:, None], 3, axis=1).astype(np.float32))
