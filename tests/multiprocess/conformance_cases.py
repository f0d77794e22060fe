"""What every strategy does, between processes: run, reduce, gather, variables, input.

All cases are called with a strategy, whose replicas are in several processes, and with a decorator that
compiles a step or leaves it eager; see `test_workers.py`.
"""

import contextlib

import jax
import jax.numpy as jnp
import numpy as np
from tests.multiprocess.cases import depends_on

import replicax as rx
import replicax.errors

SUM, MEAN = rx.VariableAggregation.SUM, rx.VariableAggregation.MEAN
ON_READ = rx.VariableSynchronization.ON_READ


def process():
    return jax.process_index()


def local_ids(strategy):
    return strategy.mesh.local_replica_ids


def total_of_ids(strategy):
    return sum(range(strategy.num_replicas_in_sync))


def equal(actual, expected):
    np.testing.assert_allclose(np.asarray(actual), expected, rtol=1e-6)


def copies_equal(strategy, variable, expected):
    copies = strategy.local_results(variable)
    assert len(copies) == len(local_ids(strategy))
    for copy in copies:
        equal(copy.numpy(), expected)


def total_from_one(strategy):
    return total_of_ids(strategy) + strategy.num_replicas_in_sync


@contextlib.contextmanager
def raises(*kinds):
    try:
        yield
    except kinds:
        return
    raise AssertionError(f"no error; expected {kinds}")


def replica_id():
    return rx.get_replica_context().replica_id_in_sync_group


def check_the_cluster(strategy, mode):
    ids = local_ids(strategy)
    assert strategy.num_replicas_in_sync == len(ids) * jax.process_count()
    assert len(strategy.extended.worker_devices) == len(ids)
    assert strategy.extended.should_checkpoint == (process() == 0)


def check_run(strategy, mode):
    step = mode(lambda: strategy.run(lambda: replica_id() * 10))
    for part, i in zip(strategy.local_results(step()), local_ids(strategy), strict=True):
        equal(part, 10 * i)


def check_run_with_arguments(strategy, mode):
    x = strategy.distribute_values_from_function(
        lambda ctx: np.full(3, ctx.replica_id_in_sync_group, np.float32)
    )
    step = mode(lambda x: strategy.run(lambda x, y: x + y, args=(x, 0.5)))
    for part, i in zip(strategy.local_results(step(x)), local_ids(strategy), strict=True):
        equal(part, np.full(3, i + 0.5))


def check_reduce(strategy, mode):
    @mode
    def step():
        values = strategy.run(lambda: {"id": replica_id() + 0.0, "row": jnp.ones(2) * replica_id()})
        return strategy.reduce("SUM", values, axis=None), strategy.reduce("MEAN", values, axis=None)

    total, mean = step()
    mean_id = total_of_ids(strategy) / strategy.num_replicas_in_sync
    equal(total["id"], total_of_ids(strategy))
    equal(mean["row"], [mean_id, mean_id])


def check_reduce_an_axis(strategy, mode):
    @mode
    def step():
        values = strategy.run(lambda: jnp.arange(3.0) + replica_id())
        return strategy.reduce("MEAN", values, axis=0)

    equal(step(), 1 + total_of_ids(strategy) / strategy.num_replicas_in_sync)


@depends_on("workers")
def check_reduce_rows(strategy, mode):
    """Rows and row numbers that all replicas share still count once for each replica."""
    indices = jnp.array([2, 0])
    for make in (lambda: strategy.run(lambda: jnp.ones(2)), lambda: jnp.ones(2)):

        @mode
        def step(make=make):
            rows = rx.IndexedSlices(make(), indices, dense_shape=(3,))
            return strategy.reduce("SUM", rows, axis=None)

        n = strategy.num_replicas_in_sync
        equal(step().to_dense(), [n, 0, n])


def check_gather(strategy, mode):
    @mode
    def step():
        return strategy.gather(strategy.run(lambda: replica_id()[None] * jnp.ones(2)), axis=0)

    equal(step(), np.repeat(np.arange(strategy.num_replicas_in_sync), 2))


@depends_on("workers")
def check_gather_of_unequal_sizes(strategy, mode):
    rows = strategy.run(lambda: jnp.full(int(replica_id()) + 1, replica_id()))
    step = mode(lambda rows: strategy.gather(rows, axis=0))
    ids = np.arange(strategy.num_replicas_in_sync)
    if mode is rx.function:
        # With one replica here, only the comparison with the other processes finds that shapes differ.
        with raises(rx.errors.TracingError, rx.errors.CollectiveMismatchError):
            step(rows)
    else:
        equal(step(rows), np.repeat(ids, ids + 1))
    equal(strategy.gather(rows, axis=0), np.repeat(ids, ids + 1))


@depends_on("workers")
def check_reduce_over_an_axis_of_unequal_sizes(strategy, mode):
    rows = strategy.run(lambda: jnp.arange(int(replica_id()) + 1.0))
    parts = [np.arange(i + 1.0) for i in range(strategy.num_replicas_in_sync)]
    equal(strategy.reduce("MEAN", rows, axis=0), np.mean(np.concatenate(parts)))
    equal(strategy.reduce("SUM", rows, axis=0), np.sum(np.concatenate(parts)))


def check_values_without_rows_are_gathered_and_reduced(strategy, mode):
    last = strategy.num_replicas_in_sync - 1
    rows = strategy.run(lambda: jnp.ones((3 if int(replica_id()) == last else 0, 2)))
    equal(strategy.gather(rows, axis=0), np.ones((3, 2)))
    equal(strategy.reduce("MEAN", rows, axis=0), [1, 1])


