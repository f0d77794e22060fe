"""`run`: merging of results, arguments, `merge_call`, exceptions, and the contexts on the way."""

from __future__ import annotations

import threading
from collections import OrderedDict, namedtuple
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

import replicax as rx

from .describe import describe, type_name
from .world import Cases, World, context, ctx, merge, rid, ridf, tensor

NT = namedtuple("NT", "a b")


@dataclass
class DC:
    """An object that is a leaf of a structure."""

    a: Any


LEFT_OUT = {
    "sparse tensor": "JAX has no tf.SparseTensor",
    "ragged": "JAX has no tf.RaggedTensor",
    "type of rid in tf.function": "returns a string tensor; JAX has none",
    "runs on main thread?": "which thread TensorFlow runs a replica in; Replicax has one thread",
    "stateless random same on all replicas": "the numbers of TensorFlow's random generator",
    "stateful random per replica": "the numbers of TensorFlow's random generator",
}

case = Cases()
case.section("run merging")
case("same tensor object", lambda w: w.run(lambda: w.C))
case("equal but different tensors", lambda w: w.run(lambda: tensor(5.0)))
case("python int same", lambda w: w.run(lambda: 3))
case("python large int equal not same obj", lambda w: w.run(lambda: int("123456789123")))
case("python float equal new objects", lambda w: w.run(lambda: float("1.5")))
case("python ints differing", lambda w: w.run(lambda: int(rid())))
case("type of replica_id_in_sync_group eager", lambda w: w.run(lambda: type_name(rid())))
case("strings equal", lambda w: w.run(lambda: "a"))
case("strings differing", lambda w: w.run(lambda: f"r{int(rid())}"))
case("None", lambda w: w.run(lambda: None))
case(
    "None on r0 only, tensor otherwise",
    lambda w: w.run(lambda: None if rid() == 0 else tensor(1.0)),
)
case("tensor on r0, None otherwise", lambda w: w.run(lambda: tensor(1.0) if rid() == 0 else None))
case("custom same object", lambda w: describe(w.run(lambda: w.OBJ)))
case("custom different objects", lambda w: type(w.run(lambda: object())).__name__)
case("tuple", lambda w: w.run(lambda: (w.C, tensor(1.0), None)))
case("list", lambda w: w.run(lambda: [w.C, tensor(1.0)]))
case("dict", lambda w: w.run(lambda: {"a": w.C, "b": tensor(1.0)}))
case("namedtuple", lambda w: w.run(lambda: NT(w.C, tensor(2.0))))
case("nested", lambda w: w.run(lambda: {"x": (tensor(1.0), [NT(None, tensor(2.0))])}))
case("empty tuple", lambda w: w.run(lambda: ()))
case("empty dict", lambda w: w.run(lambda: {}))
case("set", lambda w: w.run(lambda: set([1])))  # noqa: C405  (a new object on each replica)
case("dict diff keys", lambda w: w.run(lambda: {"a": w.C} if rid() == 0 else {"b": w.C}))
case("tuple diff lengths", lambda w: w.run(lambda: (w.C,) if rid() == 0 else (w.C, w.C)))
case("tuple vs list", lambda w: w.run(lambda: (w.C,) if rid() == 0 else [w.C]))
case("tensor vs tuple", lambda w: w.run(lambda: w.C if rid() == 0 else (w.C,)))
case("tuple vs tensor", lambda w: w.run(lambda: (w.C, w.C) if rid() == 0 else w.C))
case("dict vs tuple", lambda w: w.run(lambda: {"a": w.C} if rid() == 0 else (w.C,)))
case("different dtypes", lambda w: w.run(lambda: tensor(1.0) if rid() == 0 else tensor(1)))
case("different shapes", lambda w: w.run(lambda: jnp.ones([2 + int(rid())])))
case("ndarray", lambda w: w.run(lambda: np.ones(2)))
case("IndexedSlices", lambda w: w.run(lambda: rx.IndexedSlices(tensor([1.0]), tensor([0]), (3,))))
case("dataclass", lambda w: type(w.run(lambda: DC(tensor(1.0)))).__name__)


@case("OrderedDict")
def _(w: World) -> Any:
    result = w.run(lambda: OrderedDict([("z", tensor(1.0)), ("a", w.C)]))
    return [type(result).__name__, result]


@case("mirrored var returned -> is same?")
def _(w: World) -> Any:
    v = w.variable(7.0)
    result = w.run(lambda: v)
    return [type_name(result), result is v]


@case("mirrored var via args returned")
def _(w: World) -> Any:
    v = w.variable(7.0)
    result = w.run(lambda x: x, args=(v,))
    return [type_name(result), result is v]


