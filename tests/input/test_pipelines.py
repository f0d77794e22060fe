"""Several pipelines: which policy shares a dataset, what the plan says, and what each pipeline gets."""

import dataclasses
import logging

import numpy as np
import pytest
from tests.input.fakes import Pipelines, dataset_of, file_names

import replicax as rx
from replicax.errors import InputError, InputModeError
from replicax.input import InputPlan, Pipeline, PipelinePlan

POLICY = rx.AutoShardPolicy


@pytest.fixture
def warnings(caplog):
    caplog.set_level(logging.INFO, "replicax")
    return lambda: [r.getMessage() for r in caplog.records if r.name == "replicax"]


def values(step):
    return [part.examples.tolist() for part in step]


def files_of(contents):
    """A dataset of files with these numbers, one list for each file."""
    paths = file_names(len(contents))
    by_path = dict(zip(paths, contents, strict=True))
    return rx.from_files(paths, lambda path: by_path[path])


# Which policy.


@pytest.mark.parametrize(
    ("kind", "num_files", "asked", "chosen"),
    [
        ("arrays", 0, "AUTO", "DATA"),
        ("list", 0, "AUTO", "DATA"),
        ("files", 1, "AUTO", "DATA"),
        ("files", 2, "AUTO", "FILE"),
        ("files", 5, "AUTO", "FILE"),
        ("files", 5, "FILE", "FILE"),
        ("files", 5, "DATA", "DATA"),
        ("files", 5, "OFF", "OFF"),
        ("arrays", 0, "DATA", "DATA"),
        ("arrays", 0, "OFF", "OFF"),
    ],
)
def test_the_policy_that_is_used(kind, num_files, asked, chosen):
    datasets = Pipelines(1, 1).distribute(
        lambda: dataset_of(kind, np.arange(8), 4, num_files or 1), auto_shard_policy=asked
    )
    for dataset in datasets:
        assert dataset.plan().asked is POLICY[asked]
        assert dataset.plan().policy is POLICY[chosen]


@pytest.mark.parametrize(
    ("kind", "num_files", "reason"),
    [("arrays", 0, "the files that .* are unknown"), ("files", 2, "it has 2 files for 3 pipelines")],
)
def test_files_can_only_be_shared_if_there_are_enough(kind, num_files, reason):
    message = rf"AutoShardPolicy.FILE can't be used with this dataset: {reason}\. Use DATA.* or AUTO"
    with pytest.raises(rx.errors.InputError, match=message):
        Pipelines(1, 1, 1).distribute(
            lambda: dataset_of(kind, np.arange(8), 4, num_files or 1), auto_shard_policy="FILE"
        )


@pytest.mark.parametrize("asked", ["AUTO", "FILE", "DATA", "OFF", "HINT"])
def test_one_pipeline_has_nothing_to_share(asked, warnings):
    pipelines = Pipelines(2)
    [dataset] = pipelines.distribute(
        lambda: dataset_of("files", np.arange(5), 4, 2), auto_shard_policy=asked
    )
    assert dataset.plan().policy is POLICY.DATA
    assert [values(step) for step in pipelines.steps([dataset])] == [[[0, 1], [2, 3]], [[4], []]]
    assert warnings() == []


def test_hints_are_for_tensorflow():
    with pytest.raises(InputError, match="SHARD_HINT"):
        Pipelines(1, 1).distribute(lambda: [np.arange(4)], auto_shard_policy="HINT")


# Plans.


def printed(pipelines, make, **options):
    plans = [str(dataset.plan()) for dataset in pipelines.distribute(make, **options)]
    assert len(set(plans)) == 1
    return plans[0].replace(file_names(1)[0].removesuffix("part-0"), "")


def test_the_plan_of_one_pipeline():
    assert printed(Pipelines(3), lambda: rx.from_arrays(np.arange(9)).batch(8)) == (
        "DATA: every pipeline goes through all batches and keeps its replicas' rows\n"
        "pipeline 0, replicas 0-2: rows 0-7 of every 8"
    )
    assert printed(Pipelines(1), lambda: [np.arange(4)]) == (
        "DATA: every pipeline goes through all batches and keeps its replicas' rows\n"
        "pipeline 0, replica 0: its replicas' rows of every batch"
    )


