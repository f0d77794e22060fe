"""`merge_call`: one function is called for all replicas, and each continues with its part of the result."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import replicax as rx

from .helpers import close, each, parts, rid, rows, variable


def merge(merge_fn, *args, **kwargs):
    return rx.get_replica_context().merge_call(merge_fn, args=args, kwargs=kwargs)


def largest(strategy, x):
    return jnp.max(jnp.stack(strategy.local_results(x)))


def test_order_in_eager_mode(strategy):
    log = []

    def replica_fn():
        log.append(("before", int(rid())))
        merge(lambda s: log.append("merge"))
        log.append(("after", int(rid())))

    strategy.run(replica_fn)
    ids = range(strategy.num_replicas_in_sync)
    assert log == [*(("before", i) for i in ids), "merge", *(("after", i) for i in ids)]


def test_arguments_are_merged(strategy, mode):
    n = strategy.num_replicas_in_sync

    def merge_fn(s, x, pair, *, name, scale):
        assert s is strategy
        assert name == "shared"
        assert isinstance(x, rx.PerReplica) == (n > 1)
        return {"sum": s.reduce("SUM", x, axis=None) * scale, "pair": pair}

    def replica_fn(x):
        return merge(merge_fn, x, (rid(), None), name="shared", scale=3.0)

    found = mode(lambda x: strategy.run(replica_fn, args=(x,)))(each(strategy, rows))
    close(parts(strategy, found["sum"]), [3 * sum(rows(i) for i in range(n))] * n)
    close(parts(strategy, found["pair"][0]), range(n))
    assert found["pair"][1] is None


def test_each_replica_gets_its_part(strategy, mode):
    def merge_fn(s, x):
        return x, s.extended.reduce_to("SUM", x, x) if s.num_replicas_in_sync > 1 else x, 5

    n = strategy.num_replicas_in_sync
    mine, total, same = mode(lambda: strategy.run(lambda: merge(merge_fn, rid() + 1)))()
    close(parts(strategy, mine), np.arange(n) + 1)
    close(parts(strategy, total), [n * (n + 1) / 2] * n)
    assert same == 5


def test_components_in_reach(strategy, mode):
    found = mode(lambda: strategy.run(lambda: merge(largest, rid() * 7)))()
    n = strategy.num_replicas_in_sync
    close(parts(strategy, found), [7 * (n - 1)] * n)


def test_called_once(strategy):
    calls = []
    strategy.run(lambda: merge(lambda s: calls.append(1)))
    assert calls == [1]


def test_the_first_replicas_function_counts(several):
    found = several.run(lambda: merge((lambda s: "first") if rid() == 0 else (lambda s: "other")))
    assert found == "first"


def test_run_inside(strategy, mode):
    def merge_fn(s, x):
        return s.run(lambda x: x + 100 * rid(), args=(x,))

    found = mode(lambda: strategy.run(lambda: merge(merge_fn, rid() + 1)))()
    close(parts(strategy, found), [i + 1 + 100 * i for i in range(strategy.num_replicas_in_sync)])


def test_collectives_inside(strategy, mode):
    n = strategy.num_replicas_in_sync

    def merge_fn(s, x):
        everything = s.gather(x, axis=0)
        mean = s.reduce("MEAN", x, axis=(0, 1))
        return everything, mean

    everything, mean = mode(lambda x: strategy.run(lambda x: merge(merge_fn, x), (x,)))(
        each(strategy, rows)
    )
    expected = np.concatenate([rows(i) for i in range(n)])
    close(parts(strategy, everything), [expected] * n)
    close(parts(strategy, mean), [expected.mean()] * n)


def test_writing_inside(strategy, mode):
    v = variable(strategy, 1.0)

    def merge_fn(s, x):
        v.assign(s.reduce("SUM", x, axis=None))
        v.assign_add(0.5)

    def replica_fn():
        merge(merge_fn, rid() + 1.0)
        return v.read_value()

    n = strategy.num_replicas_in_sync
    found = mode(lambda: strategy.run(replica_fn))()
    close(parts(strategy, found), [n * (n + 1) / 2 + 0.5] * n)
    close(v, n * (n + 1) / 2 + 0.5)


def test_updating_inside(strategy, mode):
    """What an optimizer does: reduce the gradients, then update the variables."""
    v = variable(strategy, [1.0, 2.0])

    def merge_fn(s, gradient):
        (total,) = s.extended.batch_reduce_to("SUM", [(gradient, v)])
        s.extended.update(v, lambda v, g: v.assign_sub(0.5 * g), args=(total,))

    step = mode(lambda x: strategy.run(lambda x: merge(merge_fn, x), args=(x,)))
    step(each(strategy, lambda i: [float(i), 1.0]))
    n = strategy.num_replicas_in_sync
    close(v, [1 - 0.5 * sum(range(n)), 2 - 0.5 * n])
    close(parts(strategy, v), [v.numpy()] * n)


def test_different_numbers_of_calls(several):
    def replica_fn(extra):
        merge(lambda s: None)
        if rid() == extra:
            merge(lambda s: None)

    for extra in (0, 1):
        with pytest.raises(RuntimeError, match=r"different numbers of merge_calls.*same ones"):
            several.run(replica_fn, args=(extra,))
    n = several.num_replicas_in_sync
    close(parts(several, several.run(lambda: merge(largest, rid()))), [n - 1] * n)


def test_different_argument_structures(several):
    with pytest.raises(AssertionError, match="different structures"):
        several.run(lambda: merge(lambda s, x: x, (1, 2) if rid() == 0 else (1, 2, 3)))


def test_nested(placed, mode):
    def merge_fn(s):
        assert rx.get_replica_context() is None
        return rx.get_replica_context().merge_call(merge_fn)

    with pytest.raises(AttributeError, match="merge_call"):
        mode(lambda: placed.run(lambda: merge(merge_fn)))()


def test_an_error_reaches_the_caller(strategy, mode):
    def fail(s):
        raise KeyError("from merge_fn")

    with pytest.raises(KeyError, match="from merge_fn"):
        mode(lambda: strategy.run(lambda: merge(fail)))()


def test_an_error_can_be_caught_in_the_replica(strategy, mode):
    def fail(s):
        raise KeyError("from merge_fn")

    def replica_fn():
        try:
            return merge(fail)
        except KeyError:
            return merge(largest, rid() + 1)

    n = strategy.num_replicas_in_sync
    close(parts(strategy, mode(lambda: strategy.run(replica_fn))()), [n] * n)


def test_replicas_left_waiting_are_cleaned_up(several):
    """The replicas that wait when another one fails run their `finally` blocks."""
    left = []

    def replica_fn():
        if rid() == several.num_replicas_in_sync - 1:
            raise KeyError("last")
        try:
            merge(lambda s: None)
        finally:
            left.append(int(rid()))

    with pytest.raises(KeyError, match="last"):
        several.run(replica_fn)
    assert sorted(left) == list(range(several.num_replicas_in_sync - 1))


def test_in_a_nested_function(strategy, mode):
    inner = rx.function(lambda x: merge(largest, x))
    n = strategy.num_replicas_in_sync
    close(parts(strategy, mode(lambda: strategy.run(lambda: inner(rid())))()), [n - 1] * n)


def test_in_control_flow_of_a_compiled_step(strategy):
    def replica_fn():
        def body(carry, _):
            return merge(largest, carry + rid() * 1.0), None

        total, _ = jax.lax.scan(body, jnp.float32(0), length=3)
        return jax.lax.cond(total >= 0, lambda: merge(largest, total), lambda: -1.0)

    n = strategy.num_replicas_in_sync
    found = rx.function(lambda: strategy.run(replica_fn))()
    close(parts(strategy, found), [3 * (n - 1)] * n)


def test_under_differentiation_in_eager_mode(several):
    def loss(x):
        return merge(lambda s, x: s.reduce("SUM", x, axis=None), x)

    with pytest.raises(RuntimeError, match=r"jax.grad.*rx.function"):
        several.run(lambda: jax.grad(loss)(1.0))
    n = several.num_replicas_in_sync
    close(parts(several, several.run(lambda: merge(largest, rid()))), [n - 1] * n)


def test_under_differentiation_in_a_compiled_step(strategy):
    def loss(x):
        return merge(lambda s, x: s.reduce("SUM", x, axis=None), x * (rid() + 1))

    n = strategy.num_replicas_in_sync
    gradient = rx.function(lambda: strategy.run(lambda: jax.grad(loss)(1.0)))()
    close(parts(strategy, gradient), [n * (i + 1) for i in range(n)])


def test_the_function_must_be_callable(strategy, mode):
    with pytest.raises(TypeError, match=r"function.*5"):
        mode(lambda: strategy.run(lambda: merge(5)))()


def test_replicas_that_meet_in_different_places(several):
    """Only eager replicas can; in a compiled step there is one program for all."""
    v, w = (variable(several, 1.0, name=name, aggregation=rx.VariableAggregation.SUM) for name in "vw")
    context = rx.get_replica_context
    first_and_others = {
        r"'v:0'.*'w:0'": (lambda: v.assign_add(rid() * 1.0), lambda: w.assign_add(rid() * 1.0)),
        r"all_reduce.*all_gather": (
            lambda: context().all_reduce("SUM", jnp.ones(2)),
            lambda: context().all_gather(jnp.ones(2), axis=0),
        ),
        r"merge_call.*'v:0'": (lambda: merge(lambda s: None), lambda: v.assign(rid() * 1.0)),
    }
    for message, (first, other) in first_and_others.items():
        with pytest.raises(RuntimeError, match=message):
            several.run(lambda first=first, other=other: first() if rid() == 0 else other())
    with pytest.raises(ValueError, match=r"'v:0' in different ways: assign_add, assign"):
        several.run(lambda: v.assign_add(rid() * 1.0) if rid() == 0 else v.assign(rid() * 1.0))
    close([v, w], [1, 1])


def test_a_replica_context_is_of_no_use_elsewhere(several):
    contexts = several.local_results(several.run(rx.get_replica_context))
    calls = (
        lambda: contexts[0].all_reduce("SUM", 1.0),
        lambda: contexts[-1].merge_call(lambda s: None),
        lambda: several.run(lambda: contexts[0].all_gather(jnp.ones(1), axis=0)),
    )
    for call in calls:
        with pytest.raises(RuntimeError, match=r"outside of that replica.*get_replica_context"):
            call()
    n = several.num_replicas_in_sync
    close(parts(several, several.run(lambda: merge(largest, rid()))), [n - 1] * n)
