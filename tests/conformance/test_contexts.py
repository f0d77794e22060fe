"""Where the program is: what each context answers, and how scopes nest."""

import threading

import jax.numpy as jnp
import pytest

import replicax as rx

from .helpers import close, each, parts, rid, variable

NOWHERE = (False, False, True)


def answers():
    """has_strategy, in_cross_replica_context, whether there is a replica context."""
    return (
        rx.has_strategy(),
        rx.in_cross_replica_context(),
        rx.get_replica_context() is not None,
    )


def is_default(strategy):
    return strategy is rx.get_strategy()


def test_nowhere():
    context = rx.get_replica_context()
    assert answers() == NOWHERE
    assert int(context.replica_id_in_sync_group) == 0
    assert context.num_replicas_in_sync == 1
    assert context.strategy is rx.get_strategy()
    assert rx.get_update_replica_id() is None


def test_scope(strategy):
    expected = NOWHERE if is_default(strategy) else (True, True, False)
    with strategy.scope() as entered:
        assert entered is strategy
        assert rx.get_strategy() is strategy
        assert answers() == expected
    assert answers() == NOWHERE


def test_replica_function(strategy, mode):
    seen = []

    def replica_fn():
        context = rx.get_replica_context()
        same = rx.get_strategy() is strategy and context.strategy is strategy
        seen.append((answers(), same, context.num_replicas_in_sync))

    mode(lambda: strategy.run(replica_fn))()
    has_strategy = not is_default(strategy)
    assert set(seen) == {((has_strategy, False, True), True, strategy.num_replicas_in_sync)}
    assert answers() == NOWHERE


def test_merge_function(strategy, mode):
    seen = []

    def merge_fn(s):
        seen.append((s is strategy, rx.get_strategy() is strategy, answers()))

    mode(lambda: strategy.run(lambda: rx.get_replica_context().merge_call(merge_fn)))()
    assert set(seen) == {(True, True, (not is_default(strategy), True, False))}


def test_update_function(placed, mode):
    v = variable(placed, 0.0)
    seen = []

    def update_fn(v):
        assert rx.get_strategy() is placed
        assert rx.get_update_replica_id() is not None
        seen.append(answers())

    mode(lambda: placed.extended.update(v, update_fn))()
    assert set(seen) == {(True, True, False)}
    assert rx.get_update_replica_id() is None


def test_update_replica_id(mirrored):
    v = variable(mirrored, 0.0)
    ids = mirrored.extended.update(v, lambda v: rx.get_update_replica_id(), group=False)
    assert ids == tuple(range(mirrored.num_replicas_in_sync))


def test_value_function(strategy):
    seen = []
    with strategy.scope():
        strategy.distribute_values_from_function(lambda ctx: seen.append(answers()))
    assert seen == [NOWHERE] * strategy.num_replicas_in_sync


def test_another_thread_is_outside(strategy):
    seen = []
    with strategy.scope():
        thread = threading.Thread(target=lambda: seen.append((answers(), rx.get_strategy())))
        thread.start()
        thread.join()
    assert seen == [(NOWHERE, rx.get_strategy())]


def test_replica_ids(strategy, mode):
    ids = mode(lambda: strategy.run(rid))()
    close(parts(strategy, ids), range(strategy.num_replicas_in_sync))
    assert all(part.dtype == jnp.int32 for part in strategy.local_results(ids))


def test_devices_of_a_replica(placed):
    found = []
    placed.run(lambda: found.append(rx.get_replica_context().devices))
    assert [devices[0] for devices in found] == list(placed.extended.worker_devices)


@pytest.mark.parametrize("use", [int, bool, lambda i: [10, 20][i]], ids=["int", "bool", "index"])
def test_compiled_replica_id_is_not_a_python_number(several, use):
    with pytest.raises(TypeError, match="distribute_values_from_function") as caught:
        rx.function(lambda: several.run(lambda: use(rid())))()
    assert "lax.cond" in str(caught.value)
    assert "rx.function" in str(caught.value)


def test_eager_replica_id_is_a_python_number(strategy):
    names = strategy.run(lambda: "first" if rid() == 0 else f"replica {int(rid())}")
    expected = ["first", *(f"replica {i}" for i in range(1, strategy.num_replicas_in_sync))]
    assert list(strategy.local_results(names)) == expected


# Scopes.


