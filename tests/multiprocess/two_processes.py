"""The program that both processes run; see `test_two_processes.py`.

Four replicas: 0 and 1 in the first process, 2 and 3 in the second. Every function whose name begins
with `check_` is called, with a strategy and with a decorator that compiles a step or leaves it eager.
"""

import os
import sys
import traceback

import jax
import jax.numpy as jnp
import numpy as np

import replicax as rx
import replicax.errors

SUM, MEAN = rx.VariableAggregation.SUM, rx.VariableAggregation.MEAN
ON_READ = rx.VariableSynchronization.ON_READ


def process():
    return jax.process_index()


def local_ids():
    return 2 * process(), 2 * process() + 1


def equal(actual, expected):
    np.testing.assert_allclose(np.asarray(actual), expected, rtol=1e-6)


def copies_equal(strategy, variable, expected):
    copies = strategy.local_results(variable)
    assert len(copies) == 2
    for copy in copies:
        equal(copy.numpy(), expected)


def replica_id():
    return rx.get_replica_context().replica_id_in_sync_group


def check_the_cluster(strategy, mode):
    assert strategy.num_replicas_in_sync == 4
    assert len(strategy.extended.worker_devices) == 2
    assert strategy.extended.should_checkpoint == (process() == 0)


def check_run(strategy, mode):
    step = mode(lambda: strategy.run(lambda: replica_id() * 10))
    for part, i in zip(strategy.local_results(step()), local_ids(), strict=True):
        equal(part, 10 * i)


def check_run_with_arguments(strategy, mode):
    x = strategy.distribute_values_from_function(
        lambda ctx: np.full(3, ctx.replica_id_in_sync_group, np.float32)
    )
    step = mode(lambda x: strategy.run(lambda x, y: x + y, args=(x, 0.5)))
    for part, i in zip(strategy.local_results(step(x)), local_ids(), strict=True):
        equal(part, np.full(3, i + 0.5))


def check_reduce(strategy, mode):
    @mode
    def step():
        values = strategy.run(lambda: {"id": replica_id() + 0.0, "row": jnp.ones(2) * replica_id()})
        return strategy.reduce("SUM", values, axis=None), strategy.reduce("MEAN", values, axis=None)

    total, mean = step()
    equal(total["id"], 6)
    equal(mean["row"], [1.5, 1.5])


def check_reduce_an_axis(strategy, mode):
    @mode
    def step():
        values = strategy.run(lambda: jnp.arange(3.0) + replica_id())
        return strategy.reduce("MEAN", values, axis=0)

    equal(step(), 2.5)


def check_reduce_rows(strategy, mode):
    """Rows and row numbers that all replicas share still count once for each replica."""
    indices = jnp.array([2, 0])
    for make in (lambda: strategy.run(lambda: jnp.ones(2)), lambda: jnp.ones(2)):

        @mode
        def step(make=make):
            rows = rx.IndexedSlices(make(), indices, dense_shape=(3,))
            return strategy.reduce("SUM", rows, axis=None)

        equal(step().to_dense(), [4, 0, 4])


def check_gather(strategy, mode):
    @mode
    def step():
        return strategy.gather(strategy.run(lambda: replica_id()[None] * jnp.ones(2)), axis=0)

    equal(step(), [0, 0, 1, 1, 2, 2, 3, 3])


def check_gather_of_unequal_sizes(strategy, mode):
    rows = strategy.run(lambda: jnp.full(int(replica_id()) + 1, replica_id()))
    step = mode(lambda rows: strategy.gather(rows, axis=0))
    if mode is rx.function:
        try:
            step(rows)
        except rx.errors.TracingError as error:
            assert "several processes" in str(error)
        else:
            raise AssertionError("shapes that differ between processes can't be one program")
    else:
        equal(step(rows), [0, 1, 1, 2, 2, 2, 3, 3, 3, 3])


def check_all_reduce_and_all_gather(strategy, mode):
    def replica_fn():
        ctx = rx.get_replica_context()
        total = ctx.all_reduce("SUM", [replica_id() + 1.0, jnp.ones((2, 2))])
        return total, ctx.all_gather(replica_id()[None], axis=0)

    step = mode(lambda: strategy.run(replica_fn))
    for (total, ones), ids in strategy.local_results(step()):
        equal(total, 10)
        equal(ones, np.full((2, 2), 4))
        equal(ids, [0, 1, 2, 3])


def check_the_gradient_of_all_reduce(strategy, mode):
    def replica_fn():
        ctx = rx.get_replica_context()
        weight = replica_id() + 1.0
        return jax.grad(lambda x: ctx.all_reduce("SUM", weight * x) * weight)(2.0)

    step = mode(lambda: strategy.run(replica_fn))
    for gradient, i in zip(strategy.local_results(step()), local_ids(), strict=True):
        equal(gradient, 10 * (i + 1))


