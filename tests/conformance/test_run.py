"""`strategy.run`: who gets which arguments, and how results become one value."""

import collections
import threading
import traceback

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import replicax as rx

from .helpers import close, each, parts, rid, rows, variable

Point = collections.namedtuple("Point", ["x", "y"])


def test_arguments_are_split(strategy, mode):
    n = strategy.num_replicas_in_sync
    a, b = each(strategy, rows), each(strategy, lambda i: np.float32(10 * i))
    step = mode(
        lambda a, b, c: strategy.run(
            lambda args, *, scale, shift: args["a"][0] * scale + args["b"] + shift,
            args=({"a": (a,), "b": b},),
            kwargs={"scale": 2.0, "shift": c},
        )
    )
    found = step(a, b, jnp.float32(5))
    close(parts(strategy, found), [rows(i) * 2 + 10 * i + 5 for i in range(n)])


def test_other_arguments_are_the_same_for_all(strategy):
    marker = object()
    array = np.arange(3.0)
    seen = []
    strategy.run(lambda x, y, name: seen.append((x, y, name)), args=[marker, array, "a"])
    assert len(seen) == strategy.num_replicas_in_sync
    assert all(x is marker and y is array and name == "a" for x, y, name in seen)


def test_a_mirrored_value_arrives_as_the_copy(strategy, mode):
    x = strategy.extended.broadcast_to(jnp.float32(3), variable(strategy, 0.0))
    step = mode(lambda x: strategy.run(lambda x: x + rid(), args=(x,)))
    close(parts(strategy, step(x)), 3 + np.arange(strategy.num_replicas_in_sync))


@pytest.mark.parametrize("device", [0, 7])
def test_an_array_may_come_from_any_device(strategy, mode, device):
    x = jax.device_put(np.float32(3), jax.devices()[device])
    step = mode(lambda x: strategy.run(lambda x: x + rid(), args=(x,)))
    close(parts(strategy, step(x)), 3 + np.arange(strategy.num_replicas_in_sync))


def test_the_result_of_one_run_goes_into_the_next(strategy, mode):
    def step():
        first = strategy.run(lambda: {"id": rid()})
        return strategy.run(lambda x: x["id"] * 10, args=(first,))

    close(parts(strategy, mode(step)()), 10 * np.arange(strategy.num_replicas_in_sync))


def test_arrays_become_per_replica(strategy, mode):
    result = mode(lambda: strategy.run(lambda: jnp.zeros(2)))()
    several = strategy.num_replicas_in_sync > 1
    assert isinstance(result, rx.PerReplica if several else jax.Array)
    assert isinstance(result, rx.DistributedValues) == several


def test_structures_are_kept(strategy, mode):
    def replica_fn():
        i = rid()
        ordered = collections.OrderedDict(z=i + 3, a=i + 4)
        return (i, [i + 1]), Point(i + 2, None), ordered, "name", {}, 7

    result = mode(lambda: strategy.run(replica_fn))()
    (first, (second,)), point, ordered, name, empty, number = result
    ids = np.arange(strategy.num_replicas_in_sync)
    assert isinstance(point, Point) and point.y is None
    assert isinstance(ordered, collections.OrderedDict) and list(ordered) == ["z", "a"]
    assert (name, empty, number) == ("name", {}, 7)
    found = (first, second, point.x, ordered["z"], ordered["a"])
    for offset, leaf in enumerate(found):
        close(parts(strategy, leaf), ids + offset)


def test_one_object_stays_that_object(strategy):
    shared, thing = jnp.ones(3), object()
    result = strategy.run(lambda: (shared, thing, None, "text"))
    assert result[0] is shared and result[1] is thing
    assert result[2:] == (None, "text")


def test_equal_objects_stay_apart(several):
    n = several.num_replicas_in_sync
    result = several.run(lambda: (jnp.ones(2), {1} | set(), np.zeros(1), int("9" * 20)))
    assert all(isinstance(leaf, rx.PerReplica) for leaf in result)
    assert result[1].values == ({1},) * n


def test_replicas_may_return_different_kinds(several):
    result = several.run(lambda: None if rid() == 0 else (jnp.ones(2) if rid() == 1 else "text"))
    assert isinstance(result, rx.PerReplica)
    assert result.values[0] is None
    close(result.values[1], [1, 1])


def test_a_tuple_where_the_first_replica_has_an_array(several):
    result = several.run(lambda: jnp.float32(0) if rid() == 0 else (1, 2))
    assert result.values[1] == (1, 2)


