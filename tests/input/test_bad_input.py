"""Data that is no data: what is wrong is said at the call, or at the step that would have used it."""

import json
import traceback

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import replicax as rx
from replicax.errors import InputError, InputModeError, NotADatasetError, OutOfRangeError

BUFFERED = rx.InputOptions()
UNBUFFERED = rx.InputOptions(per_replica_buffer_size=0)


def mirrored(n):
    return rx.MirroredStrategy([f"CPU:{i}" for i in range(n)])


@pytest.fixture(params=[1, 2, 3])
def strategy(request):
    return mirrored(request.param)


@pytest.fixture(params=[2, 3])
def several(request):
    return mirrored(request.param)


@pytest.fixture
def two():
    return mirrored(2)


@pytest.fixture(params=[BUFFERED, UNBUFFERED], ids=["buffered", "unbuffered"])
def options(request):
    return request.param


def first(strategy, dataset, options=None):
    return next(iter(strategy.distribute_dataset(dataset, options)))


# Batches that can't be split.


def test_unbatched_arrays_are_refused_at_once(strategy):
    with pytest.raises(InputError, match=r"single examples.*\.batch\(global_batch_size\)"):
        strategy.distribute_dataset(rx.from_arrays(np.arange(4)))


@pytest.mark.parametrize("dataset", [[1.0, 2.0], range(3), [np.float32(3)], [jnp.float32(3)]])
def test_single_examples_are_no_batches(several, options, dataset):
    with pytest.raises(InputError, match=r"Batch 0 .*single value.*first axis.*batch"):
        first(several, dataset, options)


def test_a_batch_partly_of_single_values_is_refused(several):
    with pytest.raises(InputError, match=r"\['n'\] is the single value 7"):
        first(several, [{"n": np.int32(7), "x": np.ones(4)}])


@pytest.mark.parametrize(
    ("leaf", "kind"), [("text", "str"), (b"bytes", "bytes"), (object(), "object"), ({1, 2}, "set")]
)
def test_a_batch_that_is_no_array_is_refused(strategy, options, leaf, kind):
    with pytest.raises(InputError, match=rf"not an array, but of type {kind}.*np\.asarray"):
        first(strategy, [leaf], options)
    with pytest.raises(InputError, match=rf"\['x'\]\[1\] is not an array, but of type {kind}"):
        first(strategy, [{"x": (np.ones(2), leaf)}], options)


def test_the_batch_number_of_what_is_no_array_is_named(two):
    iterator = iter(two.distribute_dataset([np.ones(2), np.ones(2), "text"]))
    next(iterator), next(iterator)
    with pytest.raises(InputError, match=r"[Bb]atch 2"):
        next(iterator)


def test_a_long_value_is_shortened_in_messages(two):
    with pytest.raises(InputError) as caught:
        first(two, ["x" * 10_000])
    assert len(str(caught.value)) < 500


def test_different_numbers_of_rows_are_refused(strategy, options):
    with pytest.raises(InputError, match=r"Batch 0.*numbers of rows.*'x'\] has 4.*'y'\] has 3.*pad"):
        first(strategy, [{"x": np.ones((4, 2)), "y": np.ones(3)}], options)


def test_lists_in_place_of_arrays_are_refused(several):
    """A list of lists is a structure of numbers, not a table."""
    with pytest.raises(InputError, match=r"single value 1.*np\.asarray"):
        first(several, [[[1, 2], [3, 4]]])


def test_a_batch_without_arrays_is_refused(strategy):
    for nothing in ({}, (), None):
        with pytest.raises(InputError, match="no arrays"):
            first(strategy, [nothing])


def test_a_batch_in_a_structure_of_its_own_is_passed_on(two):
    """What JAX takes for a structure is one, `None` included."""
    batch = first(two, [{"x": np.ones(2), "extra": None}])
    assert batch["extra"] is None


def test_a_structured_dtype_is_refused_by_name(two):
    with pytest.raises(InputError, match="dtype"):
        first(two, [np.zeros(4, dtype=[("a", np.int32), ("b", np.float32)])])


