"""`strategy.extended`: the lower-level API."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import replicax as rx
from replicax.strategies._older_names import OLDER_NAMES

from .helpers import ON_READ, close, each, parts, rid, rows, variable

REDUCE = {"SUM": np.sum, "MEAN": np.mean}


def stack(strategy):
    return np.stack([rows(i) for i in range(strategy.num_replicas_in_sync)])


# Properties of the strategy.


def test_devices():
    one = rx.OneDeviceStrategy("CPU:1").extended
    mirrored = rx.MirroredStrategy(["CPU:2", "CPU:0"]).extended
    central = rx.CentralStorageStrategy(["CPU:0", "CPU:1"], "CPU:3").extended
    assert one.worker_devices == one.parameter_devices == ("CPU:1",)
    assert mirrored.worker_devices == mirrored.parameter_devices == ("CPU:2", "CPU:0")
    assert central.worker_devices == ("CPU:0", "CPU:1")
    assert central.parameter_devices == ("CPU:3",)


def test_default_strategy_has_no_devices():
    extended = rx.get_strategy().extended
    for name in ("worker_devices", "parameter_devices"):
        with pytest.raises(RuntimeError, match=name):
            getattr(extended, name)


def test_properties(strategy, two):
    extended = strategy.extended
    assert isinstance(extended, rx.StrategyExtended)
    assert extended is strategy.extended
    assert extended.experimental_require_static_shapes is False
    assert extended.should_checkpoint is True
    assert extended.should_save_summary is True
    if not isinstance(strategy, rx.MultiWorkerMirroredStrategy | rx.TPUStrategy):
        assert strategy.cluster_resolver is None
    assert isinstance(strategy, rx.Strategy)
    assert two.extended.experimental_between_graph is False
    assert two.extended.experimental_should_init is True
    central = rx.CentralStorageStrategy(["CPU:0", "CPU:1"], "CPU:0")
    assert central.extended.experimental_between_graph is True


# Reductions.


@pytest.mark.parametrize("op", ["SUM", "MEAN"])
def test_reduce_to_a_variable(strategy, mode, op):
    v = variable(strategy, np.zeros((2, 3)))
    found = mode(lambda x: strategy.extended.reduce_to(op, x, v))(each(strategy, rows))
    expected = REDUCE[op](stack(strategy), axis=0)
    close(parts(strategy, found), [expected] * strategy.num_replicas_in_sync)
    close(v, np.zeros((2, 3)))


def test_reduce_to_where_the_value_is(mirrored, mode):
    found = mode(lambda x: mirrored.extended.reduce_to("SUM", x, x))(each(mirrored, rows))
    assert isinstance(found, rx.Mirrored)
    close(parts(mirrored, found), [stack(mirrored).sum(axis=0)] * mirrored.num_replicas_in_sync)
    devices = [f"CPU:{d.id}" for part in found.values for d in part.devices()]
    assert devices == list(mirrored.extended.worker_devices)


@pytest.mark.parametrize("destination", ["CPU:1", "/cpu:1", "/device:CPU:1"])
def test_reduce_to_a_device(placed, mode, destination):
    found = mode(lambda x: placed.extended.reduce_to("SUM", x, destination))(each(placed, rows))
    assert isinstance(found, jax.Array)
    close(found, stack(placed).sum(axis=0))
    if mode is not rx.function:
        assert found.devices() == {jax.devices()[1]}


def test_reduce_to_an_array(placed, mode):
    there = jax.device_put(np.float32(0), jax.devices()[2])
    found = mode(lambda x: placed.extended.reduce_to("MEAN", x, there))(each(placed, rows))
    assert isinstance(found, jax.Array)
    close(found, stack(placed).mean(axis=0))


@pytest.mark.parametrize("destination", [["CPU:0"], None, ("CPU:0", "CPU:1")], ids=str)
def test_reduce_to_nowhere(several, mode, destination):
    with pytest.raises((ValueError, AssertionError), match="destinations"):
        mode(lambda x: several.extended.reduce_to("SUM", x, destination))(each(several, rows))


def test_reduce_to_a_device_that_is_not_there(several, mode):
    with pytest.raises(ValueError, match=r"CPU:99.*CPU:7"):
        mode(lambda x: several.extended.reduce_to("SUM", x, "CPU:99"))(each(several, rows))


def test_reduce_to_of_what_all_replicas_hold(strategy, mode):
    v = variable(strategy, 0.0)
    n = strategy.num_replicas_in_sync
    extended = strategy.extended
    step = mode(lambda: [extended.reduce_to(op, 2.0, v) for op in ("SUM", "MEAN")])
    total, mean = step()
    close(parts(strategy, total), [2 * n] * n)
    close(parts(strategy, mean), [2] * n)


def test_reduce_to_of_what_all_replicas_hold_goes_to_the_destination(mirrored):
    for value in (jnp.float32(2), np.float32(2)):
        there = mirrored.extended.reduce_to("MEAN", value, "CPU:1")
        assert there.devices() == {jax.devices()[1]}


def test_reduce_to_of_a_nest(strategy, mode):
    v = variable(strategy, 0.0)
    step = mode(lambda x: strategy.extended.reduce_to("SUM", {"a": [x]}, v))
    found = step(each(strategy, rows))["a"][0]
    close(parts(strategy, found)[0], stack(strategy).sum(axis=0))


@pytest.mark.parametrize("name", ["options", "experimental_hints"])
def test_batch_reduce_to(strategy, mode, name):
    v, w = variable(strategy, 0.0), variable(strategy, 0.0)
    options = {name: rx.CommunicationOptions(bytes_per_pack=16, timeout_seconds=60)}

    def step(x, y):
        return strategy.extended.batch_reduce_to("SUM", [(x, v), (y, w)], **options)

    n = strategy.num_replicas_in_sync
    found = mode(step)(each(strategy, rows), each(strategy, lambda i: i + 1.0))
    assert isinstance(found, list) and len(found) == 2
    close(parts(strategy, found[0]), [stack(strategy).sum(axis=0)] * n)
    close(parts(strategy, found[1]), [n * (n + 1) / 2] * n)


def test_batch_reduce_to_of_nothing(strategy, mode):
    assert mode(lambda: strategy.extended.batch_reduce_to("SUM", []))() == []


def test_batch_reduce_to_different_destinations(mirrored, mode):
    step = mode(lambda x: mirrored.extended.batch_reduce_to("SUM", [(x, x), (x, "CPU:0")]))
    first, second = step(each(mirrored, rows))
    assert isinstance(first, rx.Mirrored)
    assert isinstance(second, jax.Array)
    close(second, stack(mirrored).sum(axis=0))


def test_reduce_to_of_indexed_slices(strategy, mode):
    v = variable(strategy, np.zeros((8, 2)))

    def replica_fn():
        return rx.IndexedSlices(jnp.full((1, 2), rid() + 1.0), rid()[None], dense_shape=(8, 2))

    step = mode(lambda: strategy.extended.reduce_to("MEAN", strategy.run(replica_fn), v))
    n = strategy.num_replicas_in_sync
    found = step()
    expected = (np.arange(n) + 1)[:, None] * np.ones(2) / n
    close(parts(strategy, found.values)[0], expected)
    close(parts(strategy, found.indices)[0], np.arange(n))


def test_broadcast_to(strategy, mode):
    v = variable(strategy, np.zeros(2))
    n = strategy.num_replicas_in_sync
    found = mode(lambda x: strategy.extended.broadcast_to(x, v))(jnp.array([1.0, 2.0]))
    close(parts(strategy, found), [[1, 2]] * n)
    assert isinstance(found, rx.Mirrored) == isinstance(v, rx.DistributedValues)
    assert strategy.extended.broadcast_to(3, v) == 3


# Updates.


def test_update(strategy, mode):
    v = variable(strategy, [1.0, 2.0])
    update = strategy.extended.update

    def step(x):
        return update(v, lambda v, x, *, scale: v.assign_add(scale * x), (x,), {"scale": 2.0})

    returned = mode(step)(jnp.array([10.0, 20.0]))
    n = strategy.num_replicas_in_sync
    close(parts(strategy, v), [[21, 42]] * n)
    close(parts(strategy, returned), [[21, 42]] * n)


def test_update_with_a_mirrored_argument(several, mode):
    v = variable(several, 1.0)

    def step(x):
        total = several.extended.reduce_to("SUM", x, v)
        several.extended.update(v, lambda v, g: v.assign_sub(g), args=(total,))

    mode(step)(each(several, lambda i: i + 1.0))
    n = several.num_replicas_in_sync
    close(parts(several, v), [1 - n * (n + 1) / 2] * n)


def test_update_reads_other_variables(strategy, mode):
    """The update of an optimizer with slot variables."""
    v, slot = variable(strategy, 1.0), variable(strategy, 0.0)

    def update_fn(v, gradient, slot):
        slot.assign(0.5 * slot + gradient)
        v.assign_sub(slot)

    step = mode(lambda: strategy.extended.update(v, update_fn, args=(2.0, slot)))
    value, momentum = 1.0, 0.0
    for _ in range(3):
        step()
        momentum = 0.5 * momentum + 2
        value -= momentum
    close(parts(strategy, v), [value] * strategy.num_replicas_in_sync)
    close(parts(strategy, slot), [momentum] * strategy.num_replicas_in_sync)


def test_update_without_grouping(strategy, mode):
    v = variable(strategy, 1.0)
    copies = len(strategy.local_results(v))
    step = mode(lambda: strategy.extended.update(v, lambda v: v.assign_add(1.0), group=False))
    found = step()
    assert isinstance(found, tuple) and len(found) == copies
    close(found, [2] * copies)


def test_update_that_returns_nothing(strategy, mode):
    v = variable(strategy, 1.0)
    assert mode(lambda: strategy.extended.update(v, lambda v: None))() is None
    found = mode(lambda: strategy.extended.update(v, lambda v: None, group=False))()
    assert found == (None,)


def test_update_in_a_replica_merges_first(strategy, mode):
    v = variable(strategy, 1.0)
    step = mode(lambda: strategy.run(lambda: strategy.extended.update(v, lambda v: v.assign_add(1.0))))
    n = strategy.num_replicas_in_sync
    close(parts(strategy, step()), [2] * n)
    close(v, 2)


def test_update_with_per_replica_values(mirrored, mode):
    v = variable(mirrored, 1.0)
    with pytest.raises(ValueError, match=r"PerReplica.*reduce_to"):
        mode(lambda x: mirrored.extended.update(v, lambda v, x: v.assign(x), args=(x,)))(
            each(mirrored, float)
        )
    close(v, 1)


def test_an_error_in_an_update_leaves_all_copies(strategy, mode):
    v = variable(strategy, 1.0)
    calls = []

    def fail_late(v):
        calls.append(1)
        v.assign(5.0)
        if len(calls) == strategy.num_replicas_in_sync or mode is rx.function:
            raise KeyError("late")

    strategy.extended.update(v, lambda v: v.assign(1.0))
    if len(strategy.local_results(v)) == strategy.num_replicas_in_sync:
        with pytest.raises(KeyError, match="late"):
            mode(lambda: strategy.extended.update(v, fail_late))()
        close(parts(strategy, v), [1] * strategy.num_replicas_in_sync)


def test_update_of_the_parts_of_an_on_read_variable(mirrored, mode):
    v = variable(mirrored, 0.0, synchronization=ON_READ, aggregation=rx.VariableAggregation.SUM)
    mirrored.run(lambda: v.assign(rid() + 1.0))
    mode(lambda: mirrored.extended.update(v, lambda v: v.assign_add(1.0)))()
    close(parts(mirrored, v), np.arange(mirrored.num_replicas_in_sync) + 2)


@pytest.mark.parametrize("thing", [1.0, "v", None], ids=str)
def test_update_of_something_else(strategy, mode, thing):
    with pytest.raises((ValueError, AssertionError), match="variable to update"):
        mode(lambda: strategy.extended.update(thing, lambda v: None))()


def test_update_of_a_stranger(placed, mode):
    v = rx.Variable(1.0, name="stranger")
    with pytest.raises(ValueError, match=r"stranger.*scope"):
        mode(lambda: placed.extended.update(v, lambda v: v.assign(2.0)))()


def test_non_slot_devices(placed, mode):
    extended = placed.extended
    v = variable(placed, 1.0)
    devices = extended.non_slot_devices([v])
    count = variable(placed, 0.0)
    step = mode(lambda: extended.update_non_slot(devices, lambda x: count.assign_add(x), args=(2.0,)))
    step()
    close(parts(placed, count), [2] * placed.num_replicas_in_sync)
    found = mode(lambda: extended.update_non_slot(devices, lambda: 5, group=False))()
    assert found == (5,)


def test_update_non_slot_somewhere_else(placed):
    with pytest.raises((ValueError, AssertionError), match="non_slot_devices"):
        placed.extended.update_non_slot(["CPU:7"], lambda: None)
    with pytest.raises((ValueError, AssertionError), match="variable of this strategy"):
        placed.extended.update_non_slot(rx.Variable(1.0), lambda: None)


def test_update_non_slot_beside_a_variable_or_an_array(placed):
    v = variable(placed, 1.0)
    close(parts(placed, placed.extended.update_non_slot(v, lambda: jnp.float32(2.0)))[0], 2.0)
    if len(placed.extended.parameter_devices) == 1:
        close(parts(placed, placed.extended.update_non_slot(v.value, lambda: jnp.float32(3.0)))[0], 3.0)


# Variables.


def test_colocated_variables(placed):
    extended = placed.extended
    v = variable(placed, 1.0)
    with placed.scope():
        for where in (v, placed.local_results(v)[0], extended.non_slot_devices([v])):
            with extended.colocate_vars_with(where):
                slot = rx.Variable(0.0)
            assert type(slot) is type(v)
            assert slot.device == v.device


def test_colocated_outside_of_the_scope(placed):
    v = variable(placed, 1.0)
    with pytest.raises(RuntimeError, match="scope"):
        placed.extended.colocate_vars_with(v).__enter__()


def test_colocated_with_a_stranger(placed):
    stranger = rx.Variable(1.0)
    with placed.scope():
        for where in (stranger, "CPU:0", 1.0):
            with pytest.raises(ValueError, match="colocate_vars_with"):
                placed.extended.colocate_vars_with(where).__enter__()


def test_read_var(strategy, mode):
    v = variable(strategy, [1.0, 2.0])
    close(mode(lambda: strategy.extended.read_var(v))(), [1, 2])
    found = mode(lambda: strategy.run(lambda: strategy.extended.read_var(v) + rid()))()
    close(parts(strategy, found), [[1 + i, 2 + i] for i in range(strategy.num_replicas_in_sync)])


def test_read_var_of_an_on_read_variable(mirrored, mode):
    v = variable(mirrored, 0.0, synchronization=ON_READ, aggregation=rx.VariableAggregation.SUM)
    mirrored.run(lambda: v.assign(rid() + 1.0))
    n = mirrored.num_replicas_in_sync
    close(mode(lambda: mirrored.extended.read_var(v))(), n * (n + 1) / 2)


def test_value_container(strategy):
    v = variable(strategy, 1.0)
    x = jnp.ones(2)
    container = strategy.extended.value_container
    assert container(v) is v
    assert container(x) is x
    assert container(5) == 5
    seen = []
    if strategy is not rx.get_strategy():
        strategy.extended.update(v, lambda copy: seen.append(container(copy)))
        assert all(found is v for found in seen)


def test_variable_created_in_scope(strategy):
    created = strategy.extended.variable_created_in_scope
    assert created(variable(strategy, 1.0))
    other = rx.OneDeviceStrategy("CPU:0")
    assert not created(variable(other, 1.0))
    assert created(rx.Variable(1.0)) == (strategy is rx.get_strategy())
    with pytest.raises(AttributeError):
        created(jnp.ones(1))


def test_call_for_each_replica(strategy, mode):
    call = strategy.extended.call_for_each_replica
    found = mode(lambda: call(lambda x, y: x + y + rid(), args=(1,), kwargs={"y": 2}))()
    close(parts(strategy, found), 3 + np.arange(strategy.num_replicas_in_sync))


@pytest.mark.parametrize("name", OLDER_NAMES)
def test_older_names_say_what_to_write(strategy, name):
    with pytest.raises(AttributeError, match=rf"Strategy' object has no attribute '{name}'\. \w+"):
        getattr(strategy, name)
    assert not hasattr(strategy, "nonsense")
