"""Every kind of source: what it gives, how often, how much of it there is and what it looks like."""

import subprocess
import sys
import textwrap

import grain
import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from tests.input.fakes import KINDS, Pipelines, Row, Rows, dataset_of, file_names, parts, wait_for_grain

import replicax as rx
from replicax.errors import InputError, MissingFilesError, NotADatasetError


@pytest.fixture(autouse=True)
def _grain_has_ended():
    yield
    wait_for_grain()


@pytest.fixture
def two():
    return rx.MirroredStrategy(["CPU:0", "CPU:1"])


def lists(strategy, dataset):
    """For each batch what every replica has, as lists."""
    return [[part.value.tolist() for part in parts(strategy, batch)] for batch in dataset]


def flat(strategy, dataset):
    return [int(i) for batch in dataset for part in parts(strategy, batch) for i in part.value]


# All kinds.


@pytest.mark.parametrize("kind", KINDS)
def test_batches_are_those_of_the_dataset(two, kind):
    arrays = {"x": np.arange(10) * 1.5, "y": (np.arange(20).reshape(10, 2), None)}
    dataset = two.distribute_dataset(dataset_of(kind, arrays, 4))
    got = [parts(two, batch) for batch in dataset]
    assert [[len(part.value["x"]) for part in step] for step in got] == [[2, 2], [2, 2], [1, 1]]
    x = np.concatenate([part.value["x"] for step in got for part in step])
    y = np.concatenate([part.value["y"][0] for step in got for part in step])
    order = np.argsort(x)
    assert kind == "shuffled arrays" or order.tolist() == list(range(10))
    np.testing.assert_array_equal(x[order], arrays["x"].astype(np.float32))
    np.testing.assert_array_equal(y[order], arrays["y"][0])
    assert x.dtype == np.float32 and y.dtype == np.int32
    assert all(part.value["y"][1] is None for step in got for part in step)


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind not in ("generator", "shuffled arrays")])
def test_a_second_pass_gives_the_same_again(two, kind):
    dataset = two.distribute_dataset(dataset_of(kind, np.arange(10), 4))
    first = lists(two, dataset)
    assert lists(two, dataset) == first == [[[0, 1], [2, 3]], [[4, 5], [6, 7]], [[8], [9]]]


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "generator"])
def test_two_passes_at_once_do_not_disturb_each_other(two, kind):
    dataset = two.distribute_dataset(dataset_of(kind, np.arange(10), 4))
    pairs = list(zip(dataset, dataset, strict=True))
    assert len(pairs) == 3
    for index in range(2):
        assert sorted(flat(two, [pair[index] for pair in pairs])) == list(range(10))


@pytest.mark.parametrize("buffer_size", [0, 2])
def test_a_second_pass_over_a_generator_is_refused(two, buffer_size):
    options = rx.InputOptions(per_replica_buffer_size=buffer_size)
    dataset = two.distribute_dataset((batch for batch in [np.arange(4)]), options)
    assert lists(two, dataset) == [[[0, 1], [2, 3]]]
    with pytest.raises(InputError, match=r"can be read only once.*function that returns a new iterator"):
        list(dataset)


@pytest.mark.parametrize("kind", KINDS)
def test_cardinality_is_the_number_of_batches_or_unknown(two, kind):
    unknown = {"files", "file iterators", "file of batches", "function", "generator"}
    unknown |= {"grain iter", "grain loader"}
    dataset = two.distribute_dataset(dataset_of(kind, np.arange(10), 4))
    assert dataset.cardinality == (rx.UNKNOWN_CARDINALITY if kind in unknown else 3)


def test_cardinality_of_endless_datasets(two):
    endless = rx.from_arrays(np.arange(6)).repeat().batch(4)
    assert two.distribute_dataset(endless).cardinality == rx.INFINITE_CARDINALITY
    endless = grain.MapDataset.range(6).repeat().batch(4)
    assert two.distribute_dataset(endless).cardinality == rx.INFINITE_CARDINALITY


@pytest.mark.parametrize("count", [1, 3])
@pytest.mark.parametrize("kind", KINDS)
def test_element_spec_says_what_batches_look_like_and_is_a_signature(kind, count):
    strategy = rx.MirroredStrategy([f"CPU:{i}" for i in range(count)])
    arrays = {
        "x": np.ones((10, 2)),
        "y": Row(np.arange(10), None),
        "z": np.zeros((10, 1), ml_dtypes.bfloat16),
    }
    dataset = strategy.distribute_dataset(dataset_of(kind, arrays, 4))

    def spec(shape, dtype):
        one = rx.TensorSpec(shape, dtype)
        return one if count == 1 else rx.PerReplicaSpec(*[one] * count)

    wanted = {
        "x": spec([None, 2], jnp.float32),
        "y": Row(spec([None], jnp.int32), None),
        "z": spec([None, 1], jnp.bfloat16),
    }
    assert dataset.element_spec == wanted
    iterator = iter(dataset)
    assert iterator.element_spec == wanted

    @rx.function(input_signature=[dataset.element_spec])
    def step(batch):
        return strategy.reduce("SUM", batch["x"], axis=0)

    assert sum(float(step(batch)[0]) for batch in iterator) == 10


def test_element_spec_has_the_number_of_rows_where_all_batches_have_it(two):
    def rows(dataset, **options):
        spec = two.distribute_dataset(dataset, rx.InputOptions(**options)).element_spec
        return spec.value_specs[0].shape[0]

    examples = rx.from_arrays(np.arange(10))
    assert rows(examples.batch(4)) is None
    assert rows(examples.batch(4, drop_remainder=True)) == 2
    assert rows(examples.batch(3, drop_remainder=True)) is None
    assert rows(examples.repeat().batch(4)) == 2
    assert rows(examples.batch(4).repeat()) is None
    assert rows(examples.batch(4), partial_batch="pad") == 2
    assert rows(examples.batch(3), partial_batch="pad") == 2
    assert rows(examples.batch(4), partial_batch="drop") == 2