def test_the_plan_of_two_pipelines():
    assert printed(
        Pipelines(3, 1), lambda: rx.from_arrays(np.arange(9)).batch(6), auto_shard_policy="DATA"
    ) == (
        "DATA: every pipeline goes through all batches and keeps its replicas' rows\n"
        "pipeline 0, replicas 0-2: rows 0-4 of every 6\n"
        "pipeline 1, replica 3: rows 5-5 of every 6"
    )
    assert printed(Pipelines(1, 2), lambda: rx.from_arrays(np.arange(9)).batch(6)) == (
        "DATA: every pipeline goes through all batches and keeps its replicas' rows (instead of "
        "AUTO: the files that this kind of dataset reads are unknown)\n"
        "pipeline 0, replica 0: rows 0-1 of every 6\n"
        "pipeline 1, replicas 1-2: rows 2-5 of every 6"
    )
    assert printed(Pipelines(1, 2), lambda: dataset_of("files", np.arange(9), 6, 3)) == (
        "FILE: every pipeline reads its own files\n"
        "pipeline 0, replica 0: 2 files: part-0, part-2\n"
        "pipeline 1, replicas 1-2: 1 files: part-1"
    )
    assert printed(Pipelines(1, 2), lambda: [np.arange(9)], auto_shard_policy="OFF") == (
        "OFF: every pipeline reads everything\n"
        "pipeline 0, replica 0: everything\n"
        "pipeline 1, replicas 1-2: everything"
    )


def test_the_plan_of_three_pipelines():
    assert printed(Pipelines(1, 1, 1), lambda: dataset_of("files", np.arange(9), 2, 2)) == (
        "DATA: every pipeline goes through all batches and keeps its replicas' rows (instead of "
        "AUTO: it has 2 files for 3 pipelines)\n"
        "pipeline 0, replica 0: rows 0-0 of every 2\n"
        "pipeline 1, replica 1: rows 1-1 of every 2\n"
        "pipeline 2, replica 2: no rows of every 2"
    )
    assert printed(
        Pipelines(2, 1, 2), lambda: (np.arange(5) for _ in range(2)), auto_shard_policy="DATA"
    ) == (
        "DATA: every pipeline goes through all batches and keeps its replicas' rows\n"
        "pipeline 0, replicas 0-1: its replicas' rows of every batch\n"
        "pipeline 1, replica 2: its replicas' rows of every batch\n"
        "pipeline 2, replicas 3-4: its replicas' rows of every batch"
    )
    assert printed(Pipelines(1, 1, 1), lambda: dataset_of("files", np.arange(9), 2, 4)) == (
        "FILE: every pipeline reads its own files\n"
        "pipeline 0, replica 0: 2 files: part-0, part-3\n"
        "pipeline 1, replica 1: 1 files: part-1\n"
        "pipeline 2, replica 2: 1 files: part-2"
    )


def test_the_plan_of_a_dataset_function():
    pipelines = Pipelines(2, 1)
    datasets = pipelines.from_function(lambda context: [np.arange(2)])
    assert str(datasets[1].plan()) == (
        "OFF: every pipeline reads everything\n"
        "pipeline 0, replicas 0-1: everything\n"
        "pipeline 1, replica 2: everything"
    )
    datasets[1].plan().check()


def test_a_plan_in_which_pipelines_overlap_or_leave_gaps_does_not_pass():
    [dataset, _] = Pipelines(1, 1).distribute(lambda: rx.from_arrays(np.arange(8)).batch(6))
    plan = dataset.plan()
    plan.check()
    for rows, message in [
        (((0, 3), (2, 6)), "rows twice or not at all: 2 comes after 3"),
        (((0, 3), (4, 6)), "rows twice or not at all: 4 comes after 3"),
        (((0, 3), (3, 5)), "rows twice or not at all: up to 5 of 6"),
        (((0, 3), (3, 7)), "rows twice or not at all: up to 7 of 6"),
    ]:
        pipelines = tuple(PipelinePlan((i,), rows=span) for i, span in enumerate(rows))
        with pytest.raises(InputError, match=message):
            dataclasses.replace(plan, pipelines=pipelines).check()


