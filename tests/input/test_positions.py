"""Positions: a pass can be left after any step, written down as JSON, and continued exactly elsewhere."""

import copy
import json
import time

import grain
import numpy as np
import pytest
from tests.input.fakes import KINDS, Pipelines, Rows, dataset_of, file_names, parts, wait_for_grain

import replicax as rx
from replicax.errors import InputError

BUFFERS = (0, 2)


@pytest.fixture(autouse=True)
def _grain_has_ended():
    yield
    wait_for_grain()


def mirrored(count):
    return rx.MirroredStrategy([f"CPU:{i}" for i in range(count)])


def begin(make, count=2, **options):
    strategy = mirrored(count)
    return strategy, iter(strategy.distribute_dataset(make(), rx.InputOptions(**options)))


def seen(strategy, batches):
    return [int(i) for batch in batches for part in parts(strategy, batch) for i in part.examples]


def written(state):
    return json.loads(json.dumps(state))


MAKERS = {kind: (lambda kind=kind: dataset_of(kind, np.arange(18), 4)) for kind in KINDS} | {
    "repeat, batch": lambda: rx.from_arrays(np.arange(7)).repeat(3).batch(4),
    "batch, repeat": lambda: rx.from_arrays(np.arange(7)).batch(4).repeat(3),
    "drop remainder": lambda: rx.from_arrays(np.arange(7)).batch(4, drop_remainder=True).repeat(3),
    "shuffle, repeat, batch": lambda: rx.from_arrays(np.arange(7)).shuffle(seed=2).repeat(3).batch(4),
    "shuffle, batch, repeat": lambda: rx.from_arrays(np.arange(7)).shuffle(seed=2).batch(4).repeat(3),
    "grain shuffled": lambda: grain.MapDataset.range(18).seed(1).shuffle().batch(4),
    "grain repeated": lambda: (
        grain.MapDataset.range(7).seed(1).shuffle().repeat(2).to_iter_dataset().batch(4)
    ),
    "grain loader shuffled": lambda: grain.DataLoader(
        data_source=Rows(np.arange(7)),
        sampler=grain.samplers.IndexSampler(7, shuffle=True, seed=3, num_epochs=2),
        operations=[grain.transforms.Batch(4)],
        worker_count=0,
    ),
}


@pytest.mark.parametrize("buffer_size", BUFFERS)
@pytest.mark.parametrize("name", MAKERS)
def test_a_pass_continues_exactly_after_every_step(name, buffer_size):
    make = MAKERS[name]
    strategy, iterator = begin(make, per_replica_buffer_size=buffer_size)
    states, batches = [written(iterator.state())], []
    for batch in iterator:
        batches.append(seen(strategy, [batch]))
        states.append(written(iterator.state()))
    for done, state in enumerate(states):
        assert state["examples"] == sum(map(len, batches[:done]))
        strategy, other = begin(make, per_replica_buffer_size=buffer_size)
        other.restore(state)
        assert written(other.state()) == state
        assert [seen(strategy, [batch]) for batch in other] == batches[done:]
        assert written(other.state()) == states[-1]


@pytest.mark.parametrize("name", MAKERS)
def test_a_pass_continues_on_other_replicas(name):
    strategy, iterator = begin(MAKERS[name], 3)
    next(iterator), next(iterator)
    state, rest = written(iterator.state()), seen(strategy, iterator)
    for count in (1, 2, 8):
        strategy, other = begin(MAKERS[name], count)
        other.restore(state)
        assert seen(strategy, other) == rest


@pytest.mark.parametrize("name", ["arrays", "files", "list", "grain map", "shuffle, repeat, batch"])
def test_a_pass_over_shared_rows_continues_on_other_pipelines(name):
    strategy, iterator = begin(MAKERS[name], 3)
    next(iterator), next(iterator)
    state, rest = written(iterator.state()), seen(strategy, iterator)
    for sizes in ((1, 1), (2, 3, 1)):
        pipelines = Pipelines(*sizes)
        others = [iter(d) for d in pipelines.distribute(MAKERS[name], auto_shard_policy="DATA")]
        for other in others:
            other.restore(state)
        assert [int(i) for step in pipelines.take(others) for part in step for i in part.value] == rest


@pytest.mark.parametrize("shuffled", [False, True])
def test_arrays_continue_with_another_batch_size(shuffled):
    def make(batch_size):
        rows = rx.from_arrays(np.arange(30))
        return (rows.shuffle(seed=5) if shuffled else rows).batch(batch_size)

    strategy, iterator = begin(lambda: make(8))
    next(iterator)
    state, rest = written(iterator.state()), seen(strategy, iterator)
    for batch_size in (1, 5, 16, 100):
        strategy, other = begin(lambda size=batch_size: make(size))
        other.restore(state)
        assert seen(strategy, other) == rest
        assert other.state()["examples"] == 30