def test_text_in_arrays_stays_on_the_host(strategy):
    batch = first(strategy, [{"name": np.array(["a", "b", "c", "d"]), "x": np.ones(4)}])
    names, doubled = strategy.run(lambda b: (b["name"], b["x"] * 2), args=(batch,))
    assert np.concatenate(strategy.local_results(names)).tolist() == ["a", "b", "c", "d"]
    assert float(strategy.reduce("SUM", doubled, axis=0)) == 8


def test_text_can_not_be_padded(two):
    with pytest.raises(InputError, match=r"'pad'.*<U1.*'exact'"):
        first(two, [np.array(["a", "b"])], rx.InputOptions(partial_batch="pad"))


def test_rows_of_different_shapes_can_not_be_padded_together(two):
    batches = [np.ones((2, 3)), np.ones((2, 4))]
    with pytest.raises(InputError, match=r"'pad'.*shapes.*'exact'"):
        next(
            iter(
                two.distribute_datasets_from_function(
                    lambda ctx: batches, rx.InputOptions(partial_batch="pad")
                )
            )
        )


# Batches unlike the first.


def test_a_structure_that_changes_is_refused_where_it_does(strategy, options):
    iterator = iter(
        strategy.distribute_dataset([{"x": np.ones(4)}, {"x": np.ones(4)}, {"y": np.ones(4)}], options)
    )
    next(iterator), next(iterator)
    with pytest.raises(InputError, match=r"Batch 2 .*different structure.*'y'.*'x'"):
        next(iterator)


def test_a_dtype_that_changes_is_refused_where_it_does(strategy, options):
    iterator = iter(strategy.distribute_dataset([np.ones(4), np.ones(4, np.int32)], options))
    next(iterator)
    with pytest.raises(InputError, match=r"batch 1 .*int32.*float64.*first"):
        next(iterator)


def test_other_sizes_in_a_later_batch_are_fine(two):
    found = list(two.distribute_dataset([np.ones((4, 2)), np.ones((2, 5))]))
    assert [two.local_results(batch)[0].shape for batch in found] == [(2, 2), (1, 5)]


def test_an_element_that_stops_being_a_batch_is_refused(two):
    dataset = two.distribute_datasets_from_function(lambda ctx: [np.ones(3), np.float64(1)])
    with pytest.raises(InputError, match=r"[Bb]atch 1"):
        list(dataset)


# Nothing at all.


@pytest.mark.parametrize(
    "dataset",
    [[], (), lambda: iter([]), rx.from_arrays(np.ones((0, 2))).batch(4)],
    ids=["list", "tuple", "function", "arrays"],
)
def test_no_batches_are_an_empty_loop(strategy, options, dataset):
    distributed = strategy.distribute_dataset(dataset, options)
    for _ in range(2):
        assert list(distributed) == []
    iterator = iter(distributed)
    assert not iterator.get_next_as_optional().has_value()
    with pytest.raises(OutOfRangeError, match="no more batches"):
        iterator.get_next()
    with pytest.raises(InputError, match="has_value"):
        iterator.get_next_as_optional().get_value()


def test_the_spec_of_no_batches_is_not_known(two):
    with pytest.raises(InputError, match="no batches"):
        two.distribute_dataset([]).element_spec  # noqa: B018


def test_the_spec_of_a_generator_that_is_being_read_is_known_or_refused_as_such(two):
    dataset = two.distribute_dataset(np.ones(4) for _ in range(3))
    with iter(dataset) as iterator:
        next(iterator)
        try:
            spec = dataset.element_spec
        except InputError as error:
            assert "no batches" not in str(error)
            assert "once" in str(error)
        else:
            assert spec.value_specs[0].shape == (None,)


