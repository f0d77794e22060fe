"""Variables: creation, every write and read by synchronization, aggregation and context."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import replicax as rx

from .describe import describe, type_name
from .world import AGGREGATIONS, Cases, World, mirrored, rid, ridf, tensor

SYNCHRONIZATIONS = ("ON_WRITE", "ON_READ")
ASSIGNMENTS = ("assign", "assign_add", "assign_sub")
SCATTERS = (
    "scatter_add",
    "scatter_sub",
    "scatter_mul",
    "scatter_div",
    "scatter_min",
    "scatter_max",
    "scatter_update",
)

LEFT_OUT = {
    "AUTO default trainable": "the recorded program returns a constant here",
    "v.handle *": "TensorFlow's resource handle",
    "v.op *": "TensorFlow's graph operation",
    "v.initial_value *": "of TensorFlow's graph mode",
    "v.is_initialized *": "of TensorFlow's graph mode; a variable always has a value here",
    "v.count_up_to *": "a TensorFlow kernel for graph-mode counters",
    "v.sparse_read *": "a TensorFlow kernel; `jnp.take(v, indices)` here",
    "v.gather_nd *": "a TensorFlow kernel; `v[indices]` here",
    "scatter_nd_*": "a TensorFlow kernel; `v.assign(v.value.at[...].add(...))` here",
    "batch_scatter_update replica": "a TensorFlow kernel; `v.assign(v.value.at[...].set(...))` here",
    "sliced assign *": "assigns through TensorFlow's slice op; an array's slice is an array here",
    "v.device *": "TensorFlow's device string; `v.values` show where the copies are",
    "tape around run+reduce (cross-replica)": "None, because TensorFlow's tape is of one thread",
}

case = Cases()


def write(w: World, init: Any = 10.0, sync: str = "ON_WRITE", agg: str = "NONE", **options: Any) -> Any:
    """A variable as the recorded programs make them: not trainable."""
    return w.variable(init, sync, agg, trainable=False, **options)


def each_policy(add: Callable[[str, str], None]) -> None:
    """Add cases for every synchronization and aggregation."""
    for sync in SYNCHRONIZATIONS:
        for agg in AGGREGATIONS:
            add(sync, agg)


case.section("creation")


def add_creation(sync: str, agg: str) -> None:
    """What a variable of this policy says about itself."""

    @case(f"create sync={sync} agg={agg}")
    def _(w: World) -> Any:
        v = write(w, 10.0, sync, agg)
        return [type_name(v), v.synchronization.name, v.aggregation.name, v.trainable]


for _sync in ("AUTO", "NONE", *SYNCHRONIZATIONS):
    for _agg in AGGREGATIONS:
        add_creation(_sync, _agg)

case("ON_READ default trainable", lambda w: w.variable(1.0, "ON_READ", "SUM").trainable)
case("ON_READ trainable=True", lambda w: w.variable(1.0, "ON_READ", "SUM", trainable=True).trainable)
case("initial_value=another distributed var", lambda w: w.variable(w.variable(1.0)))
case("initial_value=PerReplica", lambda w: w.variable(w.per_replica(lambda i: tensor(float(i)))))


@case("default var attrs")
def _(w: World) -> Any:
    v = w.variable(1.0)
    copies = w.s.experimental_local_results(v)
    [device] = copies[0].read_value().devices()
    return [
        v.trainable,
        v.name,
        [copy.name for copy in copies],
        f"c{device.id}",
        describe(list(v.shape)),
        # TensorFlow's plain variable does not say which strategy it belongs to.
        None if w.kind == "onedev" else v.distribute_strategy is w.s,
    ]


@case("names duplicates")
def _(w: World) -> Any:
    v, u = w.variable(1.0, name="w"), w.variable(1.0, name="w")
    return [v.name, u.name, [copy.name for copy in w.s.experimental_local_results(u)]]


@case("callable initial_value: number of calls, values")
def _(w: World) -> Any:
    calls: list[int] = []

    def init() -> Any:
        calls.append(1)
        return tensor(float(len(calls)))

    return [w.variable(init), f"init calls={len(calls)}"]


def distinct_copies(w: World, sync: str, agg: str) -> int:
    """How many different numbers the copies of a randomly initialized variable hold."""
    generator = np.random.default_rng(0)
    v = w.variable(lambda: tensor(generator.random()), sync, agg)
    return len({float(copy.read_value()) for copy in w.s.experimental_local_results(v)})


case("random init: # distinct copy values", lambda w: distinct_copies(w, "AUTO", "NONE"))
case("random init ON_READ: # distinct copy values", lambda w: distinct_copies(w, "ON_READ", "SUM"))


@case("creation in tf.function non-first (error)")
def _(w: World) -> Any:
    return rx.function(lambda: w.variable(1.0))()


@case("creation inside run (eager, closure-once)")
def _(w: World) -> Any:
    made: list[Any] = []

    def f() -> Any:
        if not made:
            made.append(rx.Variable(1.0, aggregation=rx.VariableAggregation.SUM))
        return made[0].assign_add(1.0)

    return [w.run(f), made[0]]


@case("creation inside run with replica-dependent init")
def _(w: World) -> Any:
    made: list[Any] = []

    def f() -> Any:
        made.append(rx.Variable(ridf() + 5.0))
        return made[-1]

    return [w.run(f), list(map(type_name, made)), all(v is made[0] for v in made)]


@case("creation in r0 only")
def _(w: World) -> Any:
    made: dict[int, Any] = {}

    def f() -> int:
        i = int(rid())
        made[i] = rx.Variable(float(i)) if i == 0 else None
        return 0

    w.run(f)
    return made[0]


@case("creation inside run(tf.function)")
def _(w: World) -> Any:
    made: list[Any] = []

    @rx.function
    def f() -> Any:
        if not made:
            made.append(rx.Variable(2.0))
        return made[0] + 1.0

    return [w.run(f), len(made), made[0]]


@case("creation inside tf.function{run}")
def _(w: World) -> Any:
    made: list[Any] = []

    @rx.function
    def step() -> Any:
        def f() -> Any:
            if not made:
                made.append(rx.Variable(2.0))
            return made[0] + 1.0

        return w.run(f)

    return [step(), made[0]]


@case("ON_READ creation inside run + assign_add")
def _(w: World) -> Any:
    made: list[Any] = []

    def f() -> Any:
        v = rx.Variable(
            1.0,
            synchronization=rx.VariableSynchronization.ON_READ,
            aggregation=rx.VariableAggregation.SUM,
        )
        made.append(v)
        v.assign_add(ridf())
        return v.read_value()

    return [w.run(f), made[0]]


case.section("assign in replica context, eager")


def add_replica_assignments(sync: str, agg: str) -> None:
    """Every assignment of `rid + 1` in a replica."""
    for method in ASSIGNMENTS:

        @case(f"{sync}/{agg} {method}(rid+1)")
        def _(w: World, method: str = method) -> Any:
            v = write(w, 10.0, sync, agg)
            result = w.run(lambda: getattr(v, method)(ridf() + 1.0))
            return [v, "ret:", result]


each_policy(add_replica_assignments)


def after(
    w: World, step: Callable[[Any], Any], init: Any = 10.0, sync: str = "ON_WRITE", agg: str = "SUM"
) -> Any:
    """A variable after `step(variable)` ran in every replica."""
    v = write(w, init, sync, agg)
    w.run(lambda: step(v))
    return v


case(
    "int32 ON_WRITE/MEAN assign_add(rid+1)",
    lambda w: after(w, lambda v: v.assign_add(jnp.asarray(rid(), jnp.int32) + 1), 10, agg="MEAN"),
)
case("ON_WRITE/SUM assign_add(python 1.)", lambda w: after(w, lambda v: v.assign_add(1.0)))
case("ON_WRITE/MEAN assign(python 1.)", lambda w: after(w, lambda v: v.assign(1.0), agg="MEAN"))
case(
    "shape mismatch assign in replica",
    lambda w: after(w, lambda v: v.assign(jnp.ones([3])), [1.0, 2.0]),
)
case("dtype mismatch assign in replica", lambda w: after(w, lambda v: v.assign(tensor(1))))
case("ON_WRITE/SUM assign only in r0", lambda w: after(w, lambda v: rid() == 0 and v.assign_add(1.0)))


@case("ON_WRITE/SUM assign_add(same tensor object)")
def _(w: World) -> Any:
    one = tensor(1.0)
    return after(w, lambda v: v.assign_add(one))


@case("ON_WRITE/SUM assign_add(mirrored var)")
def _(w: World) -> Any:
    u = write(w, 3.0, agg="SUM")
    return after(w, lambda v: v.assign_add(u))


@case("ON_WRITE/SUM assign_add(on_read.read_value())")
def _(w: World) -> Any:
    u = write(w, 3.0, "ON_READ", "SUM")
    return after(w, lambda v: v.assign_add(u.read_value()))


@case("read_value=False")
def _(w: World) -> Any:
    v = write(w, agg="SUM")
    return ["ret", w.run(lambda: v.assign_add(1.0, read_value=False)), v]


@case("ON_READ/SUM assign only in r0")
def _(w: World) -> Any:
    v = write(w, 0.0, "ON_READ", "SUM")

    def f() -> None:
        if rid() == 0:
            v.assign_add(1.0)

    w.run(f)
    return [v, v.read_value()]


case.section("assign in replica context, tf.function")


def add_compiled_assignments(sync: str, agg: str) -> None:
    """The same assignment, compiled around `run` and inside it."""

    @case(f"{sync}/{agg} tf.function{{run}} assign_add(rid+1)")
    def _(w: World) -> Any:
        v = write(w, 10.0, sync, agg)
        result = rx.function(lambda: w.run(lambda: v.assign_add(ridf() + 1.0)))()
        return [v, "ret:", result]

    @case(f"{sync}/{agg} run(tf.function) assign_add then read")
    def _(w: World) -> Any:
        v = write(w, 10.0, sync, agg)

        @rx.function
        def f() -> Any:
            v.assign_add(ridf() + 1.0)
            return v.read_value()

        result = w.run(f)
        return [v, "read in fn:", result]


each_policy(add_compiled_assignments)

case.section("cross-replica assign")


def one_two(w: World) -> Any:
    """1 and 2 on the replicas."""
    return w.per_replica(lambda i: tensor(float(i) + 1.0))


def add_cross_replica_assignments(sync: str, agg: str) -> None:
    """Every assignment in cross-replica context, in scope and outside, also of a PerReplica."""
    for in_scope in (False, True):
        where = "in scope" if in_scope else "outside scope"
        for method in ASSIGNMENTS:

            @case(f"{where} {sync}/{agg} {method}(4.)")
            def _(w: World, in_scope: bool = in_scope, method: str = method) -> Any:
                v = write(w, 10.0, sync, agg)
                with w.scope(when=in_scope):
                    result = getattr(v, method)(4.0)
                return [v, "ret:", result]

        @case(f"{where} {sync}/{agg} assign(PerReplica)")
        def _(w: World, in_scope: bool = in_scope) -> Any:
            v = write(w, 10.0, sync, agg)
            with w.scope(when=in_scope):
                v.assign(one_two(w))
            return v


each_policy(add_cross_replica_assignments)


def assigned(w: World, value: Callable[[Any], Any], init: Any = 10.0, sync: str = "ON_WRITE") -> Any:
    """A SUM variable after `assign(value(variable))` in scope."""
    v = write(w, init, sync, "SUM")
    with w.s.scope():
        v.assign(value(v))
    return v


case("in scope assign(mirrored var)", lambda w: assigned(w, lambda _: write(w, 3.0, agg="SUM")))
case(
    "in scope ON_WRITE.assign(ON_READ var)",
    lambda w: assigned(w, lambda _: write(w, 3.0, "ON_READ", "SUM")),
)
case(
    "in scope assign(Mirrored from reduce_to)",
    lambda w: assigned(w, lambda v: w.e.reduce_to("SUM", one_two(w), v)),
)
case(
    "int ON_READ/SUM assign(7) in scope (div by N)",
    lambda w: assigned(w, lambda _: 7, 10, "ON_READ"),
)


@case("ON_READ/SUM assign(7.) in scope then read")
def _(w: World) -> Any:
    v = assigned(w, lambda _: tensor(7.0), 10.0, "ON_READ")
    return [v, v.read_value()]


@case("tf.function in scope: assign + read")
def _(w: World) -> Any:
    v = write(w)

    @rx.function
    def f() -> Any:
        v.assign(9.0)
        return v.read_value()

    with w.s.scope():
        return [f(), v]


case.section("reads")

READS: dict[str, Callable[[Any], Any]] = {
    "read_value": lambda v: v.read_value(),
    "value": lambda v: v.value,
    "numpy": lambda v: v.numpy(),
    "v+0": lambda v: v + 0.0,
    "tf.identity": lambda v: jnp.array(v),
    "convert_to_tensor": lambda v: jnp.asarray(v),
    "float()": lambda v: float(v),
    "repr": lambda v: repr(v),
}


def add_reads(sync: str, agg: str) -> None:
    """Every way to read, in every place. ON_READ variables hold `rid + 1`, the others 10."""

    def made(w: World) -> Any:
        v = write(w, 10.0, sync, agg)
        if sync == "ON_READ":
            w.run(lambda: v.assign(ridf() + 1.0))
        return v

    for name, read in READS.items():

        @case(f"{sync}/{agg} {name} outside scope")
        def _(w: World, read: Any = read) -> Any:
            return read(made(w))

        @case(f"{sync}/{agg} {name} in scope")
        def _(w: World, read: Any = read) -> Any:
            v = made(w)
            with w.s.scope():
                return read(v)

        if name in ("numpy", "float()", "repr"):
            continue

        @case(f"{sync}/{agg} {name} in replica")
        def _(w: World, read: Any = read) -> Any:
            v = made(w)
            return w.run(lambda: read(v))

    case(f"{sync}/{agg} extended.read_var outside", lambda w: [w.e.read_var(made(w))])
    case(f"{sync}/{agg} local_results", lambda w: w.s.experimental_local_results(made(w)))
    case(f"{sync}/{agg} reduce(SUM,v)", lambda w: w.s.reduce("SUM", made(w), axis=None))

    @case(f"{sync}/{agg} extended.read_var in replica")
    def _(w: World) -> Any:
        v = made(w)
        return w.run(lambda: w.e.read_var(v))


each_policy(add_reads)


@case("int ON_READ/MEAN read")
def _(w: World) -> Any:
    v = write(w, 1, "ON_READ", "MEAN")
    w.run(lambda: v.assign(jnp.asarray(rid(), jnp.int32) + 1))
    return v.read_value()


case("bool ON_READ/SUM read", lambda w: write(w, True, "ON_READ", "SUM").read_value())

case.section("ops on distributed vars")

OPERATIONS: dict[str, Callable[[Any], Any]] = {
    "v*2": lambda v: v * 2,
    "2*v": lambda v: 2 * v,
    "-v": lambda v: -v,
    "v**2": lambda v: v**2,
    "v@v": lambda v: jnp.tensordot(v.value, v, 1),
    "v[0]": lambda v: v[0],
    "v[1:]": lambda v: v[1:],
    "len": len,
    "bool(v)": bool,
    "v==v": lambda v: v == v,
    "v==1": lambda v: v == 1.0,
    "v>1": lambda v: v > 1,
    "hash": hash,
    "v in [v]": lambda v: v.ref() == v.ref(),
    "np.asarray": np.asarray,
    "v.shape": lambda v: str(tuple(v.shape)),
    "v.dtype": lambda v: np.dtype(v.dtype).name,
    "tf.reduce_sum": lambda v: jnp.sum(jnp.asarray(v)),
    "iter": lambda v: list(iter(v)),
    "isinstance tf.Variable": lambda v: isinstance(v, rx.Variable),
    "isinstance DistributedValues": lambda v: isinstance(v, rx.DistributedValues),
    "copy.deepcopy": lambda v: type_name(copy.deepcopy(v)),
    "pickle": lambda v: len(pickle.dumps(v)),
    "v.values": lambda v: [type_name(copy) for copy in v.values],
    "v.constraint": lambda v: v.constraint,
    "v += 1 (python)": lambda v: type_name(v.__add__(1)),
}


def add_operation(name: str, operation: Callable[[Any], Any]) -> None:
    """An operation on the variable [1, 2, 3]; some also in scope and in a replica."""
    case(f"{name} outside", lambda w: operation(write(w, [1.0, 2.0, 3.0], agg="SUM")))
    if name not in ("v[0]", "hash", "iter"):
        return

    @case(f"{name} in scope")
    def _(w: World) -> Any:
        v = write(w, [1.0, 2.0, 3.0], agg="SUM")
        with w.s.scope():
            return operation(v)

    @case(f"{name} in replica")
    def _(w: World) -> Any:
        v = write(w, [1.0, 2.0, 3.0], agg="SUM")
        return w.run(lambda: operation(v))


for _name, _operation in OPERATIONS.items():
    add_operation(_name, _operation)


def add_scatter(agg: str, method: str) -> None:
    """One scatter, with ten at row 1 across replicas, and with `rid + 10` at row `rid` in replicas."""

    @case(f"scatter xrep {agg} {method}")
    def _(w: World) -> Any:
        v = write(w, [1.0, 2.0, 3.0], agg=agg)
        with w.s.scope():
            getattr(v, method)(rx.IndexedSlices(tensor([10.0]), tensor([1]), (3,)))
        return v

    @case(f"scatter replica {agg} {method} (idx=rid,val=rid+10)")
    def _(w: World) -> Any:
        def step(v: Any) -> None:
            row, value = jnp.reshape(jnp.asarray(rid()), (1,)), jnp.reshape(ridf() + 10.0, (1,))
            getattr(v, method)(rx.IndexedSlices(value, row, (3,)))

        return after(w, step, [1.0, 2.0, 3.0], agg=agg)


for _agg in AGGREGATIONS:
    for _method in SCATTERS:
        add_scatter(_agg, _method)


def scatter_on_read(w: World, method: str) -> Any:
    """An ON_READ variable after a scatter in every replica."""
    ten = rx.IndexedSlices(tensor([10.0]), tensor([1]), (3,))
    return after(w, lambda v: getattr(v, method)(ten), [1.0, 2.0, 3.0], "ON_READ")


case("scatter ON_READ replica scatter_add", lambda w: scatter_on_read(w, "scatter_add"))
case("scatter ON_READ replica scatter_update", lambda w: scatter_on_read(w, "scatter_update"))

case.section("vars created outside scope, used in run")


@case("outside var read in run")
def _(w: World) -> Any:
    v = rx.Variable(1.0)
    return [w.run(lambda: v + 1.0), type_name(v)]


@case("outside var assign_add(1.) in run eager")
def _(w: World) -> Any:
    v = rx.Variable(1.0)
    w.run(lambda: v.assign_add(1.0))
    return v


@case("outside var assign_add(1.) in tf.function{run}")
def _(w: World) -> Any:
    v = rx.Variable(1.0)
    rx.function(lambda: w.run(lambda: v.assign_add(1.0)))()
    return v


@case("outside var w/ MEAN assign(rid) in run")
def _(w: World) -> Any:
    v = rx.Variable(1.0, aggregation=rx.VariableAggregation.MEAN)
    w.run(lambda: v.assign(ridf()))
    return v


case("outside var as arg", lambda w: w.run(type_name, args=(rx.Variable(1.0),)))


@case("extended.update of outside var")
def _(w: World) -> Any:
    v = rx.Variable(1.0)
    with w.s.scope():
        return w.e.update(v, lambda x: x.assign(2.0))


@case("reduce_to destinations=outside var")
def _(w: World) -> Any:
    v = rx.Variable(1.0)
    with w.s.scope():
        return w.e.reduce_to("SUM", one_two(w), v)


def foreign(strategy: Any, agg: str = "NONE") -> Any:
    """A variable that belongs to `strategy`."""
    with strategy.scope():
        return rx.Variable(1.0, aggregation=rx.VariableAggregation[agg])


@case("var of ANOTHER strategy read in run")
def _(w: World) -> Any:
    v = foreign(mirrored("CPU:0"))
    return w.run(lambda: v + 1.0)


@case("var of ANOTHER strategy assigned in run")
def _(w: World) -> Any:
    v = foreign(mirrored("CPU:0"), "SUM")
    w.run(lambda: v.assign_add(1.0))
    return v


@case("var of an equal-devices strategy assigned in run")
def _(w: World) -> Any:
    v = foreign(mirrored(), "SUM")
    w.run(lambda: v.assign_add(1.0))
    return v


case.section("gradients")


@case("tape.gradient wrt mirrored var in replica (untrainable watched)")
def _(w: World) -> Any:
    v = write(w, 3.0, agg="MEAN")
    return w.run(lambda: jax.grad(lambda x: x * x * (ridf() + 1.0))(v.value))


@case("tape.gradient wrt trainable mirrored var in replica")
def _(w: World) -> Any:
    v = w.variable(3.0)
    return w.run(lambda: jax.grad(lambda x: x * x * (ridf() + 1.0))(v.value))


@case("tape.gradient in cross-replica (outside)")
def _(w: World) -> Any:
    return jax.grad(lambda x: x * x)(w.variable(3.0).value)


@case("embedding gradient type in replica")
def _(w: World) -> Any:
    v = w.variable([[1.0], [2.0], [3.0]])
    return w.run(lambda: jax.grad(lambda x: jnp.sum(x[jnp.array([0, 2])]))(v.value))
