"""`rx.value_and_grad` and `rx.grad`: gradients with respect to variables, and writes inside."""

import collections
import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import replicax as rx
from replicax.errors import TracingError, VariableError

from .helpers import ON_READ, close, each, mirrored, parts, rid, total

SUM, MEAN = rx.VariableAggregation.SUM, rx.VariableAggregation.MEAN
FIRST = rx.VariableAggregation.ONLY_FIRST_REPLICA


def variable(strategy, *args, **kwargs):
    with strategy.scope():
        return rx.Variable(*args, **kwargs)


# What comes back.


def test_each_replica_gets_the_gradient_of_its_own_loss(strategy, mode):
    w = variable(strategy, [1.0, 2.0])
    x = each(strategy, lambda i: np.array([3.0, 4.0], np.float32) + i)
    step = mode(
        lambda x: strategy.run(lambda x: rx.value_and_grad(lambda x: jnp.sum(w**2 * x), w)(x), args=(x,))
    )
    loss, gradient = step(x)
    for i, (found, slope) in enumerate(zip(parts(strategy, loss), parts(strategy, gradient), strict=True)):
        own = np.array([3.0, 4.0]) + i
        close(found, np.float32(own @ [1.0, 4.0]))
        close(slope, np.array([2.0, 4.0]) * own)
    close(w.value, [1.0, 2.0])


def test_gradients_have_the_structure_of_the_variables(mode):
    params = rx.create_variables({"a": [jnp.ones(2), jnp.float32(3.0)], "b": {"c": jnp.ones((2, 1))}})

    def loss(x):
        p = rx.read_values(params)
        return jnp.sum((x * p["a"][0]) @ p["b"]["c"]) * p["a"][1]

    value, gradients = mode(rx.value_and_grad(loss, params))(jnp.array([1.0, 2.0]))
    close(value, 9.0)
    assert jax.tree.structure(gradients) == jax.tree.structure({"a": [0, 0], "b": {"c": 0}})
    close(gradients["a"][0], [3.0, 6.0])
    close(gradients["a"][1], 3.0)
    close(gradients["b"]["c"], [[3.0], [6.0]])


def test_a_single_variable_gives_a_single_gradient(mode):
    w = rx.Variable(3.0)
    value, gradient = mode(rx.value_and_grad(lambda: w**3, w))()
    close(value, 27.0)
    close(gradient, 27.0)


def test_grad_is_value_and_grad_without_the_value(mode):
    w = rx.Variable(3.0)
    close(mode(rx.grad(lambda x: x * w**2, w))(jnp.float32(2.0)), 12.0)
    gradient, aux = mode(rx.grad(lambda: (w**2, {"half": w / 2}), w, has_aux=True))()
    close(gradient, 6.0)
    close(aux["half"], 1.5)


def test_what_else_the_function_returns_comes_out(strategy, mode):
    w = variable(strategy, 2.0)

    def replica_fn():
        def loss():
            return w * (rid() + 1.0), {"id": rid(), "twice": 2 * w.value}

        return rx.value_and_grad(loss, w, has_aux=True)()

    (value, aux), gradient = mode(lambda: strategy.run(replica_fn))()
    expected = np.arange(1.0, strategy.num_replicas_in_sync + 1)
    close(np.stack(parts(strategy, value)), 2 * expected)
    close(np.stack(parts(strategy, gradient)), expected)
    close(np.stack(parts(strategy, aux["id"])), expected - 1)
    assert all(part == 4.0 for part in parts(strategy, aux["twice"]))


def test_aux_may_hold_anything_eagerly():
    w = rx.Variable(2.0)
    (_, aux), _ = rx.value_and_grad(
        lambda: (w**2, {"text": "hello", "none": None, "n": 3}), w, has_aux=True
    )()
    assert aux == {"text": "hello", "none": None, "n": 3}


def test_keyword_arguments_and_defaults_reach_the_function(mode):
    w = rx.Variable(2.0)

    def loss(x, *, scale, power=2):
        return scale * x * w**power

    step = mode(rx.value_and_grad(loss, w))
    value, gradient = step(jnp.float32(3.0), scale=jnp.float32(10.0))
    close(value, 120.0)
    close(gradient, 120.0)