def test_a_plan_in_which_files_are_read_twice_or_not_at_all_does_not_pass():
    def plan(*files):
        pipelines = tuple(PipelinePlan((i,), names) for i, names in enumerate(files))
        return InputPlan(POLICY.AUTO, POLICY.FILE, "", pipelines, files=("a", "b", "c"))

    plan(("a", "c"), ("b",)).check()
    with pytest.raises(InputError, match=r"files twice: \['a'\], and not at all: \['b'\]"):
        plan(("a", "c"), ("a",)).check()
    with pytest.raises(InputError, match=r"not at all: \['c'\]"):
        plan(("a",), ("b",)).check()


@pytest.mark.parametrize("policy", ["DATA", "OFF"])
def test_replicas_of_a_pipeline_need_not_lie_together(policy):
    pipelines = Pipelines(2, 2, replicas=[(0, 2), (1, 3)])
    datasets = pipelines.distribute(
        lambda: rx.from_arrays(np.arange(10)).batch(8), auto_shard_policy=policy
    )
    steps = pipelines.steps(datasets)
    if policy == "DATA":
        assert list(map(values, steps)) == [[[0, 1], [2, 3], [4, 5], [6, 7]], [[8], [9], [], []]]
    else:
        for ids in pipelines.replicas:
            assert [v for step in steps for i in ids for v in step[i].value] == list(range(10))
    assert "replicas 0, 2: " in str(datasets[0].plan())


def test_the_pipeline_of_one_process_feeds_all_replicas():
    strategy = rx.MirroredStrategy(["CPU:0", "CPU:1", "CPU:2"])
    pipeline = strategy.input_pipeline
    assert (pipeline.pipeline_id, pipeline.replicas, pipeline.own) == (0, ((0, 1, 2),), (0, 1, 2))
    assert pipeline.tell("topic", 0, "message", lambda: False) == ["message"]
    other = Pipeline(1, ((0, 1), (2, 3, 4)))
    assert (other.num_pipelines, other.num_replicas, other.own) == (2, 5, (2, 3, 4))
    assert other.new_topic() != other.new_topic()


# Pipelines that read different data.


def test_a_short_pipeline_gets_empty_batches_until_all_are_done():
    pipelines = Pipelines(1, 2)
    contents = [[0, 1], [10, 11, 12, 13, 14, 15, 16, 17]]
    datasets = pipelines.distribute(lambda: files_of(contents).batch(3))
    assert list(map(values, pipelines.steps(datasets))) == [
        [[0], [10], [11]],
        [[1], [12], [13]],
        [[], [14], [15]],
        [[], [16], [17]],
        [[], [], []],
    ]
    assert datasets[0].cardinality == rx.UNKNOWN_CARDINALITY
    again = pipelines.steps(datasets)
    assert len(again) == 5 and values(again[2]) == [[], [14], [15]]


def test_a_short_pipeline_is_padded_too():
    pipelines = Pipelines(1, 1)
    datasets = pipelines.distribute(lambda: files_of([[0], [10, 11, 12]]).batch(2), partial_batch="pad")
    steps = pipelines.steps(datasets)
    assert list(map(values, steps)) == [[[0], [10]], [[], [11]], [[], [12]], [[], []]]
    assert all(len(part.value) == 1 for step in steps for part in step)


def test_a_pipeline_without_any_data_says_so():
    pipelines = Pipelines(1, 1)
    datasets = pipelines.distribute(lambda: files_of([[], [1, 2]]).batch(2))
    with pytest.raises(InputError, match="Input pipeline 0 has no batches, but others"):
        pipelines.steps(datasets)


def test_the_failure_of_one_pipeline_reaches_the_others():
    pipelines = Pipelines(1, 1)

    def dataset_fn(context):
        yield np.arange(2)
        if context.input_pipeline_id == 1:
            raise OSError("the disk is gone")
        while True:
            yield np.arange(2)

    iterators = [iter(dataset) for dataset in pipelines.from_function(dataset_fn)]

    def errors(index):
        with iterators[index] as iterator, pytest.raises((OSError, InputError)) as raised:
            for _ in iterator:
                pass
        return str(raised.value)

    first, second = pipelines.together(errors)
    assert second == "the disk is gone"
    assert "Input pipeline 1 failed" in first and "OSError: the disk is gone" in first


