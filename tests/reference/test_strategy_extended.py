"""The examples on the reference pages of `StrategyExtended` (r2.0, r2.3 and later), our way."""

import jax.numpy as jnp
import pytest

import replicax as rx

TWO = ["CPU:0", "CPU:1"]


@pytest.fixture(params=["eager", "compiled"])
def mode(request):
    """How a step runs: as it is, or through `rx.function`."""
    return rx.function if request.param == "compiled" else lambda fn: fn


def line(value, replica=0):
    name = f"Variable/replica_{replica}:0" if replica else "Variable:0"
    return f"<rx.Variable '{name}' shape=() dtype=float32, numpy={value}>"


def listing(kind, *lines):
    return f"{kind}:{{\n" + ",\n".join(f"  {i}: {text}" for i, text in enumerate(lines)) + "\n}"


STRATEGIES = {
    "mirrored": (
        lambda: rx.MirroredStrategy(TWO),
        listing("MirroredVariable", line(2.0), line(2.0, 1)),
    ),
    "central": (
        lambda: rx.CentralStorageStrategy(compute_devices=TWO, parameter_device="CPU:0"),
        line(2.0),
    ),
    "one device": (lambda: rx.OneDeviceStrategy("CPU:0"), line(1.0)),
}


def reduce_one(strategy, value, var):
    return strategy.extended.reduce_to(rx.ReduceOp.SUM, value, destinations=var)


def reduce_batch(strategy, value, var):
    return strategy.extended.batch_reduce_to(rx.ReduceOp.SUM, [(value, var)])[0]


# batch_reduce_to and reduce_to (stable): sum a value in a merge_call and update a variable with it.
@pytest.mark.parametrize("kind", STRATEGIES)
@pytest.mark.parametrize("reduce", [reduce_one, reduce_batch])
def test_reduce_to_a_variable_and_update_it(mode, kind, reduce):
    make, expected = STRATEGIES[kind]
    strategy = make()

    @mode
    def step_fn(var):
        def merge_fn(strategy, value, var):
            reduced = reduce(strategy, value, var)
            strategy.extended.update(var, lambda var, value: var.assign(value), args=(reduced,))

        value = jnp.array(1.0)
        rx.get_replica_context().merge_call(merge_fn, args=(value, var))

    with strategy.scope():
        v = rx.Variable(0.0)
        strategy.run(step_fn, args=(v,))
    assert repr(v) == expected


# The long spelling of the same steps: "How to update a variable", with two variables at once.
def test_standard_pattern_for_updating_variables(mode):
    strategy = rx.MirroredStrategy(TWO)
    with strategy.scope():
        variables = [rx.Variable(10.0), rx.Variable([1.0, 2.0])]

    def merge_fn(strategy, *updates):
        pairs = list(zip(updates, variables, strict=True))
        reduced = strategy.extended.batch_reduce_to(rx.ReduceOp.SUM, pairs)
        for total, variable in zip(reduced, variables, strict=True):
            strategy.extended.update(variable, lambda v, t: v.assign_sub(t), args=(total,))

    def replica_fn():
        ctx = rx.get_replica_context()
        gradient = ctx.replica_id_in_sync_group + 1.0
        ctx.merge_call(merge_fn, args=(gradient, gradient * jnp.ones(2)))

    mode(lambda: strategy.run(replica_fn))()
    assert float(variables[0].value) == 7.0
    assert variables[1].numpy().tolist() == [-2.0, -1.0]


# The higher-level form on the same pages: `assign` does the three steps by itself.
@pytest.mark.parametrize(
    ("aggregation", "expected"), [("SUM", 3.0), ("MEAN", 1.5), ("ONLY_FIRST_REPLICA", 1.0)]
)
def test_assign_in_a_replica_aggregates(mode, aggregation, expected):
    strategy = rx.MirroredStrategy(TWO)
    with strategy.scope():
        v = rx.Variable(0.0, aggregation=rx.VariableAggregation[aggregation])

    def replica_fn():
        v.assign(rx.get_replica_context().replica_id_in_sync_group + 1.0)

    mode(lambda: strategy.run(replica_fn))()
    assert [float(copy) for copy in strategy.local_results(v)] == [expected, expected]


