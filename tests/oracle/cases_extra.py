"""Shared objects in reductions, nested functions, control flow, odds and ends of variables."""

from __future__ import annotations

import gc
import threading
import weakref
from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
from jax import lax

import replicax as rx

from .world import Cases, World, ctx, mirrored, rid, ridf, tensor

LEFT_OUT = {
    "tf.distribute.get_loss_reduction": "v1 only; the tests of compat/v1 cover it",
    "compat.v1 get_loss_reduction in scope": "v1 only; the tests of compat/v1 cover it",
    "summary_recording / experimental TPU attr": "which methods TPUStrategy alone has",
    "string ON_WRITE/ONLY_FIRST assign": "JAX has no string arrays",
    "1-device Mirrored runs fn on main thread?": "which thread TensorFlow runs a replica in",
}

case = Cases()
case.section("same-object values and reductions")


def all_reduced(value: Callable[[World], Any], op: str = "SUM") -> Callable[[World], Any]:
    """A case: eager `all_reduce` of one object that all replicas share."""

    def run(w: World) -> Any:
        shared = value(w)
        return w.run(lambda: ctx().all_reduce(op, shared))

    return run


def one(_: World) -> Any:
    """A scalar one."""
    return tensor(1.0)


def three(w: World) -> Any:
    """A mirrored variable of three."""
    return w.variable(3.0, "ON_WRITE", "SUM", trainable=False)


case("eager all_reduce(SUM, shared tensor C=1)", all_reduced(one))
case("eager all_reduce(MEAN, C=1)", all_reduced(one, "MEAN"))
case("all_reduce(SUM, mirrored var =3)", all_reduced(three))
case("reduce(SUM, mirrored var)", lambda w: w.s.reduce("SUM", three(w), axis=None))
case("reduce(MEAN, mirrored var)", lambda w: w.s.reduce("MEAN", three(w), axis=None))
case("batch_reduce_to SUM shared tensor", lambda w: w.e.batch_reduce_to("SUM", [(one(w), three(w))]))
case(
    "reduce(SUM, run(lambda: C+0))",
    lambda w: w.s.reduce("SUM", w.run(lambda: tensor(1.0) + 0), axis=None),
)
case(
    "gather({dict}) keeps only r0?",
    lambda w: w.s.gather({"a": w.per_replica(lambda i: tensor([float(i)]))}, axis=0),
)
case("gather((tuple))", lambda w: w.s.gather((w.per_replica(lambda i: tensor([float(i)])),), axis=0))


@case("reduce(SUM, run(lambda: C))")
def _(w: World) -> Any:
    shared = tensor(1.0)
    return w.s.reduce("SUM", w.run(lambda: shared), axis=None)


@case("run(tf.function) all_reduce(SUM, captured C=1)")
def _(w: World) -> Any:
    shared = tensor(1.0)
    return w.run(rx.function(lambda: ctx().all_reduce("SUM", shared)))


@case("tf.function{run} all_reduce(SUM, captured C=1)")
def _(w: World) -> Any:
    shared = tensor(1.0)
    return rx.function(lambda: w.run(lambda: ctx().all_reduce("SUM", shared)))()


@case("tf.function{run} all_reduce(SUM, tf.constant(1.) made in fn)")
def _(w: World) -> Any:
    return rx.function(lambda: w.run(lambda: ctx().all_reduce("SUM", tensor(1.0))))()


@case("tf.function{run} all_reduce(SUM, passed tensor arg)")
def _(w: World) -> Any:
    step = rx.function(lambda x: w.run(lambda y: ctx().all_reduce("SUM", y), args=(x,)))
    return step(tensor(1.0))


@case("all_reduce(SUM, v.read_value())")
def _(w: World) -> Any:
    v = three(w)
    return w.run(lambda: ctx().all_reduce("SUM", v.read_value()))


def summing(w: World, init: Any = 10.0, agg: str = "SUM", **options: Any) -> Any:
    """A mirrored variable, not trainable."""
    return w.variable(init, "ON_WRITE", agg, trainable=False, **options)


