"""The surface of version 1: iterators, several steps in a call, and names that say what replaced them."""

import copy
import inspect
import warnings

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import replicax as rx
from replicax.cluster import TPUClusterResolver
from replicax.compat import v1
from replicax.compat.v1 import _deprecation
from replicax.errors import OutOfRangeError, TracingError

DEVICES = ["CPU:0", "CPU:1"]

STRATEGIES = {
    "mirrored": lambda: v1.MirroredStrategy(DEVICES),
    "central": lambda: v1.CentralStorageStrategy(DEVICES, "CPU:0"),
    "one": lambda: v1.OneDeviceStrategy("CPU:1"),
    "workers": lambda: v1.MultiWorkerMirroredStrategy(),
    "tpu": lambda: v1.TPUStrategy(),
}


@pytest.fixture(params=STRATEGIES)
def strategy(request):
    return STRATEGIES[request.param]()


def batches(count, size=4):
    return rx.from_arrays(np.arange(count * size)).batch(size)


def numbers(value, strategy):
    return [np.asarray(x).tolist() for x in strategy.local_results(value)]


def test_they_are_the_strategies_with_more(strategy):
    core = getattr(rx, type(strategy).__name__)
    assert isinstance(strategy, core) and isinstance(strategy, v1.Strategy)
    assert isinstance(strategy.extended, v1.StrategyExtended)
    with strategy.scope():
        v = rx.Variable(1.0, aggregation=rx.VariableAggregation.SUM)
        assert rx.get_strategy() is strategy
    assert strategy.extended.variable_created_in_scope(v)
    strategy.run(lambda: v.assign_add(1.0))
    assert float(v) == 1.0 + strategy.num_replicas_in_sync


@pytest.mark.parametrize("name", ["MirroredStrategy", "StrategyExtended", "Strategy"])
def test_no_concrete_method_is_overridden(name):
    """Version 1 adds methods to those that it shares with the core, and changes none of them."""
    own, *bases = getattr(v1, name).__mro__[:-1]
    inherited = {key for base in bases for key in vars(base) if not key.startswith("_")}
    assert not inherited & {key for key in vars(own) if not key.startswith("_")}


@pytest.mark.parametrize("name", [name for name in STRATEGIES if name != "tpu"])
def test_the_arguments_are_those_of_the_core(name):
    strategy = type(STRATEGIES[name]())
    assert inspect.signature(strategy) == inspect.signature(getattr(rx, strategy.__name__))


def test_arguments_of_the_tpu_strategy():
    resolver = TPUClusterResolver("local")
    assignment = rx.DeviceAssignment.build(rx.Topology(), computation_shape=[1, 1, 1, 2], num_replicas=2)
    assert v1.TPUStrategy(resolver, 1, assignment).num_replicas_in_sync == 2
    assert v1.TPUStrategy(steps_per_run=None, device_assignment=assignment).num_replicas_in_sync == 2
    with pytest.raises(ValueError, match=r"steps_per_run=100.*steps_per_execution=100"):
        v1.TPUStrategy(resolver, steps_per_run=100)


def test_the_core_has_no_names_of_version_1():
    for name in (
        "make_dataset_iterator",
        "make_input_fn_iterator",
        "experimental_run",
        "update_config_proto",
    ):
        assert not hasattr(rx.Strategy, name)


def test_reduce_has_a_default_axis(strategy):
    n = strategy.num_replicas_in_sync
    assert strategy.reduce("SUM", strategy.run(lambda: jnp.ones(2))).tolist() == [n, n]
    assert inspect.signature(v1.Strategy.reduce).parameters["axis"].default is None


def test_an_iterator_goes_through_a_dataset_and_begins_again(strategy):
    iterator = strategy.make_dataset_iterator(batches(2))
    iterator.initialize()
    for _ in range(2):
        first, second = iterator.get_next(), iterator.get_next()
        assert strategy.gather(first, axis=0).tolist() == [0, 1, 2, 3]
        assert strategy.gather(second, axis=0).tolist() == [4, 5, 6, 7]
        with pytest.raises(OutOfRangeError, match=r"initialize\(\) starts another"):
            iterator.get_next()
        iterator.initialize()
    iterator.get_next()
    iterator.initialize()
    assert strategy.gather(iterator.get_next(), axis=0).tolist() == [0, 1, 2, 3], "also in the middle"


