"""`extended`: update and friends, containers, values from functions. Also scopes and construction."""

from __future__ import annotations

import copy
import pickle
import threading
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import replicax as rx

from .describe import describe, type_name
from .world import DEVICES, Cases, World, context, merge, mirrored, ridf, tensor

LEFT_OUT = {
    "device inside update fn": "TensorFlow's device strings",
    "in a tf.Graph": "JAX has no graphs to enter",
    "scope then tf.Graph inside": "JAX has no graphs to enter",
    "outer variable_creator_scope then scope": "TensorFlow's variable creators",
    "variable_creator_scope inside scope": "TensorFlow's variable creators",
    "exit scope inside a creator scope": "TensorFlow's variable creators",
    "TPUStrategy() no tpu": "needs a TPU; no part of this suite",
    "repr(strategy)": "Python's default, with the address",
    "Strategy(extended) base construct": "how TensorFlow pairs a strategy with its twin",
}

case = Cases()


def one_two(w: World) -> Any:
    """1 and 2 on the replicas."""
    return w.per_replica(lambda i: tensor(float(i) + 1.0))


def total(w: World) -> Any:
    """Their sum, reduced to a variable's devices."""
    return w.e.reduce_to("SUM", one_two(w), w.variable(0.0))


case.section("update")


def updated(
    fn: Callable[..., Any], *args: Callable[[World], Any], **options: Any
) -> Callable[[World], Any]:
    """A case: what `update(variable, fn, args)` gives."""

    def run(w: World) -> Any:
        return w.e.update(w.variable(0.0), fn, args=tuple(arg(w) for arg in args), **options)

    return run


def both(
    fn: Callable[..., Any], *args: Callable[[World], Any], **kwargs: Callable[[World], Any]
) -> Callable[[World], Any]:
    """A case: what `update(variable, fn, args, kwargs)` gives, and the variable after it."""

    def run(w: World) -> Any:
        v = w.variable(0.0)
        options = {key: arg(w) for key, arg in kwargs.items()}
        return [w.e.update(v, fn, args=tuple(arg(w) for arg in args), kwargs=options), v]

    return run


def write(x: Any, y: Any) -> Any:
    """An update function: assign the argument."""
    return x.assign(y)


case("group=True returns", updated(lambda x: x.assign(1.0)))
case("group=False returns", updated(lambda x: x.assign(1.0), group=False))
case("group=True fn returns None", updated(lambda x: None))
case("group=True fn returns tuple", updated(lambda x: (x.assign(1.0), 3)))
case("group=False fn returns tuple", updated(lambda x: (x.assign(1.0), tensor(2.0)), group=False))
case("group=False fn returns None", updated(lambda x: None, group=False))
case("type of var inside fn", updated(type_name))
case("args Mirrored unwrapped", both(write, total))
case(
    "args mirrored var unwrapped type",
    updated(lambda x, y: type_name(y), lambda w: w.variable(0.0, agg="SUM")),
)
case("args PerReplica", both(write, one_two))
case("kwargs PerReplica", both(write, y=one_two))
case(
    "args nested dict with Mirrored",
    updated(lambda x, y: x.assign(y["k"]), lambda w: {"k": total(w)}),
)
case(
    "args plain tensor / python",
    updated(lambda x, a, b: x.assign(a + b), lambda _: tensor(1.0), lambda _: 2.0),
)
case("update of tensor (not var)", lambda w: w.e.update(tensor(1.0), lambda x: x))
case("update of PerReplica", lambda w: w.e.update(one_two(w), lambda x: x))
case("fn raising", updated(lambda x: 1 / 0))
case("fn args not tuple", lambda w: w.e.update(w.variable(0.0), lambda x, y: x, args=1.0))
case("run inside update", lambda w: w.e.update(w.variable(0.0), lambda x: w.s.run(lambda: 1)))


@case("update ON_READ var")
def _(w: World) -> Any:
    v = w.variable(0.0, "ON_READ", "SUM")
    return [w.e.update(v, lambda x: x.assign(3.0)), v]


