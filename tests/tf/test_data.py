"""`tf.data.Dataset` on its own: elements, orders, cardinalities and specs."""

import collections
import itertools
import subprocess
import sys
import threading

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from tests.input.fakes import wait_for_grain

import replicax as rx
from replicax.errors import OutOfRangeError
from replicax.tf import data

Dataset = data.Dataset


@pytest.fixture(autouse=True)
def _grain_has_ended():
    yield
    wait_for_grain()


def numbers(dataset):
    return [int(i) for i in dataset]


def lists(dataset):
    return [batch.tolist() for batch in dataset]


# Where elements come from.


@pytest.mark.parametrize(
    "value, dtype",
    [
        ([1.0, 2.0], np.float32),
        ([1, 2], np.int32),
        ([2**40, 1], np.int64),
        ([True, False], np.bool_),
        ([1j, 2j], np.complex128),
        ([np.float64(1), np.float64(2)], np.float64),
        (np.arange(2), np.int64),
        (np.ones(2), np.float64),
        (jnp.ones(2, jnp.bfloat16), jnp.bfloat16),
    ],
)
def test_dtypes_of_slices(value, dtype):
    dataset = Dataset.from_tensor_slices(value)
    assert dataset.element_spec == rx.TensorSpec((), dtype)
    assert all(
        isinstance(element, np.generic) and element.dtype == dtype
        for element in dataset.as_numpy_iterator()
    )


def test_a_list_is_an_array_and_a_tuple_is_a_structure():
    assert lists(Dataset.from_tensor_slices([[1, 2], [3, 4]])) == [[1, 2], [3, 4]]
    assert list(Dataset.from_tensor_slices(([1, 2], [3, 4]))) == [(1, 3), (2, 4)]
    (element,) = Dataset.from_tensors(([1, 2], {"a": [[3.0]]}))
    assert element[0].tolist() == [1, 2] and element[1]["a"].shape == (1, 1)


def test_structures_are_kept():
    Point = collections.namedtuple("Point", "x y")
    dataset = Dataset.from_tensor_slices(Point(np.arange(3), {"z": np.ones((3, 2))}))
    first = next(iter(dataset))
    assert type(first) is Point and first.y["z"].shape == (2,)
    assert dataset.element_spec == Point(
        rx.TensorSpec((), np.int64), {"z": rx.TensorSpec((2,), np.float64)}
    )


def test_text_is_bytes():
    assert list(Dataset.from_tensor_slices(["a", "ü"])) == [b"a", "ü".encode()]
    assert list(Dataset.from_tensor_slices(np.array(["a", "b"]))) == [b"a", b"b"]
    assert list(Dataset.from_tensor_slices([b"a\0", b"b"])) == [b"a\0", b"b"]
    (batch,) = Dataset.from_tensor_slices([b"a\0", b"b"]).batch(2)
    assert batch.dtype == object and batch.tolist() == [b"a\0", b"b"]


@pytest.mark.parametrize("args", [(5,), (2, 5), (0, 10, 3), (5, 0, -2), (3, 3), (5, 2)])
def test_range(args):
    dataset = Dataset.range(*args)
    assert numbers(dataset) == list(range(*args)) and len(dataset) == len(range(*args))
    assert dataset.element_spec.dtype == np.int64


def test_range_of_another_type():
    dataset = Dataset.range(1, output_type=np.float32)
    assert [type(i) for i in dataset.as_numpy_iterator()] == [np.float32]


def test_rows_can_be_read_but_not_written():
    array = np.zeros((2, 3))
    row = next(Dataset.from_tensor_slices(array).as_numpy_iterator())
    with pytest.raises(ValueError, match="read-only"):
        row += 1
    batch = next(Dataset.from_tensor_slices(array).batch(2).as_numpy_iterator())
    batch += 1
    assert not array.any()


def test_from_generator_with_a_signature():
    def pairs():
        yield 1, [1.0, 2.0]
        yield 2, np.ones(3)

    signature = rx.TensorSpec((), np.int64), rx.TensorSpec((None,), np.float32)
    dataset = Dataset.from_generator(pairs, output_signature=signature)
    assert dataset.element_spec == signature and dataset.cardinality() == data.UNKNOWN_CARDINALITY
    elements = list(dataset.as_numpy_iterator())
    assert [(i.dtype, x.dtype, x.shape) for i, x in elements] == [("i8", "f4", (2,)), ("i8", "f4", (3,))]
    assert len(list(dataset)) == 2, "a second pass calls the generator again"