# The same pages: `assign` outside of replicas takes one value, or a mirrored one.
def test_assign_a_mirrored_value_outside_of_replicas(mode):
    strategy = rx.MirroredStrategy(TWO)
    with strategy.scope():
        v, other = rx.Variable(0.0), rx.Variable(5.0)

    @mode
    def step():
        v.assign(other)
        x = strategy.run(lambda: rx.get_replica_context().replica_id_in_sync_group + 1.0)
        v.assign_add(strategy.extended.reduce_to("SUM", x, v))

    step()
    assert float(v.value) == 8.0


def test_assign_a_per_replica_value_outside_of_replicas_is_refused(mode):
    strategy = rx.MirroredStrategy(TWO)
    with strategy.scope():
        v = rx.Variable(0.0)

    @mode
    def step():
        v.assign(strategy.run(lambda: rx.get_replica_context().replica_id_in_sync_group + 1.0))

    with pytest.raises(ValueError, match="PerReplica"):
        step()


# The same pages: a sync-on-read variable restored from a checkpoint is divided, or assigned as it is.
@pytest.mark.parametrize(("aggregation", "part"), [("SUM", 3.0), ("MEAN", 6.0)])
def test_assign_a_total_to_a_sync_on_read_variable(mode, aggregation, part):
    strategy = rx.MirroredStrategy(TWO)
    with strategy.scope():
        v = rx.Variable(
            0.0,
            synchronization=rx.VariableSynchronization.ON_READ,
            aggregation=rx.VariableAggregation[aggregation],
        )
    mode(lambda: v.assign(6.0, read_value=False))()
    assert [float(copy) for copy in strategy.local_results(v)] == [part, part]
    assert float(strategy.extended.read_var(v)) == 6.0


# r2.0, "Sync on read variables": v = 0.9 v + 0.1 update, in each replica for itself.
def test_moving_average_in_a_sync_on_read_variable(mode):
    strategy = rx.MirroredStrategy(TWO)
    with strategy.scope():
        v = rx.Variable(
            10.0,
            synchronization=rx.VariableSynchronization.ON_READ,
            aggregation=rx.VariableAggregation.MEAN,
        )

    def replica_fn():
        update = rx.get_replica_context().replica_id_in_sync_group * 10.0
        v.assign(0.9 * v + 0.1 * update)

    mode(lambda: strategy.run(replica_fn))()
    assert [float(copy) for copy in strategy.local_results(v)] == pytest.approx([9.0, 10.0])
    assert float(v.read_value()) == pytest.approx(9.5)


# call_for_each_replica: sum a value over the replicas in a merge_call; run takes a list of arguments.
@pytest.mark.parametrize("spelling", ["run", "experimental_run_v2", "call_for_each_replica"])
def test_merge_call_sums_over_replicas(mode, spelling):
    strategy = rx.MirroredStrategy(TWO)

    def merge_fn(strategy, three_and_id):
        return sum(strategy.experimental_local_results(three_and_id))

    def fn(three):
        ctx = rx.get_replica_context()
        v = three + ctx.replica_id_in_sync_group
        return ctx.merge_call(merge_fn, args=(v,)) + v

    owner = strategy.extended if spelling == "call_for_each_replica" else strategy
    run = getattr(owner, spelling)
    with strategy.scope():
        merged = mode(lambda: run(fn, args=[3]))()
        shown = strategy.experimental_local_results(merged)
    assert [int(x) for x in shown] == [7 + 3, 7 + 4]


# r2.0, "Unwrapping and merging": (x, a/b, v) from each replica.
def test_unwrapping_and_merging():
    strategy = rx.MirroredStrategy(TWO)
    with strategy.scope():
        v = rx.Variable(1.0)
    w = strategy.distribute_values_from_function(lambda ctx: 10.0 * ctx.replica_id_in_sync_group)
    same = object()
    seen = []

    def fn(w):
        seen.append(w)
        return same, w + 1, v

    first, second, third = strategy.experimental_run_v2(fn, args=[w])
    assert seen == [0.0, 10.0]
    assert first is same
    assert strategy.local_results(second) == (1.0, 11.0)
    assert third is v