@case("assign in update fn on SAME closed-over mirrored var")
def _(w: World) -> Any:
    v = w.variable(0.0)
    return [w.e.update(v, lambda x: v.assign(9.0)), v]


@case("assign in update fn on OTHER mirrored var")
def _(w: World) -> Any:
    v, u = w.variable(0.0), w.variable(0.0, agg="SUM")
    return [w.e.update(v, lambda x: u.assign(9.0)), u]


@case("read mirrored var inside update fn")
def _(w: World) -> Any:
    v, u = w.variable(0.0), w.variable(9.0, agg="SUM")
    return w.e.update(v, lambda x: u.read_value())


@case("read ON_READ var inside update fn")
def _(w: World) -> Any:
    v, u = w.variable(0.0), w.variable(3.0, "ON_READ", "SUM")
    return w.e.update(v, lambda x: u.read_value())


@case("nested update inside update")
def _(w: World) -> Any:
    v, u = w.variable(0.0), w.variable(0.0, agg="SUM")
    return w.e.update(v, lambda x: w.e.update(u, lambda y: y.assign(4.0)))


@case("reduce inside update")
def _(w: World) -> Any:
    x = one_two(w)
    return w.e.update(w.variable(0.0), lambda _: w.s.reduce("SUM", x, axis=None))


@case("update in tf.function in scope")
def _(w: World) -> Any:
    v = w.variable(0.0)
    return [rx.function(lambda: w.e.update(v, lambda x: x.assign(6.0)))(), v]


@case("update inside merge_fn, group False")
def _(w: World) -> Any:
    v = w.variable(0.0)

    def merged(strategy: Any) -> Any:
        return strategy.extended.update(v, lambda x: x.assign(7.0), group=False)

    return w.run(lambda: merge(merged))


@case("update in replica ctx (auto merge_call)")
def _(w: World) -> Any:
    v = w.variable(0.0)
    eight = tensor(8.0)
    return [w.run(lambda: w.e.update(v, write, args=(eight,))), v]


@case("update in replica ctx args PerReplica values differ")
def _(w: World) -> Any:
    v = w.variable(0.0)
    return [w.run(lambda: w.e.update(v, write, args=(ridf(),))), v]


@case("update in another strategy scope")
def _(w: World) -> Any:
    v = w.variable(0.0)
    with mirrored().scope():
        return w.e.update(v, lambda x: x.assign(1.0))


case.section("update_non_slot / non_slot_devices")


def non_slot(
    fn: Callable[..., Any], *args: Callable[[World], Any], **options: Any
) -> Callable[[World], Any]:
    """A case: `update_non_slot` on the devices for a variable's non-slot state."""

    def run(w: World) -> Any:
        devices = w.e.non_slot_devices([w.variable(0.0)])
        return w.e.update_non_slot(devices, fn, args=tuple(arg(w) for arg in args), **options)

    return run


case("non_slot_devices([v])", lambda w: str(w.e.non_slot_devices([w.variable(0.0)])))
case("non_slot_devices(None)", lambda w: str(w.e.non_slot_devices(None)))
case("update_non_slot", non_slot(lambda: tensor(1.0)))
case("update_non_slot group=False", non_slot(lambda x: x + 1, lambda _: tensor(1.0), group=False))
case("update_non_slot Mirrored arg", non_slot(lambda x: x + 1, total))
case("update_non_slot PerReplica arg", non_slot(lambda x: x + 1, one_two))
case("update_non_slot var arg", non_slot(lambda x: x.assign(3.0), lambda w: w.variable(0.0)))
case(
    "update_non_slot with colocate_with=[v]",
    lambda w: w.e.update_non_slot([w.variable(0.0)], lambda: 1),
)


@case("update_non_slot in replica")
def _(w: World) -> Any:
    v = w.variable(0.0)
    return w.run(lambda: w.e.update_non_slot(w.e.non_slot_devices([v]), lambda: 1))


case.section("colocate_vars_with")