def test_the_result_is_named_like_the_function():
    def my_loss():
        """What it says."""

    w = rx.Variable(1.0)
    for made in (rx.value_and_grad(my_loss, w), rx.grad(my_loss, w)):
        assert made.__name__ == "my_loss"
        assert made.__doc__ == "What it says."


def test_other_variables_are_constants(strategy, mode):
    w, scale = variable(strategy, 2.0), variable(strategy, 5.0)
    count = variable(strategy, 3)
    gradient = mode(lambda: strategy.run(lambda: rx.grad(lambda: scale * count * w**2, w)()))()
    assert all(part == 60.0 for part in parts(strategy, gradient))


def test_a_variable_that_the_loss_does_not_use_has_a_gradient_of_zero(mode):
    w, unused = rx.Variable(2.0), rx.Variable([1.0, 2.0])
    gradients = mode(rx.grad(lambda: w**2, [w, unused]))()
    close(gradients[1], [0.0, 0.0])


def test_a_changed_variable_is_seen_by_the_next_call(mode):
    w = rx.Variable(2.0)
    step = mode(rx.grad(lambda: w**2, w))
    close(step(), 4.0)
    w.assign(5.0)
    close(step(), 10.0)


def test_gradients_of_small_floats_keep_the_dtype_of_the_variable(mode):
    w = rx.Variable(jnp.ones(3, jnp.bfloat16))
    value, gradient = mode(rx.value_and_grad(lambda: jnp.sum(w.value), w))()
    assert gradient.dtype == jnp.bfloat16
    assert value.dtype == jnp.float32


def test_all_ways_of_reading_are_differentiated(mode):
    w = rx.Variable([1.0, 2.0])
    ways = [
        lambda: jnp.sum(w.value),
        lambda: jnp.sum(w.read_value()),
        lambda: jnp.sum(w),
        lambda: w[0] + w[1],
        lambda: (w + 0.0).sum(),
        lambda: jnp.sum(jnp.asarray(w)),
        lambda: jnp.sum(rx.read_values([w])[0]),
        lambda: jnp.sum(jax.tree.map(lambda x: x * 1.0, {"w": w})["w"]),
    ]
    for way in ways:
        close(mode(rx.grad(way, w))(), [1.0, 1.0])


def test_the_cross_replica_context_differentiates_the_value_of_all(several, mode):
    w = variable(several, 3.0)

    def step():
        value, gradient = rx.value_and_grad(lambda: w**2, w)()
        return value, gradient

    value, gradient = mode(step)()
    close(value, 9.0)
    close(gradient, 6.0)


def test_the_part_of_a_replica_is_differentiated_in_a_replica_function(two, mode):
    v = variable(two, 0.0, synchronization=ON_READ, aggregation=SUM)
    two.run(lambda: v.assign(rid() + 1.0))
    gradient = mode(lambda: two.run(lambda: rx.grad(lambda: v**2, v)()))()
    close(np.stack(parts(two, gradient)), [2.0, 4.0])


def test_a_variable_given_twice_does_not_lose_its_gradient():
    w = rx.Variable(3.0)
    try:
        gradients = rx.grad(lambda: w**2, [w, w])()
    except VariableError as error:
        assert w.name in str(error)
    else:
        close(gradients, [6.0, 6.0])


# Composition.


def test_second_derivatives(strategy, mode):
    w = variable(strategy, 2.0)

    def replica_fn():
        inner = rx.grad(lambda: (rid() + 1.0) * w**4, w)
        return rx.value_and_grad(inner, w)()

    slope, curvature = mode(lambda: strategy.run(replica_fn))()
    for i, (first, second) in enumerate(
        zip(parts(strategy, slope), parts(strategy, curvature), strict=True)
    ):
        close(first, 32.0 * (i + 1))
        close(second, 48.0 * (i + 1))


def test_mixed_second_derivatives(mode):
    v, w = rx.Variable(2.0), rx.Variable(3.0)
    close(mode(rx.grad(lambda: rx.grad(lambda: v**2 * w**3, v)(), w))(), 2 * 2 * 3 * 9.0)


