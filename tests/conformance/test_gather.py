"""`strategy.gather`: the replicas' values one after the other."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import replicax as rx

from .helpers import close, each, rid, rows, variable


def joined(strategy, axis):
    return np.concatenate([rows(i) for i in range(strategy.num_replicas_in_sync)], axis)


def test_axes(strategy, mode, subtests):
    axes = [0, 1, -1, -2]
    step = mode(lambda x: [strategy.gather(x, axis=axis) for axis in axes])
    for axis, found in zip(axes, step(each(strategy, rows)), strict=True):
        with subtests.test(axis=axis):
            close(found, joined(strategy, axis))
            assert isinstance(found, jax.Array)


def test_of_a_run_in_the_same_step(strategy, mode):
    step = mode(lambda: strategy.gather(strategy.run(lambda: rid()[None] * 2), axis=0))
    found = step()
    close(found, 2 * np.arange(strategy.num_replicas_in_sync))
    assert found.dtype == jnp.int32


def test_nests(strategy, mode):
    found = mode(lambda x: strategy.gather({"a": x, "b": (x, [x])}, axis=0))(each(strategy, rows))
    for leaf in (found["a"], found["b"][0], found["b"][1][0]):
        close(leaf, joined(strategy, 0))


def test_a_plain_array_is_returned_as_it_is(strategy, mode):
    x = jnp.arange(3.0)
    close(mode(lambda x: strategy.gather(x, axis=0))(x), [0, 1, 2])


def test_booleans(strategy, mode):
    found = mode(lambda x: strategy.gather(x, axis=0))(each(strategy, lambda i: [i % 2 == 0]))
    close(found, [i % 2 == 0 for i in range(strategy.num_replicas_in_sync)])
    assert found.dtype == jnp.bool_


def test_values_without_elements(strategy, mode):
    found = mode(lambda x: strategy.gather(x, axis=0))(each(strategy, lambda i: np.zeros((0, 2))))
    assert found.shape == (0, 2)


def test_an_axis_that_is_not_there(strategy, mode, subtests):
    for axis, shape in [(0, ()), (2, (2, 3)), (-3, (2, 3))]:
        x = each(strategy, lambda i, shape=shape: np.zeros(shape))
        with subtests.test(axis=axis), pytest.raises(ValueError, match=rf"axis={axis}\D") as caught:
            mode(lambda x, axis=axis: strategy.gather(x, axis=axis))(x)
        assert str(shape) in str(caught.value)


def test_something_else_as_the_axis(strategy, mode, subtests):
    for axis in (None, "0", 1.5, (0,)):
        with subtests.test(axis=axis), pytest.raises(TypeError, match="axis must be an int"):
            mode(lambda x, axis=axis: strategy.gather(x, axis=axis))(each(strategy, rows))


def test_only_arrays(strategy, mode):
    text = strategy.distribute_values_from_function(lambda ctx: f"replica {ctx}")
    for value in (text, "text", None, object()):
        with pytest.raises((TypeError, ValueError), match="Only arrays can be gathered"):
            mode(lambda value=value: strategy.gather(value, axis=0))()


def test_indexed_slices(strategy, mode):
    def replica_fn():
        return rx.IndexedSlices(jnp.ones((1, 2)), rid()[None])

    with pytest.raises(NotImplementedError, match="IndexedSlices"):
        mode(lambda: strategy.gather(strategy.run(replica_fn), axis=0))()


def test_a_variable(mirrored, mode):
    v = variable(mirrored, [1.0, 2.0])
    close(mode(lambda: mirrored.gather(v, axis=0))(), [1, 2] * mirrored.num_replicas_in_sync)