def test_padding_of_a_pipeline_that_has_no_rows_left_is_a_true_row():
    pipelines = Pipelines(1, 1)
    for datasets in (
        pipelines.distribute(lambda: rx.from_arrays(np.array([7, 8, 9])).batch(2), partial_batch="pad"),
        pipelines.from_function(lambda c: [np.full(1, 7)] * (c.input_pipeline_id + 1), partial_batch="pad"),
    ):
        last = pipelines.steps(datasets)[-1]
        assert sorted(part.size for part in last) == [0, 1]
        assert all(0 not in part.value for part in last)


def test_files_without_any_data_give_no_steps():
    pipelines = Pipelines(1, 2)
    assert pipelines.steps(pipelines.distribute(lambda: files_of([[], []]).batch(2))) == []


def test_readers_of_batches_are_shared_out_too():
    pipelines = Pipelines(1, 1)
    contents = [[np.arange(4), np.arange(4, 7)], [np.arange(10, 12)]]
    steps = pipelines.steps(pipelines.distribute(lambda: files_of(contents)))
    assert list(map(values, steps)) == [[[0, 1], [10]], [[2, 3], [11]], [[4, 5], []], [[6], []]]


def test_off_gives_every_pipeline_everything():
    pipelines = Pipelines(1, 2)
    datasets = pipelines.distribute(
        lambda: rx.from_arrays(np.arange(6)).batch(3), auto_shard_policy=POLICY.OFF
    )
    steps = pipelines.steps(datasets)
    assert list(map(values, steps)) == [
        [[0], [0], [1]],
        [[1], [2], [3]],
        [[2], [4], [5]],
        [[3], [], []],
        [[4], [], []],
        [[5], [], []],
    ]
    assert [dataset.cardinality for dataset in datasets] == [6, 6]


def test_passes_of_one_dataset_do_not_hear_each_other():
    pipelines = Pipelines(1, 1)
    datasets = pipelines.distribute(lambda: files_of([[0, 1, 2, 3], [10, 11, 12, 13]]).batch(2))
    first, second = [[iter(dataset) for dataset in datasets] for _ in range(2)]
    assert list(map(values, pipelines.take(first, 1))) == [[[0], [10]]]
    assert list(map(values, pipelines.take(second, 3))) == [[[0], [10]], [[1], [11]], [[2], [12]]]
    assert list(map(values, pipelines.take(first))) == [[[1], [11]], [[2], [12]], [[3], [13]]]
    assert list(map(values, pipelines.take(second))) == [[[3], [13]]]


# Datasets from a function.


@pytest.fixture
def contexts():
    return []


def test_a_dataset_for_every_process(contexts):
    pipelines = Pipelines(2, 1)

    def dataset_fn(context):
        contexts.append(context)
        start = 10 * context.input_pipeline_id
        return rx.from_arrays(np.arange(start, start + 5)).batch(2)

    datasets = pipelines.from_function(dataset_fn)
    assert contexts == [rx.InputContext(2, 0, 3), rx.InputContext(2, 1, 3)]
    assert list(map(values, pipelines.steps(datasets))) == [
        [[0, 1], [2, 3], [10, 11]],
        [[4], [], [12, 13]],
        [[], [], [14]],
    ]
    assert len(contexts) == 2
    assert {dataset.cardinality for dataset in datasets} == {rx.UNKNOWN_CARDINALITY}


def test_a_dataset_for_every_replica(contexts):
    pipelines = Pipelines(2, 1)

    def dataset_fn(context):
        contexts.append(context)
        start = 10 * context.input_pipeline_id
        return rx.from_arrays(np.arange(start, start + 3 - context.input_pipeline_id)).batch(1)

    datasets = pipelines.from_function(dataset_fn, replication_mode="PER_REPLICA")
    assert contexts == [rx.InputContext(3, i, 3) for i in range(3)]
    assert list(map(values, pipelines.steps(datasets))) == [
        [[0], [10], [20]],
        [[1], [11], []],
        [[2], [], []],
    ]


@pytest.mark.parametrize("mode", ["PER_WORKER", "PER_REPLICA"])
@pytest.mark.parametrize("partial_batch", ["exact", "pad", "drop"])
@pytest.mark.parametrize("rows", [4, 5, 6, 8])
def test_the_cardinality_of_dataset_functions_is_the_number_of_steps(mode, partial_batch, rows):
    pipelines = Pipelines(2)
    [dataset] = pipelines.from_function(
        lambda context: rx.from_arrays(np.arange(rows + context.input_pipeline_id)).batch(2),
        replication_mode=mode,
        partial_batch=partial_batch,
    )
    assert dataset.cardinality in (rx.UNKNOWN_CARDINALITY, len(pipelines.steps([dataset])))