def test_a_gradient_penalty_reaches_the_outer_gradient(mode):
    w = rx.Variable([1.0, 2.0])

    def penalty(x):
        slope = jax.grad(lambda x: jnp.sum(w.value * x**2))(x)
        return jnp.sum(slope**2)

    x = jnp.array([1.0, 3.0])
    close(mode(rx.grad(penalty, w))(x), 8 * np.array([1.0, 2.0]) * np.array([1.0, 9.0]))


def test_it_goes_together_with_jax_grad_of_the_arguments(mode):
    w = rx.Variable(3.0)

    def both(x):
        return jax.grad(lambda x: rx.value_and_grad(lambda: w * x**2, w)()[1])(x)

    close(mode(both)(jnp.float32(5.0)), 10.0)


def test_it_may_be_mapped(mode):
    w = rx.Variable([1.0, 2.0])
    per_example = mode(lambda x: jax.vmap(rx.grad(lambda x: jnp.sum(w.value**2 * x), w))(x))
    x = np.arange(6, dtype=np.float32).reshape(3, 2)
    close(per_example(x), x * [2.0, 4.0])


def test_gradients_through_all_reduce_are_sums_over_the_replicas(strategy, mode):
    n = strategy.num_replicas_in_sync
    w = variable(strategy, 3.0)

    def replica_fn():
        def loss():
            whole = rx.get_replica_context().all_reduce("SUM", w.value * (rid() + 1.0))
            return (rid() + 1.0) * whole**2

        return rx.value_and_grad(loss, w)()

    values, gradients = mode(lambda: strategy.run(replica_fn))()
    weight = n * (n + 1) / 2
    # The other replicas' losses depend on this one's value too, and their part comes with it.
    for i, (value, gradient) in enumerate(
        zip(parts(strategy, values), parts(strategy, gradients), strict=True)
    ):
        close(value, np.float32((i + 1) * (3 * weight) ** 2))
        close(gradient, np.float32((i + 1) * sum(2 * (j + 1) * 3 * weight for j in range(n))))
    close(total(strategy, gradients), np.float32(2 * 3 * weight**3))


RECURRENT = rx.Variable(2.0)


def cell(carry, x):
    return carry * RECURRENT.value + x, None


@jax.checkpoint
def saved(x):
    return jnp.sin(RECURRENT.value * x)


@jax.jit
def jitted(x):
    return jnp.sin(RECURRENT.value * x)


CONTROL = {
    "scan": (lambda x: jax.lax.scan(cell, 1.0, x * jnp.ones(2))[0], lambda w, x: (w + x) * w + x),
    "checkpoint": (saved, lambda w, x: jnp.sin(w * x)),
    "jit": (jitted, lambda w, x: jnp.sin(w * x)),
    "cond": (
        lambda x: jax.lax.cond(x > 0, saved, lambda x: 0.0, x),
        lambda w, x: jnp.sin(w * x),
    ),
}


@pytest.mark.parametrize("kind", CONTROL)
def test_the_variable_may_be_read_inside_control_flow_again_and_again(kind, mode):
    """JAX keeps the traces of such functions; a kept one must not hold on to old values."""
    loss, expected = CONTROL[kind]
    step = mode(rx.value_and_grad(loss, RECURRENT))
    for w in (2.0, 3.0):
        RECURRENT.assign(w)
        value, gradient = step(jnp.float32(0.5))
        wanted, slope = jax.value_and_grad(expected)(jnp.float32(w), jnp.float32(0.5))
        close(value, wanted)
        close(gradient, slope)


def test_a_cell_defined_in_the_loss_may_read_the_variable(strategy, mode):
    w = variable(strategy, 2.0)

    def loss(x):
        return jax.lax.scan(lambda carry, x: (carry * w.value + x, None), jnp.float32(1.0), x)[0]

    step = mode(lambda x: strategy.run(lambda x: rx.grad(loss, w)(x), args=(x,)))
    x = each(strategy, lambda i: np.array([1.0, 1.0], np.float32))
    for value in (2.0, 3.0):
        w.assign(value)
        assert all(part == 2 * value + 1 for part in parts(strategy, step(x)))