def after(
    step: Callable[[Any], Any], init: Any = 10.0, agg: str = "SUM", **options: Any
) -> Callable[[World], Any]:
    """A case: a variable after `step(variable)` in every replica."""

    def run(w: World) -> Any:
        v = summing(w, init, agg, **options)
        w.run(lambda: step(v))
        return v

    return run


def after_compiled(step: Callable[[Any], Any]) -> Callable[[World], Any]:
    """The same in a compiled step."""

    def run(w: World) -> Any:
        v = summing(w)
        rx.function(lambda: w.run(lambda: step(v)))()
        return v

    return run


case(
    "tf.function{run} ON_WRITE/SUM assign_add(python 1.)",
    after_compiled(lambda v: v.assign_add(1.0)),
)
case(
    "tf.function{run} ON_WRITE/SUM assign_add(tf.constant(1.))",
    after_compiled(lambda v: v.assign_add(tensor(1.0))),
)
case(
    "eager ON_WRITE/SUM int64 assign_add(python 1) (step counter)",
    after(lambda v: v.assign_add(1), 0, dtype=jnp.int32),
)
case(
    "eager ONLY_FIRST_REPLICA int64 assign_add(1) (step counter idiom)",
    after(lambda v: v.assign_add(1), 0, "ONLY_FIRST_REPLICA", dtype=jnp.int32),
)

case.section("nested tf.function / control flow / compile")


@case("eager run(fn) where fn calls nested tf.function with all_reduce")
def _(w: World) -> Any:
    nested = rx.function(lambda: ctx().all_reduce("SUM", ridf()))
    return w.run(lambda: nested() + 0.0)


@case("tf.function{run(fn)} nested tf.function with all_reduce")
def _(w: World) -> Any:
    nested = rx.function(lambda: ctx().all_reduce("SUM", ridf()))
    return rx.function(lambda: w.run(lambda: nested() + 0.0))()


@case("nested tf.function with aggregating assign")
def _(w: World) -> Any:
    v = summing(w)
    nested = rx.function(lambda: v.assign_add(ridf()))
    return w.run(lambda: nested())


case(
    "run(tf.function(jit_compile=True)) plain math",
    lambda w: w.run(rx.function(lambda: ridf() * 2.0)),
)
case(
    "run(tf.function(jit_compile=True)) all_reduce",
    lambda w: w.run(rx.function(lambda: ctx().all_reduce("SUM", ridf()))),
)
case(
    "tf.function(jit_compile){run all_reduce}",
    lambda w: rx.function(lambda: w.run(lambda: ctx().all_reduce("SUM", ridf())))(),
)


@case("tf.while around run in tf.function")
def _(w: World) -> Any:
    def add(_: Any, so_far: Any) -> Any:
        return so_far + w.s.reduce("SUM", w.run(lambda: ridf() + 1.0), axis=None)

    return rx.function(lambda n: lax.fori_loop(0, n, add, jnp.zeros(())))(tensor(3))


@case("tf.cond around run (with all_reduce) in tf.function")
def _(w: World) -> Any:
    def total() -> Any:
        return w.s.reduce("SUM", w.run(lambda: ctx().all_reduce("SUM", ridf() + 1.0)), axis=None)

    return rx.function(lambda flag: lax.cond(flag, total, lambda: jnp.zeros(())))(tensor(True))


case.section("renamed / removed")
case(
    "ReplicaContext.all_reduce(experimental_hints=)",
    lambda w: w.run(lambda: ctx().all_reduce("SUM", ridf(), experimental_hints=rx.CollectiveHints())),
)
case(
    "InputOptions(experimental_prefetch_to_device=True)",
    lambda _: rx.InputOptions(experimental_prefetch_to_device=True).fetch_to_device,
)

