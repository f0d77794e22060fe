"""What users of tf.data and torch write, and what they are told to write instead."""

import pickle

import numpy as np
import pytest

import replicax as rx
from replicax.errors import CollectiveError


@pytest.fixture(scope="module")
def two():
    return rx.MirroredStrategy(["CPU:0", "CPU:1"])


@pytest.fixture
def files(tmp_path):
    (tmp_path / "a.txt").write_text("1\n2\n3\n")
    return rx.from_files(tmp_path / "*.txt", np.loadtxt)


def test_several_arrays_go_into_one_structure():
    with pytest.raises(TypeError, match=r"got 2 arguments.*rx\.from_arrays\(\(x, y\)\)"):
        rx.from_arrays(np.zeros(3), np.zeros(3))


# Length.


@pytest.mark.parametrize(
    ("make", "count"),
    [
        (lambda rows: rows, 10),
        (lambda rows: rows.repeat(3), 30),
        (lambda rows: rows.batch(4), 3),
        (lambda rows: rows.shuffle().batch(4, drop_remainder=True), 2),
        (lambda rows: rows.batch(4).repeat(2), 6),
        (lambda rows: rows.repeat(2).batch(4), 5),
        (lambda rows: rows.batch(4).repeat(0), 0),
    ],
)
def test_the_length_is_what_a_pass_gives(two, make, count):
    dataset = make(rx.from_arrays(np.arange(10)))
    assert len(dataset) == count
    assert bool(dataset)
    if dataset._batch_size:
        assert len(list(dataset)) == count
        distributed = two.distribute_dataset(dataset)
        assert len(distributed) == len(list(distributed)) == count
        assert bool(distributed)


def test_a_dataset_without_a_known_length_says_so(two, files):
    endless = rx.from_arrays(np.arange(4)).repeat().batch(2)
    for dataset in (endless, two.distribute_dataset(endless)):
        with pytest.raises(TypeError, match="has no length: it never ends"):
            len(dataset)
        assert dataset
    batched = files.batch(2)
    for dataset in (batched, two.distribute_dataset(batched)):
        with pytest.raises(TypeError, match=r"has no length: it is known only after reading.*cardinality"):
            len(dataset)
        assert dataset
        assert len(list(dataset)) == 2


# Methods of other libraries.


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("map", r"grain\.MapDataset"),
        ("filter", r"grain\.MapDataset"),
        ("prefetch", "per_replica_buffer_size"),
        ("shard", "gives every process and replica its part"),
        ("take", "Slice the arrays first"),
        ("with_options", r"distribute_dataset\(dataset, rx\.InputOptions"),
    ],
)
def test_our_datasets_say_what_to_do_in_place_of_methods_that_they_do_not_have(files, name, hint):
    for dataset in (rx.from_arrays(np.zeros(3)), files):
        with pytest.raises(AttributeError, match=f"has no attribute '{name}'.*{hint}"):
            getattr(dataset, name)


def test_files_are_not_shuffled_or_repeated(files):
    with pytest.raises(AttributeError, match=r"'shuffle'.*list of paths"):
        files.shuffle(seed=1)
    with pytest.raises(AttributeError, match=r"'repeat'.*several times"):
        files.repeat()


def test_distributed_datasets_say_where_to_transform(two):
    dataset = two.distribute_dataset(rx.from_arrays(np.zeros(4)).batch(2))
    with pytest.raises(AttributeError, match=r"Transform before.*dataset\.map\(\.\.\.\)"):
        dataset.map(lambda x: x)
    with pytest.raises(AttributeError, match=r"Transform before.*dataset\.batch\(\.\.\.\)"):
        dataset.batch(2)
    with pytest.raises(AttributeError, match=r"'prefetch'.*per_replica_buffer_size"):
        dataset.prefetch(2)


def test_a_name_without_a_hint_is_an_ordinary_attribute_error():
    with pytest.raises(AttributeError, match=r"'ArrayDataset' object has no attribute 'foo'\.$"):
        rx.from_arrays(np.zeros(3)).foo  # noqa: B018
    assert not hasattr(rx.from_arrays(np.zeros(3)), "__torch_function__")


# Pickling.


def test_datasets_are_pickled_before_they_are_distributed(two, files):
    dataset = rx.from_arrays({"x": np.arange(6)}).shuffle(seed=3).batch(4)
    again = pickle.loads(pickle.dumps(dataset))
    assert [b["x"].tolist() for b in again] == [b["x"].tolist() for b in dataset]
    assert [b.tolist() for b in pickle.loads(pickle.dumps(files.batch(2)))] == [[1, 2], [3]]
    distributed = two.distribute_dataset(dataset)
    for wrong in (distributed, iter(distributed)):
        with pytest.raises(TypeError, match=r"can't be pickled.*distribute_dataset in the other process"):
            pickle.dumps(wrong)


# Batches of another strategy.


@pytest.mark.parametrize("rows", [6, 5])
def test_a_batch_of_another_strategy(two, rows):
    (batch,) = two.distribute_dataset([np.zeros(rows)])
    for count in (1, 3):
        other = rx.MirroredStrategy([f"CPU:{i}" for i in range(count)])
        with pytest.raises(
            CollectiveError, match=r"another strategy.*CPU:1\].*strategy that runs the step"
        ):
            other.run(lambda x: x, args=(batch,))