@pytest.mark.parametrize("partial_batch", ["exact", "pad"])
def test_batches_without_rows_are_batches(strategy, options, partial_batch):
    chosen = rx.InputOptions(
        partial_batch=partial_batch, per_replica_buffer_size=options.per_replica_buffer_size
    )
    batches = [np.ones((0, 2)), np.ones((4, 2)), np.ones((0, 2))]
    found = [
        strategy.reduce("SUM", batch, axis=0).tolist()
        for batch in strategy.distribute_dataset(batches, chosen)
    ]
    assert found == [[0, 0], [4, 4], [0, 0]]


# Readers that fail.


class Disk(Exception):
    pass


def broken_line(i):
    raise Disk(f"bad sector {i}")


@pytest.mark.parametrize("fail_at", [0, 2, 4])
def test_an_error_of_the_reader_arrives_at_the_step_that_would_have_used_the_batch(
    strategy, options, fail_at
):
    def batches():
        for i in range(5):
            if i == fail_at:
                broken_line(i)
            yield np.full(4, i, np.float32)

    iterator = iter(strategy.distribute_dataset(batches, options))
    for i in range(fail_at):
        assert float(strategy.reduce("MEAN", next(iterator), axis=0)) == i
    assert iterator.state()["examples"] == 4 * fail_at
    for _ in range(3):
        with pytest.raises(Disk, match=f"bad sector {fail_at}") as caught:
            next(iterator)
    lines = "".join(traceback.format_exception(caught.value))
    assert 'raise Disk(f"bad sector {i}")' in lines
    assert "broken_line(i)" in lines
    assert iterator.stats().steps == fail_at


def test_an_error_after_the_last_batch_arrives_where_the_loop_would_end(strategy, options):
    def batches():
        yield np.ones(4)
        broken_line(1)

    iterator = iter(strategy.distribute_dataset(batches, options))
    next(iterator)
    with pytest.raises(Disk):
        next(iterator)


def test_asking_often_does_not_make_the_traceback_longer_and_longer(two, options):
    def batches():
        broken_line(0)
        yield np.ones(2)

    iterator = iter(two.distribute_dataset(batches, options))
    lengths = []
    for _ in range(20):
        with pytest.raises(Disk) as caught:
            next(iterator)
        lengths.append(len(traceback.format_exception(caught.value)))
    assert lengths[-1] < lengths[0] + 10


def test_an_error_of_the_function_that_opens_the_dataset_arrives_at_the_first_step(strategy, options):
    def batches():
        return broken_line(0)

    iterator = iter(strategy.distribute_dataset(batches, options))
    with pytest.raises(Disk):
        next(iterator)


def test_after_an_error_another_pass_can_be_begun(strategy, options):
    passes = []

    def batches():
        passes.append(len(passes))
        yield np.ones(4)
        if passes[-1] == 0:
            broken_line(1)
        yield np.ones(4)

    dataset = strategy.distribute_dataset(batches, options)
    with pytest.raises(Disk):
        list(dataset)
    assert len(list(dataset)) == 2


@pytest.mark.parametrize("buffer_size", [0, 2])
def test_an_error_of_a_dataset_function_is_raised_at_once(two, buffer_size):
    with pytest.raises(Disk):
        two.distribute_datasets_from_function(broken_line)


# StopIteration is an end only where an iterator raises it.


def test_a_stop_iteration_in_a_generator_is_an_error(strategy, options):
    def batches():
        yield np.ones(4)
        next(iter([]))

    iterator = iter(strategy.distribute_dataset(batches, options))
    next(iterator)
    with pytest.raises(RuntimeError, match="StopIteration"):
        next(iterator)


def test_a_stop_iteration_when_a_dataset_is_opened_is_no_empty_dataset(strategy, options):
    def batches():
        return next(iter([]))

    with pytest.raises(RuntimeError):
        list(strategy.distribute_dataset(batches, options))


def test_a_stop_iteration_of_a_file_reader_does_not_end_the_dataset(strategy, options):
    def read(path):
        next(iter([]))

    with pytest.raises(RuntimeError):
        list(strategy.distribute_dataset(rx.from_files([__file__], read).batch(2), options))