@pytest.mark.parametrize(
    ("first", "other"),
    [({"a": 1}, {"b": 1}), ((1, 2), (1, 2, 3)), ((1, 2), [1, 2]), ([], [1])],
    ids=["keys", "lengths", "tuple-list", "empty"],
)
def test_different_structures(several, first, other):
    for error in (AssertionError, ValueError):
        with pytest.raises(error, match=r"[Rr]eplica 1.*different structures"):
            several.run(lambda: first if rid() == 0 else other)


def test_a_variable_is_returned_as_itself(strategy, mode):
    v = variable(strategy, 1.0)
    result = mode(lambda: strategy.run(lambda v: (v, [v]), args=(v,)))()
    assert result[0] is v and result[1][0] is v


def test_a_variable_arrives_as_itself(strategy, mode):
    v = variable(strategy, 1.0)
    seen = []
    mode(lambda: strategy.run(lambda x: seen.append(x is v), args=(v,)))()
    assert seen and all(seen)


def test_results_are_on_their_devices(placed, mode):
    result = mode(lambda: placed.run(lambda: jnp.zeros(2) + rid()))()
    found = [device for part in placed.local_results(result) for device in part.devices()]
    assert [f"CPU:{device.id}" for device in found] == list(placed.extended.worker_devices)


def test_eager_replicas_run_in_order_in_this_thread(strategy):
    seen = []
    strategy.run(lambda: seen.append((int(rid()), threading.get_ident())))
    expected = range(strategy.num_replicas_in_sync)
    assert seen == [(i, threading.get_ident()) for i in expected]


def test_eager_replicas_are_plain_python(strategy):
    def replica_fn(x):
        total = 0.0
        for element in x:
            total += float(element) if element > 1 else 100.0
        return total + rid().item()

    n = strategy.num_replicas_in_sync
    found = strategy.run(replica_fn, args=(each(strategy, lambda i: [0.0, i + 2.0]),))
    close(parts(strategy, found), [102 + 2 * i for i in range(n)])


def test_compiled_replicas_are_traced_without_regard_to_their_number(strategy):
    calls = []
    step = rx.function(lambda: strategy.run(lambda: calls.append(1)))
    step()
    traced = len(calls)
    step()
    assert traced == len(calls) <= 2


def test_an_error_in_a_replica(strategy):
    started = []

    def failing_replica_fn():
        started.append(1)
        raise KeyError("the user's own")

    with pytest.raises(KeyError, match="the user's own") as caught:
        strategy.run(failing_replica_fn)
    assert started == [1]
    frames = traceback.extract_tb(caught.value.__traceback__)
    assert frames[-1].name == "failing_replica_fn"


def test_a_compiled_replica_function(strategy):
    """`strategy.run(rx.function(f))` compiles, with the same results."""
    calls = []

    @rx.function
    def replica_fn(x, y=1):
        calls.append(1)
        return {"x": x * y, "id": rid()}

    x = each(strategy, rows)
    n = strategy.num_replicas_in_sync
    for _ in range(3):
        result = strategy.run(replica_fn, args=(x,), kwargs={"y": 2})
    assert len(calls) <= 2
    close(parts(strategy, result["x"]), [2 * rows(i) for i in range(n)])
    close(parts(strategy, result["id"]), range(n))


def test_a_compiled_function_inside_a_replica(strategy, mode):
    double = rx.function(lambda x: rx.get_replica_context().all_reduce("SUM", 2 * x))
    found = mode(lambda: strategy.run(lambda: double(rid() + 1.0)))()
    n = strategy.num_replicas_in_sync
    close(parts(strategy, found), [n * (n + 1)] * n)


@pytest.mark.parametrize("name", ["run", "experimental_run_v2"])
def test_spellings(strategy, mode, name):
    found = mode(lambda: getattr(strategy, name)(lambda x, y: x + y + rid(), (1,), {"y": 2}))()
    close(parts(strategy, found), 3 + np.arange(strategy.num_replicas_in_sync))


def test_options_are_honoured(several, mode):
    static = rx.RunOptions(experimental_enable_dynamic_batch_size=False)
    step = mode(lambda x: several.run(lambda x: x.sum(), args=(x,), options=static))
    n = several.num_replicas_in_sync
    close(parts(several, step(each(several, rows))), [rows(i).sum() for i in range(n)])
    with pytest.raises(ValueError, match="experimental_enable_dynamic_batch_size"):
        step(each(several, lambda i: np.zeros(i + 1)))


# Values.


def test_local_results(strategy, mode):
    n = strategy.num_replicas_in_sync
    result = mode(lambda: strategy.run(lambda: {"id": rid(), "none": None}))()
    found = strategy.local_results(result)
    assert isinstance(found, tuple) and len(found) == n
    close([part["id"] for part in found], range(n))
    assert [part["none"] for part in found] == [None] * n
    assert strategy.experimental_local_results(5) == (5,)
    assert strategy.local_results({"a": 1}) == ({"a": 1},)