def test_an_iterator_need_not_be_initialized(strategy):
    iterator = strategy.make_dataset_iterator(batches(1))
    total = strategy.reduce("SUM", strategy.experimental_run(jnp.sum, iterator))
    assert int(total) == 6


def test_input_functions_are_called_once_with_a_context():
    strategy = v1.MirroredStrategy(DEVICES)
    contexts = []

    def input_fn(context):
        contexts.append(
            (context.num_input_pipelines, context.input_pipeline_id, context.num_replicas_in_sync)
        )
        return batches(4, context.get_per_replica_batch_size(4))

    iterator = strategy.make_input_fn_iterator(input_fn)
    assert contexts == [(1, 0, 2)]
    assert numbers(iterator.get_next(), strategy) == [[0, 1], [2, 3]]
    assert numbers(strategy.experimental_run(lambda x: x * 2, iterator), strategy) == [[8, 10], [12, 14]]


def test_input_functions_are_per_worker():
    with pytest.raises(ValueError, match=r"PER_WORKER.*distribute_datasets_from_function"):
        v1.MirroredStrategy(DEVICES).make_input_fn_iterator(
            lambda context: batches(1), replication_mode=v1.InputReplicationMode.PER_REPLICA
        )


def test_experimental_run_without_an_iterator():
    strategy = v1.MirroredStrategy(DEVICES)
    ids = strategy.experimental_run(lambda: v1.get_replica_context().replica_id_in_sync_group)
    assert numbers(ids, strategy) == [0, 1]


def test_numpy_datasets(strategy):
    dataset = strategy.experimental_make_numpy_dataset(np.ones((6, 2), np.float32))
    assert dataset.element_spec == rx.TensorSpec((2,), np.float32)
    same = strategy.extended.experimental_make_numpy_dataset(np.ones(3), session=None)
    assert strategy.distribute_dataset(same.batch(3)).cardinality == 1
    for make in (strategy, strategy.extended):
        with pytest.raises(ValueError, match="no sessions"):
            make.experimental_make_numpy_dataset(np.ones(3), session=object())


# Several steps in a call.


@pytest.mark.parametrize("compiled", [False, True])
def test_several_steps_leave_the_last_outputs(strategy, compiled):
    iterator = strategy.make_dataset_iterator(batches(5))
    replica_fn = rx.function(lambda x: jnp.sum(x)) if compiled else (lambda x: jnp.sum(x))
    seen = []

    def step(context, batch):
        assert rx.in_cross_replica_context() and rx.get_strategy() is strategy
        total = strategy.run(replica_fn, args=(batch,))
        context.set_last_step_output("total", total, reduce_op="SUM")
        context.set_last_step_output("raw", total)
        context.set_non_tensor_output("step", len(seen))
        seen.append(context)

    context = strategy.extended.experimental_run_steps_on_iterator(step, iterator, iterations=3)
    assert isinstance(context, v1.MultiStepContext)
    assert context.run_op is None and context.non_tensor_outputs == {"step": 2}
    assert int(context.last_step_outputs["total"]) == 8 + 9 + 10 + 11
    assert int(strategy.reduce("SUM", context.last_step_outputs["raw"])) == 38
    assert len(seen) == 3 and all(one is context for one in seen)
    assert strategy.gather(iterator.get_next(), axis=0).tolist() == [12, 13, 14, 15], (
        "it goes on from there"
    )


@pytest.mark.parametrize("compiled", [False, True])
def test_outputs_set_in_a_replica_are_merged(strategy, compiled):
    n = strategy.num_replicas_in_sync

    @(rx.function if compiled else lambda fn: fn)
    def step(context, batch):
        def replica_fn(x):
            context.set_last_step_output("mean", jnp.float32(x.sum()), reduce_op=v1.ReduceOp.MEAN)
            context.set_last_step_output("apart", x.sum())
            context.set_non_tensor_output("name", "last")

        strategy.run(replica_fn, args=(batch,))

    context = strategy.extended.experimental_run_steps_on_iterator(
        step, strategy.make_dataset_iterator(batches(2, 8)), iterations=2
    )
    sums = np.arange(8, 16).reshape(n, -1).sum(axis=1)
    assert float(context.last_step_outputs["mean"]) == sums.mean()
    assert numbers(context.last_step_outputs["apart"], strategy) == sums.tolist()
    assert context.non_tensor_outputs == {"name": "last"}