def test_scope_is_reentrant_and_reusable(strategy):
    scope = strategy.scope()
    for _ in range(2):
        with scope, scope, strategy.scope():
            assert rx.get_strategy() is strategy
    assert answers() == NOWHERE


def test_scope_is_left_by_an_exception(strategy):
    with pytest.raises(KeyError), strategy.scope():
        raise KeyError
    assert answers() == NOWHERE


def test_scopes_of_different_strategies_do_not_nest(placed, two):
    with placed.scope():
        for use in (
            lambda: two.scope().__enter__(),
            lambda: two.run(lambda: 1),
            lambda: two.reduce("SUM", 1.0, axis=None),
            lambda: two.gather(jnp.ones(1), axis=0),
        ):
            with pytest.raises(RuntimeError, match="one strategy"):
                use()
        assert rx.get_strategy() is placed


def test_default_scope_does_not_nest(placed):
    default = rx.get_strategy()
    with placed.scope(), pytest.raises(RuntimeError, match="inside another"):
        default.scope().__enter__()


@pytest.mark.parametrize(
    "use",
    [
        lambda s: s.scope().__enter__(),
        lambda s: s.run(lambda: 1),
        lambda s: s.reduce("SUM", 1.0, axis=None),
        lambda s: s.gather(jnp.ones(1), axis=0),
        lambda s: s.extended.reduce_to("SUM", 1.0, "CPU:0"),
        lambda s: s.extended.batch_reduce_to("SUM", [(1.0, "CPU:0")]),
        lambda s: s.extended.broadcast_to(jnp.ones(1), "CPU:0"),
    ],
    ids=["scope", "run", "reduce", "gather", "reduce_to", "batch_reduce_to", "broadcast_to"],
)
def test_cross_replica_methods_in_a_replica(placed, mode, use):
    with pytest.raises(RuntimeError, match=r"get_replica_context\(\).*merge_call"):
        mode(lambda: placed.run(lambda: use(placed)))()
    assert answers() == NOWHERE


def test_scopes_of_one_strategy_may_be_closed_in_any_order_but_each_once(placed):
    outer, inner = placed.scope(), placed.scope()
    outer.__enter__()
    inner.__enter__()
    outer.__exit__(None, None, None)
    assert rx.get_strategy() is placed
    inner.__exit__(None, None, None)
    assert answers() == NOWHERE
    with pytest.raises(RuntimeError, match="each once"):
        outer.__exit__(None, None, None)


def test_set_strategy(placed):
    try:
        rx.set_strategy(placed)
        assert rx.get_strategy() is placed
        assert answers() == (True, True, False)
        v = rx.Variable(1.0)
        with placed.scope(), pytest.raises(RuntimeError, match="scope"):
            rx.set_strategy(None)
    finally:
        rx.experimental_set_strategy(None)
    assert placed.extended.variable_created_in_scope(v)
    assert answers() == NOWHERE


def test_set_strategy_inside_a_scope(placed):
    with placed.scope(), pytest.raises(RuntimeError, match="scope"):
        rx.set_strategy(placed)
    assert placed.run(rx.has_strategy)


def test_set_strategy_to_something_else():
    with pytest.raises((TypeError, ValueError), match="mirrored"):
        try:
            rx.set_strategy("mirrored")
        finally:
            rx.set_strategy(None)


def test_contexts_after_an_error_in_a_replica(strategy, mode):
    def fail():
        raise KeyError("from the replica")

    with pytest.raises(KeyError, match="from the replica"):
        mode(lambda: strategy.run(fail))()
    assert answers() == NOWHERE
    close(parts(strategy, mode(lambda: strategy.run(rid))()), range(strategy.num_replicas_in_sync))


def test_replicas_have_contexts_of_their_own(strategy):
    """A context that one replica enters is not visible to the replicas that run in between."""
    seen = []

    def replica_fn():
        before = rx.get_replica_context()
        before.merge_call(lambda s: None)
        seen.append(rx.get_replica_context() is before)

    strategy.run(replica_fn)
    assert seen == [True] * strategy.num_replicas_in_sync


def test_a_step_inside_a_scope(strategy, mode):
    x = each(strategy, lambda i: i + 1.0)
    step = mode(lambda x: strategy.reduce("SUM", strategy.run(lambda x: 2 * x, (x,)), axis=None))
    n = strategy.num_replicas_in_sync
    with strategy.scope():
        close(step(x), n * (n + 1))
    close(step(x), n * (n + 1))