@pytest.mark.parametrize("partial_batch", ["pad", "drop", "error"])
def test_partial_batches_of_dataset_functions(partial_batch):
    pipelines = Pipelines(2)
    datasets = pipelines.from_function(
        lambda context: rx.from_arrays(np.arange(5)).batch(2), partial_batch=partial_batch
    )
    if partial_batch == "error":
        with pytest.raises(InputError, match="A batch has 1 examples for 2 replicas"):
            pipelines.steps(datasets)
        return
    steps = pipelines.steps(datasets)
    wanted = [[[0, 1], [2, 3]], [[4], []]]
    assert list(map(values, steps)) == (wanted if partial_batch == "pad" else wanted[:1])
    assert all(len(part.value) == 2 for step in steps for part in step)


def test_single_examples_leave_out_an_incomplete_step():
    pipelines = Pipelines(2)
    [dataset] = pipelines.from_function(lambda context: [np.float32(i) for i in range(5)])
    steps = pipelines.steps([dataset])
    assert [[part.value.tolist() for part in step] for step in steps] == [[0, 1], [2, 3]]
    assert dataset.cardinality in (rx.UNKNOWN_CARDINALITY, 2)
    assert dataset.element_spec == rx.PerReplicaSpec(*[rx.TensorSpec([], np.float32)] * 2)


def test_single_examples_of_several_pipelines_are_not_doubled():
    pipelines = Pipelines(1, 1)
    datasets = pipelines.from_function(
        lambda context: [
            np.float32(10 * context.input_pipeline_id + i) for i in range(2 + context.input_pipeline_id)
        ]
    )
    steps = pipelines.steps(datasets)
    assert [[part.value.tolist() for part in step] for step in steps] == [[0, 10], [1, 11]]


def test_elements_of_a_dataset_function_may_be_structures_with_a_scalar():
    pipelines = Pipelines(2)
    datasets = pipelines.from_function(lambda context: [{"x": np.ones(3), "n": i} for i in range(4)])
    steps = pipelines.steps(datasets)
    assert [[int(part.value["n"]) for part in step] for step in steps] == [[0, 1], [2, 3]]
    assert all(part.value["x"].shape == (3,) for step in steps for part in step)


def test_batches_of_dataset_functions_may_differ_in_size():
    pipelines = Pipelines(2)
    datasets = pipelines.from_function(lambda context: [np.arange(3), np.arange(1), np.arange(2)])
    assert list(map(values, pipelines.steps(datasets))) == [[[0, 1, 2], [0]], [[0, 1], []]]


def test_a_dataset_function_runs_outside_of_the_strategy():
    strategy = rx.MirroredStrategy(["CPU:0", "CPU:1"])
    seen = []

    def dataset_fn(context):
        seen.append(rx.has_strategy())
        return [np.arange(2)] * 2

    with strategy.scope():
        dataset = strategy.distribute_datasets_from_function(dataset_fn)
    assert seen == [False] and len(list(dataset)) == 1


def test_a_dataset_function_must_be_one():
    strategy = rx.MirroredStrategy(["CPU:0", "CPU:1"])
    with pytest.raises(TypeError, match="takes a function"):
        strategy.distribute_datasets_from_function([np.arange(2)])
    with pytest.raises(TypeError, match=r"rx\.InputOptions"):
        strategy.distribute_datasets_from_function(lambda context: [], {"partial_batch": "pad"})


# Contexts and options.


def test_input_contexts():
    context = rx.InputContext(num_input_pipelines=2, input_pipeline_id=1, num_replicas_in_sync=4)
    assert context.get_per_replica_batch_size(12) == 3
    for size, message in [(10, "8 or 12"), (3, "4")]:
        with pytest.raises(
            InputError, match=f"batch size of {size} is not divisible by 4 replicas; use {message}"
        ):
            context.get_per_replica_batch_size(size)
    assert rx.InputContext() == rx.InputContext(1, 0, 1)
    with pytest.raises(dataclasses.FrozenInstanceError):
        context.input_pipeline_id = 0


