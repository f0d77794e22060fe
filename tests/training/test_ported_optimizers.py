"""Optimizers written as TensorFlow's own: `all_reduce` in the replica, `merge_call`, `extended.update`."""

import gc

import jax.numpy as jnp
import numpy as np
import pytest

import replicax as rx
from replicax.errors import VariableError
from replicax.values import _equal

from .helpers import close, each, mirrored, parts, rid


class Momentum:
    """What `tf.keras.optimizers` did before Keras 3."""

    def __init__(self, variables, op):
        self.variables, self.op = variables, op
        self.slots = [rx.Variable(jnp.zeros(v.shape), trainable=False) for v in variables]

    def apply_gradients(self, gradients):
        context = rx.get_replica_context()
        reduced = context.all_reduce(self.op, gradients)
        pairs = list(zip(reduced, self.variables, self.slots, strict=True))
        context.merge_call(self.apply, args=(pairs,))

    def apply(self, strategy, pairs):
        for gradient, variable, slot in pairs:
            if strategy.num_replicas_in_sync > 1:
                assert isinstance(gradient, rx.Mirrored)
            strategy.extended.update(slot, lambda s, g: s.assign(0.9 * s + g), args=(gradient,))
            strategy.extended.update(
                variable, lambda v, s: v.assign_sub(0.1 * s), args=(slot,), group=False
            )


@pytest.mark.parametrize("op", ["SUM", "MEAN"])
def test_tensorflows_own_pattern(strategy, mode, op):
    n = strategy.num_replicas_in_sync
    with strategy.scope():
        variables = [rx.Variable([1.0, 2.0]), rx.Variable(3.0)]
        optimizer = Momentum(variables, op)

    def replica_fn():
        optimizer.apply_gradients([jnp.ones(2) * (rid() + 1.0), 1.0 * (rid() + 1)])

    step = mode(lambda: strategy.run(replica_fn))
    step()
    step()
    gradient = n * (n + 1) / 2 / (n if op == "MEAN" else 1)
    taken = 0.1 * gradient * (1 + 1.9)
    close(variables[0].value, np.float32([1.0, 2.0]) - np.float32(taken))
    close(variables[1].value, np.float32(3.0 - taken))
    for copy in parts(strategy, variables[0]):
        np.testing.assert_array_equal(copy, parts(strategy, variables[0])[0])


def test_results_of_collectives_are_mirrored_and_others_are_not(several, mode):
    found = {}

    def look(strategy, **values):
        found.update({name: type(value) for name, value in values.items()})
        return values["reduced"]

    def replica_fn(x):
        context = rx.get_replica_context()
        reduced = context.all_reduce("SUM", x)
        own = context.merge_call(
            look,
            kwargs={
                "reduced": reduced,
                "in_structure": context.all_reduce("MEAN", {"a": x})["a"],
                "gathered": context.all_gather(x, axis=0),
                "own": x,
                "computed": reduced * 2,
            },
        )
        return own

    result = mode(lambda x: several.run(replica_fn, args=(x,)))(each(several, lambda i: np.float32([i, 1])))
    assert found == {
        "reduced": rx.Mirrored,
        "in_structure": rx.Mirrored,
        "gathered": rx.Mirrored,
        "own": rx.PerReplica,
        "computed": rx.PerReplica,
    }
    n = several.num_replicas_in_sync
    for part in parts(several, result):
        close(part, np.float32([n * (n - 1) / 2, n]))


def test_rows_are_mirrored_too(two, mode):
    with two.scope():
        table = rx.Variable(jnp.zeros((3, 2)))

    def update(strategy, rows):
        strategy.extended.update(table, lambda v, r: v.scatter_add(r), args=(rows,))

    def replica_fn():
        rows = rx.IndexedSlices(jnp.ones((1, 2)), rid()[None], (3, 2))
        context = rx.get_replica_context()
        context.merge_call(update, args=(context.all_reduce("MEAN", rows),))

    mode(lambda: two.run(replica_fn))()
    close(table.value, [[0.5, 0.5], [0.5, 0.5], [0.0, 0.0]])


def test_replicas_with_different_numbers_of_rows(mode):
    strategy = mirrored(2)
    with strategy.scope():
        w = rx.Variable([0.0, 0.0])

    def update(strategy, value):
        strategy.extended.update(w, lambda v, x: v.assign_add(x), args=(value,))

    def replica_fn(x):
        context = rx.get_replica_context()
        context.merge_call(update, args=(context.all_reduce("SUM", jnp.sum(x, axis=0)),))

    x = each(strategy, lambda i: np.ones((i + 1, 2), np.float32))
    mode(lambda x: strategy.run(replica_fn, args=(x,)))(x)
    close(w.value, [3.0, 3.0])


def test_a_value_of_each_replica_is_still_refused(two, mode):
    with two.scope():
        w = rx.Variable(0.0)

    def replica_fn(compute):
        context = rx.get_replica_context()
        reduced = context.all_reduce("SUM", rid() + 1.0)
        context.merge_call(
            lambda strategy, x: strategy.extended.update(w, lambda v, x: v.assign(x), args=(x,)),
            args=(compute(reduced),),
        )

    for compute in (lambda reduced: rid() * 1.0, lambda reduced: reduced + rid()):
        with pytest.raises(VariableError, match="compute it in the update function"):
            mode(lambda c=compute: two.run(lambda: replica_fn(c)))()
    close(w.value, 0.0)


def test_results_of_two_collectives_are_not_mistaken_for_one(two):
    """Each replica passes another one."""
    found = []

    def replica_fn():
        context = rx.get_replica_context()
        sums = context.all_reduce("SUM", [jnp.float32(1.0), jnp.float32(2.0)])
        context.merge_call(lambda strategy, x: found.append(type(x)), args=(sums[int(rid())],))

    two.run(replica_fn)
    assert found == [rx.PerReplica]


def test_run_returns_values_per_replica_as_ever(two, mode):
    result = mode(lambda: two.run(lambda: rx.get_replica_context().all_reduce("SUM", rid() + 1.0)))()
    assert isinstance(result, rx.PerReplica)


def test_no_array_is_kept_alive(two):
    gc.collect()
    before = len(_equal._results)
    for _ in range(3):
        two.run(lambda: rx.get_replica_context().all_reduce("SUM", jnp.ones(4) * rid()))
    gc.collect()
    assert len(_equal._results) <= before