def test_a_padded_dataset_of_one_replica_fits_its_own_spec():
    strategy = rx.MirroredStrategy(["CPU:0"])
    options = rx.InputOptions(partial_batch="pad")
    dataset = strategy.distribute_dataset(rx.from_arrays(np.arange(5.0)).batch(4), options)

    @rx.function(input_signature=[dataset.element_spec])
    def step(batch):
        return strategy.reduce("SUM", batch, axis=0)

    assert [float(step(batch)) for batch in dataset] == [6, 4]


@pytest.mark.parametrize("policy", ["FUNCTION", "OFF"])
def test_the_spec_of_dealt_batches_leaves_room_for_empty_ones(policy):
    pipelines = Pipelines(2, 1) if policy == "OFF" else Pipelines(2)

    def dataset_fn(context=None):
        return rx.from_arrays(np.arange(9.0)).batch(3, drop_remainder=True)

    if policy == "OFF":
        datasets = pipelines.distribute(dataset_fn, auto_shard_policy="OFF")
    else:
        datasets = pipelines.from_function(dataset_fn)
    strategy, spec = pipelines.strategies[0], datasets[0].element_spec

    @rx.function(input_signature=[spec])
    def step(batch):
        return strategy.reduce("SUM", batch, axis=0)

    def total(index):
        if index == 0:
            return sum(float(step(batch)) for batch in datasets[0])
        return list(datasets[index]) and None

    assert pipelines.together(total)[0] == 36


@pytest.mark.parametrize("kind", ["list", "function", "generator", "arrays", "files", "grain map"])
def test_element_spec_does_not_take_batches_away(two, kind):
    dataset = two.distribute_dataset(dataset_of(kind, np.arange(6), 4))
    assert dataset.element_spec == rx.PerReplicaSpec(*[rx.TensorSpec([None], jnp.int32)] * 2)
    assert flat(two, dataset) == list(range(6))
    assert dataset.element_spec.value_specs[0].dtype == jnp.int32


def test_element_spec_of_a_generator_that_is_being_read(two):
    with iter(two.distribute_dataset(np.full(4, i) for i in range(3))) as iterator:
        next(iterator)
        assert iterator.element_spec.value_specs[0] == rx.TensorSpec([None], jnp.int32)


def test_element_spec_of_nothing(two):
    with pytest.raises(InputError, match="no batches"):
        _ = two.distribute_dataset([]).element_spec


@pytest.mark.parametrize("kind", ["list", "function", "generator", "arrays", "files"])
def test_a_dataset_without_batches_gives_none(two, kind):
    dataset = two.distribute_dataset(dataset_of(kind, np.arange(0), 4))
    assert list(dataset) == []