def test_files_continue_with_another_batch_size():
    strategy, iterator = begin(lambda: dataset_of("files", np.arange(18), 4))
    next(iterator)
    state, rest = written(iterator.state()), seen(strategy, iterator)
    strategy, other = begin(lambda: dataset_of("files", np.arange(18), 7))
    other.restore(state)
    assert seen(strategy, other) == rest


def test_passes_after_a_restored_one_go_on_shuffling():
    def make():
        return rx.from_arrays(np.arange(12)).shuffle(seed=1).batch(4)

    strategy = mirrored(2)
    dataset = strategy.distribute_dataset(make())
    seen(strategy, dataset)
    second = iter(dataset)
    next(second)
    state, rest, third = written(second.state()), seen(strategy, second), seen(strategy, dataset)
    fresh = strategy.distribute_dataset(make())
    iterator = iter(fresh)
    iterator.restore(state)
    assert seen(strategy, iterator) == rest
    assert seen(strategy, fresh) == third
    iterator.restore(state)
    assert seen(strategy, iterator) == rest
    assert seen(strategy, fresh) == third


def test_a_state_before_the_first_batch_remembers_its_pass():
    def make():
        return rx.from_arrays(np.arange(12)).shuffle(seed=1).batch(4)

    strategy = mirrored(2)
    dataset = strategy.distribute_dataset(make())
    list(dataset)
    iterator = iter(dataset)
    state = written(iterator.state())
    wanted = seen(strategy, iterator)
    _, other = begin(make)
    other.restore(state)
    assert other.state() == state and seen(strategy, other) == wanted


@pytest.mark.parametrize("buffer_size", [1, 3])
@pytest.mark.parametrize("kind", ["arrays", "list", "grain map", "grain loader", "files"])
def test_a_state_ignores_what_was_read_ahead(kind, buffer_size):
    strategy, iterator = begin(MAKERS[kind], per_replica_buffer_size=buffer_size)
    first = seen(strategy, [next(iterator)])
    before = written(iterator.state())
    time.sleep(0.05)  # for the thread to read ahead
    assert written(iterator.state()) == before and before["examples"] == 4
    rest = seen(strategy, iterator)
    strategy, other = begin(MAKERS[kind], per_replica_buffer_size=buffer_size)
    other.restore(before)
    assert seen(strategy, other) == rest and first + rest == list(range(18))


def test_a_state_is_the_callers_to_change():
    _, iterator = begin(MAKERS["files"])
    next(iterator)
    state = iterator.state()
    kept = copy.deepcopy(state)
    next(iterator)
    assert state == kept
    iterator.close()
    strategy, other = begin(MAKERS["files"])
    other.restore(state)
    state["position"].clear()
    state["examples"] = 1000
    assert other.state() == kept
    assert seen(strategy, other) == list(range(4, 18))


@pytest.mark.parametrize("buffer_size", BUFFERS)
@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "generator"])
def test_restoring_after_the_end_after_closing_and_in_the_middle(kind, buffer_size):
    strategy, iterator = begin(MAKERS[kind], per_replica_buffer_size=buffer_size)
    next(iterator)
    state, rest = written(iterator.state()), seen(strategy, iterator)
    end = written(iterator.state())
    iterator.restore(state)
    assert seen(strategy, iterator) == rest
    iterator.restore(state)
    next(iterator)
    iterator.restore(state)
    assert seen(strategy, iterator) == rest
    iterator.close()
    with pytest.raises(InputError, match="is closed"):
        next(iterator)
    iterator.restore(state)
    assert seen(strategy, iterator) == rest
    iterator.restore(end)
    assert list(iterator) == [] and written(iterator.state()) == end


def test_restoring_after_an_error_of_the_reader():
    failing = [True]

    def batches():
        for i in range(4):
            if i == 2 and failing:
                raise OSError("the disk is gone")
            yield np.full(2, i)

    for buffer_size in BUFFERS:
        failing[:] = [True]
        strategy, iterator = begin(lambda: batches, per_replica_buffer_size=buffer_size)
        next(iterator), next(iterator)
        with pytest.raises(OSError, match="the disk is gone"):
            next(iterator)
        assert iterator.state()["examples"] == 4
        failing.clear()
        iterator.restore(iterator.state())
        assert seen(strategy, iterator) == [2, 2, 3, 3]


@pytest.mark.parametrize("element_spec_first", [False, True])
def test_a_generator_that_gives_the_same_again_is_read_up_to_the_position(element_spec_first):
    strategy, iterator = begin(MAKERS["generator"])
    next(iterator)
    state = written(iterator.state())
    iterator.close()
    dataset = strategy.distribute_dataset(dataset_of("generator", np.arange(18, dtype=np.int32), 4))
    if element_spec_first:
        assert dataset.element_spec is not None
    other = iter(dataset)
    other.restore(state)
    assert seen(strategy, other) == list(range(4, 18))