@case("type of var INSIDE fn when closed over")
def _(w: World) -> Any:
    v = w.variable(7.0)
    return w.run(lambda: type_name(v))


@case("type of var INSIDE fn when passed as arg")
def _(w: World) -> Any:
    return w.run(type_name, args=(w.variable(7.0),))


@case("arg var is closed-over var?")
def _(w: World) -> Any:
    v = w.variable(7.0)
    return w.run(lambda x: x is v, args=(v,))


@case("local component returned (v.values[i])")
def _(w: World) -> Any:
    v = w.variable(7.0)
    result = w.run(lambda: w.s.experimental_local_results(v)[int(rid())])
    return [type_name(result), result is v]


@case("sync-on-read var returned")
def _(w: World) -> Any:
    v = w.variable(1.0, "ON_READ", "SUM", trainable=False)
    result = w.run(lambda: v)
    return [type_name(result), result is v]


@case("v.read_value() in replica")
def _(w: World) -> Any:
    v = w.variable(7.0)
    return w.run(lambda: v.read_value())


@case("v.value() in replica")
def _(w: World) -> Any:
    v = w.variable(7.0)
    return w.run(lambda: v.value)


@case("v+1 in replica (eager)")
def _(w: World) -> Any:
    v = w.variable(7.0)
    return w.run(lambda: v + 1)


@case("assign MEAN result returned from run (eager)")
def _(w: World) -> Any:
    v = w.variable(3.0, agg="MEAN")
    return w.run(lambda: v.assign_add(1.0))


case(
    "all_reduce result returned from run",
    lambda w: w.run(lambda: ctx().all_reduce("SUM", tensor(1.0))),
)

case.section("run args")


def ids(w: World) -> Any:
    """The replica id of each replica, as a vector of one."""
    return w.per_replica(lambda i: tensor([float(i)]))


case(
    "PerReplica arg nested in dict",
    lambda w: w.run(lambda x: x["k"][0] + 1, args=({"k": (ids(w),)},)),
)
case("kwargs", lambda w: w.run(lambda x, y=0: x + y, args=(ids(w),), kwargs={"y": tensor(10.0)}))
case("positional list args", lambda w: w.run(lambda x, y: x + y, args=[ids(w), ids(w)]))
case("args not tuple (tensor)", lambda w: w.run(lambda x: x, args=tensor([1.0, 2.0])))
case("args dict", lambda w: w.run(lambda x: x, args={"a": 1}))
case("fn not callable", lambda w: w.run(3))
case("numpy arg", lambda w: w.run(lambda x: type(x).__name__, args=(np.ones(2),)))
case(
    "PerReplica made for fewer replicas",
    lambda w: w.run(lambda x: x, args=(rx.PerReplica([tensor(1.0)]),)),
)
case("options RunOptions", lambda w: w.run(lambda: 1, options=rx.RunOptions()))
case("fn with wrong arity", lambda w: w.run(lambda x: x))


@case("call count eager")
def _(w: World) -> Any:
    calls: list[int] = []
    w.run(lambda: calls.append(1))
    return len(calls)


@case("trace count of tf.function passed to run twice")
def _(w: World) -> Any:
    calls: list[int] = []

    @rx.function
    def f() -> Any:
        calls.append(1)
        return tensor(1.0)

    w.run(f)
    w.run(f)
    return len(calls)


@case("python call count when run is in tf.function, 2 calls")
def _(w: World) -> Any:
    calls: list[int] = []

    @rx.function
    def step() -> Any:
        def f() -> Any:
            calls.append(1)
            return tensor(1.0)

        return w.run(f)

    step()
    step()
    return len(calls)


@case("returned structure from tf.function-wrapped run")
def _(w: World) -> Any:
    v = w.variable(7.0)
    result = rx.function(lambda: w.run(lambda: (tensor(1.0), rid(), 3, None, w.C, v)))()
    return [result, type_name(result[5])]


@case("execution order of replicas (eager, merge_call)")
def _(w: World) -> Any:
    order: list[Any] = []

    def f() -> None:
        i = int(rid())
        order.append(("a", i))
        merge(lambda _: order.append("m"))
        order.append(("b", i))

    w.run(f)
    return str(order)


case.section("merge_call")


def total(strategy: Any, x: Any) -> Any:
    """A merge function: the sum over the replicas."""
    return strategy.reduce("SUM", x, axis=None)