case.section("variables: dtype/shape/attrs")
case("bool ON_WRITE/SUM assign in replica", after(lambda v: v.assign(tensor(True)), False))
case("int32 ON_WRITE/SUM assign_add(rid+1)", after(lambda v: v.assign_add(jnp.asarray(rid()) + 1), 0))


@case("variable with unknown shape")
def _(w: World) -> Any:
    v = w.variable([1.0, 2.0], shape=(None,))
    with w.s.scope():
        v.assign([1.0, 2.0, 3.0])
    return v


@case("constraint not applied on assign")
def _(w: World) -> Any:
    v = w.variable(1.0, constraint=lambda x: x * 0.0)
    with w.s.scope():
        v.assign(3.0)
    return [v, v.constraint is not None]


@case("poking a component desyncs silently")
def _(w: World) -> Any:
    v = w.variable(3.0)
    w.s.experimental_local_results(v)[0].assign(99.0)
    return [v, v.read_value(), w.run(lambda: v.read_value())]


@case("sequence of aggregating assigns in one fn")
def _(w: World) -> Any:
    v = w.variable(0.0, agg="MEAN")
    return [w.run(lambda: (v.assign_add(ridf()), v.read_value(), v.assign_add(ridf()))), v]


@case("ON_READ/SUM initial value is NOT divided")
def _(w: World) -> Any:
    return [w.variable(1.0, "ON_READ", "SUM").read_value(), "init value read = N*init"]


@case("mirrored var garbage-collectable")
def _(w: World) -> Any:
    v = w.variable(1.0)
    reference = weakref.ref(v)
    del v
    gc.collect()
    return reference() is None


@case("reduce(SUM, tuple from local_results)")
def _(w: World) -> Any:
    v = w.variable(1.0)
    parts = w.s.experimental_local_results(w.run(lambda: v + ridf()))
    return w.s.reduce("SUM", parts, axis=None)


case.section("cross-strategy reads, read_value, threads")


def foreign(strategy: Any, init: float) -> Any:
    """A variable that belongs to `strategy`."""
    with strategy.scope():
        return rx.Variable(init)


@case("var of an equal-devices strategy READ in run")
def _(w: World) -> Any:
    v = foreign(mirrored(), 1.0)
    return w.run(lambda: v + ridf())


@case("var of another strategy read in scope")
def _(w: World) -> Any:
    v = foreign(mirrored("CPU:0"), 5.0)
    with w.s.scope():
        return v + 1.0


@case("OneDevice var read in Mirrored run")
def _(w: World) -> Any:
    v = foreign(rx.OneDeviceStrategy("CPU:1"), 5.0)
    return w.run(lambda: v + ridf())


@case("replica assign_add(read_value=False) return")
def _(w: World) -> Any:
    v = summing(w)
    return [w.run(lambda: v.assign_add(tensor(1.0), read_value=False)), v]


@case("cross-replica assign_add(read_value=False) return")
def _(w: World) -> Any:
    v = summing(w)
    return [v.assign_add(1.0, read_value=False), v]


def one_each(strategy: Any) -> Any:
    """`distribute_values_from_function` of a constant."""
    return strategy.experimental_distribute_values_from_function(lambda _: 1)


case("OneDevice values_from_function wraps?", lambda _: one_each(rx.OneDeviceStrategy("CPU:0")))
case("1-device Mirrored values_from_function wraps?", lambda _: one_each(mirrored("CPU:0")))


@case("run() from 4 user threads concurrently (no collective)")
def _(w: World) -> Any:
    sums: list[float] = []

    def work(i: float) -> None:
        sums.append(float(w.s.reduce("SUM", w.run(lambda: ridf() + i), axis=None)))

    threads = [threading.Thread(target=work, args=(float(i),)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    return sorted(sums)


@case("fn python calls for 2 tf.function steps")
def _(w: World) -> Any:
    calls: list[int] = []

    def f() -> Any:
        calls.append(1)
        return ctx().all_reduce("SUM", ridf())

    step = rx.function(lambda: w.run(f))
    step()
    step()
    return len(calls)