def test_local_results_of_a_variable(strategy):
    v = variable(strategy, [1.0, 2.0])
    found = strategy.local_results(v)
    copies = strategy.num_replicas_in_sync if isinstance(v, rx.DistributedValues) else 1
    assert len(found) == copies
    for copy in found:
        close(copy, [1, 2])
        assert strategy.extended.value_container(copy) is v


def test_values_from_a_function(strategy):
    contexts = []

    def value_fn(context):
        assert isinstance(context, rx.ValueContext)
        contexts.append((context.replica_id_in_sync_group, context.num_replicas_in_sync))
        return {"id": context.replica_id_in_sync_group}

    n = strategy.num_replicas_in_sync
    value = strategy.experimental_distribute_values_from_function(value_fn)
    assert contexts == [(i, n) for i in range(n)]
    assert [part["id"] for part in strategy.local_results(value)] == list(range(n))


def test_values_from_a_function_are_always_wrapped():
    for strategy in (rx.MirroredStrategy(["CPU:0"]), rx.MirroredStrategy(["CPU:0", "CPU:1"])):
        value = strategy.distribute_values_from_function(lambda ctx: "same")
        assert isinstance(value, rx.PerReplica)
        assert value.values == ("same",) * strategy.num_replicas_in_sync
    for strategy in (rx.OneDeviceStrategy("CPU:0"), rx.get_strategy()):
        assert strategy.distribute_values_from_function(lambda ctx: "plain") == "plain"


def test_values_may_be_python_numbers(strategy, mode):
    x = strategy.distribute_values_from_function(lambda ctx: ctx.replica_id_in_sync_group + 0.5)
    found = mode(lambda x: strategy.run(lambda x: x * 2, args=(x,)))(x)
    close(parts(strategy, found), 2 * np.arange(strategy.num_replicas_in_sync) + 1)


def test_per_replica_is_a_pytree(strategy, mode):
    x = each(strategy, rows)
    y = jax.tree.map(lambda leaf: leaf + 1, mode(lambda x: {"x": x})(x))["x"]
    close(parts(strategy, y), [rows(i) + 1 for i in range(strategy.num_replicas_in_sync)])


def test_reprs(two, mode):
    result = mode(lambda: two.run(lambda: jnp.float32(1) + rid()))()
    lines = ["  0: Array(1., dtype=float32)", "  1: Array(2., dtype=float32)"]
    assert repr(result) == str(result) == "PerReplica:{\n" + ",\n".join(lines) + "\n}"
    total = mode(lambda x: two.extended.reduce_to("SUM", x, x))(result)
    lines = [f"  {i}: Array(3., dtype=float32)" for i in range(2)]
    assert repr(total) == str(total) == "Mirrored:{\n" + ",\n".join(lines) + "\n}"


def test_values_made_by_hand(two, mode):
    x = rx.PerReplica([jnp.float32(1), jnp.float32(2)])
    close(mode(lambda x: two.reduce("SUM", x, axis=None))(x), 3)
    found = mode(lambda x: two.run(lambda x: x + 1, args=(x,)))(x)
    close(parts(two, found), [2, 3])
    m = rx.Mirrored([jnp.float32(4), jnp.float32(4)])
    close(parts(two, mode(lambda m: two.run(lambda m: m + rid(), args=(m,)))(m)), [4, 5])


def test_a_mirrored_value_computes_like_its_copy(two):
    total = two.extended.reduce_to("SUM", each(two, rows), each(two, rows))
    expected = rows(0) + rows(1)
    assert isinstance(total, rx.Mirrored) and isinstance(total, rx.DistributedValues)
    close(total + 1, expected + 1)
    close(2 - total, 2 - expected)
    close(np.float32(2) * total, 2 * expected)
    close(jnp.sum(total), expected.sum())
    close(total[1], expected[1])
    assert total.shape == (2, 3)


def test_values_that_functions_of_jax_brought_to_the_host_and_back(strategy):
    n = strategy.num_replicas_in_sync
    for shape in ((), (2, 3)):
        x = strategy.run(lambda shape=shape: jnp.full(shape, rid(), jnp.float32))
        expected = [np.full(shape, i) for i in range(n)]
        host = jax.device_get(x)
        for value in (host, jax.tree.map(jnp.asarray, host), jax.tree.map(lambda a: a + 0, x)):
            close(parts(strategy, value), expected)
            close(parts(strategy, strategy.run(lambda a: a + 1, args=(value,))), np.array(expected) + 1)
            close(strategy.reduce("SUM", value, axis=None), np.sum(expected, axis=0))
        # Objects that are not arrays can be printed.
        for value in (jax.tree.map(jnp.shape, x), jax.eval_shape(lambda a: a, x)):
            assert repr(value)
