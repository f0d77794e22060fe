"""Which values have one row for each example of a padded batch, and which only as many rows."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import replicax as rx
from replicax.errors import CollectiveError

MODES = {"eager": lambda fn: fn, "compiled": rx.function}
PAD = rx.InputOptions(partial_batch="pad")
ROWS = 4


@pytest.fixture(params=[1, 2, 3])
def strategy(request):
    return mirrored(request.param)


@pytest.fixture
def two():
    return mirrored(2)


@pytest.fixture(params=MODES)
def mode(request):
    return MODES[request.param]


def mirrored(n):
    return rx.MirroredStrategy([f"CPU:{i}" for i in range(n)])


def close(actual, expected):
    np.testing.assert_allclose(np.asarray(actual), np.asarray(expected), rtol=1e-5)


def batches(strategy, data):
    """A full batch of four rows for each replica, and a partial one."""
    return strategy.distribute_dataset(
        rx.from_arrays(data).batch(ROWS * strategy.num_replicas_in_sync), PAD
    )


def numbers(strategy, rest, start=0):
    """Rows for a full batch, and `rest` more."""
    return start + np.arange(ROWS * strategy.num_replicas_in_sync + rest, dtype=np.float32)


def cut(strategy, data):
    """The batches as they are without padding."""
    size = ROWS * strategy.num_replicas_in_sync
    return [data[:size], data[size:]]


# Two batches in one run.


def test_each_of_two_batches_has_its_own_mask(strategy, mode):
    a, b = numbers(strategy, 1), numbers(strategy, 3, start=100)

    def replica_fn(a, b):
        return 2 * a, {"b": b[:, None]}

    def step(a, b):
        twice, other = strategy.run(replica_fn, args=(a, b))
        return strategy.reduce("MEAN", twice, axis=0), strategy.reduce("MEAN", other["b"], axis=0)

    compiled = mode(step)
    for x, y, true_x, true_y in zip(
        batches(strategy, a), batches(strategy, b), cut(strategy, a), cut(strategy, b), strict=True
    ):
        first, second = compiled(x, y)
        close(first, 2 * true_x.mean())
        close(second, [true_y.mean()])
        close(strategy.gather(strategy.run(replica_fn, args=(x, y))[1]["b"], axis=0), true_y[:, None])


def test_losses_and_metrics_know_their_batch(strategy, mode):
    a, b = numbers(strategy, 1), numbers(strategy, 3, start=100)
    with strategy.scope():
        mean = rx.Mean()

    def replica_fn(a, b):
        mean.update_state(b)
        return rx.compute_average_loss(a**2), rx.compute_weighted_loss(b[:, None] * jnp.ones(3))

    step = mode(lambda a, b: strategy.reduce("SUM", strategy.run(replica_fn, args=(a, b)), axis=None))
    for x, y, true_x, true_y in zip(
        batches(strategy, a), batches(strategy, b), cut(strategy, a), cut(strategy, b), strict=True
    ):
        average, weighted = step(x, y)
        close(average, (true_x**2).mean())
        close(weighted, true_y.mean())
    close(mean.result(), b.mean())


def test_a_mask_can_be_an_argument(two, mode):
    a, b = numbers(two, 1), numbers(two, 3, start=100)

    def replica_fn(a, b, mask):
        return jnp.sum(b, where=mask), rx.compute_average_loss(b, example_mask=mask)

    def step(a, b):
        total, loss = two.run(replica_fn, args=(a, b, b.example_mask))
        return two.reduce("SUM", (total, loss), axis=None)

    for x, y, true_y in zip(batches(two, a), batches(two, b), cut(two, b), strict=True):
        close(mode(step)(x, y), [true_y.sum(), true_y.mean()])


def test_the_arrays_of_a_batch_are_told_from_those_of_two(two):
    """A compiled step has the same kinds of arguments in both cases."""
    a = numbers(two, 1)
    data = {"x": a, "y": a}
    one, other = [list(batches(two, data))[1] for _ in range(2)]

    def count(x, y):
        return jnp.sum(rx.get_replica_context().example_mask)

    step = rx.function(lambda x, y: two.reduce("SUM", two.run(count, args=(x, y)), axis=None))
    for _ in range(2):
        close(step(one["x"], one["y"]), 1)
        with pytest.raises(ValueError, match="padded batches with 4 and 4 rows"):
            step(one["x"], other["y"])
    x, y = rx.function(lambda b: two.run(lambda b: (b["x"] + 1, b["y"] + 1), args=(b,)))(one)
    close(step(x, y), 1)  # the results of a step are of one batch too


def test_consecutive_batches_of_a_dataset_are_two_batches(two, mode):
    first, second = batches(two, numbers(two, 8))
    with pytest.raises(ValueError, match="padded batches with 4 and 4 rows"):
        mode(lambda a, b: two.run(lambda a, b: rx.get_replica_context().example_mask, args=(a, b)))(
            first, second
        )


# Values that are not rows of the batch.


def test_a_vector_of_another_kind_is_not_masked(strategy, mode):
    """It has one entry for each class, and there are as many classes as rows."""
    n = strategy.num_replicas_in_sync

    def replica_fn(x):
        return jnp.ones(ROWS), jnp.bincount(jnp.zeros(x.shape, int), length=ROWS)

    def step(x):
        ones, counts = strategy.run(replica_fn, args=(x,))
        return strategy.reduce("SUM", (ones, counts), axis=0)

    for x in batches(strategy, numbers(strategy, 1)):
        close(mode(step)(x), [ROWS * n, ROWS * n])
        ones, _ = strategy.run(replica_fn, args=(x,))
        close(strategy.gather(ones, axis=0), np.ones(ROWS * n))


def test_results_that_are_flattened_are_refused_on_the_first_batch(strategy, mode):
    data = numbers(strategy, 1)[:, None] * np.ones(5, np.float32)
    full, _ = batches(strategy, data)
    run = mode(lambda x: strategy.run(lambda x: x.reshape(-1), args=(x,)))
    assert [len(part) for part in strategy.local_results(run(full))] == [20] * strategy.num_replicas_in_sync
    for use in (lambda v: strategy.reduce("MEAN", v, axis=0), lambda v: strategy.gather(v, axis=0)):
        with pytest.raises(
            CollectiveError, match=r"20, is 5 times the 4 rows.*reshape\(4, -1\).*example_mask"
        ):
            use(run(full))
    with pytest.raises(CollectiveError, match="5 times the 4 rows"):
        mode(lambda x: strategy.reduce("SUM", strategy.run(lambda x: x.reshape(-1), args=(x,)), axis=0))(
            full
        )


def test_what_is_computed_from_a_flattened_result_is_refused_too(two, mode):
    data = numbers(two, 1)[:, None] * np.ones(5, np.float32)
    full, _ = batches(two, data)

    def step(x):
        flat = two.run(lambda x: x.reshape(-1), args=(x,))
        return two.reduce("SUM", two.run(jnp.square, args=(flat,)), axis=0)

    with pytest.raises(CollectiveError, match="5 times the 4 rows"):
        mode(step)(full)


def test_the_user_can_say_which_rows_count(strategy, mode):
    data = numbers(strategy, 1)

    def reversed_twice(x):
        assert x.shape == (ROWS,)  # so that it can't be called with more rows
        return x[::-1][::-1]

    def step(x):
        same = strategy.run(reversed_twice, args=(x,))
        own = strategy.reduce("MEAN", same, axis=0, example_mask=x.example_mask)
        return own, strategy.reduce("SUM", same, axis=0, example_mask=None)

    for x, true_x in zip(batches(strategy, data), cut(strategy, data), strict=True):
        mean, total = mode(step)(x)
        close(mean, true_x.mean())
        close(total, sum(np.sum(part) for part in strategy.local_results(x)))
        same = strategy.run(reversed_twice, args=(x,))
        close(strategy.gather(same, axis=0, example_mask=x.example_mask), true_x)


def test_a_function_that_takes_no_other_number_of_rows_is_refused_on_the_first_batch(two, mode):
    full, _ = batches(two, numbers(two, 1))
    run = mode(lambda x: two.run(lambda x: x.reshape(2, 2).reshape(4), args=(x,)))
    found = run(full)
    close(np.concatenate(two.local_results(found)), np.arange(8))
    with pytest.raises(CollectiveError, match=r"can't be called with.*twice as many rows.*example_mask="):
        two.reduce("SUM", found, axis=0)


def test_a_mask_that_does_not_fit_is_refused(two):
    full, _ = batches(two, numbers(two, 1))
    wide = two.run(lambda x: jnp.repeat(x, 2), args=(full,))
    with pytest.raises(CollectiveError, match=r"4 rows on each replica.*shape \(8,\)"):
        two.reduce("SUM", wide, axis=0, example_mask=full.example_mask)
    with pytest.raises(TypeError, match="example_mask=True"):
        two.gather(full, axis=0, example_mask=True)


def test_losses_and_metrics_that_are_not_rows_are_refused_when_compiled(two):
    full, _ = batches(two, numbers(two, 1))
    with two.scope():
        mean = rx.Mean()
    for replica_fn in (
        lambda x: mean.update_state(jnp.ones(ROWS)),
        lambda x: rx.compute_average_loss(jnp.ones(ROWS)),
    ):
        step = rx.function(lambda x, fn=replica_fn: two.run(fn, args=(x,)))
        with pytest.raises(CollectiveError, match=r"do not have its rows.*example_mask=None"):
            step(full)
    step = rx.function(
        lambda x: two.run(lambda x: mean.update_state(jnp.ones(ROWS), example_mask=None), args=(x,))
    )
    step(full)
    close(mean.result(), 1)


# What the additional call must not do.


def test_an_eager_function_is_not_heard_twice(two, capsys):
    full, _ = batches(two, numbers(two, 1))
    calls = []
    with two.scope():
        count = rx.Variable(0, aggregation="SUM")

    def replica_fn(x):
        calls.append(1)
        print("called")
        count.assign_add(1)
        return x + 1

    found = two.run(replica_fn, args=(full,))
    assert len(calls) == 2
    close(two.reduce("MEAN", found, axis=0), 4.5)
    assert capsys.readouterr().out == "called\n" * 2
    assert int(count.read_value()) == 2


def test_a_training_step_in_eager_replicas_is_called_once_for_each(two):
    full, _ = batches(two, numbers(two, 1))
    calls = []

    def replica_fn(x):
        calls.append(float(jnp.sum(x)))
        return rx.compute_average_loss(x)

    close(two.reduce("SUM", two.run(replica_fn, args=(full,)), axis=None), 3.5)
    assert len(calls) == 2


def test_variables_that_the_function_creates_are_created_once(two, mode):
    made = []

    def replica_fn(x):
        if not made:
            made.append(rx.Variable(jnp.zeros(3)))
        return x + jnp.sum(made[0].value)

    step = mode(lambda x: two.reduce("MEAN", two.run(replica_fn, args=(x,)), axis=0))
    data = numbers(two, 1)
    for x, true_x in zip(batches(two, data), cut(two, data), strict=True):
        close(step(x), true_x.mean())
    assert [variable.shape for variable in made] == [(3,)]


def test_a_function_that_catches_exceptions_may_create_variables(two, mode):
    made, caught = [], []

    def replica_fn(x):
        if not made:
            try:
                made.append(rx.Variable(jnp.zeros(3)))
            except Exception as error:
                caught.append(error)
        return x + (jnp.sum(made[0].value) if made else 0.0)

    step = mode(lambda x: two.reduce("MEAN", two.run(replica_fn, args=(x,)), axis=0))
    data = numbers(two, 1)
    for x, true_x in zip(batches(two, data), cut(two, data), strict=True):
        close(step(x), true_x.mean())
    assert len(made) == 1
    assert not caught


def test_a_step_stays_one_program_and_is_traced_once_more(two):
    calls = []

    def replica_fn(x):
        calls.append(x.shape)
        return x**2

    step = rx.function(lambda x: two.reduce("MEAN", two.run(replica_fn, args=(x,)), axis=0))
    data = numbers(two, 1)
    for x, true_x in zip(batches(two, data), cut(two, data), strict=True):
        close(step(x), (true_x**2).mean())
    assert step.num_programs == 1
    assert sorted(calls) == [(4,), (8,)]


def test_rows_inside_of_jax_functions(two, mode):
    """The losses are computed under `grad` and `jit`, and reduced outside."""
    with two.scope():
        w = rx.Variable(2.0)

    def replica_fn(x):
        def loss():
            losses = jax.jit(lambda w, x: (w * x) ** 2)(w.value, x)
            return rx.compute_average_loss(losses), losses

        (share, losses), slope = rx.value_and_grad(loss, w, has_aux=True)()
        return share, losses, rx.get_replica_context().all_reduce("SUM", slope)

    data = numbers(two, 1)
    step = mode(lambda x: two.run(replica_fn, args=(x,)))
    for x, true_x in zip(batches(two, data), cut(two, data), strict=True):
        share, losses, slope = step(x)
        close(two.reduce("SUM", share, axis=None), (4 * true_x**2).mean())
        close(two.gather(losses, axis=0), 4 * true_x**2)
        close(two.local_results(slope)[0], (4 * true_x**2).mean())