def test_random_access_files_are_not_read_up_to_the_position():
    read = []

    class Watched(Rows):
        def __getitem__(self, index):
            read.append(index)
            return super().__getitem__(index)

    def make():
        return rx.from_files(file_names(1), lambda path: Watched(np.arange(100))).batch(10)

    _, iterator = begin(make, per_replica_buffer_size=0)
    for _ in range(5):
        next(iterator)
    read.clear()
    strategy, other = begin(make, per_replica_buffer_size=0)
    other.restore(written(iterator.state()))
    assert seen(strategy, [next(other)]) == list(range(50, 60))
    assert read == list(range(50, 60))


# Partial batches.


@pytest.mark.parametrize("mode", ["pad", "drop"])
@pytest.mark.parametrize("kind", ["arrays", "files", "list", "function", "grain map", "grain loader"])
def test_a_partial_batch_is_partial_after_restoring_too(kind, mode):
    def make():
        return dataset_of(kind, np.arange(10), 4)

    strategy, iterator = begin(make, partial_batch=mode)
    next(iterator), next(iterator)
    state = written(iterator.state())
    wanted = [[(part.value.shape, part.examples.tolist()) for part in parts(strategy, b)] for b in iterator]
    assert len(wanted) == (1 if mode == "pad" else 0)
    strategy, other = begin(make, partial_batch=mode)
    other.restore(state)
    got = [[(part.value.shape, part.examples.tolist()) for part in parts(strategy, b)] for b in other]
    assert got == wanted


def test_a_partial_batch_is_an_error_after_restoring_too():
    _, iterator = begin(lambda: [np.arange(4), np.arange(2)], partial_batch="error")
    next(iterator)
    state = written(iterator.state())
    _, other = begin(lambda: [np.arange(4), np.arange(2)], partial_batch="error")
    other.restore(state)
    for one in (iterator, other):
        with pytest.raises(InputError, match="partial_batch='error'"):
            next(one)


def test_numbers_of_batches_in_messages_count_from_the_beginning():
    batches = [np.arange(4), np.arange(4), np.arange(4.0)]
    _, iterator = begin(lambda: batches)
    next(iterator)
    _, other = begin(lambda: batches)
    other.restore(iterator.state())
    next(other)
    with pytest.raises(InputError, match="batch 2 has the dtype float64"):
        next(other)
    iterator.close()


# Pipelines that read different data.


def files_of(contents):
    paths = file_names(len(contents))
    by_path = dict(zip(paths, contents, strict=True))
    return rx.from_files(paths, lambda path: by_path[path])


def test_pipelines_continue_in_their_own_files():
    def start():
        pipelines = Pipelines(2, 1)
        make = lambda: files_of([list(range(7)), list(range(10, 17))]).batch(4)  # noqa: E731
        return pipelines, [iter(dataset) for dataset in pipelines.distribute(make)]

    pipelines, iterators = start()
    steps = pipelines.take(iterators)
    for done in range(3):
        pipelines, iterators = start()
        pipelines.take(iterators, done)
        states = written([iterator.state() for iterator in iterators])
        pipelines.close(iterators)
        pipelines, others = start()
        for other, state in zip(others, states, strict=True):
            other.restore(state)
        got = [[part.value.tolist() for part in step] for step in pipelines.take(others)]
        assert got == [[part.value.tolist() for part in step] for step in steps[done:]]


def test_a_pipeline_that_was_done_gets_empty_batches_after_restoring_too():
    def start():
        pipelines = Pipelines(1, 1)
        make = lambda: files_of([[0], [10, 11, 12]]).batch(2)  # noqa: E731
        return pipelines, [iter(dataset) for dataset in pipelines.distribute(make)]

    pipelines, iterators = start()
    pipelines.take(iterators, 3)
    states = written([iterator.state() for iterator in iterators])
    wanted = [[part.value.tolist() for part in step] for step in pipelines.take(iterators)]
    assert wanted == [[[], []]]
    pipelines, others = start()
    for other, state in zip(others, states, strict=True):
        other.restore(state)
    assert [[part.value.tolist() for part in step] for step in pipelines.take(others)] == wanted


@pytest.mark.parametrize("mode", ["PER_WORKER", "PER_REPLICA"])
def test_dataset_functions_continue(mode):
    def start():
        strategy = mirrored(2)
        dataset = strategy.distribute_datasets_from_function(
            lambda context: rx.from_arrays(np.arange(9 - 4 * context.input_pipeline_id)).batch(2),
            rx.InputOptions(replication_mode=mode),
        )
        return strategy, iter(dataset)

    strategy, iterator = start()
    states, steps = [written(iterator.state())], []
    for batch in iterator:
        steps.append([part.value.tolist() for part in parts(strategy, batch)])
        states.append(written(iterator.state()))
    for done, state in enumerate(states):
        strategy, other = start()
        other.restore(state)
        assert [[part.value.tolist() for part in parts(strategy, b)] for b in other] == steps[done:]