def test_from_generator_with_types_and_arguments():
    def count(stop, step):
        assert isinstance(stop, np.generic)
        yield from range(0, stop, step)

    dataset = Dataset.from_generator(count, np.int32, args=(5, 2))
    assert numbers(dataset) == [0, 2, 4] and dataset.element_spec == rx.TensorSpec((), np.int32)
    shaped = Dataset.from_generator(lambda: iter([[1, 2]]), np.int32, (None,))
    assert shaped.element_spec == rx.TensorSpec((None,), np.int32) and lists(shaped) == [[1, 2]]


def test_from_generator_of_text_and_dicts():
    dataset = Dataset.from_generator(lambda: [{"a": "x"}], {"a": np.dtype("S")})
    assert list(dataset) == [{"a": b"x"}]


def test_a_generator_runs_its_finally_block_when_the_pass_is_left():
    ended = []

    def forever():
        try:
            yield from itertools.count()
        finally:
            ended.append(True)

    with iter(Dataset.from_generator(forever, np.int32)) as iterator:
        assert int(next(iterator)) == 0
    assert ended == [True]


def test_zip_takes_structures():
    a, b = Dataset.range(3), Dataset.range(10, 20).map(lambda i: i * 2)
    assert list(Dataset.zip(a, b)) == list(Dataset.zip((a, b))) == [(0, 20), (1, 22), (2, 24)]
    assert next(iter(Dataset.zip({"x": a, "y": (b,)}))) == {"x": 0, "y": (20,)}
    assert len(Dataset.zip(datasets=(a, b))) == 3
    odd = Dataset.range(9).filter(lambda i: i % 2 == 1)
    assert list(Dataset.zip(a, odd)) == [(0, 1), (1, 3), (2, 5)]
    assert list(Dataset.zip(odd, odd).take(1)) == [(1, 1)]
    (pair,) = Dataset.zip(a.repeat(), a.repeat().batch(2)).take(1)
    assert int(pair[0]) == 0 and pair[1].tolist() == [0, 1]


# Transformations.


def test_batch():
    dataset = Dataset.range(5)
    assert lists(dataset.batch(2)) == [[0, 1], [2, 3], [4]]
    assert lists(dataset.batch(2, drop_remainder=True)) == [[0, 1], [2, 3]]
    assert lists(dataset.batch(2).batch(2, drop_remainder=True)) == [[[0, 1], [2, 3]]]
    assert lists(dataset.batch(9, drop_remainder=True)) == []
    assert lists(dataset.repeat(2).batch(3)) == [[0, 1, 2], [3, 4, 0], [1, 2, 3], [4]]
    assert lists(dataset.batch(3).repeat(2)) == [[0, 1, 2], [3, 4]] * 2
    assert dataset.batch(2).element_spec == rx.TensorSpec((None,), np.int64)
    assert dataset.batch(2, True).element_spec == rx.TensorSpec((2,), np.int64)


def test_batches_of_rows_are_those_of_single_rows():
    arrays = {"x": np.arange(14).reshape(7, 2), "y": np.array(list("abcdefg"))}
    rows = Dataset.from_tensor_slices(arrays).shuffle(3).skip(1).repeat(2).shard(2, 1).take(5)
    gathered, stacked = rows.batch(2), rows.map(lambda row: row).batch(2)
    for one, other in zip(gathered, stacked, strict=True):
        assert one["x"].tolist() == other["x"].tolist() and one["y"].tolist() == other["y"].tolist()
        assert one["y"].dtype == other["y"].dtype == object