case("basic", lambda w: w.run(lambda: merge(total, tensor(2.0))))
case(
    "merge_fn first arg is strategy; ctx inside",
    lambda w: w.run(lambda: merge(lambda s: [s is w.s, context()])),
)
case("merge_fn returns None", lambda w: w.run(lambda: merge(lambda _: None)))
case(
    "merge_fn returns PerReplica -> each replica gets own",
    lambda w: w.run(lambda: merge(lambda _, x: x, ridf())),
)
case("merge_fn returns plain tensor -> shared", lambda w: w.run(lambda: merge(lambda _: w.C)))
case(
    "merge_fn returns tuple from reduce_to Mirrored",
    lambda w: w.run(lambda: merge(lambda s, x: (s.extended.reduce_to("SUM", x, x),), tensor(1.0))),
)
case(
    "nested merge_call inside merge_fn",
    lambda w: w.run(lambda: merge(lambda _: rx.get_replica_context().merge_call(lambda _: 1))),
)
case(
    "run inside merge_fn",
    lambda w: w.run(lambda: merge(lambda s, x: s.run(lambda y: y + 1, args=(x,)), tensor(2.0))),
)
case("run inside run (replica ctx)", lambda w: w.run(lambda: w.s.run(lambda: 1)))
case(
    "strategy.reduce inside replica fn",
    lambda w: w.run(lambda: w.s.reduce("SUM", tensor(1.0), axis=None)),
)
case(
    "experimental_local_results inside replica fn",
    lambda w: w.run(lambda: w.s.experimental_local_results(tensor(1.0))),
)
case("scope() inside replica fn", lambda w: w.run(lambda: w.s.scope().__enter__() and 1))
case("two sequential merge_calls", lambda w: w.run(lambda: merge(total, merge(total, tensor(1.0)))))
case("merge_fn raises", lambda w: w.run(lambda: merge(lambda _: 1 / 0)))
case(
    "merge_fn raising is catchable in replica fn?",
    lambda w: w.run(lambda: merge(lambda _: {}["x"])),
)
case(
    "different merge_fn per replica",
    lambda w: w.run(lambda: merge((lambda *_: "m1") if rid() == 0 else (lambda *_: "m2"), tensor(1.0))),
)
case(
    "different arg structures per replica in merge_call",
    lambda w: w.run(lambda: merge(lambda *_: 1, *([1, 2] if rid() == 0 else [1]))),
)
case(
    "merge_call from default ctx (no strategy)",
    lambda _: merge(lambda s, x: ["default" if s is rx.get_strategy() else "?", x, context()], 3),
)


@case("arg types in merge_fn")
def _(w: World) -> Any:
    v = w.variable(7.0)
    return w.run(lambda: merge(lambda _, *args: list(map(type_name, args)), tensor(1.0), w.C, v, None))


@case("merge_fn returns mirrored var -> in replica type")
def _(w: World) -> Any:
    v = w.variable(7.0)
    return w.run(lambda: type_name(merge(lambda _: v)))


@case("reduce_to inside replica fn")
def _(w: World) -> Any:
    v = w.variable(7.0)
    return w.run(lambda: w.e.reduce_to("SUM", tensor(1.0), destinations=v))


@case("update inside replica fn")
def _(w: World) -> Any:
    v = w.variable(7.0)
    return w.run(lambda: w.e.update(v, lambda x: x.assign(2.0)))


@case("try/except around merge_call in replica fn")
def _(w: World) -> Any:
    def f() -> Any:
        try:
            return merge(lambda _: 1 / 0)
        except ZeroDivisionError:
            return "caught"

    return w.run(f)


@case("exception in one replica only (r1)")
def _(w: World) -> Any:
    return w.run(lambda: 1 / 0 if rid() == w.n - 1 else 1)


@case("exception in r0: do others run?")
def _(w: World) -> Any:
    started: list[int] = []

    def f() -> Any:
        i = int(rid())
        started.append(i)
        if i == 0:
            raise ValueError("r0 boom")
        return i

    try:
        return w.run(f)
    except ValueError as error:
        return [str(error), f"replicas that started: {started}"]


@case("strategy usable after exceptions")
def _(w: World) -> Any:
    for broken in (
        lambda: 1 / 0,
        lambda: merge(lambda _: 1 / 0),
        lambda: merge(total, jnp.ones([1 + int(rid())])),
    ):
        try:
            w.run(broken)
        except (ZeroDivisionError, ValueError):
            continue
    w.run(lambda: merge(total, tensor(1.0)))
    return "still usable"


@case("merge_call in r0 only")
def _(w: World) -> Any:
    return w.run(lambda: merge(lambda _: 1) if rid() == 0 else 2)


@case("merge_call in last replica only")
def _(w: World) -> Any:
    return w.run(lambda: merge(lambda _: 1) if rid() == w.n - 1 else 2)


@case("different number of merge_calls (2 vs 1)")
def _(w: World) -> Any:
    def f() -> int:
        if rid() == 0:
            merge(lambda _: 1)
        merge(lambda _: 2)
        return 0

    return w.run(f)