def check_plain_values_of_each_process(strategy, mode):
    """A plain value counts once for each replica of the process that passes it."""
    own = float(process() + 1)
    count = len(local_ids(strategy))
    workers = [i + 1.0 for i in range(jax.process_count())]
    equal(strategy.reduce("SUM", own, axis=None), count * sum(workers))
    equal(strategy.reduce("MEAN", own, axis=None), np.mean(workers))
    equal(strategy.gather(jnp.array([own]), axis=0), np.repeat(workers, count))


@depends_on("local replicas")
def check_one_local_replica_behaves_like_its_value(strategy, mode):
    step = mode(lambda: strategy.run(lambda: jnp.float32(1.5) + replica_id()))
    loss = step()
    own = 1.5 + local_ids(strategy)[0]
    if len(local_ids(strategy)) > 1:
        with raises(rx.errors.PerReplicaUseError):
            float(loss)
        return
    assert float(loss) == loss.numpy() == loss.item() == own
    assert np.asarray(loss) == own and loss.dtype == jnp.float32 and loss.shape == ()
    assert f"{loss:.2f}" == f"{own:.2f}"
    equal(loss * 2 + jnp.asarray(loss) ** 2, 2 * own + own**2)
    equal(loss + loss, 2 * own)
    assert (loss > 0) and int(loss) == int(own)
    total = 1.5 * strategy.num_replicas_in_sync + total_of_ids(strategy)
    equal(strategy.reduce("SUM", loss, axis=None), total)


def check_all_reduce_and_all_gather(strategy, mode):
    def replica_fn():
        ctx = rx.get_replica_context()
        total = ctx.all_reduce("SUM", [replica_id() + 1.0, jnp.ones((2, 2))])
        return total, ctx.all_gather(replica_id()[None], axis=0)

    step = mode(lambda: strategy.run(replica_fn))
    for (total, ones), ids in strategy.local_results(step()):
        equal(total, total_of_ids(strategy) + strategy.num_replicas_in_sync)
        equal(ones, np.full((2, 2), strategy.num_replicas_in_sync))
        equal(ids, range(strategy.num_replicas_in_sync))


def check_the_gradient_of_all_reduce(strategy, mode):
    def replica_fn():
        ctx = rx.get_replica_context()
        weight = replica_id() + 1.0
        return jax.grad(lambda x: ctx.all_reduce("SUM", weight * x) * weight)(2.0)

    step = mode(lambda: strategy.run(replica_fn))
    for gradient, i in zip(strategy.local_results(step()), local_ids(strategy), strict=True):
        equal(gradient, total_from_one(strategy) * (i + 1))


def check_merge_call(strategy, mode):
    def merge(strategy, value):
        return strategy.reduce("SUM", value, axis=None)

    def replica_fn():
        return rx.get_replica_context().merge_call(merge, args=(replica_id() + 1,))

    step = mode(lambda: strategy.run(replica_fn))
    for part in strategy.local_results(step()):
        equal(part, total_from_one(strategy))


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
        equal(part, 2 * total_from_one(strategy))
    copies_equal(strategy, total, 2 * total_from_one(strategy))
    copies_equal(strategy, mean, total_from_one(strategy) / strategy.num_replicas_in_sync)
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
    new = 1 - 2 * total_of_ids(strategy) / strategy.num_replicas_in_sync
    copies_equal(strategy, v, [new, new])


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
    for copy, i in zip(strategy.local_results(count), local_ids(strategy), strict=True):
        equal(copy.numpy(), 2 * (i + 1))
    mean = total_of_ids(strategy) / strategy.num_replicas_in_sync
    equal(count.read_value(), 2 * total_from_one(strategy))
    equal(level.read_value(), [mean, mean])


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
        equal(copy.numpy(), 8 / strategy.num_replicas_in_sync)


def check_eager_and_compiled_steps_take_turns(strategy, mode):
    with strategy.scope():
        v = rx.Variable(0.0, aggregation=SUM)

    def step():
        strategy.run(lambda: v.assign_add(replica_id() + 0.0))
        return v.read_value()

    compiled = rx.function(step)
    once = total_of_ids(strategy)
    for times, call in enumerate((step, compiled, step, compiled), 1):
        equal(call(), times * once)
    copies_equal(strategy, v, 4 * once)


def check_many_large_variables_have_the_first_process_values(strategy, mode):
    """Megabytes whose broadcasts follow each other at once, computed in the background."""
    size, count = 200_000, 8
    values = [jnp.full(size, i + 100.0 * process()) for i in range(count)]
    with strategy.scope():
        variables = [rx.Variable(value) for value in values]
    for i, variable in enumerate(variables):
        copies_equal(strategy, variable, np.full(size, i))


def check_a_step_that_creates_variables(strategy, mode):
    """The initial values of the first process, also for variables that are created in a trace."""
    made = []

    def replica_fn(x):
        if not made:
            made.append(rx.Variable(np.full(2000, 5.0 + process(), np.float32), aggregation=SUM))
            made.append(rx.Variable(3 + process(), aggregation=SUM))
        made[0].assign_add(x * jnp.ones(2000))
        return made[0].read_value()

    step = mode(lambda x: strategy.run(replica_fn, args=(x,)))
    step(jnp.float32(1.0))
    copies_equal(strategy, made[0], np.full(2000, 5.0 + strategy.num_replicas_in_sync))
    copies_equal(strategy, made[1], 3)


def check_a_bool_stays_a_bool_in_merge_call(strategy, mode):
    def merge(strategy, value, doubled, name=None):
        assert doubled is True and name == "x"
        return strategy.reduce("SUM", value, axis=None)

    def replica_fn():
        context = rx.get_replica_context()
        return context.merge_call(merge, args=(replica_id() + 1, True), kwargs={"name": "x"})

    for part in strategy.local_results(mode(lambda: strategy.run(replica_fn))()):
        equal(part, total_from_one(strategy))
