"""`all_reduce` and `all_gather`: collectives of a replica, and gradients through them."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import replicax as rx

from .helpers import close, each, parts, rid, rows, variable

REDUCE = {"SUM": np.sum, "MEAN": np.mean}


def all_reduce(op, value, **kwargs):
    return rx.get_replica_context().all_reduce(op, value, **kwargs)


def all_gather(value, axis=0, **kwargs):
    return rx.get_replica_context().all_gather(value, axis, **kwargs)


def stack(strategy):
    return np.stack([rows(i) for i in range(strategy.num_replicas_in_sync)])


def step_of(strategy, mode, replica_fn):
    """The results of a step that runs `replica_fn(x)`, where x is `rows(i)` on replica i."""
    step = mode(lambda x: strategy.run(replica_fn, args=(x,)))
    return step(each(strategy, rows))


def test_all_reduce(strategy, mode, subtests):
    found = step_of(strategy, mode, lambda x: {op: all_reduce(op, x) for op in REDUCE})
    for op, numpys in REDUCE.items():
        with subtests.test(op=op):
            close(parts(strategy, found[op]), [numpys(stack(strategy), axis=0)] * len(stack(strategy)))


def test_all_reduce_of_a_nest(strategy, mode):
    def replica_fn(x):
        return all_reduce("SUM", {"a": [x, rid()], "b": (x.sum(), 1.0), "none": ()})

    found = step_of(strategy, mode, replica_fn)
    n = strategy.num_replicas_in_sync
    close(parts(strategy, found["a"][0]), [stack(strategy).sum(axis=0)] * n)
    close(parts(strategy, found["a"][1]), [n * (n - 1) / 2] * n)
    close(parts(strategy, found["b"][0]), [stack(strategy).sum()] * n)
    close(parts(strategy, found["b"][1]), [n] * n)
    assert found["none"] == ()


def test_all_reduce_of_a_constant(strategy, mode, subtests):
    """Every replica contributes what it holds, also if all hold the same object."""
    values = [1.0, 2, np.float32(3)]
    step = mode(lambda: strategy.run(lambda: [[all_reduce(op, v) for op in REDUCE] for v in values]))
    n = strategy.num_replicas_in_sync
    for value, (total, mean) in zip(values, step(), strict=True):
        with subtests.test(value=value):
            close(parts(strategy, total), [n * value] * n)
            close(parts(strategy, mean), [value] * n)


def test_all_reduce_of_one_array(strategy, mode):
    shared = jnp.arange(3.0)
    found = mode(lambda x: strategy.run(lambda: all_reduce("SUM", [x, shared])))(shared)
    n = strategy.num_replicas_in_sync
    for leaf in found:
        close(parts(strategy, leaf), [n * np.arange(3)] * n)


def test_all_reduce_of_a_variable(strategy, mode):
    v = variable(strategy, [1.0, 2.0])
    found = mode(lambda: strategy.run(lambda: all_reduce("SUM", v)))()
    n = strategy.num_replicas_in_sync
    close(parts(strategy, found), [[n, 2 * n]] * n)


def test_mean_of_integers(strategy, mode):
    found = mode(lambda: strategy.run(lambda: all_reduce("MEAN", rid())))()
    n = strategy.num_replicas_in_sync
    close(parts(strategy, found), [(n - 1) / 2] * n)
    assert all(part.dtype == jnp.float32 for part in strategy.local_results(found))


def test_all_reduce_of_indexed_slices(strategy, mode, subtests):
    def replica_fn():
        rows = rx.IndexedSlices(jnp.full((1, 2), rid() + 1.0), rid()[None], dense_shape=(8, 2))
        return {op: all_reduce(op, [rows, rid() * 1.0]) for op in REDUCE}

    n = strategy.num_replicas_in_sync
    found = mode(lambda: strategy.run(replica_fn))()
    for op, scale in {"SUM": 1, "MEAN": n}.items():
        with subtests.test(op=op):
            rows, reduced = found[op]
            expected = (np.arange(n) + 1)[:, None] * np.ones(2) / scale
            close(parts(strategy, rows.values), [expected] * n)
            close(parts(strategy, rows.indices), [np.arange(n)] * n)
            assert rows.dense_shape == (8, 2)
            close(parts(strategy, reduced), [n * (n - 1) / 2 / scale] * n)


@pytest.mark.parametrize("name", ["options", "experimental_hints"])
def test_options(strategy, mode, name, subtests):
    """Every algorithm gives the same numbers."""
    cases = [
        rx.CommunicationOptions(bytes_per_pack=8),
        rx.CommunicationOptions(implementation="RING", timeout_seconds=60),
        rx.CollectiveHints(bytes_per_pack=1 << 20, timeout_seconds=60.0),
    ]

    def replica_fn(x):
        return [all_reduce("SUM", [x, x.T], **{name: options}) for options in cases]

    total = stack(strategy).sum(axis=0)
    for options, found in zip(cases, step_of(strategy, mode, replica_fn), strict=True):
        with subtests.test(options=options):
            close(parts(strategy, found[0]), [total] * len(stack(strategy)))
            close(parts(strategy, found[1]), [total.T] * len(stack(strategy)))


def test_all_gather(strategy, mode, subtests):
    axes = [0, 1, -1]
    n = strategy.num_replicas_in_sync
    found = step_of(strategy, mode, lambda x: [all_gather(x, axis) for axis in axes])
    for axis, gathered in zip(axes, found, strict=True):
        with subtests.test(axis=axis):
            close(parts(strategy, gathered), [np.concatenate(stack(strategy), axis)] * n)


def test_all_gather_of_a_nest(strategy, mode):
    found = step_of(strategy, mode, lambda x: all_gather({"a": [x], "b": rid()[None]}))
    n = strategy.num_replicas_in_sync
    close(parts(strategy, found["a"][0]), [np.concatenate(stack(strategy))] * n)
    close(parts(strategy, found["b"]), [np.arange(n)] * n)


def test_all_gather_with_options(strategy, mode):
    options = rx.CommunicationOptions(timeout_seconds=60)
    found = step_of(strategy, mode, lambda x: all_gather(x, 0, options=options))
    n = strategy.num_replicas_in_sync
    close(parts(strategy, found), [np.concatenate(stack(strategy))] * n)


def test_all_gather_of_indexed_slices(strategy, mode):
    rows = rx.IndexedSlices(jnp.ones((1, 2)), jnp.zeros(1, jnp.int32))
    with pytest.raises(NotImplementedError, match="IndexedSlices"):
        mode(lambda: strategy.run(lambda: all_gather(rows)))()


def test_several_in_a_row(strategy, mode):
    def replica_fn(x):
        for _ in range(3):
            x = all_reduce("MEAN", x + rid())
        return all_gather(x[:1]).sum() + all_reduce("SUM", 1.0)

    n = strategy.num_replicas_in_sync
    x = stack(strategy)
    ids = np.arange(n)[:, None, None]
    for _ in range(3):
        x = np.broadcast_to((x + ids).mean(axis=0), x.shape)
    close(parts(strategy, step_of(strategy, mode, replica_fn)), [x[:, :1].sum() + n] * n)


# The gradient of a sum is the sum of the replicas' gradients, that of a mean is their mean, and that of a
# gather is this replica's slice of their sum.


def test_gradient_of_all_reduce(strategy, mode, subtests):
    def loss(x, op):
        return (all_reduce(op, x) * x * (rid() + 1)).sum()

    found = step_of(strategy, mode, lambda x: {op: jax.grad(loss)(x, op) for op in REDUCE})
    n = strategy.num_replicas_in_sync
    x, weights = stack(strategy), (np.arange(n) + 1)[:, None, None]
    for op, reduce in REDUCE.items():
        with subtests.test(op=op):
            expected = reduce(weights * x, axis=0) + weights * reduce(x, axis=0)
            close(parts(strategy, found[op]), expected)


def test_gradient_of_a_nest(strategy, mode):
    def loss(a, b):
        total = all_reduce("SUM", {"a": a * b, "b": b})
        return (total["a"] * (rid() + 1)).sum() + total["b"].sum()

    def replica_fn(x):
        return jax.value_and_grad(loss, argnums=(0, 1))(x, 2 * x)

    n = strategy.num_replicas_in_sync
    x = stack(strategy)
    value, (grad_a, grad_b) = step_of(strategy, mode, replica_fn)
    weight = n * (n + 1) / 2
    totals = [(2 * x**2).sum() * (i + 1) + (2 * x).sum() for i in range(n)]
    close(parts(strategy, value), totals)
    close(parts(strategy, grad_a), 2 * x * weight)
    close(parts(strategy, grad_b), x * weight + n)


def test_gradient_of_all_gather(strategy, mode, subtests):
    def loss(x, axis):
        everything = all_gather(x, axis)
        weights = np.arange(everything.size, dtype=np.float32).reshape(everything.shape)
        return (everything * weights).sum() * (rid() + 1)

    axes = [0, -1]
    n = strategy.num_replicas_in_sync
    found = step_of(strategy, mode, lambda x: [jax.grad(loss)(x, axis) for axis in axes])
    for axis, gradient in zip(axes, found, strict=True):
        with subtests.test(axis=axis):
            joined = np.concatenate(stack(strategy), axis)
            weights = np.arange(joined.size).reshape(joined.shape) * n * (n + 1) / 2
            close(parts(strategy, gradient), np.split(weights, n, axis))


def test_gradient_with_respect_to_a_closed_over_value(strategy, mode):
    """The gradient of a loss without collectives is not reduced."""

    def replica_fn(x):
        return jax.grad(lambda w: (w * x).sum())(2.0)

    found = step_of(strategy, mode, replica_fn)
    close(parts(strategy, found), [rows(i).sum() for i in range(strategy.num_replicas_in_sync)])


def test_second_derivative(strategy, mode):
    def loss(x):
        return all_reduce("SUM", x**3)

    n = strategy.num_replicas_in_sync
    found = mode(lambda: strategy.run(lambda: jax.grad(jax.grad(loss))(rid() + 1.0)))()
    # The gradient on replica i is 3 n x_i^2, which depends on x_i alone.
    close(parts(strategy, found), [6 * n * (i + 1) for i in range(n)])


def test_forward_derivative(strategy, mode):
    def replica_fn():
        return jax.jvp(lambda x: all_reduce("SUM", x**2), (rid() + 1.0,), (1.0,))

    n = strategy.num_replicas_in_sync
    value, tangent = mode(lambda: strategy.run(replica_fn))()
    close(parts(strategy, value), [sum((i + 1) ** 2 for i in range(n))] * n)
    close(parts(strategy, tangent), [sum(2 * (i + 1) for i in range(n))] * n)


def test_vmap(strategy, mode):
    def replica_fn(x):
        summed = jax.vmap(lambda row: all_reduce("SUM", row))(x)
        joined = jax.vmap(lambda row: all_gather(row, 0))(x)
        return summed, joined

    n = strategy.num_replicas_in_sync
    summed, joined = step_of(strategy, mode, replica_fn)
    close(parts(strategy, summed), [stack(strategy).sum(axis=0)] * n)
    close(parts(strategy, joined), [np.concatenate(stack(strategy), axis=1)] * n)


# Control flow.


def test_in_a_compiled_scan(strategy):
    def replica_fn(x):
        def body(carry, row):
            carry = all_reduce("MEAN", carry + row)
            return carry, all_gather(row[:1], 0)

        return jax.lax.scan(body, jnp.zeros(3), x)

    n = strategy.num_replicas_in_sync
    carry, firsts = step_of(strategy, rx.function, replica_fn)
    expected = stack(strategy).mean(axis=0).sum(axis=0)
    close(parts(strategy, carry), [expected] * n)
    close(parts(strategy, firsts), [stack(strategy)[:, :, 0].T] * n)


def test_gradient_through_a_compiled_scan(strategy):
    def replica_fn(x):
        def loss(w):
            def body(carry, row):
                return carry + (all_reduce("SUM", w * row)).sum(), None

            return jax.lax.scan(body, jnp.float32(0), x)[0]

        return jax.grad(loss)(1.0)

    n = strategy.num_replicas_in_sync
    found = step_of(strategy, rx.function, replica_fn)
    close(parts(strategy, found), [n * rows(i).sum() for i in range(n)])


def test_in_a_compiled_cond(strategy, subtests):
    def replica_fn(x, taken):
        return jax.lax.cond(taken, lambda: all_reduce("SUM", x), lambda: all_reduce("MEAN", x))

    step = rx.function(lambda x, taken: strategy.run(replica_fn, args=(x, taken)))
    for taken in (True, False):
        with subtests.test(taken=taken):
            found = step(each(strategy, rows), jnp.asarray(taken))
            expected = stack(strategy).sum(axis=0) if taken else stack(strategy).mean(axis=0)
            close(parts(strategy, found), [expected] * strategy.num_replicas_in_sync)


def test_in_a_compiled_while_loop(strategy):
    def replica_fn():
        def body(state):
            step, x = state
            return step + 1, all_reduce("SUM", x)

        return jax.lax.while_loop(lambda s: s[0] < 3, body, (0, jnp.float32(1)))[1]

    n = strategy.num_replicas_in_sync
    close(parts(strategy, rx.function(lambda: strategy.run(replica_fn))()), [n**3] * n)


def test_in_jit_of_a_compiled_step(strategy):
    summed = jax.jit(lambda x: all_reduce("SUM", x))
    n = strategy.num_replicas_in_sync
    found = rx.function(lambda: strategy.run(lambda: summed(rid() + 1.0)))()
    close(parts(strategy, found), [n * (n + 1) / 2] * n)


@pytest.mark.parametrize("collective", [lambda x: all_reduce("SUM", x), all_gather])
def test_in_control_flow_of_an_eager_replica(several, collective):
    """Eager replicas take turns, so they can't exchange values in the middle of a JAX loop."""

    def scan(x):
        return jax.lax.scan(lambda c, row: (c, collective(row)), 0.0, x)

    for replica_fn in (scan, jax.jit(collective)):
        with pytest.raises(RuntimeError, match=r"rx\.function"):
            step_of(several, lambda step: step, replica_fn)
    n = several.num_replicas_in_sync
    close(parts(several, several.run(lambda: all_reduce("SUM", 1.0))), [n] * n)


