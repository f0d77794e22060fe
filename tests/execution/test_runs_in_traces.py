"""`strategy.run` inside functions whose traces JAX caches: variables are read in every call."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import replicax as rx
from replicax.errors import CollectiveError, TracingError

STRATEGY = rx.MirroredStrategy(["CPU:0", "CPU:1"])
with STRATEGY.scope():
    W = rx.Variable(3.0)


def total(s):
    """Outlives a trace, so that JAX caches it."""
    products = STRATEGY.run(lambda s: W.read_value() * s, args=(s,))
    return STRATEGY.reduce("SUM", products, axis=None)


def body(carry, x):
    return carry + total(x), None


def zero(s):
    return s * 0


STEPS = {
    "jit": lambda s: jax.jit(total)(s),
    "scan": lambda s: lax.scan(body, 0.0, s[None])[0],
    "cond": lambda s: lax.cond(s > 0, total, zero, s),
    "fori_loop": lambda s: lax.fori_loop(0, 1, lambda _, c: c + total(s), 0.0),
    "checkpoint": lambda s: jax.checkpoint(total)(s),
}


@pytest.mark.parametrize("name", STEPS)
def test_a_variable_is_read_anew(name):
    W.assign(3.0)
    step = rx.function(STEPS[name])
    assert float(step(jnp.float32(1.0))) == 6.0
    W.assign(5.0)
    assert float(step(jnp.float32(1.0))) == 10.0
    assert float(rx.function(STEPS[name])(jnp.float32(2.0))) == 20.0


def stacked(x):
    return lax.scan(lambda c, i: (c, STRATEGY.run(lambda x: x + i, args=(x,))), 0.0, jnp.arange(4.0))[1]


@pytest.mark.parametrize("shape", [(), (2,)])
def test_per_replica_values_stacked_by_a_scan_are_refused(shape):
    x = STRATEGY.distribute_values_from_function(lambda ctx: jnp.ones(shape))
    with pytest.raises(CollectiveError, match="one axis more"):
        rx.function(stacked)(x)


def test_a_loop_inside_of_the_replica_function_is_the_way():
    def replica_fn(x):
        return lax.scan(lambda c, i: (c, x + i), 0.0, jnp.arange(4.0))[1]

    x = STRATEGY.distribute_values_from_function(lambda ctx: jnp.float32(ctx.replica_id_in_sync_group))
    first, second = STRATEGY.local_results(rx.function(lambda x: STRATEGY.run(replica_fn, args=(x,)))(x))
    assert first.tolist() == [0, 1, 2, 3]
    assert second.tolist() == [1, 2, 3, 4]


def test_a_step_runs_on_the_devices_of_one_strategy():
    three = rx.MirroredStrategy(["CPU:0", "CPU:1", "CPU:2"])

    @rx.function
    def step():
        both = (s.run(lambda: rx.get_replica_context().replica_id_in_sync_group) for s in (STRATEGY, three))
        return list(both)

    with pytest.raises(TracingError, match="a separate step for each strategy"):
        step()


def test_differentiating_around_a_run_says_where_to_do_it():
    with pytest.raises(TracingError, match="inside the replica function"):
        rx.function(rx.value_and_grad(lambda: total(jnp.float32(1.0)), W))()


def test_plus_and_minus_zero_are_different_constants():
    f = rx.function(lambda x, sign: jnp.copysign(x, sign))
    assert float(f(jnp.float32(1.0), 0.0)) == 1.0
    assert float(f(jnp.float32(1.0), -0.0)) == -1.0
    f(jnp.float32(1.0), float("nan"))
    f(jnp.float32(1.0), float("nan"))
    assert f.num_programs == 3


def test_a_signature_holds_inside_of_another_step_too():
    f = rx.function(lambda x: x * 2, input_signature=[rx.TensorSpec([None], jnp.float32)])
    assert rx.function(lambda y: f(y))(jnp.ones(3)).tolist() == [2, 2, 2]
    with pytest.raises(TypeError):
        rx.function(lambda y: f(y))(jnp.ones((2, 2)))


@pytest.mark.parametrize("shape", [(), (4,)])
@pytest.mark.parametrize("loop", ["scan", "while_loop", "fori_loop"])
def test_loops_that_carry_a_value_of_each_replica(loop, shape):
    strategy = rx.MirroredStrategy(["CPU:0", "CPU:1"])
    x = strategy.distribute_values_from_function(
        lambda ctx: jnp.full(shape, ctx.replica_id_in_sync_group + 1.0)
    )

    def doubled(x):
        return strategy.run(lambda x: 2 * x, args=(x,))

    loops = {
        "scan": lambda x: jax.lax.scan(lambda x, _: (doubled(x), None), x, length=3)[0],
        "while_loop": lambda x: jax.lax.while_loop(
            lambda carry: carry[0] < 3, lambda carry: (carry[0] + 1, doubled(carry[1])), (0, x)
        )[1],
        "fori_loop": lambda x: jax.lax.fori_loop(0, 3, lambda _, x: doubled(x), x),
    }
    found = strategy.local_results(rx.function(loops[loop])(x))
    np.testing.assert_array_equal(found, [np.full(shape, 8.0), np.full(shape, 16.0)])


def test_one_program_for_values_of_every_origin():
    strategy = rx.MirroredStrategy(["CPU:0", "CPU:1"])
    step = rx.function(lambda x: strategy.run(lambda x: x + 1, args=(x,)))
    made = strategy.distribute_values_from_function(lambda ctx: jnp.zeros(2, jnp.float32))
    (read,) = strategy.distribute_dataset(rx.from_arrays(np.zeros(4, np.float32)).batch(4))
    for x in (made, read, strategy.run(lambda: jnp.zeros(2, jnp.float32)), step(made)):
        step(x)
    assert step.num_programs == 1


def test_a_vmap_that_calls_its_axis_like_that_of_the_replicas():
    strategy = rx.MirroredStrategy(["CPU:0", "CPU:1"])

    def replica_fn(name):
        context = rx.get_replica_context()
        return jax.vmap(lambda x: context.all_reduce("SUM", x), axis_name=name)(jnp.arange(2.0))

    summed = rx.function(lambda: strategy.run(lambda: replica_fn("rows")))()
    np.testing.assert_array_equal(strategy.local_results(summed), [[0, 2], [0, 2]])
    with pytest.raises(ValueError, match="another axis_name"):
        rx.function(lambda: strategy.run(lambda: replica_fn("replica")))()