# Positions that do not fit.


def refused(state, make, message, **options):
    _, iterator = begin(make, **options)
    with pytest.raises(InputError, match=message):
        iterator.restore(state)
        next(iterator)
    iterator.close()


@pytest.mark.parametrize("here", ["arrays", "files", "grain map", "grain iter", "grain loader"])
@pytest.mark.parametrize("there", ["arrays", "files", "list", "grain map", "grain loader"])
def test_a_position_in_another_kind_of_dataset_is_refused(there, here):
    if there == here or (there, here) == ("grain map", "grain iter"):
        return
    _, iterator = begin(MAKERS[there])
    next(iterator)
    state = written(iterator.state())
    iterator.close()
    refused(state, MAKERS[here], None)


def test_what_is_no_state_is_refused():
    for state in (None, {}, {"format": 99}, "text", [1]):
        refused(state, MAKERS["list"], r"takes the result of iterator\.state\(\)")


def test_a_position_in_a_dataset_that_has_changed_is_refused():
    _, iterator = begin(lambda: [np.arange(4), np.arange(4)])
    next(iterator), next(iterator)
    state = written(iterator.state())
    refused(state, lambda: [np.arange(4)], "now have 4. The dataset must yield the same batches again")
    refused(state, lambda: [np.arange(4), np.arange(2)], "now have 6")
    _, iterator = begin(lambda: rx.from_arrays(np.arange(10)).batch(8))
    next(iterator)
    refused(written(iterator.state()), lambda: rx.from_arrays(np.arange(6)).batch(8), "has only 6")
    _, iterator = begin(lambda: files_of([[1, 2], [3, 4], [5, 6]]).batch(6))
    list(iterator)
    refused(written(iterator.state()), lambda: files_of([[1, 2]]).batch(6), "file 2, but the dataset has 1")


@pytest.mark.parametrize("kind", ["files", "file iterators", "grain loader"])
def test_a_position_after_the_end_of_what_is_there_now_is_refused(kind):
    _, iterator = begin(lambda: dataset_of(kind, np.arange(18), 5))
    next(iterator)
    state = written(iterator.state())
    iterator.close()
    refused(state, lambda: dataset_of(kind, np.arange(6), 5), None)


def states_of(sizes, policy):
    pipelines = Pipelines(*sizes)
    datasets = pipelines.distribute(
        lambda: dataset_of("files", np.arange(16), 4, 4), auto_shard_policy=policy
    )
    iterators = [iter(dataset) for dataset in datasets]
    pipelines.take(iterators, 1)
    states = written([iterator.state() for iterator in iterators])
    pipelines.close(iterators)
    return states


@pytest.mark.parametrize(
    ("sizes", "policy", "message"),
    [
        ((1, 1), "FILE", None),
        ((1, 1), "DATA", "policy = 'FILE', but here it is 'DATA'"),
        ((1, 1), "OFF", "policy = 'FILE', but here it is 'OFF'"),
        ((1, 1, 1), "FILE", "pipelines = 2, but here it is 3"),
        ((2, 1), "FILE", "replicas = 2, but here it is 3"),
        ((2,), "FILE", "policy = 'FILE', but here it is 'DATA'"),
    ],
)
def test_a_position_in_shared_files_fits_the_same_pipelines(sizes, policy, message):
    state = states_of((1, 1), "FILE")[0]
    pipelines = Pipelines(*sizes)
    datasets = pipelines.distribute(
        lambda: dataset_of("files", np.arange(16), 4, 4), auto_shard_policy=policy
    )
    iterator = iter(datasets[0])
    if message is None:
        iterator.restore(state)
        assert iterator.state() == state
    else:
        with pytest.raises(InputError, match=message):
            iterator.restore(state)
    pipelines.close([iterator])


def test_a_position_is_that_of_one_pipeline():
    states = states_of((1, 1), "FILE")
    pipelines = Pipelines(1, 1)
    datasets = pipelines.distribute(lambda: dataset_of("files", np.arange(16), 4, 4))
    with pytest.raises(InputError, match="pipeline = 1, but here it is 0"):
        iter(datasets[0]).restore(states[1])


def test_a_refused_position_leaves_the_iterator_where_it_is():
    strategy, iterator = begin(MAKERS["arrays"])
    first = seen(strategy, [next(iterator)])
    with pytest.raises(InputError):
        iterator.restore({"format": 1, "policy": "FILE"})
    assert first + seen(strategy, iterator) == list(range(18))