# Bad arguments.


def test_not_an_array(strategy, mode, subtests):
    collectives = {"all_reduce": lambda v: all_reduce("SUM", v), "all_gather": all_gather}
    values = ["text", None, [1.0, None], {"a": object}]
    for name, value in itertools.product(collectives, values):
        refused = pytest.raises((ValueError, TypeError), match="takes arrays")
        with subtests.test(collective=name, value=value), refused:
            mode(lambda name=name, value=value: strategy.run(lambda: collectives[name](value)))()


def test_bad_reductions(strategy, mode):
    with pytest.raises(ValueError, match=r"'MAX'.*SUM.*MEAN"):
        mode(lambda: strategy.run(lambda: all_reduce("MAX", 1.0)))()
    for error in (TypeError, AssertionError):
        with pytest.raises(error, match="VariableAggregation"):
            mode(lambda: strategy.run(lambda: all_reduce(rx.VariableAggregation.SUM, 1.0)))()


def test_bad_options(strategy, mode):
    options = rx.CommunicationOptions()
    with pytest.raises(TypeError, match=r"CommunicationOptions.*dict"):
        mode(lambda: strategy.run(lambda: all_reduce("SUM", 1.0, options={})))()
    with pytest.raises(ValueError, match="the same argument"):
        both = {"options": options, "experimental_hints": options}
        mode(lambda: strategy.run(lambda: all_reduce("SUM", 1.0, **both)))()


def test_bad_axes(strategy, mode, subtests):
    for axis, error in [(3, ValueError), (None, TypeError)]:
        with subtests.test(axis=axis), pytest.raises(error, match="axis"):
            step_of(strategy, mode, lambda x, axis=axis: all_gather(x, axis))
