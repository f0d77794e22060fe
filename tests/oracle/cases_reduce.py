"""`reduce`, `reduce_to`, `gather`, `all_reduce`, `all_gather`, `broadcast_to`, cross-device ops."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import replicax as rx

from .world import DEVICES, Cases, World, ctx, mirrored, rid, ridf, slices, tensor

LEFT_OUT = {
    "strings": "JAX has no string arrays",
    "gather int/strings": "JAX has no string arrays",
    "Ragged SUM axis None": "JAX has no tf.RaggedTensor",
    "gather ragged": "JAX has no tf.RaggedTensor",
    "Sparse SUM axis None": "JAX has no tf.SparseTensor",
    "gather sparse": "JAX has no tf.SparseTensor",
    "CollectiveHints type": "the name of a private class of TensorFlow",
}

case = Cases()

VALUES: dict[str, Callable[[World], Any]] = {
    "scalar": lambda w: w.per_replica(lambda i: tensor(float(i) + 1.0)),
    "[4]": lambda w: w.per_replica(lambda i: tensor([1.0, 2.0, 3.0, 4.0]) + 10.0 * i),
    "[2,3]": lambda w: w.per_replica(lambda i: tensor([[0.0, 1.0, 2.0], [3.0, 4.0, 5.0]]) + 10.0 * i),
    "uneven [4],[2]": lambda w: w.per_replica(lambda i: jnp.arange(4.0 - 2.0 * min(i, 1))),
    "int [2]": lambda w: w.per_replica(lambda i: tensor([1, 2]) + i),
    "empty on r>0": lambda w: w.per_replica(lambda i: jnp.ones([4 if i == 0 else 0])),
}
scalar, vector, matrix, uneven, integers, empty = VALUES.values()


def sparse(w: World) -> Any:
    """Indexed slices from each replica: row `rid` holds `rid + 1`."""
    return w.run(slices)


case.section("Strategy.reduce")


def add_reduce(op: str, name: str, axis: Any) -> None:
    """`reduce` of one of the values."""
    case(
        f"reduce({op},{name},axis={axis!r})",
        lambda w: w.s.reduce(rx.ReduceOp[op], VALUES[name](w), axis=axis),
    )


for _op in ("SUM", "MEAN"):
    for _name in VALUES:
        for _axis in (None, 0, 1, -1, (0, 1), [0]):
            if _name == "scalar" and _axis not in (None, 0):
                continue
            if _name != "[2,3]" and _axis in (1, (0, 1)):
                continue
            add_reduce(_op, _name, _axis)


def reduced(op: Any, value: Callable[[World], Any], axis: Any = None) -> Callable[[World], Any]:
    """A case: `strategy.reduce` of a value."""
    return lambda w: w.s.reduce(op, value(w), axis=axis)


def on_each(fn: Callable[[int], Any]) -> Callable[[World], Any]:
    """`fn(replica id)` on each replica."""
    return lambda w: w.per_replica(fn)


def growing(i: int) -> Any:
    """More rows, of larger numbers, on later replicas."""
    return jnp.ones([2 + 2 * i, 3]) * (i + 1)


case("MEAN uneven axis=(0,1): denominators", reduced("MEAN", on_each(growing), (0, 1)))
case(
    "MEAN uneven axis=0 with 2-D",
    reduced("MEAN", on_each(lambda i: jnp.ones([1 + i, 2]) * (i + 1)), 0),
)
case("string 'sum' lowercase", reduced("sum", scalar))
case("string 'MAX'", reduced("MAX", scalar))
case("VariableAggregation.SUM as op", reduced(rx.VariableAggregation.SUM, scalar))
case("op None", reduced(None, scalar))
case("axis missing (v2)", lambda w: w.s.reduce("SUM", scalar(w)))
case("nested dict value", reduced("SUM", lambda w: {"a": scalar(w), "b": vector(w)}))
case("tuple value", reduced("SUM", lambda w: (scalar(w), vector(w))))
case("nested dict axis=0", reduced("SUM", lambda w: {"a": vector(w)}, 0))
case("plain tensor SUM", reduced("SUM", lambda _: tensor(3.0)))
case("plain tensor MEAN", reduced("MEAN", lambda _: tensor(3.0)))
case("plain tensor SUM axis=0", reduced("SUM", lambda _: tensor([1.0, 2.0]), 0))
case("python 0 SUM", reduced("SUM", lambda _: 0))
case("python 3.5 SUM", reduced("SUM", lambda _: 3.5))
case("python 3 MEAN", reduced("MEAN", lambda _: 3))
case("None", reduced("SUM", lambda _: None))
case("run result same-object const SUM", reduced("SUM", lambda w: w.run(lambda: 5)))
case("PerReplica of python ints SUM", reduced("SUM", on_each(lambda i: i + 1)))
case("PerReplica of np float64 SUM", reduced("SUM", on_each(lambda i: np.float64(i + 1))))
case("PerReplica of ndarray SUM axis=0", reduced("SUM", on_each(lambda i: np.ones(3) * i), 0))
case("bool SUM", reduced("SUM", on_each(lambda _: tensor(True))))
case("int MEAN axis None", reduced("MEAN", on_each(lambda i: tensor(i + 1))))
case("int MEAN axis 0", reduced("MEAN", integers, 0))
case("int64 MEAN axis 0", reduced("MEAN", integers, 0))
case("float16 MEAN axis0", reduced("MEAN", on_each(lambda _: tensor([1.0, 2.0], np.float16)), 0))
case("IndexedSlices SUM", reduced("SUM", sparse))
case("IndexedSlices MEAN", reduced("MEAN", sparse))
case("mixed dtypes", reduced("SUM", on_each(lambda i: tensor(1.0) if i == 0 else tensor(1))))
case("ON_READ var SUM", reduced("SUM", lambda w: w.variable(1.0, "ON_READ", "SUM")))


@case("in tf.function")
def _(w: World) -> Any:
    return rx.function(lambda: w.s.reduce("MEAN", w.run(lambda: jnp.ones([3]) * ridf()), axis=0))()


@case("uneven passed into tf.function axis=0")
def _(w: World) -> Any:
    return rx.function(lambda x: w.s.reduce("SUM", x, axis=0))(uneven(w))


case.section("reduce_to / batch_reduce_to")


def to(
    op: str, value: Callable[[World], Any], destinations: Any = None, **options: Any
) -> Callable[[World], Any]:
    """A case: `reduce_to` a variable, or what `destinations(world)` gives."""
    destinations = destinations or (lambda w: w.variable(0.0))
    return lambda w: w.e.reduce_to(op, value(w), destinations(w), **options)


def total(w: World) -> Any:
    """What `reduce_to` a variable gave."""
    return w.e.reduce_to("SUM", scalar(w), w.variable(0.0))


for _op in ("SUM", "MEAN"):
    case(f"reduce_to({_op}, P, dest=var)", to(_op, scalar))
    case(f"reduce_to({_op}, P, dest=P)", to(_op, scalar, scalar))
    case(f'reduce_to({_op}, P, dest="/cpu:1")', to(_op, scalar, lambda _: "CPU:1"))
case("reduce_to dest=tensor", to("SUM", scalar, lambda _: tensor(1.0)))
case("reduce_to dest=python list of devices", to("SUM", scalar, lambda _: list(DEVICES)))
case("reduce_to dest=local var", to("SUM", scalar, lambda _: rx.Variable(1.0)))
case("reduce_to dest=None", to("SUM", scalar, lambda _: None))
case("reduce_to dest=bad device string", to("SUM", scalar, lambda _: "GPU:7"))
case("reduce_to dest=garbage string", to("SUM", scalar, lambda _: "nonsense"))
case("reduce_to plain tensor SUM dest=v", to("SUM", lambda _: tensor(3.0)))
case("reduce_to plain tensor MEAN dest=v", to("MEAN", lambda _: tensor(3.0)))
case("reduce_to python 0 SUM dest=v", to("SUM", lambda _: 0))
case("reduce_to mirrored var value SUM", to("SUM", lambda w: w.variable(0.0)))
case("reduce_to mirrored var value MEAN", to("MEAN", lambda w: w.variable(0.0)))
case("reduce_to Mirrored value SUM", to("SUM", total))
case("reduce_to Mirrored value MEAN", to("MEAN", total))
case("reduce_to nested value", to("SUM", lambda w: {"a": scalar(w)}))
case("reduce_to uneven", to("SUM", uneven))
case("reduce_to int MEAN", to("MEAN", integers))
case("reduce_to IndexedSlices", to("SUM", sparse))
case(
    "reduce_to options",
    to("SUM", scalar, options=rx.CommunicationOptions(bytes_per_pack=1024, timeout_seconds=3.0)),
)
case("reduce_to experimental_hints kw", to("SUM", scalar, experimental_hints=rx.CollectiveHints()))


def batch(op: str, *pairs: Callable[[World], Any]) -> Callable[[World], Any]:
    """A case: `batch_reduce_to` of pairs."""
    return lambda w: w.e.batch_reduce_to(op, [pair(w) for pair in pairs])


def to_scalar(w: World) -> Any:
    """A scalar and the variable it goes to."""
    return (scalar(w), w.variable(0.0))


case(
    "batch_reduce_to 2 pairs",
    batch("SUM", to_scalar, lambda w: (vector(w), w.variable([0.0, 0.0]))),
)
case("batch_reduce_to []", batch("SUM"))
case("batch_reduce_to bad pair", batch("SUM", scalar))
case("batch_reduce_to mixed dest", batch("SUM", to_scalar, lambda w: (scalar(w), "CPU:0")))
case("batch_reduce_to dense+sparse", batch("MEAN", to_scalar, lambda w: (sparse(w), w.variable(0.0))))
case("batch_reduce_to string op lower", batch("mean", to_scalar))

case.section("gather")


def gathered(value: Callable[[World], Any], axis: int = 0) -> Callable[[World], Any]:
    """A case: `strategy.gather`."""
    return lambda w: w.s.gather(value(w), axis=axis)


case("gather [4] axis 0", gathered(vector))
case("gather uneven axis 0", gathered(uneven))
case("gather [2,3] axis 1", gathered(matrix, 1))
case("gather axis=-1", gathered(matrix, -1))
case("gather axis out of range", gathered(matrix, 2))
case("gather scalar", gathered(scalar))
case("gather empty on r>0", gathered(empty))
case("gather plain tensor", gathered(lambda _: tensor([1.0, 2.0])))
case("gather mismatched other dims", gathered(on_each(lambda i: jnp.ones([1, 2 + i]))))
case("gather nested dict", gathered(lambda w: {"a": vector(w)}))
case("gather bool", gathered(on_each(lambda _: tensor([True, False]))))
case("gather mirrored var", gathered(lambda w: w.variable([0.0, 0.0])))
case("gather inside replica", lambda w: w.run(lambda: w.s.gather(tensor([1.0]), axis=0)))
case(
    "gather in tf.function",
    lambda w: rx.function(lambda: w.s.gather(w.run(lambda: jnp.ones([2]) * ridf()), axis=0))(),
)

case.section("ReplicaContext.all_reduce / all_gather")


def all_reduced(value: Callable[[], Any], op: Any = "SUM", **options: Any) -> Callable[[World], Any]:
    """A case: `all_reduce` of a value that each replica makes."""
    return lambda w: w.run(lambda: ctx().all_reduce(op, value(), **options))


def rid_plus_one() -> Any:
    """1 and 2 on the replicas."""
    return ridf() + 1.0


case("all_reduce SUM", all_reduced(rid_plus_one))
case("all_reduce MEAN", all_reduced(rid_plus_one, rx.ReduceOp.MEAN))
case("all_reduce lower str", all_reduced(rid_plus_one, "sum"))
case("all_reduce python const", all_reduced(lambda: 1.0))
case("all_reduce python const MEAN", all_reduced(lambda: 1.0, "MEAN"))
case("all_reduce int MEAN", all_reduced(lambda: jnp.asarray(rid()) + 1, "MEAN"))
case("all_reduce nested", all_reduced(lambda: {"a": ridf(), "b": [jnp.ones([2]), (ridf() * 2.0,)]}))
case("all_reduce int32+float32 list", all_reduced(lambda: [jnp.asarray(rid()) + 1, ridf() + 1.0]))
case("all_reduce int64+float32 list", all_reduced(lambda: [jnp.asarray(rid()) + 1, ridf() + 1.0]))
case("all_reduce empty list", all_reduced(lambda: []))
case("all_reduce None", all_reduced(lambda: None))
case("all_reduce IndexedSlices", all_reduced(slices))
case("all_reduce dense+IndexedSlices list", all_reduced(lambda: [ridf(), slices()], "MEAN"))
case("all_reduce uneven shapes", all_reduced(lambda: jnp.ones([2 + int(rid())])))
case("all_reduce options", all_reduced(ridf, options=rx.CommunicationOptions(timeout_seconds=1.0)))
case("all_reduce bool", all_reduced(lambda: tensor(True)))
case(
    "all_reduce different structs",
    all_reduced(lambda: [ridf()] if rid() == 0 else [ridf(), ridf()]),
)
case("all_reduce cross-replica ctx (default)", lambda _: ctx().all_reduce("SUM", tensor(2.0)))


@case("all_reduce same-object tensor")
def _(w: World) -> Any:
    one = tensor(1.0)
    return w.run(lambda: ctx().all_reduce("SUM", one))


@case("all_reduce mirrored var")
def _(w: World) -> Any:
    v = w.variable(0.0)
    return w.run(lambda: ctx().all_reduce("SUM", v))


@case("all_reduce same-object in nested list w/ differing")
def _(w: World) -> Any:
    one = tensor(1.0)
    return w.run(lambda: ctx().all_reduce("SUM", [one, ridf() + 1.0]))


def poison(w: World) -> str:
    """Have a collective fail, if it can."""
    try:
        w.run(lambda: ctx().all_reduce("SUM", jnp.ones([2 + int(rid())])))
    except ValueError:
        return "InvalidArgumentError"
    return "no error"


@case("after a collective shape mismatch, next good all_reduce")
def _(w: World) -> Any:
    return [None, poison(w), w.run(lambda: ctx().all_reduce("SUM", ridf() + 1.0))]


@case("after mismatch, even a NEW strategy")
def _(w: World) -> Any:
    return [poison(w), mirrored().run(lambda: ctx().all_reduce("SUM", ridf() + 1.0))]


@case("all_reduce in one replica only")
def _(w: World) -> Any:
    return w.run(lambda: ctx().all_reduce("SUM", ridf()) if rid() == 0 else ridf())


@case("all_reduce different ops")
def _(w: World) -> Any:
    return w.run(lambda: ctx().all_reduce("SUM" if rid() == 0 else "MEAN", ridf() + 1.0))


@case("all_reduce in tf.function")
def _(w: World) -> Any:
    return w.run(rx.function(lambda: ctx().all_reduce("SUM", ridf() + 1.0)))


@case("all_reduce in scope (rc None)")
def _(w: World) -> Any:
    with w.s.scope():
        return ctx().all_reduce("SUM", tensor(2.0))


def all_gathered(value: Callable[[], Any], axis: int = 0) -> Callable[[World], Any]:
    """A case: `all_gather` of a value that each replica makes."""
    return lambda w: w.run(lambda: ctx().all_gather(value(), axis=axis))


case("all_gather axis0", all_gathered(lambda: jnp.ones([1, 2]) * ridf()))
case("all_gather axis1", all_gathered(lambda: jnp.ones([1, 2]) * ridf(), 1))
case("all_gather uneven", all_gathered(lambda: jnp.ones([1 + int(rid())])))
case("all_gather nested", all_gathered(lambda: {"a": jnp.ones([1]) * ridf()}))
case("all_gather scalar", all_gathered(ridf))
case("all_gather python", all_gathered(lambda: [1.0, 2.0]))
case("all_gather IndexedSlices", all_gathered(lambda: rx.IndexedSlices(jnp.ones([1]), tensor([0]))))
case("all_gather mismatched dims", all_gathered(lambda: jnp.ones([1, 2 + int(rid())])))


@case("all_gather in tf.function uneven")
def _(w: World) -> Any:
    rows = w.per_replica(lambda i: jnp.ones([1 + i]))
    return w.run(rx.function(lambda x: ctx().all_gather(x, axis=0)), args=(rows,))


@case("all_gather gradient")
def _(w: World) -> Any:
    weights = jnp.arange(2.0 * w.n)

    def loss(x: Any) -> Any:
        return jnp.sum(ctx().all_gather(x, axis=0) * weights)

    return w.run(lambda: jax.grad(loss)(ridf() + jnp.ones([2])))


case.section("broadcast_to / CrossDeviceOps")
case("broadcast_to var dest", lambda w: w.e.broadcast_to(tensor(3.0), w.variable(0.0)))
case("broadcast_to device dest", lambda w: w.e.broadcast_to(tensor(3.0), "CPU:1"))
case("broadcast_to python float", lambda w: w.e.broadcast_to(3.0, w.variable(0.0)))
case("broadcast_to None dest", lambda w: w.e.broadcast_to(tensor(3.0), None))
case("broadcast_to PerReplica", lambda w: w.e.broadcast_to(scalar(w), w.variable(0.0)))


@case("broadcast_to in scope")
def _(w: World) -> Any:
    v = w.variable(0.0)
    with w.s.scope():
        return w.e.broadcast_to(tensor(3.0), v)


@case("broadcast_to in replica")
def _(w: World) -> Any:
    v = w.variable(0.0)
    return w.run(lambda: w.e.broadcast_to(tensor(3.0), v))


def largest(values: Any) -> Any:
    """An accumulation function: the elementwise maximum."""
    return jnp.max(jnp.stack(values), axis=0)


OPS: dict[str, Callable[[], Any]] = {
    "NcclAllReduce": lambda: rx.NcclAllReduce(),
    "HierarchicalCopy": lambda: rx.HierarchicalCopyAllReduce(num_packs=1),
    "HierarchicalCopy(0)": lambda: rx.HierarchicalCopyAllReduce(num_packs=0),
    "ReductionToOneDevice": lambda: rx.ReductionToOneDevice(),
    "ReductionToOneDevice(/cpu:1, tf.add_n)": lambda: rx.ReductionToOneDevice("CPU:1"),
    "RTOD custom accum=reduce max": lambda: rx.ReductionToOneDevice(accumulation_fn=largest),
}


def add_ops(name: str, make: Callable[[], Any]) -> None:
    """`all_reduce` with one of the cross-device ops."""

    @case(f"strategy with {name}: all_reduce")
    def _(_: World) -> Any:
        strategy = mirrored(cross_device_ops=make())
        return strategy.run(lambda: ctx().all_reduce("SUM", ridf() + 1.0))


for _name, _make in OPS.items():
    add_ops(_name, _make)

case("HierarchicalCopy(-1)", lambda _: rx.HierarchicalCopyAllReduce(num_packs=-1))
case("cross_device_ops wrong type", lambda _: mirrored(cross_device_ops=3))


@case("cdo.reduce direct")
def _(w: World) -> Any:
    x = scalar(w)
    return rx.ReductionToOneDevice().reduce(rx.ReduceOp.SUM, x, destinations=x)


@case("cdo.batch_reduce direct")
def _(w: World) -> Any:
    x, y = scalar(w), vector(w)
    return rx.ReductionToOneDevice().batch_reduce(rx.ReduceOp.SUM, [(x, x), (y, y)])


case("cdo.broadcast direct", lambda w: rx.ReductionToOneDevice().broadcast(tensor(1.0), scalar(w)))


class Delegating(rx.CrossDeviceOps):
    """A user's own ops, which leave the work to `ReductionToOneDevice`."""

    def reduce_implementation(self, reduce_op: Any, value: Any, destinations: Any, options: Any) -> Any:
        return rx.ReductionToOneDevice().reduce_implementation(reduce_op, value, destinations, options)

    def batch_reduce_implementation(self, reduce_op: Any, pairs: Any, options: Any) -> Any:
        return [self.reduce_implementation(reduce_op, *pair, options) for pair in pairs]


class Bare(rx.CrossDeviceOps):
    """A user's own ops that implement nothing."""


def summed_with(ops: type[rx.CrossDeviceOps]) -> Any:
    """The sum of 1 and 2 by a strategy with these ops."""
    strategy = mirrored(cross_device_ops=ops())
    return strategy.reduce("SUM", strategy.run(lambda: ridf() + 1.0), axis=None)


case("custom CrossDeviceOps subclass", lambda _: summed_with(Delegating))
case("bare CrossDeviceOps subclass", lambda _: summed_with(Bare))


def add_options(options: dict[str, Any]) -> None:
    """The options as they come back."""

    @case(f"CommunicationOptions({options!r})")
    def _(_: World) -> Any:
        made = rx.CommunicationOptions(**options)
        return [made.bytes_per_pack, made.timeout_seconds, str(made.implementation)]


for _options in (
    {"bytes_per_pack": -1},
    {"timeout_seconds": -1},
    {"timeout_seconds": 0},
    {"implementation": "NCCL"},
    {"implementation": "foo"},
    {"bytes_per_pack": "x"},
):
    add_options(_options)