@pytest.mark.parametrize("compiled", [False, True])
def test_initial_values_are_kept_where_no_step_sets_them(compiled):
    strategy = v1.MirroredStrategy(DEVICES)

    def steps(fn, initial):
        fn = rx.function(fn) if compiled else fn
        iterator = strategy.make_dataset_iterator(batches(1))
        run = strategy.extended.experimental_run_steps_on_iterator
        return run(fn, iterator, initial_loop_values=initial)

    assert steps(lambda context, batch: None, {"loss": 7.0}).last_step_outputs == {"loss": 7.0}
    with pytest.raises(ValueError, match="structure of the output"):
        steps(lambda context, batch: context.set_last_step_output("loss", (1.0, 2.0)), {"loss": 7.0})


@pytest.mark.parametrize("compiled", [False, True])
def test_too_few_batches_for_the_steps(compiled):
    strategy = v1.MirroredStrategy(DEVICES)
    with strategy.scope():
        done = rx.Variable(0)

    def step(context, batch):
        done.assign_add(1)

    with pytest.raises(OutOfRangeError, match="after 2 of 3 steps"):
        strategy.extended.experimental_run_steps_on_iterator(
            rx.function(step) if compiled else step,
            strategy.make_dataset_iterator(batches(2)),
            iterations=3,
        )
    assert int(done) == 2


