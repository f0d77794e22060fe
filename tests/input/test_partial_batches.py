"""`InputOptions(partial_batch=...)`: what becomes of batches that do not fill every replica."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import replicax as rx
from replicax.errors import InputError

STRATEGIES = {
    "default": rx.get_strategy,
    "one_device": lambda: rx.OneDeviceStrategy("CPU:1"),
    "mirrored_1": lambda: mirrored(1),
    "mirrored_2": lambda: mirrored(2),
    "mirrored_3": lambda: mirrored(3),
    "mirrored_8": lambda: mirrored(8),
    "central": lambda: rx.CentralStorageStrategy(["CPU:0", "CPU:1"], "CPU:0"),
}
MODES = {"eager": lambda fn: fn, "compiled": rx.function}
PAD = rx.InputOptions(partial_batch="pad")
DROP = rx.InputOptions(partial_batch="drop")
ERROR = rx.InputOptions(partial_batch="error")


def mirrored(n):
    return rx.MirroredStrategy([f"CPU:{i}" for i in range(n)])


@pytest.fixture(params=STRATEGIES)
def strategy(request):
    return STRATEGIES[request.param]()


@pytest.fixture
def two():
    return mirrored(2)


@pytest.fixture(params=MODES)
def mode(request):
    return MODES[request.param]


def close(actual, expected):
    actual, expected = np.asarray(actual), np.asarray(expected)
    assert actual.shape == expected.shape, f"shape {actual.shape}, expected {expected.shape}"
    np.testing.assert_allclose(actual, expected, rtol=1e-5, atol=1e-6)


def table(num_rows, dtype=np.float32):
    return (np.arange(num_rows * 3).reshape(num_rows, 3) + 1).astype(dtype)


def batches_of(rows, size):
    return [rows[i : i + size] for i in range(0, len(rows), size)]


@pytest.fixture(params=["few", "many"])
def rest(request, strategy):
    """How many rows the last batch has, of 2 N: too few for every replica to get one, or one too few."""
    n = strategy.num_replicas_in_sync
    return (n + 1) // 2 if request.param == "few" else 2 * n - 1


@pytest.fixture
def rows(strategy, rest):
    return table(2 * strategy.num_replicas_in_sync + rest)


@pytest.fixture
def size(strategy):
    return 2 * strategy.num_replicas_in_sync


def parts(strategy, value):
    return [np.asarray(part) for part in strategy.local_results(value)]


def true_sizes(num_rows, n):
    return [num_rows // n + (i < num_rows % n) for i in range(n)]


# Exact.


def test_exact_batches_have_their_true_rows_and_no_mask(strategy, mode, rows, size):
    data = strategy.distribute_dataset(rx.from_arrays(rows).batch(size))
    masks = []

    def replica_fn(x):
        masks.append(rx.get_replica_context().example_mask)
        return 2 * x

    step = mode(lambda x: strategy.run(replica_fn, args=(x,)))
    for batch, wanted in zip(data, batches_of(rows, size), strict=True):
        found = step(batch)
        assert [len(p) for p in parts(strategy, found)] == true_sizes(
            len(wanted), strategy.num_replicas_in_sync
        )
        close(strategy.gather(found, axis=0), 2 * wanted)
    assert masks and all(mask is None for mask in masks)


def test_there_is_no_mask_outside_of_a_run():
    assert rx.get_replica_context().example_mask is None


# Padding.


def test_padded_batches_need_one_program(strategy, rows, size):
    def replica_fn(batch):
        return jnp.sum(batch["x"], where=rx.get_replica_context().example_mask[:, None])

    step = rx.function(lambda b: strategy.reduce("SUM", strategy.run(replica_fn, args=(b,)), axis=None))
    data = strategy.distribute_dataset(rx.from_arrays({"x": rows}).batch(size), PAD)
    found = [step(batch) for _ in range(2) for batch in data]
    close(found, [wanted.sum() for _ in range(2) for wanted in batches_of(rows, size)])
    assert step.num_programs == 1


def test_a_step_with_the_signature_of_padded_batches_takes_them_all(strategy, rows, size):
    data = strategy.distribute_dataset(rx.from_arrays(rows).batch(size), PAD)
    step = rx.function(
        lambda b: strategy.reduce("SUM", b, axis=0),
        input_signature=[data.element_spec],
    )
    for batch, wanted in zip(data, batches_of(rows, size), strict=True):
        close(step(batch), wanted.sum(axis=0))
    assert step.num_programs == 1


def test_masks_say_which_rows_are_examples(strategy, mode, rows, size):
    def replica_fn(x):
        mask = rx.get_replica_context().example_mask
        assert mask.shape == x.shape[:1] == (2,)
        assert mask.dtype == bool
        return jnp.sum(mask), jnp.where(mask[:, None], x, -1.0)

    step = mode(lambda x: strategy.run(replica_fn, args=(x,)))
    n = strategy.num_replicas_in_sync
    data = strategy.distribute_dataset(rx.from_arrays(rows).batch(size), PAD)
    for batch, wanted in zip(data, batches_of(rows, size), strict=True):
        counts, marked = step(batch)
        assert [int(c) for c in parts(strategy, counts)] == true_sizes(len(wanted), n)
        shown = np.concatenate(parts(strategy, marked))
        close(shown[shown[:, 0] >= 0], wanted)


def test_the_mask_of_a_batch_can_be_looked_at(two):
    *_, last = two.distribute_dataset(rx.from_arrays(table(7)).batch(4), PAD)
    assert [p.tolist() for p in parts(two, last.example_mask)] == [[True, True], [True, False]]


@pytest.mark.parametrize("axis", [0, -2, (0, 1), (1, 0)])
@pytest.mark.parametrize("op", ["SUM", "MEAN"])
def test_reductions_over_examples_leave_padding_out(strategy, mode, rows, size, op, axis):
    data = strategy.distribute_dataset(rx.from_arrays(rows).batch(size), PAD)
    step = mode(lambda x: strategy.reduce(op, x, axis=axis))
    over = axis if isinstance(axis, tuple) else 0
    for batch, wanted in zip(data, batches_of(rows, size), strict=True):
        close(step(batch), (np.sum if op == "SUM" else np.mean)(wanted, axis=over))


@pytest.mark.parametrize("op", ["SUM", "MEAN"])
def test_reductions_over_other_axes_of_full_batches_are_as_ever(strategy, mode, op):
    n = strategy.num_replicas_in_sync
    rows = table(2 * n)
    (batch,) = strategy.distribute_dataset(rx.from_arrays(rows).batch(2 * n), PAD)
    found = mode(lambda x: strategy.reduce(op, x, axis=1))(batch)
    by_replica = rows.reshape(n, 2, 3)
    close(found, (np.sum if op == "SUM" else np.mean)(by_replica, axis=(0, 2)))


@pytest.mark.parametrize("dtype", [np.float32, np.float16, np.int32, np.uint8, bool])
@pytest.mark.parametrize("op", ["SUM", "MEAN"])
def test_padding_keeps_dtypes(two, mode, op, dtype):
    rows = (np.arange(7) % 3).astype(dtype)
    data = two.distribute_dataset(rx.from_arrays(rows).batch(4), PAD)
    step = mode(lambda x: two.reduce(op, x, axis=0))
    for batch, wanted in zip(data, batches_of(rows, 4), strict=True):
        assert all(p.dtype == dtype for p in parts(two, batch))
        close(step(batch), wanted.sum() if op == "SUM" else wanted.astype(np.float64).mean())


def test_padding_rows_are_valid_rows(strategy, mode, rows, size):
    """They are copies of rows of the batch, so what is defined for the data is defined for them."""
    data = strategy.distribute_dataset(rx.from_arrays(rows).batch(size), PAD)
    step = mode(lambda x: strategy.run(jnp.log, args=(x,)))
    for batch, wanted in zip(data, batches_of(rows, size), strict=True):
        assert all(np.isfinite(p).all() for p in parts(strategy, step(batch)))
        known = {row.tobytes() for row in wanted}
        assert all(row.tobytes() in known for p in parts(strategy, batch) for row in p)


def test_a_padded_batch_without_any_row_counts_nothing(two, mode):
    data = two.distribute_dataset([table(4), table(0), table(2)], PAD)
    step = mode(lambda x: two.reduce("SUM", x, axis=0))
    close([step(batch) for batch in data], [table(4).sum(axis=0), np.zeros(3), table(2).sum(axis=0)])


def test_gathering_leaves_padding_out(strategy, rows, size):
    data = strategy.distribute_dataset(rx.from_arrays(rows).batch(size), PAD)
    for batch, wanted in zip(data, batches_of(rows, size), strict=True):
        close(strategy.gather(batch, axis=0), wanted)
        close(strategy.gather(batch, axis=-2), wanted)


def test_gathering_along_another_axis_keeps_all_rows(two):
    *_, last = two.distribute_dataset(rx.from_arrays(table(5)).batch(4), PAD)
    assert two.gather(last, axis=1).shape == (2, 6)


def test_a_compiled_step_refuses_to_gather_padded_batches(strategy, rows, size):
    batch = next(iter(strategy.distribute_dataset(rx.from_arrays(rows).batch(size), PAD)))
    with pytest.raises(ValueError, match=r"padded.*compiled.*gather it outside"):
        rx.function(lambda x: strategy.gather(x, axis=0))(batch)


# The mask follows the values.


def test_what_replicas_compute_row_by_row_carries_the_mask_on(strategy, mode, rows, size):
    def replica_fn(batch):
        return {"norm": (jnp.sum(batch["x"] ** 2, axis=1), [batch["x"][:, :1] > 3])}

    step = mode(lambda b: strategy.run(replica_fn, args=(b,)))
    data = strategy.distribute_dataset(rx.from_arrays({"x": rows}).batch(size), PAD)
    for batch, wanted in zip(data, batches_of(rows, size), strict=True):
        norm, [large] = step(batch)["norm"]
        close(strategy.reduce("MEAN", norm, axis=0), (wanted**2).sum(axis=1).mean())
        close(strategy.gather(norm, axis=0), (wanted**2).sum(axis=1))
        close(strategy.gather(large, axis=0), wanted[:, :1] > 3)


def test_the_mask_goes_through_several_runs(strategy, mode, rows, size):
    def step(x):
        doubled = strategy.run(lambda x: 2 * x, args=(x,))
        shifted = strategy.run(
            lambda x: x + rx.get_replica_context().example_mask[:, None], args=(doubled,)
        )
        return strategy.reduce("SUM", shifted, axis=0)

    data = strategy.distribute_dataset(rx.from_arrays(rows).batch(size), PAD)
    for batch, wanted in zip(data, batches_of(rows, size), strict=True):
        close(mode(step)(batch), (2 * wanted + 1).sum(axis=0))


@pytest.mark.parametrize("op", ["SUM", "MEAN"])
def test_merge_calls_see_the_mask(strategy, mode, rows, size, op):
    def merge_fn(strategy, squares):
        return strategy.reduce(op, squares, axis=0)

    def replica_fn(x):
        return rx.get_replica_context().merge_call(merge_fn, args=(x**2,))

    step = mode(lambda x: strategy.reduce("MEAN", strategy.run(replica_fn, args=(x,)), axis=None))
    data = strategy.distribute_dataset(rx.from_arrays(rows).batch(size), PAD)
    for batch, wanted in zip(data, batches_of(rows, size), strict=True):
        close(step(batch), (np.sum if op == "SUM" else np.mean)(wanted**2, axis=0))


def test_runs_inside_a_merge_call_see_the_mask(strategy, mode, rows, size):
    def inner(x):
        return jnp.sum(x, where=rx.get_replica_context().example_mask[:, None])

    def merge_fn(strategy, x):
        return strategy.reduce("SUM", strategy.run(inner, args=(x,)), axis=None)

    def replica_fn(x):
        return rx.get_replica_context().merge_call(merge_fn, args=(x,))

    step = mode(lambda x: strategy.reduce("MEAN", strategy.run(replica_fn, args=(x,)), axis=None))
    data = strategy.distribute_dataset(rx.from_arrays(rows).batch(size), PAD)
    for batch, wanted in zip(data, batches_of(rows, size), strict=True):
        close(step(batch), wanted.sum())


def test_a_function_that_returns_a_padded_batch_returns_its_mask(strategy, rows, size):
    step = rx.function(
        lambda batch: {"again": batch, "new": strategy.run(lambda b: b["x"] * 2, args=(batch,))}
    )
    data = strategy.distribute_dataset(rx.from_arrays({"x": rows}).batch(size), PAD)
    for batch, wanted in zip(data, batches_of(rows, size), strict=True):
        found = step(batch)
        close(strategy.gather(found["again"]["x"], axis=0), wanted)
        close(strategy.gather(found["new"], axis=0), 2 * wanted)
        close(strategy.reduce("MEAN", found["new"], axis=0), 2 * wanted.mean(axis=0))


def test_a_compiled_replica_function_sees_the_mask(strategy, rows, size):
    @rx.function
    def replica_fn(x):
        return jnp.sum(x, where=rx.get_replica_context().example_mask[:, None])

    data = strategy.distribute_dataset(rx.from_arrays(rows).batch(size), PAD)
    for batch, wanted in zip(data, batches_of(rows, size), strict=True):
        close(strategy.reduce("SUM", strategy.run(replica_fn, args=(batch,)), axis=None), wanted.sum())


def test_keyword_arguments_and_nested_structures_bring_their_mask(two, mode):
    def replica_fn(factor, *, batch):
        mask = rx.get_replica_context().example_mask
        return jnp.sum(factor * batch["a"][0] + batch["b"], where=mask)

    rows = {"a": (np.arange(1.0, 6.0, dtype=np.float32),), "b": np.ones(5, np.float32)}
    data = two.distribute_dataset(rx.from_arrays(rows).batch(4), PAD)
    step = mode(lambda b: two.run(replica_fn, args=(2.0,), kwargs={"batch": b}))
    found = [two.reduce("SUM", step(batch), axis=None) for batch in data]
    close(found, [24.0, 11.0])


def test_exact_and_padded_batches_go_into_one_step(two, mode):
    """Only the padded one has a mask, also where the other makes replicas unlike each other."""
    padded = two.distribute_dataset(rx.from_arrays(table(5)).batch(4), PAD)
    exact = two.distribute_dataset(rx.from_arrays(table(6)).batch(3))

    def replica_fn(x, y):
        mask = rx.get_replica_context().example_mask
        return x + jnp.sum(mask) + jnp.sum(y)

    def step(x, y):
        return x, two.run(replica_fn, args=(x, y))

    compiled = mode(step)
    for x, y, true_x, true_y in zip(
        padded, exact, batches_of(table(5), 4), batches_of(table(6), 3), strict=True
    ):
        same, found = compiled(x, y)
        close(two.gather(same, axis=0), true_x)
        counts = true_sizes(len(true_x), 2)
        sums = [true_y[:2].sum(), true_y[2:].sum()]
        added = np.repeat([c + s for c, s in zip(counts, sums, strict=True)], counts)
        close(two.gather(found, axis=0), true_x + added[:, None])


def test_a_row_of_two_batches_is_an_example_if_both_say_so(two, mode):
    ones = np.ones(7, np.float32)
    seven = two.distribute_dataset(rx.from_arrays(ones).batch(4), PAD)
    five = two.distribute_dataset(rx.from_arrays(ones[:5]).batch(4), PAD)

    step = mode(lambda x, y: two.run(lambda x, y: x + y, args=(x, y)))
    found = [step(x, y) for x, y in zip(seven, five, strict=True)]
    close([two.reduce("SUM", both, axis=0) for both in found], [8, 2])


def test_two_padded_batches_have_no_common_mask(two, mode):
    four = two.distribute_dataset(rx.from_arrays(table(4)).batch(4), PAD)
    six = two.distribute_dataset(rx.from_arrays(table(5)).batch(6), PAD)
    (x,), (y,) = four, six

    def asks(x, y):
        return jnp.sum(rx.get_replica_context().example_mask)

    with pytest.raises(InputError, match=r"2 and 3 rows.*a\.example_mask"):
        mode(lambda x, y: two.run(asks, args=(x, y)))(x, y)
    u, v = mode(lambda x, y: two.run(lambda x, y: (2 * x, 2 * y), args=(x, y)))(x, y)
    close(two.gather(u, axis=0), 2 * table(4))
    close(two.gather(v, axis=0), 2 * table(5))


def test_scalars_and_other_sizes_carry_no_mask(two, mode):
    *_, last = two.distribute_dataset(rx.from_arrays(table(5)).batch(4), PAD)
    total, wide = mode(lambda x: two.run(lambda x: (jnp.float32(1), jnp.ones(5)), args=(x,)))(last)
    close(two.reduce("SUM", total, axis=None), 2)
    close(two.reduce("SUM", wide, axis=0), 10)


def test_padding_pads_only_what_a_from_function_dataset_is_short_of(two, mode):
    """Three batches for two replicas: in the last step one has none."""
    rows = np.arange(1.0, 6.0, dtype=np.float32)
    data = two.distribute_datasets_from_function(lambda ctx: rx.from_arrays(rows).batch(2), PAD)
    step = mode(lambda x: (x, two.run(lambda x: jnp.sum(rx.get_replica_context().example_mask), args=(x,))))
    found = [step(batch) for batch in data]
    assert [[int(c) for c in parts(two, count)] for _, count in found] == [[2, 2], [1, 0]]
    close(two.gather(found[0][0], axis=0), [1, 2, 3, 4])
    close(two.gather(found[1][0], axis=0), [5])
    assert all(p.shape == (2,) for batch, _ in found for p in parts(two, batch))


def test_padding_learns_the_size_from_the_first_batch(two):
    data = two.distribute_dataset([table(6), table(3), table(1)], PAD)
    step = rx.function(lambda x: two.reduce("SUM", x, axis=0))
    close([step(x) for x in data], [table(n).sum(axis=0) for n in (6, 3, 1)])
    assert step.num_programs == 1


def test_padding_grows_with_the_batches(two, mode):
    data = two.distribute_dataset([table(2), table(6), table(3)], PAD)
    step = mode(lambda x: two.reduce("SUM", x, axis=0))
    found = list(data)
    assert [parts(two, batch)[0].shape[0] for batch in found] == [1, 3, 3]
    close([step(x) for x in found], [table(n).sum(axis=0) for n in (2, 6, 3)])


def test_every_pass_pads_anew(two):
    data = two.distribute_dataset([table(2), table(6)], PAD)
    for _ in range(2):
        assert [parts(two, batch)[0].shape[0] for batch in data] == [1, 3]


def test_typed_random_keys_are_not_padded(two):
    keys = jax.random.split(jax.random.key(0), 3)
    with pytest.raises(InputError, match=r"can't pad element, an array of key.*'exact'"):
        list(two.distribute_dataset([keys], PAD))
    (batch,) = two.distribute_dataset([keys])
    found = [jax.random.key_data(part) for part in two.local_results(batch)]
    close(np.concatenate(found), jax.random.key_data(keys))


# Dropping.


def test_dropping_leaves_partial_batches_out(strategy, mode, rows, size):
    data = strategy.distribute_dataset(rx.from_arrays(rows).batch(size), DROP)
    step = mode(lambda x: strategy.reduce("SUM", x, axis=0))
    close([step(batch) for batch in data], [rows[:size].sum(axis=0)])


def test_a_known_batch_size_tells_that_the_first_batch_is_partial(two):
    assert list(two.distribute_dataset(rx.from_arrays(table(3)).batch(4), DROP)) == []
    assert list(two.distribute_dataset(rx.from_arrays(table(2)).batch(4), DROP)) == []


def test_dropping_takes_the_size_of_the_first_batch_for_full(two):
    data = two.distribute_dataset([table(4), table(2), table(4), table(3)], DROP)
    assert [len(two.gather(batch, axis=0)) for batch in data] == [4, 4]


def test_dropping_a_batch_in_the_middle_goes_on_after_it(two):
    data = rx.from_arrays(np.arange(6)).batch(4).repeat(2)
    found = [two.gather(batch, axis=0).tolist() for batch in two.distribute_dataset(data, DROP)]
    assert found == [[0, 1, 2, 3], [0, 1, 2, 3]]


@pytest.mark.parametrize("dataset", [[table(3), table(3)], rx.from_arrays(table(6)).batch(3)])
def test_dropping_every_batch_is_refused(two, dataset):
    with pytest.raises(
        InputError, match=r"3 examples for 2 replicas.*divide evenly.*'drop'.*2 or 4.*'exact'.*'pad'"
    ):
        list(two.distribute_dataset(dataset, DROP))


@pytest.mark.parametrize("options", [DROP, ERROR])
def test_a_batch_larger_than_the_first_is_refused(two, options):
    iterator = iter(two.distribute_dataset([table(4), table(6)], options))
    close(two.gather(next(iterator), axis=0), table(4))
    with pytest.raises(InputError, match=r"A batch has 6 examples for 2 replicas, but a full one has 2"):
        next(iterator)


def test_dropping_from_a_function_leaves_out_steps_with_a_replica_short(two):
    rows = np.arange(7)
    data = two.distribute_datasets_from_function(lambda ctx: rx.from_arrays(rows).batch(2), DROP)
    assert [two.gather(batch, axis=0).tolist() for batch in data] == [[0, 1, 2, 3]]


def test_dropped_examples_do_not_count(two):
    iterator = iter(two.distribute_dataset(rx.from_arrays(np.arange(6)).batch(4).repeat(2), DROP))
    assert len(list(iterator)) == 2
    assert iterator.stats().steps == 2
    assert iterator.stats().examples == iterator.state()["examples"] == 8


# Complaining.


def test_a_partial_batch_can_be_an_error(strategy, rows, size, rest):
    iterator = iter(strategy.distribute_dataset(rx.from_arrays(rows).batch(size), ERROR))
    close(strategy.gather(next(iterator), axis=0), rows[:size])
    n = strategy.num_replicas_in_sync
    match = rf"A batch has {rest} examples for {n} replica.*2 for each.*'error'.*'exact'.*'pad'"
    with pytest.raises(InputError, match=match):
        next(iterator)


def test_full_batches_are_no_error(strategy):
    n = strategy.num_replicas_in_sync
    data = strategy.distribute_dataset(rx.from_arrays(table(4 * n)).batch(2 * n), ERROR)
    assert len(list(data)) == 2


def test_a_batch_size_that_does_not_divide_is_an_error_at_once(two):
    with pytest.raises(InputError, match=r"A batch has 5 examples for 2 replicas.*divide evenly"):
        next(iter(two.distribute_dataset(rx.from_arrays(table(10)).batch(5), ERROR)))


def test_a_known_batch_size_tells_that_all_batches_are_too_small(two):
    with pytest.raises(
        InputError, match=r"A batch has 2 examples for 2 replicas, but a full batch has 2 for each"
    ):
        next(iter(two.distribute_dataset(rx.from_arrays(table(2)).batch(4), ERROR)))


def test_functions_of_jax_tree_do_not_change_a_mask_in_silence(two, mode):
    def last():
        *_, batch = two.distribute_dataset(rx.from_arrays(np.arange(6.0)).batch(4), PAD)
        return batch

    def mean(batch):
        return two.reduce("MEAN", batch, axis=0)

    assert mode(lambda batch: mean(jax.tree.map(lambda x: x, batch)))(last()) == 4.5
    halves = mode(lambda b: mean(two.run(lambda b: jax.tree.map(lambda x: x / 2, b), args=(b,))))
    assert halves(last()) == 2.25
    for change in (lambda x: x / 2, lambda x: x - 1, lambda x: x.astype(jnp.bfloat16)):
        with pytest.raises(ValueError, match=r"mask.*strategy\.run"):
            mode(lambda batch, change=change: mean(jax.tree.map(change, batch)))(last())