case(
    "merge_call in tf.function inside replica fn",
    lambda w: w.run(rx.function(lambda: merge(total, tensor(1.0)))),
)


@case("merge_call under tf.cond (autograph if)")
def _(w: World) -> Any:
    def f(x: Any) -> Any:
        return lax.cond(x > 0, lambda x: merge(total, x), lambda x: x, x)

    return w.run(rx.function(f), args=(tensor(1.0),))


@case("merge_call under tf.while (autograph for)")
def _(w: World) -> Any:
    def f(x: Any) -> Any:
        return lax.fori_loop(0, 3, lambda _, x: merge(total, x), x)

    return w.run(rx.function(f), args=(tensor(1.0),))


@case("all_reduce under tf.cond")
def _(w: World) -> Any:
    def f(x: Any) -> Any:
        return lax.cond(x > 0, lambda x: ctx().all_reduce("SUM", x), lambda x: x, x)

    return w.run(rx.function(f), args=(tensor(1.0),))


@case("all_reduce under tf.while in outer tf.function")
def _(w: World) -> Any:
    def f(x: Any) -> Any:
        return lax.fori_loop(0, 3, lambda _, x: ctx().all_reduce("SUM", x), x)

    return rx.function(lambda: w.run(f, args=(tensor(1.0),)))()


@case("aggregating assign inside run inside tf.range loop")
def _(w: World) -> Any:
    v = w.variable(0.0, agg="MEAN")

    @rx.function
    def steps() -> Any:
        for _ in range(3):
            w.run(lambda x: v.assign_add(x), args=(tensor(1.0),))
        return v.read_value()

    return steps()


@case("gradient through merge_call (eager)")
def _(w: World) -> Any:
    return w.run(lambda: jax.grad(lambda x: merge(total, x * x))(tensor(2.0)))


@case("gradient through all_reduce SUM (eager)")
def _(w: World) -> Any:
    return w.run(lambda: jax.grad(lambda x: ctx().all_reduce("SUM", x * x))(2.0 + ridf()))


@case("gradient through all_reduce MEAN (tf.function)")
def _(w: World) -> Any:
    return w.run(rx.function(lambda: jax.grad(lambda x: ctx().all_reduce("MEAN", x * x))(2.0 + ridf())))


case.section("contexts")
case("outside", lambda _: context())
case("inside run", lambda w: w.run(context))
case("inside merge_fn", lambda w: w.run(lambda: merge(lambda _: context())))
case(
    "replica ctx .devices/.strategy",
    lambda w: w.run(lambda: [str(tuple(ctx().devices)), ctx().strategy is w.s, ctx().num_replicas_in_sync]),
)
case("ReplicaContext used as ctx mgr by other", lambda _: ctx().all_reduce("SUM", tensor(3.0)))


@case("inside scope")
def _(w: World) -> Any:
    with w.s.scope():
        return context()


@case("inside update fn")
def _(w: World) -> Any:
    v, seen = w.variable(7.0), []

    def update(x: Any) -> Any:
        seen.append((context(), rx.get_update_replica_id()))
        return x.assign(1.0)

    with w.s.scope():
        w.e.update(v, update)
    return seen


@case("inside value_fn")
def _(w: World) -> Any:
    seen: list[str] = []
    w.per_replica(lambda _: seen.append(context()))
    return seen[0]


@case("inside dataset_fn")
def _(w: World) -> Any:
    seen: list[str] = []

    def dataset_fn(_: Any) -> Any:
        seen.append(context())
        return rx.from_arrays(np.arange(4)).batch(2)

    w.s.distribute_datasets_from_function(dataset_fn)
    return seen


@case("inside dataset.map fn")
def _(w: World) -> Any:
    seen: list[str] = []

    def read_one_batch() -> Any:
        seen.append(context())
        yield np.arange(2)

    with w.s.scope():
        list(w.s.experimental_distribute_dataset(read_one_batch))
    return seen


@case("scope in another thread")
def _(w: World) -> Any:
    seen: list[str] = []
    with w.s.scope():
        thread = threading.Thread(target=lambda: seen.append(context()))
        thread.start()
        thread.join()
    return seen


@case("tf.function traced in scope then called outside (retrace?)")
def _(w: World) -> Any:
    seen: dict[str, None] = {}

    @rx.function
    def f() -> None:
        seen[context()] = None

    with w.s.scope():
        f()
    f()
    return list(seen)


@case("tf.function called in run then outside")
def _(w: World) -> Any:
    seen: dict[str, None] = {}

    @rx.function
    def f() -> Any:
        seen[context()] = None
        return 1

    w.run(f)
    f()
    return list(seen)