def test_an_iterator_that_ends_and_then_goes_on_has_ended(two, options):
    class Odd:
        def __init__(self):
            self.answers = iter([np.ones(2), StopIteration(), np.ones(2)])

        def __iter__(self):
            return self

        def __next__(self):
            answer = next(self.answers)
            if isinstance(answer, StopIteration):
                raise answer
            return answer

    iterator = iter(two.distribute_dataset(Odd(), options))
    assert len(list(iterator)) == 1
    assert list(iterator) == []


def test_next_of_an_exhausted_iterator_does_not_break_the_users_generator(two, options):
    """`StopIteration` comes from `next`, never from a `for` loop's body."""

    def users_generator():
        yield from two.distribute_dataset([np.ones(2)], options)
        yield "the end"

    assert list(users_generator())[-1] == "the end"


def test_a_one_shot_iterator_says_so_in_the_second_pass(strategy, options):
    dataset = strategy.distribute_dataset((np.ones(4) for _ in range(2)), options)
    assert len(list(dataset)) == 2
    with pytest.raises(InputError, match=r"generator.*only once.*lambda"):
        list(dataset)


# Asking in the wrong place.


def test_next_in_a_replica_function_is_refused(strategy, options):
    with iter(strategy.distribute_dataset([np.ones(4)] * 3, options)) as iterator:
        with pytest.raises(InputError, match=r"replica function.*args=\(next\(iterator\),\)"):
            strategy.run(lambda: next(iterator))
        assert iterator.state()["examples"] == 0


@pytest.mark.parametrize("compiler", [rx.function, jax.jit])
def test_next_while_tracing_is_refused(strategy, options, compiler):
    with iter(strategy.distribute_dataset([np.ones(4)] * 3, options)) as iterator:

        @compiler
        def step(x):
            next(iterator)
            return x

        with pytest.raises(InputError, match=r"traced.*constant.*for batch in dataset: step\(batch\)"):
            step(jnp.ones(2))
        assert iterator.state()["examples"] == 0


def test_a_loop_over_a_dataset_while_tracing_is_refused(two):
    dataset = two.distribute_dataset([np.ones(4)] * 3)

    @rx.function
    def epoch():
        return sum(two.reduce("SUM", batch, axis=0) for batch in dataset)

    with pytest.raises(InputError, match="traced"):
        epoch()


def test_next_in_a_merge_call_is_one_batch_for_all(two):
    with iter(two.distribute_dataset([np.arange(4.0)])) as iterator:

        def replica_fn():
            return rx.get_replica_context().merge_call(lambda strategy: next(iterator))

        assert [part.tolist() for part in two.local_results(two.run(replica_fn))] == [[0, 1], [2, 3]]


def test_a_closed_iterator_says_so(strategy, options):
    iterator = iter(strategy.distribute_dataset([np.ones(4)] * 3, options))
    next(iterator)
    iterator.close()
    for ask in (lambda: next(iterator), iterator.get_next, iterator.get_next_as_optional):
        with pytest.raises(InputError, match=r"closed.*iter\(dataset\)"):
            ask()


def test_distributing_in_a_replica_function_is_refused(two):
    with pytest.raises(RuntimeError, match="replica function"):
        two.run(lambda: two.distribute_dataset([np.ones(4)]))


def test_distributing_under_another_strategy_is_refused(two):
    with two.scope(), pytest.raises(RuntimeError, match="Only one strategy"):
        mirrored(3).distribute_dataset([np.ones(4)])


# Positions.


ARRAYS = rx.from_arrays(np.arange(8)).batch(2)


@pytest.fixture
def position(two):
    with iter(two.distribute_dataset(ARRAYS)) as iterator:
        next(iterator)
        return iterator.state()


@pytest.mark.parametrize("garbage", [None, 3, "position", [], {}, {"format": 2}, {"position": None}])
def test_restoring_what_is_no_position_is_refused(two, garbage):
    with iter(two.distribute_dataset(ARRAYS)) as iterator:
        next(iterator)
        with pytest.raises(InputError, match=r"iterator\.state\(\)"):
            iterator.restore(garbage)
        assert two.gather(next(iterator), axis=0).tolist() == [2, 3]