def colocated(with_what: Callable[[World], Any], *, in_scope: bool = True) -> Callable[[World], Any]:
    """A case: a variable made under `colocate_vars_with`."""

    def run(w: World) -> Any:
        target = with_what(w)
        with w.scope(when=in_scope), w.e.colocate_vars_with(target):
            return rx.Variable(2.0)

    return run


case("in scope", colocated(lambda w: w.variable(0.0)))
case("outside scope", colocated(lambda w: w.variable(0.0), in_scope=False))
case("with an OUTSIDE var", colocated(lambda _: rx.Variable(1.0)))
case("with a device string", colocated(lambda _: "CPU:0"))
case("with a Mirrored tensor", colocated(total))


@case("with a same-scope fresh var")
def _(w: World) -> Any:
    with w.s.scope(), w.e.colocate_vars_with(rx.Variable(1.0)):
        return 1


@case("in replica ctx")
def _(w: World) -> Any:
    v = w.variable(0.0)

    def f() -> Any:
        with w.e.colocate_vars_with(v):
            return rx.Variable(1.0)

    return w.run(f)


case.section("value_container / variable_created_in_scope / local_results")


def contained(select: Callable[[World, Any], Any]) -> Callable[[World], Any]:
    """A case: whether the container of something about a variable is that variable."""

    def run(w: World) -> Any:
        v = w.variable(0.0)
        return w.e.value_container(select(w, v)) is v

    return run


case(
    "value_container(component of mirrored var)",
    contained(lambda w, v: w.s.experimental_local_results(v)[0]),
)
case("value_container(component 1)", contained(lambda w, v: w.s.experimental_local_results(v)[-1]))
case("value_container(mirrored var)", contained(lambda w, v: v))


@case("value_container(plain var)")
def _(w: World) -> Any:
    v = rx.Variable(1.0)
    return w.e.value_container(v) is v


@case("value_container(tensor from run)")
def _(w: World) -> Any:
    x = w.run(lambda: tensor(1.0))
    component = w.s.experimental_local_results(x)[0]
    return [type_name(w.e.value_container(component)), w.e.value_container(x) is x]


@case("value_container in replica")
def _(w: World) -> Any:
    v = w.variable(0.0)
    return w.run(lambda: w.e.value_container(v) is v)


case("value_container(3)", lambda w: w.e.value_container(3))
case(
    "variable_created_in_scope(component)",
    lambda w: w.e.variable_created_in_scope(w.s.experimental_local_results(w.variable(0.0))[0]),
)
case("variable_created_in_scope(tensor)", lambda w: w.e.variable_created_in_scope(tensor(1.0)))
case("variable_created_in_scope(3)", lambda w: w.e.variable_created_in_scope(3))
case("local_results(tensor)", lambda w: w.s.experimental_local_results(tensor(1.0)))
case("local_results(3)", lambda w: w.s.experimental_local_results(3))
case("local_results(None)", lambda w: w.s.experimental_local_results(None))
case("local_results(PerReplica)", lambda w: w.s.experimental_local_results(one_two(w)))
case("local_results(dict of PerReplica)", lambda w: w.s.experimental_local_results({"a": one_two(w)}))
case("local_results(Mirrored)", lambda w: w.s.experimental_local_results(total(w)))
case(
    "local_results(var)",
    lambda w: list(map(type_name, w.s.experimental_local_results(w.variable(0.0)))),
)
case("local_results inside scope(var)", lambda w: w.s.experimental_local_results(w.variable(3.0)))

case.section("distribute_values_from_function")


def made(value_fn: Callable[..., Any]) -> Callable[[World], Any]:
    """A case: `distribute_values_from_function`."""
    return lambda w: w.s.experimental_distribute_values_from_function(value_fn)