def check_merge_call(strategy, mode):
    def merge(strategy, value):
        return strategy.reduce("SUM", value, axis=None)

    def replica_fn():
        return rx.get_replica_context().merge_call(merge, args=(replica_id() + 1,))

    step = mode(lambda: strategy.run(replica_fn))
    for part in strategy.local_results(step()):
        equal(part, 10)


def check_the_first_process_decides_the_initial_value(strategy, mode):
    with strategy.scope():
        v = rx.Variable([1.0 + 5 * process(), 2.0])
        count = rx.Variable(7 + process(), synchronization=ON_READ, aggregation=SUM)
    copies_equal(strategy, v, [1, 2])
    equal(v.read_value(), [1, 2])
    for copy in strategy.local_results(count):
        equal(copy.numpy(), 7)


def check_assignment_outside(strategy, mode):
    with strategy.scope():
        v = rx.Variable([1.0, 2.0])

    @mode
    def step(x):
        v.assign(x)
        v.assign_add([1.0, 1.0])
        return v.read_value()

    equal(step(jnp.array([5.0, 6.0])), [6, 7])
    copies_equal(strategy, v, [6, 7])
    equal(step(jnp.array([0.0, 0.0])), [1, 1])
    copies_equal(strategy, v, [1, 1])


def check_assignment_in_replicas(strategy, mode):
    with strategy.scope():
        total = rx.Variable(0.0, aggregation=SUM)
        mean = rx.Variable(0.0, aggregation=MEAN)
        first = rx.Variable(-1.0, aggregation=rx.VariableAggregation.ONLY_FIRST_REPLICA)

    def replica_fn():
        total.assign_add(replica_id() + 1.0)
        mean.assign(replica_id() + 1.0)
        first.assign(replica_id() + 40.0)
        return total.read_value()

    step = mode(lambda: strategy.run(replica_fn))
    step()
    for part in strategy.local_results(step()):
        equal(part, 20)
    copies_equal(strategy, total, 20)
    copies_equal(strategy, mean, 2.5)
    copies_equal(strategy, first, 40)


def check_extended_update(strategy, mode):
    with strategy.scope():
        v = rx.Variable([1.0, 1.0])

    def apply(strategy, gradient):
        mean = strategy.extended.reduce_to("MEAN", gradient, v)
        strategy.extended.update(v, lambda v, mean: v.assign_sub(mean), args=(mean,))

    def replica_fn():
        gradient = jnp.ones(2) * replica_id()
        rx.get_replica_context().merge_call(apply, args=(gradient,))

    step = mode(lambda: strategy.run(replica_fn))
    step()
    step()
    copies_equal(strategy, v, [-2, -2])


def check_on_read_variables(strategy, mode):
    with strategy.scope():
        count = rx.Variable(0, synchronization=ON_READ, aggregation=SUM)
        level = rx.Variable(jnp.zeros(2), synchronization=ON_READ, aggregation=MEAN)

    def replica_fn():
        count.assign_add(replica_id() + 1)
        level.assign(jnp.ones(2) * replica_id())

    step = mode(lambda: strategy.run(replica_fn))
    step()
    step()
    for copy, i in zip(strategy.local_results(count), local_ids(), strict=True):
        equal(copy.numpy(), 2 * (i + 1))
    equal(count.read_value(), 20)
    equal(level.read_value(), [1.5, 1.5])


def check_writing_on_read_variables_outside(strategy, mode):
    with strategy.scope():
        count = rx.Variable(0.0, synchronization=ON_READ, aggregation=SUM)
        level = rx.Variable(0.0, synchronization=ON_READ, aggregation=MEAN)

    @mode
    def step():
        count.assign(8.0)
        level.assign(3.0)
        return count.read_value(), level.read_value()

    total, mean = step()
    equal(total, 8)
    equal(mean, 3)
    for copy in strategy.local_results(count):
        equal(copy.numpy(), 2)


def check_eager_and_compiled_steps_take_turns(strategy, mode):
    with strategy.scope():
        v = rx.Variable(0.0, aggregation=SUM)

    def step():
        strategy.run(lambda: v.assign_add(replica_id() + 0.0))
        return v.read_value()

    compiled = rx.function(step)
    equal(step(), 6)
    equal(compiled(), 12)
    equal(step(), 18)
    equal(compiled(), 24)
    copies_equal(strategy, v, 24)


def check_training(strategy, mode):
    random = np.random.default_rng(0)
    x, y = random.normal(size=(16, 3)).astype(np.float32), np.arange(16, dtype=np.float32)
    with strategy.scope():
        w = rx.Variable(jnp.zeros(3), aggregation=MEAN)

    def shard(array):
        return strategy.distribute_values_from_function(
            lambda ctx: array[ctx.replica_id_in_sync_group * 4 :][:4]
        )

    def replica_step(x, y):
        loss, gradient = jax.value_and_grad(lambda w: jnp.mean((x @ w - y) ** 2))(w.value)
        w.assign_sub(0.05 * gradient)
        return loss

    @mode
    def step(x, y):
        return strategy.reduce("MEAN", strategy.run(replica_step, args=(x, y)), axis=None)

    batch, weights = (shard(x), shard(y)), np.zeros(3)
    for _ in range(5):
        error = x @ weights - y
        np.testing.assert_allclose(float(step(*batch)), np.mean(error**2), rtol=1e-5)
        weights = weights - 0.05 * 2 * error @ x / 16
    np.testing.assert_allclose(w.numpy(), weights, rtol=1e-4)