def test_options_in_tensorflows_spelling():
    options = rx.InputOptions(
        experimental_fetch_to_device=False,
        experimental_replication_mode=rx.InputReplicationMode.PER_REPLICA,
        experimental_place_dataset_on_device=True,
        experimental_per_replica_buffer_size=5,
    )
    assert options == rx.InputOptions(False, "PER_REPLICA", True, 5)
    assert options.experimental_fetch_to_device is options.fetch_to_device is False
    assert options.experimental_replication_mode is rx.InputReplicationMode.PER_REPLICA
    assert options.experimental_place_dataset_on_device is True
    assert options.experimental_per_replica_buffer_size == 5
    assert rx.InputOptions(experimental_prefetch_to_device=False).fetch_to_device is False
    assert rx.InputOptions().experimental_prefetch_to_device is None
    assert dataclasses.replace(options, per_replica_buffer_size=1).per_replica_buffer_size == 1
    with pytest.raises(dataclasses.FrozenInstanceError):
        options.partial_batch = "pad"


def test_options_that_are_none():
    with pytest.raises(TypeError, match="no option 'experimental_nonsense'; it has fetch_to_device"):
        rx.InputOptions(experimental_nonsense=1)
    with pytest.raises(AttributeError, match="no attribute 'nonsense'"):
        _ = rx.InputOptions().nonsense
    for wrong in (-1, 1.5, True, None):
        with pytest.raises(InputError, match="per_replica_buffer_size"):
            rx.InputOptions(per_replica_buffer_size=wrong)
    for name in ("partial_batch", "auto_shard_policy", "replication_mode"):
        with pytest.raises(InputError, match="nonsense"):
            rx.InputOptions(**{name: "nonsense"})
    with pytest.raises(InputError, match="fetch_to_device"):
        rx.InputOptions(partial_batch="pad", fetch_to_device=False)
    assert rx.InputOptions(partial_batch="pad", fetch_to_device=True).on_device


def test_options_that_need_a_dataset_function():
    strategy = rx.MirroredStrategy(["CPU:0", "CPU:1"])
    with pytest.raises(InputModeError, match="distribute_datasets_from_function") as caught:
        strategy.distribute_dataset([np.arange(2)], rx.InputOptions(replication_mode="PER_REPLICA"))
    assert isinstance(caught.value, NotImplementedError)
    with pytest.raises(InputError, match="PER_REPLICA"):
        strategy.distribute_datasets_from_function(
            lambda context: [np.arange(2)], rx.InputOptions(place_dataset_on_device=True)
        )
    options = rx.InputOptions(place_dataset_on_device=True, replication_mode="PER_REPLICA")
    with pytest.raises(InputError, match="fetch_to_device=False"):
        strategy.distribute_datasets_from_function(lambda context: [np.arange(2)], options)
    options = dataclasses.replace(options, fetch_to_device=False)
    [batch] = strategy.distribute_datasets_from_function(lambda context: [np.arange(2)], options)
    assert [part.devices() for part in batch.components] == [{d} for d in strategy.mesh.local_devices]


def test_tensorflows_enums_are_taken_by_name():
    class Theirs:
        name = "DATA"

    assert rx.InputOptions(auto_shard_policy=Theirs()).auto_shard_policy is POLICY.DATA
    assert [policy.value for policy in POLICY] == [-1, 0, 1, 2, 3]


@pytest.mark.parametrize("mode", ["pad", "drop", "error"])
def test_a_batch_that_is_larger_than_the_first(mode):
    pipelines = Pipelines(2)
    datasets = pipelines.distribute(lambda: [np.arange(2), np.arange(4)], partial_batch=mode)
    if mode == "pad":
        assert list(map(values, pipelines.steps(datasets))) == [[[0], [1]], [[0, 1], [2, 3]]]
        return
    with pytest.raises(InputError, match="A batch has 4 examples for 2 replicas, but a full one has 1"):
        pipelines.steps(datasets)


def test_padding_does_not_count_in_reductions():
    strategy = rx.MirroredStrategy([f"CPU:{i}" for i in range(4)])
    options = rx.InputOptions(partial_batch="pad")
    dataset = strategy.distribute_dataset(rx.from_arrays(np.arange(10.0)).batch(8), options)
    for compiled in (False, True):

        def step(batch):
            squares = strategy.run(lambda x: x**2, args=(batch,))
            return strategy.reduce("MEAN", squares, axis=0)

        step = rx.function(step) if compiled else step
        assert [float(step(batch)) for batch in dataset] == [17.5, 72.5]