# r2.0, "Replica context vs. Cross-replica context": the four transitions.
def test_contexts():
    strategy = rx.MirroredStrategy(TWO)
    seen = {}

    def look(where):
        context = rx.get_replica_context()
        seen[where] = (rx.in_cross_replica_context(), context is None, rx.get_update_replica_id())

    def replica_fn(v):
        look("replica")
        rx.get_replica_context().merge_call(lambda strategy: look("merge"))

    look("nowhere")
    with strategy.scope():
        look("scope")
        v = rx.Variable(0.0)
        strategy.run(replica_fn, args=(v,))
        strategy.extended.update(v, lambda v: look("update"))
    assert seen == {
        "nowhere": (False, False, None),
        "scope": (True, True, None),
        "replica": (False, False, None),
        "merge": (True, True, None),
        "update": (True, True, 1),
    }


# colocate_vars_with: slot variables beside their variable, updated together.
def test_colocate_variables_and_update_them(mode):
    strategy = rx.MirroredStrategy(TWO)
    with strategy.scope():
        var1 = rx.Variable(1.0)
        with strategy.extended.colocate_vars_with(var1):
            var2 = rx.Variable(2.0)
            var3 = rx.Variable(3.0)

        def fn(v1, v2, v3):
            return v1.assign(v1 + v2 * v3)

        mode(lambda: strategy.extended.update(var1, fn, args=(var2, var3)))()
    assert [copy.device for copy in var1.copies] == [copy.device for copy in var2.copies]
    assert [float(copy) for copy in strategy.local_results(var1)] == [7.0, 7.0]


# non_slot_devices: variables that belong to no single variable, and their update.
def test_non_slot_variables(mode):
    strategy = rx.MirroredStrategy(TWO)
    with strategy.scope():
        v = rx.Variable(1.0)
        devices = strategy.extended.non_slot_devices([v])
        with strategy.extended.colocate_vars_with(devices):
            steps = rx.Variable(0.0)

        def fn(steps):
            return steps.assign_add(1.0)

        mode(lambda: strategy.extended.update_non_slot(devices, fn, args=(steps,)))()
    assert tuple(devices) == ("CPU:0", "CPU:1")
    assert [float(copy) for copy in strategy.local_results(steps)] == [1.0, 1.0]


# update: assign one value to each copy; what comes back is mirrored.
def test_update_returns_a_mirrored_value(mode):
    strategy = rx.MirroredStrategy(TWO)
    with strategy.scope():
        v = rx.Variable(5.0, aggregation=rx.VariableAggregation.SUM)
    result = mode(lambda: strategy.extended.update(v, lambda v: v.assign(1.0)))()
    one = "Array(1., dtype=float32)"
    assert repr(result) == listing("Mirrored", one, one)
    assert [float(copy) for copy in strategy.local_results(v)] == [1.0, 1.0]


# update, the loop that it stands for: each copy with its part of mirrored arguments, on its device.
def test_update_unwraps_mirrored_arguments():
    strategy = rx.MirroredStrategy(TWO)
    with strategy.scope():
        v = rx.Variable(5.0)
    x = strategy.run(lambda: rx.get_replica_context().replica_id_in_sync_group + 1.0)
    total = strategy.extended.reduce_to("SUM", x, v)
    devices = []

    def fn(copy, total):
        devices.append(total.devices())
        return copy.assign_add(total)

    results = strategy.extended.update(v, fn, args=(total,), group=False)
    assert [float(x) for x in results] == [8.0, 8.0]
    assert devices == [{copy.device} for copy in v.copies]