def rows_seen(strategy, dataset):
    """What the replicas of this process get, step by step."""
    return [[part.tolist() for part in strategy.local_results(batch)] for batch in dataset]


def check_a_dataset_is_split_over_both_processes(strategy, mode):
    dataset = strategy.distribute_dataset(rx.from_arrays(np.arange(16)).batch(8))
    first = 4 * process()
    assert rows_seen(strategy, dataset) == [
        [[first, first + 1], [first + 2, first + 3]],
        [[first + 8, first + 9], [first + 10, first + 11]],
    ]
    total = mode(lambda batch: strategy.reduce("SUM", batch, axis=0))
    assert [int(total(batch)) for batch in dataset] == [28, 92]


def check_padded_batches_over_both_processes(strategy, mode):
    arrays = rx.from_arrays(np.arange(1.0, 12.0, dtype=np.float32)).batch(8)
    dataset = strategy.distribute_dataset(arrays, rx.InputOptions(partial_batch="pad"))
    step = mode(lambda x: strategy.reduce("MEAN", strategy.run(lambda x: 2 * x, args=(x,)), axis=0))
    assert [float(step(batch)) for batch in dataset] == [9.0, 20.0]


def check_batches_that_do_not_divide_evenly(strategy, mode):
    """Replicas get 3, 3, 2, 2 rows, then 3, 2, 2, 2, then 1, 1, 0, 0."""
    rows = [np.arange(10.0), np.arange(9.0) + 10, np.arange(2.0) + 30]
    dataset = strategy.distribute_dataset([x.astype(np.float32) for x in rows])

    @mode
    def step(batch):
        doubled = strategy.run(lambda x: 2 * x, args=(batch,))
        count = strategy.run(lambda x: jnp.float32(x.shape[0]), args=(batch,))
        return strategy.reduce("MEAN", batch, axis=0), strategy.reduce("SUM", count, axis=None), doubled

    for batch, whole in zip(dataset, rows, strict=True):
        mean, count, doubled = step(batch)
        equal(mean, whole.mean())
        equal(count, len(whole))
        sizes = [len(part) for part in np.array_split(whole, 4)]
        assert [len(part) for part in strategy.local_results(doubled)] == [sizes[i] for i in local_ids()]
        equal(strategy.gather(batch, axis=0), whole)
        if mode is rx.function:
            equal(strategy.gather(doubled, axis=0), 2 * whole)
            again = rx.function(lambda x: strategy.reduce("SUM", x, axis=0))
            equal(again(doubled), 2 * whole.sum())


def check_processes_with_their_own_data(strategy, mode):
    def dataset_fn(context):
        assert context == rx.InputContext(2, process(), 4)
        start = 100 * process()
        return rx.from_arrays(np.arange(start, start + 4 * (2 - process()))).batch(2)

    dataset = strategy.distribute_datasets_from_function(dataset_fn, rx.InputOptions(partial_batch="pad"))
    total = mode(lambda batch: strategy.reduce("SUM", batch, axis=0))
    # The second process has data for one step only; in the other step its batches are empty.
    assert [int(total(batch)) for batch in dataset] == [6 + 406, 22]


def check_a_reader_that_fails_in_one_process(strategy, mode):
    def dataset_fn(context):
        yield np.arange(2)
        yield np.arange(2)
        if process() == 1:
            raise OSError("no disk")
        while True:
            yield np.arange(2)

    try:
        for _ in strategy.distribute_datasets_from_function(dataset_fn):
            pass
    except (OSError, rx.errors.InputError) as error:
        assert str(error) == "no disk" or "pipeline 1 failed" in str(error), error
    else:
        raise AssertionError("no error")


def passes(name, mode_name, mode, strategy):
    try:
        globals()[name](strategy, mode)
    except Exception:
        print("FAILED", name, mode_name)
        traceback.print_exc(file=sys.stdout)
        return False
    print("passed", name, mode_name)
    return True


def main():
    from launch import join_cluster

    join_cluster(devices_per_process=2)
    strategy = rx.MirroredStrategy(devices=jax.devices())
    modes = {"eager": lambda step: step, "compiled": rx.function}
    checks = [name for name in globals() if name.startswith("check_")]
    results = [
        passes(name, mode_name, mode, strategy) for name in checks for mode_name, mode in modes.items()
    ]
    if not all(results):
        os._exit(1)  # an orderly end would wait for the other process
    jax.distributed.shutdown()


if __name__ == "__main__":
    main()
