"""Any chain of transformations does what lists would do, and can be left and continued at any element."""

import json

import hypothesis
import numpy as np
import pytest
from hypothesis import strategies as st
from tests.input.fakes import parts, wait_for_grain

import replicax as rx
from replicax.tf import data
from replicax.tf.data._source import open_iterator

Dataset = data.Dataset


@pytest.fixture(autouse=True)
def _grain_has_ended():
    yield
    wait_for_grain()


# A step is what it does to a dataset of numbers, and what it does to a list of them.


def small(least=0, most=5):
    return st.integers(least, most)


def batched_and_back(size, drop):
    def of_list(rows):
        return rows[: len(rows) // size * size] if drop else rows

    return lambda dataset: dataset.batch(size, drop).unbatch(), of_list


STEPS = st.one_of(
    st.just((lambda d: d.map(lambda i: i * 3 + 1), lambda rows: [i * 3 + 1 for i in rows])),
    st.just((lambda d: d.map(lambda i: i + 1, num_parallel_calls=2), lambda rows: [i + 1 for i in rows])),
    small(1).map(
        lambda n: (lambda d: d.filter(lambda i: i % n == 0), lambda rows: [i for i in rows if i % n == 0])
    ),
    small().map(lambda n: (lambda d: d.take(n), lambda rows: rows[:n])),
    small().map(lambda n: (lambda d: d.skip(n), lambda rows: rows[n:])),
    small(0, 2).map(lambda n: (lambda d: d.repeat(n), lambda rows: rows * n)),
    small(1, 3).map(lambda n: (lambda d: d.shard(n, n - 1), lambda rows: rows[n - 1 :: n])),
    st.builds(batched_and_back, small(1), st.booleans()),
    st.just((lambda d: d.cache(), lambda rows: rows)),
    st.just((lambda d: d.prefetch(2), lambda rows: rows)),
    st.just((lambda d: d.concatenate(Dataset.range(2)), lambda rows: [*rows, 0, 1])),
    st.just(
        (
            lambda d: d.enumerate().map(lambda n, i: n * 10 + i),
            lambda rows: [n * 10 + i for n, i in enumerate(rows)],
        )
    ),
    st.just(
        (
            lambda d: d.flat_map(lambda i: Dataset.range(i % 3)),
            lambda rows: [j for i in rows for j in range(i % 3)],
        )
    ),
    st.just(
        (lambda d: Dataset.zip(d, d).map(lambda i, j: i + j), lambda rows: [i + i for i in rows]),
    ),
)

SHUFFLES = small(1).map(lambda n: (lambda d: d.shuffle(n), None))
CYCLES = small(1, 3).map(
    lambda n: (lambda d: d.interleave(lambda i: Dataset.range(i % 4), cycle_length=n, block_length=2), None)
)


def built(size, steps):
    dataset = Dataset.range(size)
    for of_dataset, _ in steps:
        dataset = of_dataset(dataset)
    return dataset


@hypothesis.given(small(0, 12), st.lists(STEPS, max_size=4))
def test_a_chain_does_what_lists_do(size, steps):
    rows = list(range(size))
    for _, of_list in steps:
        rows = of_list(rows)
    dataset = built(size, steps)
    assert [int(i) for i in dataset] == rows == [int(i) for i in dataset]
    assert dataset.cardinality() in (len(rows), data.UNKNOWN_CARDINALITY)


@hypothesis.given(small(0, 9), st.lists(st.one_of(STEPS, SHUFFLES, CYCLES), max_size=4), st.data())
def test_a_pass_goes_on_where_it_was_left(size, steps, draw):
    dataset = built(size, steps)
    options = data.Options()
    number = draw.draw(small(0, 2))
    whole = [int(i) for i in open_iterator(dataset._node, options, number)]
    count = draw.draw(st.integers(0, min(len(whole), 40)))
    iterator = open_iterator(dataset._node, options, number)
    for _ in range(count):
        next(iterator)
    state = json.loads(json.dumps(iterator.get_state()))
    assert [int(i) for i in iterator] == whole[count:], "looking at the position changes nothing"
    # Another process makes the dataset anew: nothing is in its caches.
    again = open_iterator(built(size, steps)._node, options, number)
    again.set_state(state)
    assert [int(i) for i in again] == whole[count:]
    again.set_state(state)
    assert [int(i) for i in again] == whole[count:], "it can go back as well"
    iterator.close()
    again.close()


DISTRIBUTED = {
    "by index": lambda: Dataset.range(18).shuffle(18).repeat(2).batch(4),
    "stream": lambda: Dataset.range(18).filter(lambda i: i != 3).shuffle(5).repeat(2).batch(4),
    "cached": lambda: Dataset.range(18).filter(lambda i: True).cache().shuffle(18).repeat(2).batch(4),
    "generator": lambda: Dataset.from_generator(lambda: iter(range(18)), np.int32).batch(4).repeat(2),
    "interleaved": lambda: (
        Dataset.range(4).interleave(lambda i: Dataset.range(i * 5, i * 5 + 5), cycle_length=3).batch(4)
    ),
    "threads": lambda: Dataset.range(18).map(lambda i: i, num_parallel_calls=2).batch(4).prefetch(2),
}


def seen(strategy, batches):
    return [int(i) for batch in batches for part in parts(strategy, batch) for i in part.examples]


@pytest.mark.parametrize("buffer_size", [0, 2])
@pytest.mark.parametrize("kind", DISTRIBUTED)
def test_a_distributed_iterator_is_restored_on_other_replicas(kind, buffer_size):
    two, three = (rx.MirroredStrategy([f"CPU:{i}" for i in range(count)]) for count in (2, 3))
    options = rx.InputOptions(per_replica_buffer_size=buffer_size)
    dataset = two.distribute_dataset(DISTRIBUTED[kind](), options)
    first_pass = seen(two, dataset)
    with iter(dataset) as batches:  # the second pass, which has orders of its own
        before = seen(two, [next(batches), next(batches)])
        state = json.loads(json.dumps(batches.state()))
        rest = seen(two, batches)
    assert sorted(before + rest) == sorted(first_pass)
    with iter(three.distribute_dataset(DISTRIBUTED[kind](), options)) as batches:
        batches.restore(state)
        assert seen(three, batches) == rest


def test_an_iterator_is_part_of_a_checkpoint(tmp_path):
    strategy = rx.MirroredStrategy(["CPU:0", "CPU:1"])

    def begin():
        return iter(strategy.experimental_distribute_dataset(Dataset.range(12).shuffle(12).batch(4)))

    with begin() as batches:
        next(batches)
        path = rx.Checkpoint(batches=batches).save(str(tmp_path / "checkpoint"))
        rest = seen(strategy, batches)
    with begin() as batches:
        rx.Checkpoint(batches=batches).restore(path)
        assert seen(strategy, batches) == rest
