"""`tf.data.Dataset` given to a strategy: splitting, policies, sharing out files."""

import numpy as np
import pytest
from tests.input.fakes import Pipelines, wait_for_grain
from tests.tf.records import write_record

import replicax as rx
from replicax.errors import InputError
from replicax.tf import data

Dataset = data.Dataset
Policy = data.experimental.AutoShardPolicy


@pytest.fixture(autouse=True)
def _grain_has_ended():
    yield
    wait_for_grain()


@pytest.fixture
def strategy():
    return rx.MirroredStrategy(["CPU:0", "CPU:1"])


def rows(strategy, distributed):
    return [[part.tolist() for part in strategy.local_results(batch)] for batch in distributed]


def with_policy(dataset, policy):
    options = data.Options()
    options.experimental_distribute.auto_shard_policy = policy
    return dataset.with_options(options)


# The numbers are those that TensorFlow gives, where it defines them.


def test_global_batches_are_split(strategy):
    distributed = strategy.experimental_distribute_dataset(Dataset.range(10).batch(4))
    assert rows(strategy, distributed) == [[[0, 1], [2, 3]], [[4, 5], [6, 7]], [[8], [9]]]
    assert distributed.cardinality == 3
    assert distributed.element_spec.value_specs[0] == rx.TensorSpec((None,), np.int32)
    fixed = strategy.experimental_distribute_dataset(Dataset.range(8).batch(4, drop_remainder=True))
    assert fixed.element_spec.value_specs[0].shape == (2,)


def test_after_a_map_the_first_batch_tells_the_spec(strategy):
    distributed = strategy.experimental_distribute_dataset(Dataset.range(8).batch(4).map(lambda x: x * 2.5))
    assert distributed.element_spec.value_specs[0] == rx.TensorSpec((None,), np.float32)
    assert rows(strategy, distributed) == [[[0.0, 2.5], [5.0, 7.5]], [[10.0, 12.5], [15.0, 17.5]]]


def test_structures_and_text(strategy):
    arrays = ({"a": np.arange(4.0)}, ["p", "q", "r", "s"])
    (batch,) = strategy.experimental_distribute_dataset(Dataset.from_tensor_slices(arrays).batch(4))
    features, text = batch
    assert [part.tolist() for part in strategy.local_results(features["a"])] == [[0, 1], [2, 3]]
    assert [part.tolist() for part in strategy.local_results(text)] == [[b"p", b"q"], [b"r", b"s"]]


def test_datasets_from_a_function(strategy):
    def dataset_fn(context):
        shard = Dataset.range(10).shard(context.num_input_pipelines, context.input_pipeline_id)
        return shard.batch(context.get_per_replica_batch_size(4))

    distributed = strategy.distribute_datasets_from_function(dataset_fn)
    assert rows(strategy, distributed)[:2] == [[[0, 1], [2, 3]], [[4, 5], [6, 7]]]
    singles = strategy.distribute_datasets_from_function(lambda _: Dataset.range(5))
    assert rows(strategy, singles) == [[0, 1], [2, 3]]
    texts = strategy.distribute_datasets_from_function(lambda _: Dataset.from_tensor_slices(["a", "b"]))
    assert rows(strategy, texts) == [[b"a", b"b"]]


def test_every_pass_has_its_own_order(strategy):
    distributed = strategy.experimental_distribute_dataset(Dataset.range(8).shuffle(8).batch(4))
    first, second = rows(strategy, distributed), rows(strategy, distributed)
    assert first != second and sorted(np.ravel(first)) == sorted(np.ravel(second)) == list(range(8))


def test_elements_without_rows_are_refused(strategy):
    with pytest.raises(InputError, match="batch"):
        list(strategy.experimental_distribute_dataset(Dataset.range(4)))


def test_an_error_of_a_function_arrives_as_it_is(strategy):
    own = KeyError("mine")

    def fail(i):
        raise own

    with pytest.raises(KeyError) as caught:
        list(strategy.experimental_distribute_dataset(Dataset.range(4).map(fail).batch(2)))
    assert caught.value is own


# Several pipelines.


def together(steps):
    """What all replicas get, step by step."""
    return [[part.examples.tolist() for part in step] for step in steps]


def test_data_is_shared_by_rows():
    pipelines = Pipelines(1, 2)
    datasets = pipelines.distribute(lambda: Dataset.range(9).shuffle(9).batch(3))
    assert datasets[0].plan().policy is Policy.DATA
    steps = together(pipelines.steps(datasets))
    assert sorted(i for step in steps for part in step for i in part) == list(range(9))