def test_padded_batch():
    dataset = Dataset.range(1, 4).map(lambda n: (np.full(n, n), n))
    x, n = next(iter(dataset.padded_batch(3)))
    assert x.tolist() == [[1, 0, 0], [2, 2, 0], [3, 3, 3]] and n.tolist() == [1, 2, 3]
    x, _ = next(iter(dataset.padded_batch(2, ([4], []), (np.int64(-1), 0))))
    assert x.tolist() == [[1, -1, -1, -1], [2, 2, -1, -1]]
    assert len(list(dataset.padded_batch(2, drop_remainder=True))) == 1
    text = Dataset.from_generator(lambda: [["a"], ["b", "c"]], object, (None,)).padded_batch(2)
    assert next(iter(text)).tolist() == [[b"a", b""], [b"b", b"c"]]
    assert text.element_spec == rx.TensorSpec((None, None), object)
    fixed = Dataset.from_generator(lambda: [[1]], np.int32, (None,)).padded_batch(
        2, (3,), drop_remainder=True
    )
    assert fixed.element_spec == rx.TensorSpec((2, 3), np.int32)


def test_unbatch_is_the_inverse_of_batch():
    arrays = (np.arange(10).reshape(5, 2), np.arange(5))
    dataset = Dataset.from_tensor_slices(arrays).batch(2).unbatch()
    assert [int(y) for _, y in dataset] == [0, 1, 2, 3, 4]
    assert dataset.element_spec == (rx.TensorSpec((2,), np.int64), rx.TensorSpec((), np.int64))


def test_map_unpacks_tuples_and_packs_lists():
    pairs = Dataset.from_tensor_slices(([1, 2], [3, 4]))
    assert list(pairs.map(lambda x, y: [x, y])) == [(1, 3), (2, 4)]
    assert list(pairs.map(lambda x, y: {"sum": x + y})) == [{"sum": 4}, {"sum": 6}]
    (element,) = Dataset.range(1).map(lambda i: (i, [1.0, 2.0], "text"))
    assert element[1].dtype == np.float32 and element[2] == b"text"
    dataset = Dataset.range(1).map(lambda i: jnp.ones(2) * i)
    assert isinstance(next(dataset.as_numpy_iterator()), np.ndarray)
    assert isinstance(next(iter(dataset)), jax.Array)
    (element,) = Dataset.from_tensors({"a": 1}).map(lambda row: row["a"])
    assert element == 1


def test_map_in_threads_keeps_the_order():
    seen = set()

    def double(i):
        seen.add(threading.current_thread())
        return i * 2

    dataset = Dataset.range(50).map(double, num_parallel_calls=4, deterministic=False).batch(5).prefetch(8)
    assert [i for batch in lists(dataset) for i in batch] == list(range(0, 100, 2))
    assert threading.main_thread() not in seen
    seen.clear()
    options = data.Options()
    options.threading.private_threadpool_size = 1
    assert len(list(dataset.with_options(options))) == 10 and len(seen) == 1
    options.threading.private_threadpool_size = 0
    assert len(list(dataset.with_options(options))) == 10
    seen.clear()
    assert len(list(Dataset.range(3).map(double).with_options(options))) == 3
    assert seen == {threading.main_thread()}, "nobody has asked for threads"


def test_filter():
    assert numbers(Dataset.range(6).filter(lambda i: i % 3 == 0)) == [0, 3]
    assert numbers(Dataset.range(3).filter(lambda i: jnp.asarray(i > 1))) == [2]
    pairs = Dataset.from_tensor_slices(([1, 2], [3, 1]))
    assert list(pairs.filter(lambda x, y: x < y)) == [(1, 3)]


def test_take_skip_shard():
    dataset = Dataset.range(7)
    for version in (dataset, dataset.filter(lambda i: True)):
        assert numbers(version.take(3)) == [0, 1, 2] and numbers(version.take(-1)) == list(range(7))
        assert numbers(version.take(0)) == [] and numbers(version.take(99)) == list(range(7))
        assert numbers(version.skip(5)) == [5, 6] and numbers(version.skip(9)) == []
        assert numbers(version.skip(-1)) == []
        assert [numbers(version.shard(3, i)) for i in range(3)] == [[0, 3, 6], [1, 4], [2, 5]]
    assert numbers(dataset.repeat().skip(5).take(4)) == [5, 6, 0, 1]