# Writes.


@pytest.mark.parametrize("aggregation", ["SUM", "MEAN", "ONLY_FIRST_REPLICA"])
@pytest.mark.parametrize("method", ["assign", "assign_add", "assign_sub"])
def test_writes_inside_come_out_like_writes_outside(method, aggregation, mode):
    for strategy in (mirrored(3), rx.CentralStorageStrategy(["CPU:0", "CPU:1"], "CPU:0")):
        w = variable(strategy, 2.0)
        inside, outside = (variable(strategy, [1.0, 2.0], aggregation=aggregation) for _ in range(2))

        def replica_fn(w=w, inside=inside, outside=outside):
            def loss():
                getattr(inside, method)(w * jnp.array([1.0, 10.0]) * (rid() + 1.0))
                return w**2

            gradient = rx.grad(loss, w)()
            getattr(outside, method)(w * jnp.array([1.0, 10.0]) * (rid() + 1.0))
            return gradient

        gradient = mode(lambda strategy=strategy, fn=replica_fn: strategy.run(fn))()
        assert all(part == 4.0 for part in parts(strategy, gradient))
        for copy, wanted in zip(parts(strategy, inside), parts(strategy, outside), strict=True):
            close(copy, wanted)
        assert not np.array_equal(np.asarray(inside.value), [1.0, 2.0])


@pytest.mark.parametrize("aggregation", [SUM, MEAN], ids=["SUM", "MEAN"])
def test_rows_scattered_inside_come_out(aggregation, several, mode):
    n = several.num_replicas_in_sync
    table = variable(several, np.zeros((n, 2), np.float32), aggregation=aggregation)
    w = variable(several, 2.0)

    def replica_fn():
        def loss():
            table.scatter_add(rx.IndexedSlices(w * jnp.ones((1, 2)), rid()[None]))
            return w**2

        return rx.grad(loss, w)()

    mode(lambda: several.run(replica_fn))()
    close(table.value, np.full((n, 2), 2.0 if aggregation is SUM else 2.0 / n))


def test_parts_written_inside_come_out(several, mode):
    with several.scope():
        w, seen = rx.Variable(2.0), rx.Variable(0.0, synchronization=ON_READ, aggregation=SUM)

    def replica_fn():
        def loss():
            seen.assign_add(w * (rid() + 1.0))
            return w**2

        rx.grad(loss, w)()

    step = mode(lambda: several.run(replica_fn))
    step()
    step()
    n = several.num_replicas_in_sync
    close(seen.read_value(), np.float32(2 * 2 * n * (n + 1) / 2))


def test_several_writes_are_made_in_order(mode):
    w, v = rx.Variable(3.0), rx.Variable(1.0)

    def loss():
        v.assign(w * 2)
        v.assign_add(1.0)
        v.assign(v * 10)
        return w**2

    close(mode(rx.grad(loss, w))(), 6.0)
    close(v.value, 70.0)


def test_moving_averages_come_out_right(strategy, mode):
    w = variable(strategy, 2.0)
    moving = variable(strategy, 1.0, aggregation=MEAN)
    x = each(strategy, lambda i: np.float32(i))

    def replica_fn(x):
        def loss(x):
            moving.assign(0.9 * moving + 0.1 * w * x)
            return w * x

        return rx.grad(loss, w)(x)

    step = mode(lambda x: strategy.run(replica_fn, args=(x,)))
    expected, mean = 1.0, (strategy.num_replicas_in_sync - 1) / 2
    for _ in range(3):
        step(x)
        expected = 0.9 * expected + 0.1 * 2.0 * mean
    close(moving.value, np.float32(expected))


def test_nothing_flows_back_through_what_was_written(mode):
    w, v = rx.Variable(3.0), rx.Variable(0.0)

    def loss():
        v.assign(w**3)
        return w**2

    close(mode(rx.grad(loss, w))(), 6.0)
    close(v.value, 27.0)