@pytest.mark.parametrize("missing", ["pass", "examples", "position"])
def test_restoring_an_incomplete_position_is_refused_and_changes_nothing(two, position, missing):
    del position[missing]
    with iter(two.distribute_dataset(ARRAYS)) as iterator:
        next(iterator)
        with pytest.raises(InputError, match=r"iterator\.state\(\)|" + missing):
            iterator.restore(position)
        assert two.gather(next(iterator), axis=0).tolist() == [2, 3]


@pytest.mark.parametrize(
    "change",
    [
        {"position": "garbage"},
        {"position": {}},
        {"position": {"batches": 1, "examples": 2}},
        {"position": {"batches": 1, "examples": 2, "epoch": 0, "offset": -3}},
        {"position": {"batches": 1, "examples": 2, "epoch": 0, "offset": 1000}},
        {"position": {"batches": 1, "examples": 2, "epoch": -1, "offset": 0}},
        {"pass": "first"},
    ],
    ids=str,
)
def test_a_position_with_garbage_in_it_is_refused_at_the_latest_by_the_next_batch(two, position, change):
    with iter(two.distribute_dataset(ARRAYS)) as iterator, pytest.raises(InputError):
        iterator.restore(position | change)
        next(iterator)


def test_a_position_of_another_kind_of_dataset_is_refused(two):
    with iter(two.distribute_dataset([np.arange(2), np.arange(2)])) as iterator:
        next(iterator)
        state = iterator.state()
    with iter(two.distribute_dataset(ARRAYS)) as other, pytest.raises(InputError, match="position"):
        other.restore(state)
        next(other)


def test_a_position_that_the_dataset_does_not_reach_is_refused(two, position):
    with iter(two.distribute_dataset([np.arange(3)])) as iterator:
        iterator.restore({**position, "source": "batches"})
        with pytest.raises(InputError, match=r"1 batches with 2 examples.*3.*same batches"):
            next(iterator)


def test_a_position_of_a_dataset_function_does_not_fit_a_split_dataset(two, position):
    dataset = two.distribute_datasets_from_function(lambda ctx: ARRAYS)
    with iter(dataset) as iterator, pytest.raises(InputError, match=r"policy = 'DATA'.*'FUNCTION'"):
        iterator.restore(position)


def test_a_position_can_be_written_as_json(two, position):
    with iter(two.distribute_dataset(ARRAYS)) as iterator:
        iterator.restore(json.loads(json.dumps(position)))
        assert two.gather(next(iterator), axis=0).tolist() == [2, 3]


# Options.


@pytest.mark.parametrize(
    ("arguments", "match"),
    [
        ({"partial_batch": "padding"}, r"'padding'.*'exact', 'pad', 'drop' or 'error'"),
        ({"partial_batch": None}, r"None.*'exact', 'pad', 'drop' or 'error'"),
        ({"per_replica_buffer_size": -1}, r"per_replica_buffer_size=-1.*0, 1, 2"),
        ({"per_replica_buffer_size": 1.5}, r"per_replica_buffer_size=1.5"),
        ({"per_replica_buffer_size": True}, r"per_replica_buffer_size=True"),
        ({"replication_mode": "PER_DEVICE"}, r"'PER_DEVICE'.*PER_WORKER, PER_REPLICA"),
        ({"auto_shard_policy": "FILES"}, r"'FILES'.*OFF, AUTO, FILE, DATA, HINT"),
        ({"auto_shard_policy": 7}, r"7.*AutoShardPolicy"),
        ({"fetch_to_device": False, "partial_batch": "pad"}, r"'pad'.*fetch_to_device"),
        ({"fetch_to_device": "yes"}, r"fetch_to_device='yes'"),
        ({"place_dataset_on_device": "yes"}, r"place_dataset_on_device='yes'"),
        ({"fetch_to_device": True, "experimental_fetch_to_device": False}, r"experimental_fetch_to_device"),
    ],
    ids=str,
)
def test_wrong_values_of_options_are_refused(arguments, match):
    with pytest.raises(InputError, match=match):
        rx.InputOptions(**arguments)