# update: per-replica arguments are refused.
def test_update_refuses_per_replica_arguments(mode):
    strategy = rx.MirroredStrategy(TWO)
    with strategy.scope():
        v = rx.Variable(5.0)

    @mode
    def step():
        x = strategy.run(lambda: rx.get_replica_context().replica_id_in_sync_group + 1.0)
        strategy.extended.update(v, lambda v, x: v.assign(x), args=(x,))

    with pytest.raises(ValueError, match="PerReplica"):
        step()


# variable_created_in_scope, both cases; r2.0 spells the call without `extended`.
def test_variable_created_in_scope():
    strategy = rx.MirroredStrategy()
    with strategy.scope():
        v = rx.Variable(1.0)
    assert strategy.extended.variable_created_in_scope(v) is True


def test_variable_created_outside_of_scope():
    strategy = rx.MirroredStrategy()
    v = rx.Variable(1.0)
    assert strategy.extended.variable_created_in_scope(v) is False


# value_container: `value in local_results(value_container(value))`.
def test_value_container():
    strategy = rx.MirroredStrategy(TWO)
    with strategy.scope():
        v = rx.Variable(1.0)
    for copy in strategy.experimental_local_results(v):
        container = strategy.extended.value_container(copy)
        assert container is v
        assert any(copy.name == c.name for c in strategy.experimental_local_results(container))
    alone = jnp.array(1.0)
    assert strategy.extended.value_container(alone) is alone


# reduce_to: to a device, to where a tensor is, and as an all-reduce.
def test_reduce_to_destinations(mode):
    strategy = rx.MirroredStrategy(TWO)
    x = strategy.distribute_values_from_function(lambda ctx: ctx.replica_id_in_sync_group + 1.0)
    reduce_to = strategy.extended.reduce_to
    device, tensor, everywhere = mode(
        lambda x: (
            reduce_to("SUM", x, "CPU:0"),
            reduce_to("MEAN", x, jnp.zeros(())),
            reduce_to("SUM", x, x),
        )
    )(x)
    assert float(device) == 3.0 and float(tensor) == 1.5
    assert isinstance(everywhere, rx.Mirrored)
    assert [float(part) for part in everywhere.values] == [3.0, 3.0]


# broadcast_to: one value to the devices of a variable.
def test_broadcast_to_a_variable(mode):
    strategy = rx.MirroredStrategy(TWO)
    with strategy.scope():
        v = rx.Variable(0.0)
    result = mode(lambda: strategy.extended.broadcast_to(jnp.array(3.0), v))()
    assert isinstance(result, rx.Mirrored)
    assert [float(part) for part in result.values] == [3.0, 3.0]


# reduce_to and batch_reduce_to with communication hints, as r2.3 and later spell them.
@pytest.mark.parametrize(
    "hints",
    [
        {"options": rx.CommunicationOptions(bytes_per_pack=50 * 1024 * 1024)},
        {"experimental_hints": rx.CollectiveHints(bytes_per_pack=50 * 1024 * 1024)},
    ],
    ids=["options", "experimental_hints"],
)
def test_reduce_with_hints(mode, hints):
    strategy = rx.MirroredStrategy(TWO)
    x = strategy.distribute_values_from_function(lambda ctx: ctx.replica_id_in_sync_group + 1.0)

    @mode
    def step(x):
        one = strategy.extended.reduce_to("SUM", x, x, **hints)
        (batch,) = strategy.extended.batch_reduce_to("SUM", [(x, x)], **hints)
        return one, batch

    assert [float(total) for total in step(x)] == [3.0, 3.0]


# The properties in the table of attributes.
def test_attributes():
    extended = rx.MirroredStrategy(TWO).extended
    assert extended.worker_devices == ("CPU:0", "CPU:1")
    assert extended.parameter_devices == ("CPU:0", "CPU:1")
    assert extended.experimental_between_graph is False
    assert extended.experimental_require_static_shapes is False
    assert extended.experimental_should_init is True
    assert extended.should_checkpoint is True
    assert extended.should_save_summary is True
    central = rx.CentralStorageStrategy(TWO, parameter_device="CPU:0").extended
    assert central.parameter_devices == ("CPU:0",)