@pytest.mark.parametrize("make", [rx.get_strategy, lambda: mirrored(1)], ids=["default", "mirrored_1"])
def test_one_replica_may_read_what_it_wrote_and_the_gradient_flows(make, mode):
    strategy = make()
    w, v = variable(strategy, 3.0), variable(strategy, 0.0, aggregation=MEAN)

    def loss():
        v.assign(w**2)
        return v * w

    gradient = mode(lambda: strategy.run(lambda: rx.grad(loss, w)()))()
    close(parts(strategy, gradient)[0], 27.0)
    close(v.value, 9.0)


def test_a_replica_may_read_its_own_part_after_writing(two, mode):
    with two.scope():
        w, v = rx.Variable(3.0), rx.Variable(0.0, synchronization=ON_READ, aggregation=SUM)

    def replica_fn():
        def loss():
            v.assign_add(w * (rid() + 1.0))
            return v.value * w

        return rx.grad(loss, w)()

    gradient = mode(lambda: two.run(replica_fn))()
    close(np.stack(parts(two, gradient)), [6.0, 12.0])
    close(v.read_value(), 9.0)


def test_the_differentiated_variable_itself_may_be_written(mode):
    w = rx.Variable(3.0)

    def loss():
        value = w**2
        w.assign(10.0)
        return value

    close(mode(rx.grad(loss, w))(), 6.0)
    close(w.value, 10.0)


def test_reading_a_mirrored_variable_after_writing_it_is_an_error(several, mode):
    w, v = variable(several, 3.0), variable(several, 1.0, aggregation=MEAN, name="average")

    def loss():
        v.assign(w * 2)
        return v * w

    with pytest.raises(TracingError, match=r"'average:0' is read after assign.*Read it before"):
        mode(lambda: several.run(lambda: rx.grad(loss, w)()))()
    close(v.value, 1.0)


def test_a_write_returns_the_new_value_where_it_is_known(mode):
    w, v = rx.Variable(3.0), rx.Variable(1.0)
    close(mode(rx.grad(lambda: v.assign_add(w**2) * w, w))(), 3 * 9.0 + 1.0)


def test_writes_of_a_nested_gradient_come_out_once(mode):
    w, v = rx.Variable(3.0), rx.Variable(0.0)

    def inner():
        v.assign_add(w * 1.0)
        return w**3

    close(mode(rx.grad(rx.grad(inner, w), w))(), 18.0)
    close(v.value, 3.0)


def test_nothing_is_written_if_the_loss_fails(mode):
    w, v = rx.Variable(3.0), rx.Variable(1.0)

    def loss():
        v.assign(w * 2)
        raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        mode(rx.grad(loss, w))()
    close(v.value, 1.0)
    close(w.value, 3.0)


def test_a_variable_without_aggregation_is_refused_inside_too(two, mode):
    w, v = variable(two, 3.0), variable(two, 1.0, name="undecided")

    def loss():
        v.assign(w * 2)
        return w**2

    with pytest.raises(VariableError, match=r"'undecided:0'.*aggregation"):
        mode(lambda: two.run(lambda: rx.grad(loss, w)()))()


def test_a_value_of_the_wrong_shape_is_refused_where_it_is_written():
    w, v = rx.Variable(3.0), rx.Variable([1.0, 2.0], name="pair")
    reached = []

    def loss():
        v.assign(w * jnp.ones(3))
        reached.append(True)
        return w**2

    with pytest.raises(VariableError, match="pair:0"):
        rx.grad(loss, w)()
    assert not reached


def test_writing_in_a_merge_call_inside_is_refused(two):
    w, v = variable(two, 3.0), variable(two, 1.0, name="merged")

    def replica_fn():
        def loss():
            rx.get_replica_context().merge_call(lambda strategy: v.assign(2.0))
            return w**2

        return rx.grad(loss, w)()

    with pytest.raises(TracingError):
        two.run(replica_fn)
    with pytest.raises(TracingError, match=r"'merged:0' in a merge_call"):
        two.run(rx.function(replica_fn))