def test_the_examples_of_padded_batches_are_gathered_alone():
    strategy = rx.MirroredStrategy([f"CPU:{i}" for i in range(4)])
    options = rx.InputOptions(partial_batch="pad")
    dataset = strategy.distribute_dataset(rx.from_arrays(np.arange(10.0)).batch(8), options)
    got = [strategy.gather(batch, axis=0).tolist() for batch in dataset]
    assert got == [list(range(8)), [8, 9]]


@pytest.mark.parametrize("policy", ["FILE", "DATA", "HINT"])
def test_a_dataset_function_shards_by_itself(policy):
    strategy = rx.MirroredStrategy(["CPU:0", "CPU:1"])
    options = rx.InputOptions(auto_shard_policy=policy)
    with pytest.raises(InputError, match=f"{policy}.*input_pipeline_id"):
        strategy.distribute_datasets_from_function(lambda context: [np.arange(2)], options)


# Processes that should read the same batches, and do not.


def different(*makes, **options):
    """Read a different dataset in each pipeline, together, and raise what one of them raises."""
    pipelines = Pipelines(*[1] * len(makes))
    made = rx.InputOptions(auto_shard_policy="DATA", **options)
    datasets = [s.distribute_dataset(m(), made) for s, m in zip(pipelines.strategies, makes, strict=True)]
    iterators = [iter(dataset) for dataset in datasets]
    try:
        for _ in range(8):
            for iterator in iterators:
                next(iterator, None)
    finally:
        pipelines.close(iterators)


@pytest.mark.parametrize(
    ("one", "other", "difference"),
    [
        pytest.param(
            lambda: rx.from_arrays(np.arange(12)).batch(4),
            lambda: rx.from_arrays(np.arange(8)).batch(4),
            "number of batches: 3 in pipeline 0, 2 in pipeline 1",
            id="fewer rows",
        ),
        pytest.param(
            lambda: rx.from_arrays(np.arange(12)).batch(4),
            lambda: rx.from_arrays(np.arange(9)).batch(3),
            "rows of batch 0: 4 in pipeline 0, 3 in pipeline 1",
            id="smaller batches",
        ),
        pytest.param(
            lambda: rx.from_arrays(np.arange(12)).shuffle(seed=1).batch(4),
            lambda: rx.from_arrays(np.arange(12)).shuffle(seed=2).batch(4),
            "seed: 1 in pipeline 0, 2 in pipeline 1",
            id="another seed",
        ),
        pytest.param(
            lambda: rx.from_arrays(np.zeros((12, 2))).batch(4),
            lambda: rx.from_arrays(np.zeros((12, 3))).batch(4),
            "arrays: .*2.* in pipeline 0, .*3.* in pipeline 1",
            id="another shape",
        ),
        pytest.param(
            lambda: (np.arange(4) for _ in range(3)),
            lambda: (np.arange(4) for _ in range(2)),
            "number of batches: .* in pipeline 0, 2 in pipeline 1",
            id="fewer batches of a generator",
        ),
        pytest.param(
            lambda: (np.arange(4) for _ in range(3)),
            lambda: (np.arange(4 - (i == 1)) for i in range(3)),
            "rows of batch 1: 4 in pipeline 0, 3 in pipeline 1",
            id="a smaller batch of a generator",
        ),
    ],
)
def test_processes_that_read_different_batches_are_told(one, other, difference):
    with pytest.raises(rx.errors.InputError, match=rf"(?s)read different batches\. {difference}"):
        different(one, other, per_replica_buffer_size=1)


def test_one_process_may_look_at_a_batch_alone():
    pipelines = Pipelines(1, 1)
    training = pipelines.distribute(lambda: rx.from_arrays(np.arange(12)).batch(4))
    validation = pipelines.distribute(lambda: rx.from_arrays(np.arange(6.0)).batch(6))
    with iter(training[0]) as batches:
        assert pipelines.strategies[0].local_results(next(batches))[0].tolist() == [0, 1]
    assert len(pipelines.steps(training)) == 3
    assert len(pipelines.steps(validation)) == 1  # not compared with the training data