def test_an_unknown_option_is_refused_with_the_names_of_all():
    with pytest.raises(TypeError, match=r"'prefetch'.*fetch_to_device.*partial_batch"):
        rx.InputOptions(prefetch=3)


def test_a_buffer_size_may_be_a_numpy_integer():
    assert rx.InputOptions(per_replica_buffer_size=np.int64(3)).per_replica_buffer_size == 3


@pytest.mark.parametrize("options", ["pad", {"partial_batch": "pad"}, 3, rx.RunOptions()])
def test_options_of_another_kind_are_refused(two, options):
    for distribute in (two.distribute_dataset, two.distribute_datasets_from_function):
        with pytest.raises(TypeError, match=r"rx\.InputOptions"):
            distribute([np.ones(4)], options)


def test_per_replica_datasets_need_a_function(two):
    with pytest.raises(InputModeError, match="distribute_datasets_from_function"):
        two.distribute_dataset([np.ones(4)], rx.InputOptions(replication_mode="PER_REPLICA"))


def test_datasets_on_devices_need_one_for_each_replica(two):
    on_device = rx.InputOptions(place_dataset_on_device=True, fetch_to_device=False)
    with pytest.raises(InputError, match="PER_REPLICA"):
        two.distribute_datasets_from_function(lambda ctx: [np.ones(4)], on_device)


@pytest.mark.parametrize("size", [0, -1, 2.0, True, "4", None])
def test_wrong_batch_sizes_are_refused(size):
    got = "" if type(size) is int else rf".*of type {type(size).__name__}"
    for dataset in (rx.from_arrays(np.arange(4)), rx.from_files([__file__], range)):
        with pytest.raises(InputError, match=rf"batch\({size!r}\){got}.*batch size of at least 1"):
            dataset.batch(size)


@pytest.mark.parametrize("count", [-1, 1.5, True, "2"])
def test_wrong_repetitions_are_refused(count):
    with pytest.raises(InputError, match="number of epochs"):
        rx.from_arrays(np.arange(4)).repeat(count)


@pytest.mark.parametrize("seed", [-1, 1.5, True, None])
def test_wrong_seeds_are_refused(seed):
    with pytest.raises(InputError, match="non-negative"):
        rx.from_arrays(np.arange(4)).shuffle(seed=seed)


def test_transformations_in_another_order_are_refused():
    rows = rx.from_arrays(np.arange(4))
    for late in (rows.batch(2), rows.repeat(2)):
        with pytest.raises(InputError, match="shuffle before"):
            late.shuffle(seed=1)
    with pytest.raises(InputError, match=r"batch was called twice, first with 2"):
        rows.batch(2).batch(2)
    with pytest.raises(InputError, match="repeat was called twice"):
        rows.repeat(2).repeat(2)


@pytest.mark.parametrize(
    ("arrays", "match"),
    [
        ((np.ones(3), np.ones(4)), r"\[0\] has 3.*\[1\] has 4"),
        (np.float32(1), "single number 1.0"),
        ([1, 2, 3], r"\[0\] is the single number 1.*np\.asarray"),
        ({}, "at least one array"),
        ("text", r"from_arrays.*str"),
        (None, "at least one array"),
    ],
    ids=["rows", "number", "list", "dict", "text", "nothing"],
)
def test_arrays_without_rows_in_common_are_refused(arrays, match):
    with pytest.raises(InputError, match=match):
        rx.from_arrays(arrays)


# Objects that are not datasets.


@pytest.mark.parametrize("name", ["map", "batch", "shuffle", "take", "repeat", "filter"])
def test_a_distributed_dataset_can_not_be_transformed(two, name):
    dataset = two.distribute_dataset([np.ones(4)])
    with pytest.raises(AttributeError, match=rf"distribute_dataset\(dataset\.{name}\(\.\.\.\)\)"):
        getattr(dataset, name)
    assert not hasattr(dataset, name)