def test_writing_inside_a_scan_inside_is_refused_by_name(mode):
    w, v = rx.Variable(3.0), rx.Variable(0.0, name="scanned")

    def loss(x):
        def body(carry, x):
            v.assign(x)
            return carry * w.value, None

        return jax.lax.scan(body, jnp.float32(1.0), x)[0]

    with pytest.raises(TracingError, match="scanned:0"):
        mode(rx.grad(loss, w))(jnp.ones(3))


# Errors.


def test_arrays_in_place_of_variables_are_refused():
    with pytest.raises(VariableError, match=r"with respect to variables.*rx\.create_variables"):
        rx.value_and_grad(lambda: 1.0, jnp.ones(3))
    with pytest.raises(VariableError, match="with respect to variables"):
        rx.grad(lambda: 1.0, [rx.Variable(1.0), "w"])


def test_whole_numbers_are_refused_by_name():
    with pytest.raises(VariableError, match=r"'steps:0' has dtype int32"):
        rx.value_and_grad(lambda: 1.0, [rx.Variable(3, name="steps")])


def test_no_variables_are_refused():
    with pytest.raises(VariableError, match="no variables"):
        rx.value_and_grad(lambda: 1.0, [])


def test_a_loss_that_is_not_a_scalar_is_refused_by_name(mode):
    w = rx.Variable([1.0, 2.0])

    def forgot_the_mean():
        return w**2

    with pytest.raises(TypeError, match=r"forgot_the_mean must return a scalar loss, got shape \(2,\)"):
        mode(rx.grad(forgot_the_mean, w))()


def test_a_pair_without_has_aux_is_refused_and_so_is_the_reverse():
    w = rx.Variable(1.0)
    with pytest.raises(TypeError, match="has_aux=True"):
        rx.grad(lambda: (w**2, 3), w)()
    with pytest.raises(TypeError, match=r"must return \(loss, aux\)"):
        rx.grad(lambda: w**2, w, has_aux=True)()


@pytest.mark.parametrize(("loss", "dtype"), [(3, "int32"), (True, "bool"), (1j, "complex64")])
def test_a_loss_without_gradients_is_refused_by_its_dtype(loss, dtype):
    w = rx.Variable(1.0)
    with pytest.raises(TypeError, match=f"<lambda> must return a floating-point scalar, got {dtype}"):
        rx.grad(lambda: loss, w)()


def test_a_loss_function_without_return_is_named(mode):
    w = rx.Variable(1.0)

    def forgot_to_return():
        w**2

    with pytest.raises(TypeError, match="forgot_to_return returned None instead of a scalar loss"):
        mode(rx.grad(forgot_to_return, w))()
    with pytest.raises(TypeError, match="returned None instead of a scalar loss"):
        rx.grad(lambda: (None, 3), w, has_aux=True)()


@pytest.mark.parametrize("microbatches", [0, -1, 1.5, True, "2"])
def test_odd_numbers_of_microbatches_are_refused(microbatches):
    with pytest.raises(ValueError, match="microbatches"):
        rx.value_and_grad(lambda: 1.0, rx.Variable(1.0), microbatches=microbatches)


def test_an_error_of_the_loss_is_the_users_own(strategy, mode):
    w = variable(strategy, 1.0)

    def loss():
        raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        mode(lambda: strategy.run(lambda: rx.grad(loss, w)()))()
    close(w.value, 1.0)


# Structures of variables.


def test_variables_are_named_by_their_place():
    params = rx.create_variables({"dense": [jnp.ones(2), {"bias": 1.0}]}, name="model")
    assert params["dense"][0].name == "model/dense/0:0"
    assert params["dense"][1]["bias"].name == "model/dense/1/bias:0"
    assert rx.create_variables(jnp.ones(2)).name == "Variable:0"


def test_variables_keep_what_is_no_array():
    params = rx.create_variables({"w": jnp.ones(2), "activation": "relu", "none": None})
    assert params["activation"] == "relu"
    assert params["none"] is None
    assert isinstance(params["w"], rx.Variable)


def test_variables_are_made_by_the_strategy_in_scope(strategy):
    with strategy.scope():
        params = rx.create_variables({"w": jnp.ones(2)}, trainable=False, aggregation="MEAN")
    assert params["w"].distribute_strategy is strategy
    assert not params["w"].trainable
    assert params["w"].aggregation is MEAN