case("returns dict", made(lambda c: {"a": tensor(float(c.replica_id_in_sync_group))}))
case("returns tuple", made(lambda c: (1, c.replica_id_in_sync_group)))
case("returns None", made(lambda _: None))
case("returns numpy", made(lambda c: np.ones([2]) * c.replica_id_in_sync_group))
case("returns string", made(lambda c: f"x{c.replica_id_in_sync_group}"))
case("returns different shapes", made(lambda c: jnp.ones([c.replica_id_in_sync_group + 1])))
case(
    "ctx repr/type",
    made(
        lambda c: (
            type(c).__name__ + str((type(c.replica_id_in_sync_group).__name__, c.num_replicas_in_sync))
        )
    ),
)
case("value_fn raises", made(lambda _: 1 / 0))
case("value_fn arity", made(lambda: 1))
case("device of default tensor", made(lambda _: tensor(1.0)))
case("inside replica", lambda w: w.run(lambda: w.per_replica(lambda i: i)))
case("python + on PerReplica", lambda w: one_two(w) + 1)
case("PerReplica * python", lambda w: one_two(w) * 2)
case("tf.add(PerReplica)", lambda w: jnp.add(one_two(w), 1.0))
case("convert PerReplica to tensor", lambda w: jnp.asarray(one_two(w)))
case("PerReplica.values[0]", lambda w: one_two(w).values[0])
case("PerReplica indexing P[0]", lambda w: one_two(w)[0])
case("len(PerReplica)", lambda w: len(one_two(w)))
case("bool(PerReplica)", lambda w: bool(one_two(w)))
case("repr(PerReplica)", lambda w: repr(one_two(w)))
case("str(PerReplica)", lambda w: str(one_two(w)))
case("isinstance public DistributedValues", lambda w: isinstance(one_two(w), rx.DistributedValues))
case("np.asarray(PerReplica)", lambda w: str(np.asarray(one_two(w)).dtype))
case("PerReplica.numpy()", lambda w: np.asarray(one_two(w)) if w.n == 1 else one_two(w).numpy())
case("PerReplica passed thru tf.function identity", lambda w: rx.function(lambda x: x)(one_two(w)))
case(
    "PerReplica thru tf.nest.map_structure",
    lambda w: jax.tree.map(type_name, {"a": one_two(w)}, is_leaf=lambda x: isinstance(x, rx.PerReplica)),
)
case("Mirrored: m+1", lambda w: total(w) + 1.0)
case("Mirrored repr", lambda w: repr(total(w)))


@case("same object each")
def _(w: World) -> Any:
    one = tensor(1.0)
    return w.per_replica(lambda _: one)


@case("inside scope")
def _(w: World) -> Any:
    with w.s.scope():
        return w.per_replica(lambda i: i)


case.section("scope rules")


@case("re-enter same scope")
def _(w: World) -> Any:
    with w.s.scope(), w.s.scope():
        return context()


@case("nested different strategy")
def _(w: World) -> Any:
    with w.s.scope(), mirrored().scope():
        return context()


@case("s2.run inside s.scope")
def _(w: World) -> Any:
    other = mirrored()
    with w.s.scope():
        return other.run(lambda: 1)


@case("s2.reduce inside s.scope")
def _(w: World) -> Any:
    other, x = mirrored(), one_two(w)
    with w.s.scope():
        return other.reduce("SUM", x, axis=None)


@case("reuse the scope object sequentially")
def _(w: World) -> Any:
    scope = w.s.scope()
    with scope:
        pass
    with scope:
        return context()


@case("re-enter same scope OBJECT")
def _(w: World) -> Any:
    scope = w.s.scope()
    with scope, scope:
        return context()


@case("exit out of order")
def _(w: World) -> Any:
    first, second = w.s.scope(), w.s.scope()
    first.__enter__()
    second.__enter__()
    for scope in (first, second):
        scope.__exit__(None, None, None)
    return context()


@case("exit twice")
def _(w: World) -> Any:
    scope = w.s.scope()
    scope.__enter__()
    scope.__exit__(None, None, None)
    scope.__exit__(None, None, None)


@case("exit scope inside replica fn")
def _(w: World) -> Any:
    scope = w.s.scope()
    scope.__enter__()
    try:
        w.run(lambda: scope.__exit__(None, None, None))
    finally:
        if rx.has_strategy():
            scope.__exit__(None, None, None)


@case("scope entered in worker thread")
def _(w: World) -> Any:
    seen: list[str] = []
    thread = threading.Thread(target=lambda: seen.append(describe(w.variable(1.0))))
    thread.start()
    thread.join()
    return seen