def test_no_library_is_imported_to_recognise_a_dataset():
    program = """
        import sys
        import replicax as rx
        rx.set_cpu_devices(2)
        import numpy as np
        strategy = rx.MirroredStrategy(["CPU:0", "CPU:1"])
        arrays = rx.from_arrays(np.arange(4)).batch(2)
        for dataset in ([np.arange(4)], arrays, lambda: iter([np.arange(2)])):
            for batch in strategy.distribute_dataset(dataset):
                pass
        print([name for name in ("grain", "tensorflow", "torch", "datasets") if name in sys.modules])
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program)], capture_output=True, text=True, timeout=240
    )
    assert (done.stdout, done.returncode) == ("[]\n", 0), done.stderr


@pytest.mark.parametrize(
    "nothing",
    [
        3,
        None,
        "text",
        b"text",
        np.arange(4),
        jnp.arange(4),
        {"x": np.arange(4)},
        {1, 2},
        object(),
        int,
        1.5,
    ],
    ids=lambda value: type(value).__name__,
)
def test_what_is_no_dataset_is_refused(two, nothing):
    with pytest.raises(NotADatasetError, match="not a dataset"):
        two.distribute_dataset(nothing)


def test_a_tuple_of_arrays_is_no_list_of_batches(two):
    with pytest.raises(NotADatasetError, match="from_arrays"):
        two.distribute_dataset((np.arange(4), np.arange(4)))
    assert len(list(two.distribute_dataset([np.arange(4), np.arange(4)]))) == 2


def test_a_distributed_dataset_is_not_distributed_again(two):
    dataset = two.distribute_dataset([np.arange(4)])
    with pytest.raises(NotADatasetError, match="already distributed"):
        two.distribute_dataset(dataset)
    with pytest.raises(AttributeError, match="Transform before distributing"):
        dataset.batch(3)


# Batches that can't be split.


@pytest.mark.parametrize("buffer_size", [0, 2])
@pytest.mark.parametrize(
    ("batches", "message"),
    [
        ([1.0], r"Batch 0 .* not a batch: element is the single value 1\.0"),
        ([{"x": np.arange(3), "y": np.arange(4)}], r"element\['x'\] has 3, element\['y'\] has 4"),
        ([(np.arange(3), np.float32(2))], r"element\[1\] is the single value 2\.0"),
        ([np.arange(3), {"x": np.arange(3)}], "Batch 1 .* different structure"),
        ([np.arange(3), np.arange(3.0)], "element of batch 1 has the dtype float64, but int64"),
        (["text"], "is not an array, but of type str: 'text'"),
        ([None], "has no arrays"),
        ([[[1, 2], [3, 4]]], "single value 1"),
        ([{"x": object()}], r"element\['x'\] is not an array, but of type object"),
    ],
    ids=range(9),
)
def test_batches_that_can_not_be_split_are_errors(two, batches, message, buffer_size):
    options = rx.InputOptions(per_replica_buffer_size=buffer_size)
    iterator = iter(two.distribute_dataset(batches, options))
    for _ in batches[1:]:
        next(iterator)
    for _ in range(2):
        with pytest.raises(InputError, match=message):
            next(iterator)
    iterator.close()


@pytest.mark.parametrize("buffer_size", [0, 1, 3])
def test_an_error_of_the_reader_comes_at_its_step(two, buffer_size):
    def batches():
        yield np.arange(2)
        yield np.arange(4)
        raise OSError("the disk is gone")

    iterator = iter(two.distribute_dataset(batches, rx.InputOptions(per_replica_buffer_size=buffer_size)))
    assert lists(two, [next(iterator), next(iterator)]) == [[[0], [1]], [[0, 1], [2, 3]]]
    with pytest.raises(OSError, match="the disk is gone"):
        next(iterator)
    iterator.close()


# Arrays.


def test_array_methods_come_in_one_order():
    rows = rx.from_arrays(np.arange(6))
    for wrong in (rows.batch(2), rows.repeat(2)):
        with pytest.raises(InputError, match="shuffle before repeat and batch"):
            wrong.shuffle()
    with pytest.raises(InputError, match="repeat was called twice"):
        rows.repeat(2).repeat(2)
    with pytest.raises(InputError, match="batch was called twice, first with 2"):
        rows.batch(2).batch(2)
    for count in (0, -1, 1.5, True, "2", None):
        with pytest.raises(InputError, match="batch size of at least 1"):
            rows.batch(count)
    for count in (-1, 1.5, True):
        with pytest.raises(InputError, match="number of epochs"):
            rows.repeat(count)
    for seed in (-1, 1.5, None, True):
        with pytest.raises(InputError, match="non-negative"):
            rows.shuffle(seed=seed)


def test_arrays_have_one_number_of_rows():
    with pytest.raises(InputError, match=r"element\['x'\] has 3, element\['y'\] has 4"):
        rx.from_arrays({"x": np.arange(3), "y": np.arange(4)})
    with pytest.raises(InputError, match="at least one array"):
        rx.from_arrays({})
    with pytest.raises(InputError, match="single number 3"):
        rx.from_arrays([1, 2, 3][2])
    with pytest.raises(InputError, match=r"element\[0\] is the single number 1"):
        rx.from_arrays([1, 2, 3])


def test_arrays_without_batches_are_not_distributed(two):
    with pytest.raises(InputError, match=r"\.batch\(global_batch_size\)"):
        two.distribute_dataset(rx.from_arrays(np.arange(6)))


@pytest.mark.parametrize(
    ("make", "wanted"),
    [
        (lambda rows: rows.repeat(2).batch(4), [[0, 1, 2, 0], [1, 2]]),
        (lambda rows: rows.batch(2).repeat(2), [[0, 1], [2], [0, 1], [2]]),
        (lambda rows: rows.repeat(3).batch(4, drop_remainder=True), [[0, 1, 2, 0], [1, 2, 0, 1]]),
        (lambda rows: rows.batch(2, drop_remainder=True).repeat(3), [[0, 1]] * 3),
        (lambda rows: rows.batch(4, drop_remainder=True).repeat(2), []),
        (lambda rows: rows.batch(4, drop_remainder=True).repeat(), []),
        (lambda rows: rows.repeat(0).batch(4), []),
        (lambda rows: rows.repeat(2).batch(7), [[0, 1, 2, 0, 1, 2]]),
        (lambda rows: rows.batch(1).repeat(1), [[0], [1], [2]]),
    ],
    ids=range(9),
)
def test_repeat_before_and_after_batch(two, make, wanted):
    dataset = make(rx.from_arrays(np.arange(3)))
    assert [batch.tolist() for batch in dataset] == wanted
    distributed = two.distribute_dataset(dataset)
    assert [sum(step, []) for step in lists(two, distributed)] == wanted  # noqa: RUF017
    assert distributed.cardinality == len(wanted)


def test_endless_repetition_goes_on(two):
    for dataset in (
        rx.from_arrays(np.arange(3)).repeat().batch(2),
        rx.from_arrays(np.arange(2)).batch(2).repeat(),
    ):
        iterator = iter(two.distribute_dataset(dataset))
        assert len([next(iterator) for _ in range(50)]) == 50
        iterator.close()


def test_every_epoch_is_shuffled_in_its_own_way(two):
    rows = rx.from_arrays(np.arange(20)).shuffle(seed=3)
    dataset = two.distribute_dataset(rows.batch(4))
    first, second = flat(two, dataset), flat(two, dataset)
    assert first != second and sorted(first) == sorted(second) == list(range(20))
    assert flat(two, two.distribute_dataset(rows.repeat(2).batch(4))) == first + second
    assert flat(two, two.distribute_dataset(rows.batch(4).repeat(2))) == first + second
    other = two.distribute_dataset(rx.from_arrays(np.arange(20)).shuffle(seed=4).batch(4))
    assert flat(two, other) != first


def test_passes_over_a_repeated_dataset_go_on_shuffling(two):
    rows = rx.from_arrays(np.arange(8)).shuffle(seed=3)
    dataset = two.distribute_dataset(rows.repeat(2).batch(4))
    twice = flat(two, dataset) + flat(two, dataset)
    assert twice == flat(two, two.distribute_dataset(rows.repeat(4).batch(4)))


def test_the_order_is_the_same_on_any_number_of_replicas():
    rows = rx.from_arrays(np.arange(30)).shuffle(seed=1).batch(7)
    strategies = [rx.MirroredStrategy([f"CPU:{i}" for i in range(count)]) for count in (1, 2, 3, 8)]
    orders = {tuple(flat(strategy, strategy.distribute_dataset(rows))) for strategy in strategies}
    assert orders == {tuple(int(i) for batch in rows for i in batch)}


@pytest.mark.parametrize("shuffled", [False, True])
def test_memory_mapped_arrays(two, tmp_path, shuffled):
    np.save(tmp_path / "x.npy", np.arange(24, dtype=np.float32).reshape(12, 2))
    rows = rx.from_arrays(np.load(tmp_path / "x.npy", mmap_mode="r"))
    if shuffled:
        rows = rows.shuffle(seed=0)
    got = [part.value for batch in two.distribute_dataset(rows.batch(5)) for part in parts(two, batch)]
    values = np.concatenate(got)
    order = values[:, 0].argsort()
    assert shuffled != (order.tolist() == list(range(12)))
    np.testing.assert_array_equal(values[order], np.arange(24).reshape(12, 2))


@pytest.mark.parametrize("dtype", ["bool", "uint8", "int64", "float64", "float16", "bfloat16", "complex64"])
@pytest.mark.parametrize("shuffled", [False, True])
def test_arrays_of_every_dtype_keep_it_as_jax_has_it(two, dtype, shuffled):
    wanted = np.arange(6).astype(jnp.dtype(dtype))
    rows = rx.from_arrays(wanted).shuffle(seed=0) if shuffled else rx.from_arrays(wanted)
    assert next(iter(rows.batch(6))).dtype == wanted.dtype
    [batch] = two.distribute_dataset(rows.batch(6))
    got = np.concatenate([part.value for part in parts(two, batch)])
    assert got.dtype == jax.dtypes.canonicalize_dtype(wanted.dtype)
    assert sorted(got.tolist(), key=abs) == sorted(wanted.tolist(), key=abs)


@pytest.mark.parametrize("dtype", [">f4", ">i8"])
@pytest.mark.parametrize("count", [1, 2])
@pytest.mark.parametrize("mode", ["exact", "pad"])
def test_numbers_in_the_other_byte_order(count, dtype, mode):
    strategy = rx.MirroredStrategy([f"CPU:{i}" for i in range(count)])
    array = np.arange(5, dtype=dtype)
    rows = rx.from_arrays(array)
    for dataset in ([array], rows.batch(5), rows.shuffle(seed=0).batch(5)):
        distributed = strategy.distribute_dataset(dataset, rx.InputOptions(partial_batch=mode))
        [batch] = distributed
        assert sorted(i for part in parts(strategy, batch) for i in part.examples.tolist()) == list(
            range(5)
        )

        @rx.function(input_signature=[distributed.element_spec])
        def total(batch):
            return strategy.reduce("SUM", batch, axis=0)

        assert total(batch) == 10


def test_arrays_that_are_not_contiguous(two):
    rows = np.arange(24).reshape(2, 12).T
    for array in (rows, rows[::-1], rows[::2], np.asfortranarray(rows)):
        got = [
            p.value for b in two.distribute_dataset(rx.from_arrays(array).batch(5)) for p in parts(two, b)
        ]
        np.testing.assert_array_equal(np.concatenate(got), array)


def test_changing_a_batch_on_the_host_does_not_change_the_dataset():
    strategy = rx.MirroredStrategy(["CPU:0"])
    rows = np.arange(4, dtype=np.float32)
    options = rx.InputOptions(fetch_to_device=False)
    for dataset in (rx.from_arrays(rows).batch(2), [rows[:2], rows[2:]]):
        for batch in strategy.distribute_dataset(dataset, options):
            if batch.flags.writeable:
                batch += 100
        assert rows.tolist() == [0, 1, 2, 3]


def test_make_numpy_dataset_is_from_arrays(two):
    dataset = two.make_numpy_dataset((np.arange(6), np.arange(6.0)))
    assert isinstance(dataset, rx.ArrayDataset)
    assert len(list(two.distribute_dataset(dataset.batch(4)))) == 2


# Files.


@pytest.fixture
def folder(tmp_path):
    """Three files, with 3, 0 and 4 numbers."""
    for name, numbers in (("b", [3, 4, 5, 6]), ("a", [0, 1, 2]), ("aa", [])):
        np.save(tmp_path / f"{name}.npy", np.array(numbers))
    return tmp_path


def test_a_pattern_finds_files_in_alphabetical_order(two, folder):
    dataset = rx.from_files(folder / "*.npy", np.load)
    assert [path.rsplit("/", 1)[1] for path in dataset.paths] == ["a.npy", "aa.npy", "b.npy"]
    assert [batch.tolist() for batch in dataset.batch(4)] == [[0, 1, 2, 3], [4, 5, 6]]
    assert lists(two, two.distribute_dataset(dataset.batch(4))) == [[[0, 1], [2, 3]], [[4, 5], [6]]]
    assert [b.tolist() for b in dataset.batch(4, drop_remainder=True)] == [[0, 1, 2, 3]]
    assert len(rx.from_files(str(folder / "**" / "a*.npy"), np.load).paths) == 2


def test_files_are_read_in_the_order_of_a_list(two, folder):
    dataset = rx.from_files([folder / "b.npy", str(folder / "a.npy")], np.load).batch(5)
    assert [batch.tolist() for batch in dataset] == [[3, 4, 5, 6, 0], [1, 2]]


def test_missing_files(folder):
    for paths, message in [
        (folder / "*.txt", "found no files"),
        ([folder / "a.npy", folder / "z.npy"], "do not exist: .*z.npy"),
        ([], "empty list"),
    ]:
        with pytest.raises(MissingFilesError, match=message) as caught:
            rx.from_files(paths, np.load)
        assert isinstance(caught.value, FileNotFoundError)
    with pytest.raises(TypeError, match="function that reads"):
        rx.from_files([folder / "a.npy"], None)


def test_file_batches_are_checked(folder):
    dataset = rx.from_files(folder / "*.npy", np.load)
    for size in (0, True, 1.5):
        with pytest.raises(InputError, match="at least 1"):
            dataset.batch(size)
    with pytest.raises(InputError, match="called twice"):
        dataset.batch(2).batch(2)


def test_readers_by_index_by_iterator_and_of_batches(two, folder):
    def random_access(path):
        return Rows(np.load(path))

    def iterator(path):
        yield from np.load(path)

    def structures(path):
        return [{"x": x, "y": (x, [x])} for x in np.load(path)]

    for reader in (random_access, iterator, lambda path: np.load(path).tolist()):
        dataset = rx.from_files(folder / "*.npy", reader).batch(3)
        assert lists(two, two.distribute_dataset(dataset)) == [[[0, 1], [2]], [[3, 4], [5]], [[6], []]]
    dataset = two.distribute_dataset(rx.from_files(folder / "*.npy", structures).batch(7))
    [batch] = dataset
    assert np.concatenate([part.value["y"][1][0] for part in parts(two, batch)]).tolist() == list(range(7))

    def batches(path):
        numbers = np.load(path)
        return (numbers[i : i + 2] for i in range(0, len(numbers), 2))

    dataset = rx.from_files(folder / "*.npy", batches)
    assert lists(two, two.distribute_dataset(dataset)) == [[[0], [1]], [[2], []], [[3], [4]], [[5], [6]]]
    assert [batch.tolist() for batch in dataset] == [[0, 1], [2], [3, 4], [5, 6]]


def test_readers_that_give_no_examples_are_refused(two, folder):
    with pytest.raises(NotADatasetError, match="must return an iterable of examples"):
        list(two.distribute_dataset(rx.from_files(folder / "*.npy", lambda path: 3).batch(2)))
    ragged = rx.from_files(folder / "*.npy", lambda path: [np.zeros(i) for i in np.load(path)]).batch(2)
    with pytest.raises(InputError, match="can't be combined into a batch of 2"):
        list(two.distribute_dataset(ragged))
    with pytest.raises(InputError, match="structure"):
        list(two.distribute_dataset(rx.from_files(folder / "a.npy", lambda path: [1, (2,)]).batch(2)))


def test_a_file_with_a_single_line(tmp_path):
    (tmp_path / "1.txt").write_text("5\n")
    dataset = rx.from_files(tmp_path / "*.txt", lambda path: np.loadtxt(path, ndmin=1)).batch(4)
    assert [batch.tolist() for batch in dataset] == [[5.0]]


def test_an_open_file_is_closed_at_its_end(tmp_path):
    (tmp_path / "a.txt").write_text("1\n2\n3\n")
    opened = []

    def reader(path):
        opened.append(open(path))  # noqa: SIM115
        return opened[-1]

    dataset = rx.from_files(tmp_path / "*.txt", reader).batch(2)
    assert [batch.tolist() for batch in dataset] == [["1\n", "2\n"], ["3\n"]]
    left_open = [file for file in opened if not file.closed]
    for file in left_open:
        file.close()
    assert not left_open


def test_an_open_file_reader_is_closed_when_a_pass_is_left(two, folder):
    closed = []

    def reader(path):
        try:
            yield from range(100)
        finally:
            closed.append(path)

    dataset = two.distribute_dataset(rx.from_files([folder / "a.npy"], reader).batch(4))
    with iter(dataset) as iterator:
        next(iterator)
    assert len(closed) == 1


# Plain Python.


def test_a_function_is_called_for_every_pass(two):
    calls = []

    def batches():
        calls.append(1)
        return [np.full(2, len(calls))]

    dataset = two.distribute_dataset(batches)
    assert [lists(two, dataset), lists(two, dataset)] == [[[[1], [1]]], [[[2], [2]]]]


def test_a_function_must_return_batches(two):
    with pytest.raises(NotADatasetError, match="must return a new iterable"):
        list(two.distribute_dataset(lambda: 3))


def test_a_sequence_with_a_length_ends_there(two):
    class Squares:  # as torch's map-style datasets often are: nothing stops an index that is too large
        def __len__(self):
            return 3

        def __getitem__(self, index):
            return np.full(2, index**2)

    dataset = two.distribute_dataset(Squares())
    assert dataset.cardinality == 3
    iterator = iter(dataset)
    got = [next(iterator, None) for _ in range(4)]
    iterator.close()
    assert got[3] is None
    assert lists(two, got[:3]) == [[[0], [0]], [[1], [1]], [[4], [4]]]


def test_a_generator_is_closed_when_its_pass_is_left(two):
    closed = []

    def batches():
        try:
            while True:
                yield np.arange(2)
        finally:
            closed.append(True)

    for buffer_size in (0, 2):
        dataset = two.distribute_dataset(batches, rx.InputOptions(per_replica_buffer_size=buffer_size))
        for _ in dataset:
            break
        assert closed.pop()


def test_a_batch_may_have_fewer_rows_than_replicas():
    strategy = rx.MirroredStrategy([f"CPU:{i}" for i in range(4)])
    assert lists(strategy, strategy.distribute_dataset([np.arange(2), np.arange(0), np.arange(5)])) == [
        [[0], [1], [], []],
        [[], [], [], []],
        [[0, 1], [2], [3], [4]],
    ]


# Buffers, arrays on devices, and text.


@pytest.mark.parametrize("buffer_size", [0, 1, 2, 3])
@pytest.mark.parametrize("count", [1, 2, 3])
@pytest.mark.parametrize("dtype", [np.float32, np.int64])
def test_a_reader_may_use_its_buffer_again(buffer_size, count, dtype):
    strategy = rx.MirroredStrategy([f"CPU:{i}" for i in range(count)])
    buffer = np.zeros((6, 1000), dtype)

    def batches():
        for i in range(8):
            buffer[:] = i
            yield buffer
        buffer[:] = -1

    for options in ({}, {"fetch_to_device": False}):
        made = rx.InputOptions(per_replica_buffer_size=buffer_size, **options)
        got = list(strategy.distribute_dataset(batches, made))
        values = [{float(v) for part in parts(strategy, b) for v in np.unique(part.value)} for b in got]
        assert values == [{float(i)} for i in range(8)]


@pytest.mark.parametrize("buffer_size", [0, 2])
def test_a_reader_of_a_dataset_function_may_use_its_buffer_again(two, buffer_size):
    def dataset_fn(context):
        buffer = np.zeros((2, 100), np.float32)
        for i in range(5):
            buffer[:] = i
            yield buffer

    options = rx.InputOptions(per_replica_buffer_size=buffer_size)
    dataset = two.distribute_datasets_from_function(dataset_fn, options)
    got = [[np.unique(part.value).tolist() for part in parts(two, batch)] for batch in dataset]
    assert got == [[[0], [1]], [[2], [3]], [[4], []]]


@pytest.mark.parametrize("buffer_size", [0, 2])
def test_a_file_reader_may_use_its_buffer_again(buffer_size):
    def reader(path):
        row = np.zeros(3)
        for i in range(4):
            row[:] = i
            yield row

    strategy = rx.MirroredStrategy(["CPU:0"])
    options = rx.InputOptions(per_replica_buffer_size=buffer_size)
    dataset = strategy.distribute_dataset(rx.from_files(file_names(2), reader).batch(3), options)
    assert [batch[:, 0].tolist() for batch in dataset] == [[0, 1, 2], [3, 0, 1], [2, 3]]


def test_a_shared_batch_may_be_in_a_buffer_that_is_used_again():
    pipelines = Pipelines(2, 1)

    def batches():
        buffer = np.zeros(3)
        for i in range(4):
            buffer[:] = i
            yield buffer

    steps = pipelines.steps(pipelines.distribute(lambda: batches, auto_shard_policy="OFF"))
    for ids in ((0, 1), (2,)):
        seen = [float(v) for step in steps for i in ids for v in step[i].value]
        assert seen == [0, 0, 0, 1, 1, 1, 2, 2, 2, 3, 3, 3]


@pytest.mark.parametrize("count", [1, 3])
def test_batches_of_jax_arrays(count):
    strategy = rx.MirroredStrategy([f"CPU:{i}" for i in range(count)])
    batches = [{"x": jnp.arange(6.0) + i, "key": jax.random.split(jax.random.key(i), 6)} for i in range(2)]
    got = list(strategy.distribute_dataset(batches))
    for index, batch in enumerate(got):
        x = np.concatenate(list(map(np.asarray, strategy.local_results(batch["x"]))))
        np.testing.assert_array_equal(x, np.arange(6) + index)
        keys = [jax.random.key_data(key) for key in strategy.local_results(batch["key"])]
        np.testing.assert_array_equal(np.concatenate(keys), jax.random.key_data(batches[index]["key"]))


def test_batches_are_on_the_devices_of_their_replicas(two):
    for batches in ([np.arange(4)], [jnp.arange(4)], [np.arange(3)]):
        [batch] = two.distribute_dataset(batches)
        assert [part.devices() for part in batch.components] == [{d} for d in two.mesh.local_devices]
        [batch] = two.distribute_dataset(batches, rx.InputOptions(fetch_to_device=False))
        assert isinstance(batch, rx.PerReplica)
    [batch] = two.distribute_dataset([np.arange(4)], rx.InputOptions(fetch_to_device=False))
    assert all(isinstance(part, np.ndarray) for part in batch.values)


@pytest.mark.parametrize("count", [1, 2])
@pytest.mark.parametrize("rows", [4, 3])
def test_text_stays_on_the_host_and_numbers_do_not(count, rows):
    strategy = rx.MirroredStrategy([f"CPU:{i}" for i in range(count)])
    texts = np.array(["a", "bb", "ccc", "dddd"])[:rows]
    objects = np.array([b"1", "two", None, 4], object)[:rows]
    [batch] = strategy.distribute_dataset([{"t": texts, "o": objects, "n": np.arange(rows)}])
    got = strategy.local_results(batch)
    assert [text for part in got for text in part["t"]] == texts.tolist()
    assert [thing for part in got for thing in part["o"]] == objects.tolist()
    assert all(isinstance(part["t"], np.ndarray) and isinstance(part["n"], jax.Array) for part in got)
    spec = strategy.distribute_dataset([{"t": texts, "n": np.arange(rows)}]).element_spec
    assert set(spec) == {"t", "n"}


def test_texts_of_different_lengths_in_different_batches(two, tmp_path):
    batches = [np.array(["a", "b"]), np.array(["long", "longer"])]
    got = [strategy_values(two, batch) for batch in two.distribute_dataset(batches)]
    assert got == [["a", "b"], ["long", "longer"]]
    (tmp_path / "lines.txt").write_text("a\nb\nlong\nlonger\n")

    def lines(path):
        with open(path) as file:
            yield from (np.array(line.strip()) for line in file)

    dataset = two.distribute_dataset(rx.from_files(tmp_path / "*.txt", lines).batch(2))
    assert [strategy_values(two, batch) for batch in dataset] == got


def strategy_values(strategy, batch):
    return [text for part in strategy.local_results(batch) for text in part.tolist()]


@pytest.mark.parametrize("rows", [4, 3])
def test_text_can_not_be_padded(two, rows):
    options = rx.InputOptions(partial_batch="pad")
    with pytest.raises(InputError, match="can't pad element"):
        list(two.distribute_dataset([np.array(["a", "b", "c", "d"])[:rows]], options))


def test_dates_stay_on_the_host_like_text(two):
    days = np.arange("2024-01-01", "2024-01-05", dtype="datetime64[D]")
    dataset = two.distribute_dataset([days])
    assert dataset.element_spec.value_specs[0].dtype == days.dtype
    [batch] = dataset
    np.testing.assert_array_equal(np.concatenate(two.local_results(batch)), days)


# Other libraries.


@pytest.mark.parametrize("buffer_size", [0, 2])
def test_shuffled_grain_datasets(two, buffer_size):
    dataset = grain.MapDataset.range(20).seed(3).shuffle().map(lambda x: {"x": x}).batch(4)
    wanted = [batch["x"].tolist() for batch in dataset]
    options = rx.InputOptions(per_replica_buffer_size=buffer_size)
    got = [
        [i for p in parts(two, b) for i in p.value["x"].tolist()]
        for b in two.distribute_dataset(dataset, options)
    ]
    assert got == wanted and sorted(sum(got, [])) == list(range(20))  # noqa: RUF017


def test_cardinality_of_a_filtered_grain_dataset(two):
    dataset = two.distribute_dataset(
        grain.MapDataset.range(12).batch(4).filter(lambda batch: batch[0] != 4)
    )
    assert dataset.cardinality in (rx.UNKNOWN_CARDINALITY, len(list(dataset)))


def test_grain_elements_that_are_no_batches_are_refused(two):
    with pytest.raises(InputError, match="is not a batch"):
        list(two.distribute_dataset(grain.MapDataset.range(4)))


@pytest.fixture(scope="module")  # importing it changes environment variables
def tf():
    return pytest.importorskip("tensorflow")


@pytest.mark.filterwarnings("default")
class TestTensorFlow:
    def test_batches_spec_and_cardinality(self, two, tf):
        arrays = {"x": np.arange(10.0), "y": (np.arange(10), np.zeros((10, 2), np.float16))}
        dataset = two.distribute_dataset(tf.data.Dataset.from_tensor_slices(arrays).batch(4))
        assert dataset.cardinality == 3
        for _ in range(2):
            got = [parts(two, batch) for batch in dataset]
            assert [part.value["x"].tolist() for part in got[0]] == [[0, 1], [2, 3]]
            assert np.concatenate([p.value["y"][0] for s in got for p in s]).tolist() == list(range(10))
        spec = dataset.element_spec
        assert spec["x"] == rx.PerReplicaSpec(*[rx.TensorSpec([None], jnp.float32)] * 2)
        assert spec["y"][1] == rx.PerReplicaSpec(*[rx.TensorSpec([None, 2], jnp.float16)] * 2)
        fixed = tf.data.Dataset.range(10).batch(4, drop_remainder=True)
        assert two.distribute_dataset(fixed).element_spec.value_specs[0].shape == (2,)
        assert two.distribute_dataset(tf.data.Dataset.range(3).repeat().batch(2)).cardinality == -1

        @rx.function(input_signature=[spec])
        def step(batch):
            return two.reduce("SUM", batch["x"], axis=0)

        assert [float(step(batch)) for batch in dataset] == [6, 22, 17]

    def test_bfloat16_text_and_bool(self, two, tf):
        arrays = (tf.cast(tf.range(4), tf.bfloat16), tf.constant(["a", "b", "c", "d"]), tf.range(4) > 1)
        [batch] = two.distribute_dataset(tf.data.Dataset.from_tensor_slices(arrays).batch(4))
        got = parts(two, batch)
        assert got[1].value[0].dtype == jnp.bfloat16 and got[1].value[0].tolist() == [2, 3]
        assert got[0].value[1].tolist() == [b"a", b"b"]
        assert got[1].value[2].tolist() == [True, True]

    def test_ragged_and_sparse_elements_are_refused(self, two, tf):
        ragged = tf.data.Dataset.from_tensor_slices(tf.ragged.constant([[1], [2, 3]])).batch(2)
        with pytest.raises(InputError, match="padded_batch"):
            two.distribute_dataset(ragged)

    def test_a_position_skips_ahead(self, two, tf):
        def make():
            return iter(two.distribute_dataset(tf.data.Dataset.range(20).shuffle(20, seed=1).batch(4)))

        tf.random.set_seed(1)
        first = make()
        next(first)
        state, rest = first.state(), flat(two, first)
        tf.random.set_seed(1)
        other = make()
        other.restore(state)
        assert flat(two, other) == rest and len(rest) == 16

    @pytest.fixture
    def records(self, tf, tmp_path):
        for index in range(4):
            with tf.io.TFRecordWriter(str(tmp_path / f"{index}.tfrecord")) as writer:
                for row in range(5):
                    writer.write(str(index * 5 + row).encode())
        return sorted(map(str, tmp_path.glob("*.tfrecord")))

    def read(self, tf, records):
        dataset = tf.data.TFRecordDataset(records)
        return dataset.map(lambda text: tf.strings.to_number(text, tf.int32)).batch(4)

    @pytest.mark.parametrize("policy", ["FILE", "AUTO"])
    def test_tensorflow_shares_out_files(self, tf, records, policy):
        pipelines = Pipelines(2, 1)
        datasets = pipelines.distribute(lambda: self.read(tf, records), auto_shard_policy=policy)
        assert {dataset.plan().policy for dataset in datasets} == {rx.AutoShardPolicy.FILE}
        steps = pipelines.steps(datasets)
        seen = [
            [int(v) for step in steps for i in ids for v in step[i].value] for ids in pipelines.replicas
        ]
        assert seen == [[*range(5), *range(10, 15)], [*range(5, 10), *range(15, 20)]]

    def test_the_policy_in_the_options_of_the_dataset_counts(self, tf, records):
        def make():
            options = tf.data.Options()
            options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.OFF
            return self.read(tf, records).with_options(options)

        pipelines = Pipelines(1, 1)
        datasets = pipelines.distribute(make)
        assert datasets[0].plan().policy is rx.AutoShardPolicy.OFF
        steps = pipelines.steps(datasets)
        for replica in range(2):
            assert [int(v) for step in steps for v in step[replica].value] == list(range(20))
        datasets = pipelines.distribute(make, auto_shard_policy=tf.data.experimental.AutoShardPolicy.DATA)
        assert datasets[0].plan().policy is rx.AutoShardPolicy.DATA

    def test_without_files_the_rows_are_shared(self, tf):
        pipelines = Pipelines(1, 1)
        datasets = pipelines.distribute(lambda: tf.data.Dataset.range(9).batch(4))
        assert datasets[0].plan().policy is rx.AutoShardPolicy.DATA
        steps = pipelines.steps(datasets)
        assert [int(v) for step in steps for part in step for v in part.value] == list(range(9))

    def test_fewer_files_than_pipelines(self, tf, records):
        pipelines = Pipelines(1, 1)
        datasets = pipelines.distribute(lambda: self.read(tf, records[:1]))
        assert datasets[0].plan().policy is rx.AutoShardPolicy.DATA
        steps = pipelines.steps(datasets)
        assert [int(v) for step in steps for part in step for v in part.value] == list(range(5))

    def test_hints(self, tf):
        def make():
            hint = tf.data.experimental.SHARD_HINT
            return tf.data.Dataset.range(12).shard(hint, hint).batch(4)

        pipelines = Pipelines(1, 2)
        datasets = pipelines.distribute(make, auto_shard_policy="HINT")
        steps = pipelines.steps(datasets)
        seen = [
            [int(v) for step in steps for i in ids for v in step[i].value] for ids in pipelines.replicas
        ]
        assert seen == [list(range(0, 12, 2)), list(range(1, 12, 2))]


@pytest.fixture(scope="module")
def torch():
    return pytest.importorskip("torch")


@pytest.mark.filterwarnings("default")
class TestTorch:
    def test_a_data_loader(self, two, torch):
        x, y = torch.arange(10.0), torch.arange(10).to(torch.bfloat16)
        loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(x, y), batch_size=4)
        dataset = two.distribute_dataset(loader)
        assert dataset.cardinality == 3
        for _ in range(2):
            got = [parts(two, batch) for batch in dataset]
            assert [[p.value[0].tolist() for p in s] for s in got] == [
                [[0, 1], [2, 3]],
                [[4, 5], [6, 7]],
                [[8], [9]],
            ]
            assert got[0][0].value[1].dtype == jnp.bfloat16
        assert dataset.element_spec[0].value_specs[0] == rx.TensorSpec([None], jnp.float32)
        iterator = iter(dataset)
        next(iterator)
        other = iter(two.distribute_dataset(loader))
        other.restore(iterator.state())
        iterator.close()
        assert [part.value[0].tolist() for b in other for part in parts(two, b)] == [
            [4, 5],
            [6, 7],
            [8],
            [9],
        ]

    def test_a_loader_of_dictionaries_and_text(self, two, torch):
        class Examples(torch.utils.data.Dataset):
            def __len__(self):
                return 4

            def __getitem__(self, index):
                return {"x": np.float64(index), "n": index}

        [batch] = two.distribute_dataset(torch.utils.data.DataLoader(Examples(), batch_size=4))
        assert [part.value["n"].tolist() for part in parts(two, batch)] == [[0, 1], [2, 3]]

    def test_an_iterable_dataset_and_tensors_that_need_gradients(self, two, torch):
        class Numbers(torch.utils.data.IterableDataset):
            def __iter__(self):
                return iter([torch.full((2,), float(i), requires_grad=True) for i in range(3)])

        loader = torch.utils.data.DataLoader(Numbers(), batch_size=None)
        dataset = two.distribute_dataset(loader)
        assert dataset.cardinality == rx.UNKNOWN_CARDINALITY
        assert lists(two, dataset) == [[[0], [0]], [[1], [1]], [[2], [2]]]
        assert lists(two, two.distribute_dataset([torch.arange(4)])) == [[[0, 1], [2, 3]]]

    def test_a_loader_with_worker_processes(self, two, torch):
        loader = torch.utils.data.DataLoader(
            torch.utils.data.TensorDataset(torch.arange(10)),
            batch_size=4,
            num_workers=1,
            multiprocessing_context="spawn",
        )
        got = [int(v) for b in two.distribute_dataset(loader) for p in parts(two, b) for v in p.value[0]]
        assert got == list(range(10))


def test_single_examples_are_for_one_replica():
    examples = [(np.arange(3.0, dtype=np.float32), np.int32(i)) for i in range(2)]
    for strategy in (rx.OneDeviceStrategy("CPU:1"), rx.get_strategy()):
        found = list(strategy.distribute_dataset(examples))
        assert [(x.shape, int(y)) for x, y in found] == [((3,), 0), ((3,), 1)]
    with pytest.raises(InputError, match="single value 0"):
        next(iter(rx.MirroredStrategy(["CPU:0", "CPU:1"]).distribute_dataset(examples)))


def test_what_stays_in_host_memory_has_numpy():
    strategy = rx.MirroredStrategy(["CPU:0", "CPU:1"])
    options = rx.InputOptions(fetch_to_device=False)
    (batch,) = strategy.distribute_dataset([np.arange(4, dtype=np.float32)], options)
    parts = strategy.local_results(batch)
    assert [type(part.numpy()) for part in parts] == [np.ndarray] * 2
    assert [part.numpy().tolist() for part in parts] == [[0.0, 1.0], [2.0, 3.0]]
    assert strategy.reduce("SUM", strategy.run(lambda x: jnp.sum(x), args=(batch,)), axis=None) == 6.0
    (words,) = strategy.distribute_dataset([np.array([b"a", b"bc"], object)])
    assert [part.numpy().tolist() for part in strategy.local_results(words)] == [[b"a"], [b"bc"]]