def test_an_attribute_that_no_dataset_has_is_just_missing(two):
    with pytest.raises(AttributeError, match="no attribute 'nonsense'") as caught:
        two.distribute_dataset([np.ones(4)]).nonsense  # noqa: B018
    assert "Transform" not in str(caught.value)


def test_distributing_twice_is_refused(two):
    dataset = two.distribute_dataset([np.ones(4)])
    with pytest.raises(NotADatasetError, match=r"already distributed.*original"):
        two.distribute_dataset(dataset)
    with pytest.raises(NotADatasetError, match="distributed"):
        two.distribute_datasets_from_function(lambda ctx: dataset)


def test_an_iterator_over_a_distributed_dataset_is_no_dataset(two):
    distributed = iter(two.distribute_dataset([np.ones(4)]))
    with distributed, pytest.raises((NotADatasetError, InputError), match=r"distributed|PerReplica"):
        first(two, distributed)


def test_batches_that_are_distributed_already_are_refused(two):
    with pytest.raises(InputError, match="PerReplica"):
        first(two, list(two.distribute_dataset([np.ones(4)])))


@pytest.mark.parametrize(
    "arrays",
    [
        np.ones((4, 2)),
        jnp.ones((4, 2)),
        {"x": np.ones(4)},
        (np.ones((4, 2)), np.ones(4)),
        np.float32(1),
    ],
    ids=["numpy", "jax", "dict", "tuple", "number"],
)
def test_arrays_are_no_dataset_but_can_be_made_one(strategy, arrays):
    with pytest.raises(NotADatasetError, match=r"rx\.from_arrays\(arrays\)\.batch\(global_batch_size\)"):
        strategy.distribute_dataset(arrays)


def test_a_per_replica_value_is_no_dataset(two):
    value = two.run(lambda: jnp.ones(2))
    with pytest.raises(NotADatasetError, match="not a dataset"):
        two.distribute_dataset(value)


@pytest.mark.parametrize("thing", ["data/*.npz", b"data", 3, 2.5, None, {1, 2}, dict, object()])
def test_what_gives_no_batches_is_refused_with_a_list_of_what_does(strategy, thing):
    with pytest.raises(NotADatasetError, match=r"not a dataset.*rx\.from_arrays.*iterator") as caught:
        strategy.distribute_dataset(thing)
    assert isinstance(caught.value, TypeError | AttributeError)


def test_a_list_of_texts_is_a_dataset_of_no_arrays(two):
    with pytest.raises(InputError, match=r"not an array, but of type str: 'a\.npz'"):
        first(two, ["a.npz", "b.npz"])


def test_a_function_that_returns_no_iterator_is_refused(strategy, options):
    with pytest.raises(NotADatasetError, match=r"new iterable.*returned 3"):
        first(strategy, lambda: 3, options)


def test_a_function_that_returns_an_array_is_refused_like_the_array(strategy, options):
    """Its rows would be taken for batches."""
    with pytest.raises(NotADatasetError, match=r"rx\.from_arrays"):
        first(strategy, lambda: np.ones((4, 2)), options)


def test_a_function_that_takes_arguments_is_refused_with_a_hint(two):
    with pytest.raises(TypeError, match=r"argument"):
        first(two, lambda context: [np.ones(4)])


def test_a_dataset_function_that_is_none_is_refused(two):
    with pytest.raises(TypeError, match="takes a function"):
        two.distribute_datasets_from_function([np.ones(4)])
    with pytest.raises(NotADatasetError, match="not a dataset"):
        two.distribute_datasets_from_function(lambda ctx: None)


def test_a_global_batch_size_that_does_not_divide_is_refused_with_those_that_do():
    context = rx.InputContext(num_replicas_in_sync=3)
    with pytest.raises(InputError, match=r"10 is not divisible by 3 replicas; use 9 or 12"):
        context.get_per_replica_batch_size(10)
    with pytest.raises(InputError, match=r"2 is not divisible by 3 replicas; use 3"):
        context.get_per_replica_batch_size(2)