def test_concatenate_and_enumerate():
    odd = Dataset.range(5).filter(lambda i: i % 2 == 1)
    for first, second in itertools.product([Dataset.range(2), odd], repeat=2):
        assert numbers(first.concatenate(second)) == numbers(first) + numbers(second)
        twice = numbers(first) + numbers(second)
        assert numbers(first.concatenate(second).repeat(2)) == twice + twice
    assert [int(i) for i, _ in odd.enumerate(5)] == [5, 6]
    assert list(Dataset.range(2).repeat(2).enumerate()) == [(0, 0), (1, 1), (2, 0), (3, 1)]
    assert list(Dataset.range(2).enumerate().repeat(2)) == [(0, 0), (1, 1)] * 2


def test_flat_map_and_interleave():
    dataset = Dataset.range(1, 4).flat_map(lambda n: Dataset.from_tensors(n).repeat(n))
    assert numbers(dataset) == [1, 2, 2, 3, 3, 3]
    # TensorFlow's documentation has this example.
    dataset = Dataset.range(1, 6).interleave(
        lambda x: Dataset.from_tensors(x).repeat(6), cycle_length=2, block_length=4
    )
    expected = [1] * 4 + [2] * 4 + [1] * 2 + [2] * 2 + [3] * 4 + [4] * 4 + [3] * 2 + [4] * 2 + [5] * 6
    assert numbers(dataset) == expected
    few = Dataset.range(2).interleave(lambda i: Dataset.range(3), num_parallel_calls=data.AUTOTUNE)
    assert numbers(few) == [0, 0, 1, 1, 2, 2]


@pytest.mark.parametrize("by_index", [True, False])
def test_cache_makes_elements_once(by_index):
    made = []

    def double(i):
        made.append(int(i))
        return np.array([i * 2])

    dataset = Dataset.range(3) if by_index else Dataset.range(3).filter(lambda i: True)
    cached = dataset.shuffle(3).map(double).cache()
    assert not made
    first = [int(x[0]) for x in cached]
    assert [int(x[0]) for x in cached.repeat(2)] == first * 2, "the order is kept as well"
    assert sorted(made) == [0, 1, 2]
    with pytest.raises(ValueError, match="read-only"):
        next(cached.as_numpy_iterator())[0] = 1


def test_a_cache_that_was_not_read_to_its_end_is_filled_later():
    made = []
    cached = Dataset.range(4).filter(lambda i: made.append(i) or True).cache()
    assert numbers(cached.take(2)) == [0, 1]
    assert numbers(cached) == numbers(cached) == [0, 1, 2, 3]
    assert len(made) == 6


def test_reduce_and_apply():
    assert Dataset.range(5).reduce(np.int64(0), lambda total, i: total + i) == 10
    pairs = Dataset.from_tensor_slices(([1, 2], [3, 4]))
    total, count = pairs.reduce((0, 0), lambda state, pair: (state[0] + pair[0] * pair[1], state[1] + 1))
    assert (total, count) == (11, 2)
    assert len(Dataset.range(4).apply(lambda dataset: dataset.batch(2))) == 2


# Orders.


def shuffled_kinds(buffer_size, **arguments):
    """A shuffle of elements that can be had by index, and of a stream."""
    yield Dataset.range(20).shuffle(buffer_size, **arguments)
    yield Dataset.range(20).filter(lambda i: True).shuffle(buffer_size, **arguments)


def test_a_shuffle_gives_every_element_once_in_a_new_order_each_time():
    for dataset in shuffled_kinds(20, seed=3):
        orders = [numbers(dataset) for _ in range(3)]
        assert all(sorted(order) == list(range(20)) for order in orders)
        assert len({tuple(order) for order in [*orders, list(range(20))]}) == 4


def test_the_same_seed_gives_the_same_orders():
    for one, other, another in zip(
        shuffled_kinds(20, seed=3), shuffled_kinds(20, seed=3), shuffled_kinds(20, seed=4), strict=True
    ):
        orders = [numbers(one) for _ in range(2)]
        assert orders == [numbers(other) for _ in range(2)]
        assert orders[0] != numbers(another)


def test_epochs_of_one_pass_are_those_of_several():
    for dataset, repeated in zip(shuffled_kinds(20), shuffled_kinds(20), strict=True):
        assert numbers(repeated.repeat(2)) == numbers(dataset) + numbers(dataset)