def test_the_policy_of_the_options_counts():
    pipelines = Pipelines(1, 1)
    datasets = pipelines.distribute(lambda: with_policy(Dataset.range(4).batch(2), Policy.OFF))
    assert datasets[0].plan().policy is Policy.OFF
    steps = together(pipelines.steps(datasets))
    assert sorted(i for step in steps for part in step for i in part) == sorted([*range(4), *range(4)])
    overruled = pipelines.distribute(
        lambda: with_policy(Dataset.range(4).batch(2), Policy.OFF), auto_shard_policy=Policy.DATA
    )
    assert overruled[0].plan().policy is Policy.DATA
    with pytest.raises(InputError, match="HINT"):
        pipelines.distribute(lambda: with_policy(Dataset.range(4).batch(2), Policy.HINT))


@pytest.fixture
def paths(tmp_path):
    """Four text files with five lines each."""
    found = [tmp_path / f"f{i}.txt" for i in range(4)]
    for i, path in enumerate(found):
        path.write_text("".join(f"{i}{j}\n" for j in range(5)))
    return [str(path) for path in found]


def lines(steps):
    return sorted(line.decode() for step in steps for part in step for line in part)


ALL = [f"{i}{j}" for i in range(4) for j in range(5)]


def test_files_are_shared_out(paths, tmp_path):
    pipelines = Pipelines(1, 1)
    makers = {
        "lines": lambda: data.TextLineDataset(paths).batch(4),
        "interleave": lambda: (
            Dataset.list_files(str(tmp_path / "*.txt")).interleave(data.TextLineDataset).shuffle(9).batch(4)
        ),
        "dataset of names": lambda: data.TextLineDataset(Dataset.list_files(str(tmp_path / "*.txt"))).batch(
            4
        ),
        "concatenate": lambda: (
            data.TextLineDataset(paths[:3]).concatenate(data.TextLineDataset(paths[3:])).cache().batch(4)
        ),
    }
    for name, make in makers.items():
        datasets = pipelines.distribute(make)
        plan = datasets[0].plan()
        assert plan.policy is Policy.FILE, name
        assert sorted(path for part in plan.pipelines for path in part.files) == paths
        assert lines(together(pipelines.steps(datasets))) == ALL, name


def test_each_pipeline_reads_the_files_of_the_plan(paths):
    pipelines = Pipelines(1, 1)
    datasets = pipelines.distribute(
        lambda: data.TextLineDataset(paths[:3]).concatenate(data.TextLineDataset(paths[3:])).batch(2)
    )
    own = [part.files for part in datasets[0].plan().pipelines]
    for step in pipelines.steps(datasets):
        for part, files in zip(step, own, strict=True):
            starts = [path[-5] for path in files]
            assert all(line.decode()[0] in starts for line in part.examples)


def test_records_are_shared_out(tmp_path):
    paths = [str(tmp_path / f"{i}.tfrecord") for i in range(2)]
    for i, path in enumerate(paths):
        with open(path, "wb") as file:
            for j in range(3):
                write_record(file, b"%d" % (i * 3 + j))
    pipelines = Pipelines(1, 1)
    datasets = pipelines.distribute(lambda: data.TFRecordDataset(paths).map(int).batch(2))
    assert datasets[0].plan().policy is Policy.FILE
    steps = together(pipelines.steps(datasets))
    assert sorted(i for step in steps for part in step for i in part) == list(range(6))


@pytest.mark.parametrize(
    "change, reason",
    [
        (lambda d: d.take(7), "`take` counts"),
        (lambda d: d.skip(2), "`skip` counts"),
        (lambda d: d.shard(2, 0), "`shard` counts"),
        (lambda d: d.enumerate().map(lambda i, line: line), "`zip` counts"),
        (lambda d: d.concatenate(Dataset.from_tensors("x")), "TensorDataset"),
    ],
)
def test_what_counts_over_all_files_is_shared_by_rows(paths, change, reason):
    pipelines = Pipelines(1, 1)

    def make():
        return change(data.TextLineDataset(paths))

    datasets = pipelines.distribute(lambda: make().batch(4))
    plan = datasets[0].plan()
    assert plan.policy is Policy.DATA and reason in plan.reason
    wanted = sorted(line.decode() for line in make())
    assert lines(together(pipelines.steps(datasets))) == wanted


def test_too_few_files_are_shared_by_rows(paths):
    pipelines = Pipelines(1, 1)
    datasets = pipelines.distribute(lambda: data.TextLineDataset(paths[:1]).batch(2))
    assert datasets[0].plan().policy is Policy.DATA
    assert lines(together(pipelines.steps(datasets))) == ALL[:5]