def test_values_are_the_arrays_again():
    arrays = {"a": jnp.arange(3.0), "b": [jnp.ones((2, 2)), jnp.int32(4)]}
    back = rx.read_values(rx.create_variables(arrays))
    assert jax.tree.structure(back) == jax.tree.structure(arrays)
    jax.tree.map(functools.partial(np.testing.assert_array_equal), back, arrays)


def test_a_pure_model_needs_no_rewriting(strategy, mode):
    def model(params, x):
        return jnp.tanh(x @ params["kernel"]) + params["bias"]

    arrays = {"kernel": jnp.eye(2) * 0.5, "bias": jnp.zeros(2)}
    with strategy.scope():
        params = rx.create_variables(arrays)
    x = jnp.array([[1.0, 2.0]])
    step = mode(
        lambda: strategy.run(lambda: rx.grad(lambda: jnp.sum(model(rx.read_values(params), x)), params)())
    )
    gradients = step()
    expected = jax.grad(lambda p: jnp.sum(model(p, x)))(arrays)
    for name in arrays:
        for part in parts(strategy, gradients[name]):
            close(part, expected[name])


@pytest.mark.parametrize("options", [{}, {"precision": rx.MixedPrecision()}, {"microbatches": 2}])
def test_variables_may_be_arguments_too(several, mode, options):
    with several.scope():
        p = rx.create_variables({"b": jnp.float32(0.5), "w": jnp.full((3, 2), 2.0)})

    def loss(p, x):
        return jnp.mean((x @ p["w"] + p["b"]) ** 2)

    def replica_fn(x):
        return rx.value_and_grad(loss, p, **options)(p, x)

    x = jnp.arange(24.0).reshape(8, 3) / 8
    expected = jax.value_and_grad(loss)(rx.read_values(p), x)
    for part in several.local_results(mode(lambda x: several.run(replica_fn, args=(x,)))(x)):
        for here, there in zip(jax.tree.leaves(part), jax.tree.leaves(expected), strict=True):
            np.testing.assert_allclose(here, there, rtol=2e-2 if "precision" in options else 1e-5)


def test_whole_numbers_of_numpy_are_numbers_of_parts():
    w = rx.Variable(2.0)
    value, gradient = rx.value_and_grad(lambda x: jnp.mean(w * x), w, microbatches=np.int64(2))(jnp.ones(4))
    assert (float(value), float(gradient)) == (2.0, 1.0)


def test_gradients_come_in_the_order_of_the_variables(two, mode):
    with two.scope():
        p = {"w": rx.Variable([1.0, 2.0]), "b": [{"z": rx.Variable([0.0, 0.0]), "a": rx.Variable(1.0)}]}

    def replica_fn():
        gradients = rx.grad(lambda: jnp.sum(p["w"] + 10.0 * p["b"][0]["z"]) * p["b"][0]["a"], p)()
        assert list(gradients) == ["w", "b"]
        assert list(gradients["b"][0]) == ["z", "a"]
        return gradients["w"], gradients["b"][0]["z"]

    w, z = two.local_results(mode(lambda: two.run(replica_fn))())[0]
    close(w, [1.0, 1.0])
    close(z, [10.0, 10.0])


class Layers(NamedTuple):
    table: Any


@pytest.mark.parametrize(
    "around", [Layers, lambda d: collections.defaultdict(list, d), lambda d: [(d, None)]]
)
def test_the_order_of_dicts_in_other_structures_stays_too(around):
    """A program that pairs `.values()` of both would else exchange gradients."""
    table = {"z": rx.Variable(1.0), "a": rx.Variable(2.0)}
    structure = around(table)
    gradients = rx.grad(lambda: 10 * table["z"] + 20 * table["a"], structure)()
    assert jax.tree.structure(gradients) == jax.tree.structure(around({"z": 0, "a": 0}))
    found = gradients.table if isinstance(gradients, Layers) else gradients
    found = found[0][0] if isinstance(found, list) else found
    assert {name: float(g) for name, g in found.items()} == {"z": 10.0, "a": 20.0}
    assert list(found) == ["z", "a"]