def test_without_reshuffling_all_epochs_are_alike():
    for dataset in shuffled_kinds(20, reshuffle_each_iteration=False):
        order = numbers(dataset)
        assert numbers(dataset) == order and numbers(dataset.repeat(2)) == order * 2


def test_all_of_many_elements_are_shuffled_together():
    count = 2**16 + 3
    dataset = Dataset.range(count).shuffle(count, seed=5)
    orders = [[int(i) for i in dataset.as_numpy_iterator()] for _ in range(2)]
    assert orders[0] != orders[1] and sorted(orders[0]) == sorted(orders[1]) == list(range(count))
    twice = Dataset.range(count).shuffle(count, seed=5).repeat(2)
    assert [int(i) for i in twice.as_numpy_iterator()] == orders[0] + orders[1]


def test_an_order_that_stays_does_not_stop_the_shuffle_before_it():
    def dataset():
        return Dataset.range(20).shuffle(20).shuffle(5, reshuffle_each_iteration=False)

    once, repeated = dataset(), numbers(dataset().repeat(2))
    assert repeated == numbers(once) + numbers(once) and repeated[:20] != repeated[20:]


def test_every_epoch_of_a_part_of_an_endless_dataset_starts_at_its_first_element():
    endless = Dataset.range(2).repeat()
    assert numbers(endless.take(3).repeat(2)) == [0, 1, 0] * 2
    assert list(Dataset.zip(Dataset.range(3), endless).repeat(2)) == [(0, 0), (1, 1), (2, 0)] * 2
    once, twice = (Dataset.range(20).shuffle(20).repeat().take(30) for _ in range(2))
    assert numbers(twice.repeat(2)) == numbers(once) + numbers(once)


def test_passes_of_an_endless_dataset_differ():
    dataset = Dataset.range(20).shuffle(20).repeat().take(30)
    first, second = numbers(dataset), numbers(dataset)
    assert first != second and sorted(first[:20]) == list(range(20))


def test_a_small_buffer_shuffles_within_windows():
    for dataset in shuffled_kinds(6):
        order = numbers(dataset)
        windows = [sorted(order[i : i + 6]) for i in range(0, 20, 6)]
        assert windows == [list(range(i, min(i + 6, 20))) for i in range(0, 20, 6)]
        assert order != list(range(20))
    assert numbers(next(shuffled_kinds(1))) == list(range(20))


def test_datasets_inside_of_datasets_are_shuffled_anew():
    dataset = Dataset.range(3).flat_map(lambda i: Dataset.range(20).shuffle(20))
    order = numbers(dataset)
    assert len({tuple(order[i : i + 20]) for i in range(0, 60, 20)}) == 3
    assert numbers(dataset) != order


# What is known beforehand.

INFINITE, UNKNOWN = data.INFINITE_CARDINALITY, data.UNKNOWN_CARDINALITY
FILTERED = Dataset.range(4).filter(lambda i: i > 1)


@pytest.mark.parametrize(
    "dataset, expected",
    [
        (Dataset.from_tensors(1), 1),
        (Dataset.range(7).batch(3), 3),
        (Dataset.range(7).batch(3, drop_remainder=True), 2),
        (Dataset.range(7).repeat(2).batch(3), 5),
        (Dataset.range(7).repeat(), INFINITE),
        (Dataset.range(7).repeat(-1).batch(2), INFINITE),
        (Dataset.range(0).repeat(), 0),
        (Dataset.range(3).repeat(0), 0),
        (Dataset.range(7).repeat().take(3), 3),
        (Dataset.range(7).repeat().skip(3), INFINITE),
        (Dataset.range(7).skip(3), 4),
        (Dataset.range(7).shard(3, 0), 3),
        (Dataset.range(7).shard(3, 2), 2),
        (Dataset.range(2).concatenate(Dataset.range(3)), 5),
        (Dataset.range(2).concatenate(Dataset.range(3).repeat()), INFINITE),
        (Dataset.zip(Dataset.range(2), Dataset.range(3).repeat()), 2),
        (Dataset.range(3).shuffle(2).cache().prefetch(1).map(abs).enumerate(), 3),
        (Dataset.range(3).repeat().enumerate(), INFINITE),
        (FILTERED, UNKNOWN),
        (FILTERED.take(1), UNKNOWN),
        (FILTERED.take(0), 0),
        (FILTERED.repeat(2), UNKNOWN),
        (FILTERED.repeat(), INFINITE),
        (FILTERED.batch(2), UNKNOWN),
        (FILTERED.concatenate(FILTERED), UNKNOWN),
        (Dataset.range(3).batch(2).unbatch(), UNKNOWN),
        (Dataset.range(0).filter(bool), 0),
    ],
)
def test_cardinality(dataset, expected):
    assert dataset.cardinality() == data.experimental.cardinality(dataset) == expected
    assert bool(dataset)
    if expected >= 0:
        assert len(dataset) == len(list(dataset)) == expected
    else:
        with pytest.raises(TypeError, match="infinite" if expected == INFINITE else "unknown"):
            len(dataset)