@case("scope held open by a generator leaks to caller")
def _(w: World) -> Any:
    def generator() -> Any:
        with w.s.scope():
            yield context()
            yield context()

    held = generator()
    inside, outside = next(held), context()
    held.close()
    return [inside, outside, context()]


@case("exit without enter")
def _(w: World) -> Any:
    w.s.scope().__exit__(None, None, None)


@case("exception leaves scope")
def _(w: World) -> Any:
    try:
        with w.s.scope():
            raise KeyError("x")
    except KeyError:
        return context()


@case("experimental_set_strategy(s)")
def _(w: World) -> Any:
    rx.experimental_set_strategy(w.s)
    try:
        return [context(), rx.Variable(1.0), rx.has_strategy()]
    finally:
        rx.experimental_set_strategy(None)


@case("experimental_set_strategy in scope")
def _(w: World) -> Any:
    with w.s.scope():
        rx.experimental_set_strategy(mirrored())


@case("tf.device outside scope + var")
def _(w: World) -> Any:
    with jax.default_device(jax.devices()[0]), w.s.scope():
        return rx.Variable(1.0)


@case("tf.device inside scope + var")
def _(w: World) -> Any:
    with w.s.scope(), jax.default_device(jax.devices()[0]):
        return rx.Variable(1.0)


case.section("constructor")


def devices_of(strategy: Any) -> list[str]:
    """The devices a strategy computes on and those it keeps variables on."""
    extended = strategy.extended
    return [str(list(extended.worker_devices)), str(tuple(extended.parameter_devices))]


case("devices=[]", lambda _: rx.MirroredStrategy([]))
case("duplicate devices", lambda _: mirrored("CPU:0", "CPU:0"))
case("nonexistent device", lambda _: mirrored("CPU:9").run(lambda: tensor(1.0)))
case("gpu device on cpu box", lambda _: mirrored("GPU:0").extended.worker_devices)
case("mixed gpu+cpu", lambda _: mirrored("CPU:0", "GPU:0"))
case("string not list", lambda _: rx.MirroredStrategy("CPU:0").num_replicas_in_sync)
case(
    "'cpu:0' / 'CPU:0' / '/device:CPU:0' forms",
    lambda _: str(mirrored("/cpu:0", "/device:CPU:1").extended.worker_devices),
)
case("OneDevice bad", lambda _: rx.OneDeviceStrategy("CPU:9").run(lambda: tensor(1.0)))
case("OneDevice None", lambda _: rx.OneDeviceStrategy(None))
case("CentralStorage()", lambda _: devices_of(rx.CentralStorageStrategy()))
case(
    "CentralStorage compute only",
    lambda _: devices_of(rx.CentralStorageStrategy(compute_devices=list(DEVICES))),
)
case(
    "CentralStorage param not in computes",
    lambda _: devices_of(rx.CentralStorageStrategy(["CPU:0"], "CPU:1")),
)
case("copy.copy(strategy)", lambda w: copy.copy(w.s) is w.s)
case("deepcopy(strategy)", lambda w: copy.deepcopy(w.s) is w.s)
case("pickle(strategy)", lambda w: pickle.dumps(w.s))
case("RunOptions()", lambda _: rx.RunOptions())
case("InputOptions()", lambda _: rx.InputOptions())
case("InputOptions(bad)", lambda _: rx.InputOptions(experimental_replication_mode="x"))
case(
    "InputContext.get_per_replica_batch_size not divisible",
    lambda _: rx.InputContext(2, 1, 4).get_per_replica_batch_size(9),
)


@case("InputContext repr")
def _(_: World) -> Any:
    told = rx.InputContext(2, 1, 4)
    return [repr(told), str(told), told.get_per_replica_batch_size(8)]


@case("devices=None with logical cpus")
def _(_: World) -> Any:
    devices = rx.MirroredStrategy().extended.worker_devices
    assert len(devices) == jax.device_count()  # The recorded machine had two.
    return str(tuple(devices[:2]))
