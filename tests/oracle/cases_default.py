"""The default strategy, and several strategies in one process."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax.numpy as jnp

import replicax as rx

from .cases_data import numbers
from .world import Cases, World, context, ctx, merge, mirrored, tensor

case = Cases()
case.section("default strategy")
case("type / n / has_strategy", lambda w: ["default", w.n, rx.has_strategy()])
case("run", lambda w: w.run(lambda x: x + 1, args=(tensor(1.0),)))
case("reduce SUM axis None", lambda w: w.s.reduce("SUM", tensor(3.0), axis=None))
case("reduce MEAN axis 0", lambda w: w.s.reduce("MEAN", tensor([1.0, 2.0]), axis=0))
case("reduce_to", lambda w: w.e.reduce_to("SUM", tensor(3.0), destinations="CPU:0"))
case("batch_reduce_to", lambda w: w.e.batch_reduce_to("SUM", [(tensor(3.0), "CPU:0")]))
case("update", lambda w: w.e.update(rx.Variable(1.0), lambda v: v.assign(2.0)))
case("gather", lambda w: w.s.gather(tensor([1.0]), axis=0))
case("local_results", lambda w: w.s.experimental_local_results(tensor(1.0)))
case(
    "values_from_function",
    lambda w: w.s.experimental_distribute_values_from_function(
        lambda c: (c.replica_id_in_sync_group, c.num_replicas_in_sync)
    ),
)
case("distribute_dataset", lambda w: list(w.s.experimental_distribute_dataset(numbers(3).batch(2))))
case(
    "type of distributed dataset",
    lambda w: type(w.s.experimental_distribute_dataset(numbers(3).batch(2))).__name__,
)
case(
    "from_function",
    lambda w: list(
        w.s.distribute_datasets_from_function(lambda c: numbers(3).batch(c.get_per_replica_batch_size(2)))
    ),
)
case(
    "all_reduce/all_gather default",
    lambda _: [ctx().all_reduce("SUM", tensor(1.0)), ctx().all_gather(tensor([1.0]), axis=0)],
)
case("parameter_devices", lambda w: w.e.parameter_devices)
case(
    "variable_created_in_scope(plain var) on default",
    lambda w: w.e.variable_created_in_scope(rx.Variable(1.0)),
)


@case("scope")
def _(w: World) -> Any:
    with w.s.scope():
        return [context(), rx.Variable(1.0)]


@case("default.scope inside mirrored.scope")
def _(w: World) -> Any:
    with mirrored().scope(), w.s.scope():
        return context()


@case("merge_call in default replica ctx")
def _(_: World) -> Any:
    return merge(lambda s, x: s.reduce("SUM", x, axis=None), tensor(1.0))


several = Cases()
several.section("several strategies in one process")


def total(strategy: Any, *shape: int) -> Any:
    """Ones of a shape, summed over the replicas."""
    return strategy.run(lambda: ctx().all_reduce("SUM", jnp.ones(shape)))


def compiled(strategy: Any, *shape: int) -> Any:
    """The same in a compiled step."""
    return rx.function(lambda: total(strategy, *shape))()


def both(first: Callable[..., Any], second: Callable[..., Any]) -> Any:
    """One strategy sums vectors, then another one scalars."""
    a, b = mirrored(), mirrored()
    return [first(a, 3), second(b)]


several("two MirroredStrategy objects, eager all_reduce [3] then []", lambda _: both(total, total))
several(
    "strategy A all_reduce [3] in tf.function, then B all_reduce [] eager",
    lambda _: both(compiled, total),
)
several("A [3] in tf.function, then B [] in tf.function", lambda _: both(compiled, compiled))


@several("same strategy: tf.function [3], tf.function [], eager [2]")
def _(w: World) -> Any:
    return [compiled(w.s, 3), compiled(w.s), total(w.s, 2)]


@several("12 strategies created in a loop with different shapes")
def _(_: World) -> Any:
    sums = []
    for size in range(1, 13):
        strategy = mirrored()
        sums.append(float(strategy.reduce("SUM", total(strategy, size), axis=None)[0]))
    return sums