def test_an_endless_repeat_of_nothing_ends():
    assert list(Dataset.range(3).filter(lambda i: False).repeat()) == []
    assert list(Dataset.range(3).repeat().repeat().take(1)) == [0]


def test_specs():
    halves = Dataset.range(5).map(lambda i: i / 2)
    assert repr(halves) == "<MapDataset element_spec=not known before it is read>"
    assert halves.element_spec == rx.TensorSpec((), np.float64)
    assert repr(halves) == "<MapDataset element_spec=TensorSpec(shape=(), dtype=float64)>"
    assert halves.batch(2).element_spec == rx.TensorSpec((None,), np.float64)
    assert halves.batch(2, drop_remainder=True).element_spec == rx.TensorSpec((2,), np.float64)
    assert Dataset.range(5).batch(2).map(lambda x: x[:, None]).element_spec.shape == (None, 1)
    assert Dataset.range(5).batch(8).map(lambda x: x[:, None]).element_spec.shape == (None, 1)
    assert Dataset.range(5).batch(2).map(lambda x: x.sum()).element_spec.shape == ()
    both = Dataset.from_tensors([1, 2]).concatenate(Dataset.from_tensors([1]))
    assert both.element_spec == rx.TensorSpec((None,), np.int32)
    assert repr(Dataset.range(3).repeat(2)).startswith("<RepeatDataset element_spec=TensorSpec(")


def test_options_are_kept_and_merged():
    off, order = data.Options(), data.Options()
    off.experimental_distribute.auto_shard_policy = rx.AutoShardPolicy.OFF
    order.experimental_deterministic = False
    dataset = Dataset.range(4).with_options(off).map(abs).with_options(order).batch(2)
    off.experimental_distribute.auto_shard_policy = "DATA"
    options = Dataset.zip(dataset, Dataset.range(2)).options()
    assert options.experimental_distribute.auto_shard_policy is rx.AutoShardPolicy.OFF
    assert options.deterministic is options.experimental_deterministic is False
    assert Dataset.range(4).options() == data.Options() != off


# Reading.


def test_iterators_are_independent_and_can_be_closed():
    dataset = Dataset.range(3)
    one, other = iter(dataset), dataset.as_numpy_iterator()
    assert next(one) == next(one) - 1 == next(other) == 0
    assert one.element_spec == dataset.element_spec
    assert other.get_next() == 1
    one.close()
    assert list(one) == [] and list(other) == [2]
    with pytest.raises(OutOfRangeError):
        other.get_next()


def test_assert_cardinality():
    known = FILTERED.apply(data.experimental.assert_cardinality(2))
    assert len(known) == len(list(known)) == len(list(known.batch(1)))


def test_without_grain_there_is_a_hint():
    program = """
import sys
sys.modules["grain"] = None
from replicax.tf import data
dataset = data.Dataset.range(3)
assert len(dataset) == 3
try:
    list(dataset)
except ImportError as error:
    assert "pip install 'replicax[grain]'" in str(error), error
else:
    raise AssertionError
"""
    subprocess.run([sys.executable, "-c", program], check=True, timeout=240)


def test_grain_is_not_imported_before_a_dataset_is_opened():
    program = """
import sys
from replicax.tf import data
dataset = data.Dataset.range(3).map(abs).batch(2)
assert "grain" not in sys.modules and "tensorflow" not in sys.modules
list(dataset)
assert "grain" in sys.modules
"""
    subprocess.run([sys.executable, "-c", program], check=True, timeout=240)