def trained(strategy, steps_per_call):
    """The results of six steps, the last one with a partial batch, in calls of so many steps."""
    with strategy.scope():
        w, count = rx.Variable(jnp.ones((3, 2))), rx.Variable(0, aggregation="ONLY_FIRST_REPLICA")
        optimizer, metric = rx.Optimizer(optax.adam(0.1)), rx.Mean()

    @rx.function
    def step(context, batch):
        def replica_step(x):
            noise = jax.random.normal(jax.random.fold_in(jax.random.key(0), count.value), (3, 2))
            count.assign_add(1)
            optimizer.minimize(lambda: rx.compute_average_loss(jnp.sum((x @ (w + noise)) ** 2, -1)), [w])
            metric.update_state(jnp.sum(x, axis=-1))
            # The optimizer of sharded state has to update `w` for that at this point.
            context.set_last_step_output("first", w.value[0, 0], reduce_op="MEAN")
            context.set_last_step_output("rows", jnp.sum(x, axis=-1))

        strategy.run(replica_step, args=(batch,))
        context.set_last_step_output("w", w.read_value())

    x = np.random.default_rng(0).normal(size=(84, 3)).astype(np.float32)
    iterator = strategy.make_dataset_iterator(rx.from_arrays(x).batch(16))
    contexts = [
        strategy.extended.experimental_run_steps_on_iterator(step, iterator, iterations=steps_per_call)
        for _ in range(6 // steps_per_call)
    ]
    outputs = contexts[-1].last_step_outputs
    rows = [np.asarray(part) for part in strategy.local_results(outputs.pop("rows"))]
    return outputs, rows, w.numpy(), int(count), float(metric.result())


TRAINED = {
    "mirrored": STRATEGIES["mirrored"],
    "one": STRATEGIES["one"],
    "sharded": lambda: v1.MultiWorkerMirroredStrategy(shard="all", min_shard_bytes=0),
}


@pytest.mark.parametrize("make", ["mirrored", "sharded", pytest.param("one", marks=pytest.mark.long)])
def test_steps_in_one_program_equal_as_many_calls_bit_for_bit(make):
    one_by_one, together = trained(TRAINED[make](), 1), trained(TRAINED[make](), 6)
    jax.tree.map(np.testing.assert_array_equal, together, one_by_one)
    assert together[3] == 6


def test_calls_reuse_the_program_of_a_compiled_step():
    strategy, traces = v1.MirroredStrategy(DEVICES), []

    @rx.function
    def step(context, batch):
        traces.append(context)
        context.set_last_step_output("total", strategy.run(jnp.sum, args=(batch,)), "SUM")

    iterator = strategy.make_dataset_iterator(batches(6))
    run = strategy.extended.experimental_run_steps_on_iterator
    totals = [int(run(step, iterator, iterations=2).last_step_outputs["total"]) for _ in range(2)]
    num_traces = len(traces)
    totals.append(int(run(step, iterator, iterations=2).last_step_outputs["total"]))
    assert totals == [22, 54, 86] and len(traces) == num_traces


def test_outputs_of_a_compiled_replica_in_a_step_that_is_not():
    strategy = v1.MirroredStrategy(DEVICES)

    def step(context, batch):
        strategy.run(rx.function(lambda x: context.set_last_step_output("x", x.sum())), args=(batch,))

    with pytest.raises(TracingError, match=r"'x'.*Decorate the step with `rx.function` instead"):
        strategy.extended.experimental_run_steps_on_iterator(
            step, strategy.make_dataset_iterator(batches(1))
        )


def test_a_signature_can_not_have_the_context():
    strategy = v1.MirroredStrategy(DEVICES)
    step = rx.function(lambda context, batch: None, input_signature=[rx.TensorSpec([4], np.int32)])
    with pytest.raises(TypeError, match="Leave out `input_signature`"):
        strategy.extended.experimental_run_steps_on_iterator(
            step, strategy.make_dataset_iterator(batches(1))
        )


@pytest.mark.parametrize("iterations", [0, -1, 1.5, True])
def test_how_many_steps(iterations):
    strategy = v1.MirroredStrategy(DEVICES)
    with pytest.raises(ValueError, match="an integer, 1 or more"):
        strategy.extended.experimental_run_steps_on_iterator(
            lambda context, batch: None, strategy.make_dataset_iterator(batches(2)), iterations=iterations
        )


# The rest.


def test_a_configuration_is_copied():
    config = v1.ConfigProto(device_count={"CPU": 2}, log_device_placement=True)
    updated = v1.MirroredStrategy(DEVICES).update_config_proto(config)
    assert updated.isolate_session_state and not hasattr(config, "isolate_session_state")
    assert updated.device_count == {"CPU": 2} and updated.device_count is not config.device_count
    assert str(config) == "device_count: {'CPU': 2}\nlog_device_placement: true"
    assert copy.deepcopy(config) == config != updated
    with pytest.raises(AttributeError, match="takes a ConfigProto"):
        v1.MirroredStrategy(DEVICES).update_config_proto(None)


def test_losses_are_summed():
    assert v1.get_loss_reduction() is v1.ReduceOp.SUM


def test_names_with_a_successor_say_so_once(monkeypatch):
    monkeypatch.setattr(_deprecation, "_already_warned", set())
    strategy = v1.MirroredStrategy(DEVICES)
    with pytest.warns(DeprecationWarning, match=r"use strategy\.distribute_dataset") as caught:
        iterator = strategy.make_dataset_iterator(batches(3))
    assert caught[0].filename == __file__
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        strategy.make_dataset_iterator(batches(3))
    with pytest.warns(DeprecationWarning, match=r"use strategy\.run\(fn"):
        strategy.experimental_run(jnp.sum, iterator)
    with pytest.warns(DeprecationWarning, match=r"distribute_datasets_from_function"):
        strategy.make_input_fn_iterator(lambda context: batches(1))
    with pytest.warns(DeprecationWarning, match="a loop over"):
        strategy.extended.experimental_run_steps_on_iterator(lambda context, batch: None, iterator)


def test_slots_of_version_1():
    strategy = v1.MirroredStrategy(DEVICES)
    devices = strategy.extended.non_slot_devices([])
    with strategy.scope(), strategy.extended.colocate_vars_with(devices):
        beta = rx.Variable(0.9, trainable=False)
    updated = strategy.extended.update_non_slot(devices, lambda: beta.assign(beta * 0.5))
    assert [float(x) for x in strategy.local_results(updated)] == pytest.approx([0.45, 0.45])


@pytest.mark.parametrize("name", v1.__all__)
def test_every_name_is_documented(name):
    assert inspect.getdoc(getattr(v1, name))
