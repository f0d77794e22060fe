"""What is wrong is said where it was written, by name, and with what to do."""

import numpy as np
import pytest

import replicax as rx
from replicax import tf
from replicax.errors import InputError
from replicax.tf import data

Dataset = data.Dataset
D = Dataset.range(4)
SCALAR = rx.TensorSpec((), np.int32)


@pytest.mark.parametrize(
    "call, kind, message",
    [
        (lambda: D.batch(0), InputError, r"Dataset.batch\(0\): pass a number of at least 1"),
        (lambda: D.batch(2.5), TypeError, r"Dataset.batch\(2.5\): pass an integer"),
        (lambda: D.batch(True), TypeError, r"batch\(True\)"),
        (lambda: D.batch(None), TypeError, r"batch\(None\)"),
        (lambda: D.batch(2, "yes"), TypeError, r"drop_remainder='yes'\): pass True or False"),
        (lambda: D.batch(2, num_parallel_calls=0), InputError, "num_parallel_calls=0"),
        (lambda: D.padded_batch(0), InputError, r"padded_batch\(0\)"),
        (lambda: D.take(-2), InputError, r"take\(-2\): pass a number of at least -1"),
        (lambda: D.skip(-2), InputError, r"skip\(-2\)"),
        (lambda: D.repeat(-2), InputError, r"repeat\(-2\)"),
        (lambda: D.shuffle(0), InputError, r"buffer_size=0\)"),
        (lambda: D.shuffle(2, seed="a"), TypeError, "seed='a'"),
        (lambda: D.shuffle(2, reshuffle_each_iteration=1), TypeError, "reshuffle_each_iteration=1"),
        (lambda: D.prefetch(-2), InputError, r"prefetch\(-2\)"),
        (lambda: D.shard(0, 0), InputError, "num_shards=0"),
        (lambda: D.shard(2, 2), InputError, r"shard\(2, 2\): pass an index from 0 to 1"),
        (lambda: D.shard(2, -1), InputError, "index=-1"),
        (lambda: D.cache("file"), NotImplementedError, "filename='file'.*memory only"),
        (lambda: D.map(3), TypeError, "Dataset.map takes a function, got 3"),
        (lambda: D.map(abs, num_parallel_calls=-3), InputError, "num_parallel_calls=-3"),
        (
            lambda: D.map(abs, use_unbounded_threadpool=True),
            NotImplementedError,
            "use_unbounded_threadpool",
        ),
        (lambda: D.filter(None), TypeError, "Dataset.filter takes a function"),
        (lambda: D.reduce(0, None), TypeError, "Dataset.reduce takes a function"),
        (lambda: D.interleave(abs, cycle_length=0), InputError, "cycle_length=0"),
        (lambda: D.interleave(abs, block_length=0), InputError, "block_length=0"),
        (lambda: D.apply(lambda d: 3), TypeError, "must return a tf.data.Dataset, got 3"),
        (lambda: D.concatenate([1]), TypeError, r"takes a tf.data.Dataset, got \[1\]"),
        (lambda: D.concatenate(Dataset.from_tensors("a")), TypeError, "elements of the same kind"),
        (lambda: D.concatenate(D.batch(2)), TypeError, "elements of the same kind"),
        (lambda: D.unbatch(), InputError, "elements with rows"),
        (lambda: D.with_options({}), TypeError, "takes tf.data.Options"),
        (lambda: Dataset.range(), TypeError, "stop, "),
        (lambda: Dataset.range(0, 4, 0), InputError, "step can't be 0"),
        (lambda: Dataset.range(1.5), TypeError, "pass an integer"),
        (lambda: Dataset.zip(), TypeError, "takes either datasets"),
        (lambda: Dataset.zip((D, 3)), TypeError, "takes a tf.data.Dataset, got 3"),
        (lambda: Dataset.zip(()), InputError, "no datasets"),
        (lambda: Dataset.zip([D, D]), TypeError, "a tuple or a dict of datasets, not the list"),
        (lambda: Dataset(3), TypeError, "from_tensor_slices"),
        (lambda: Dataset.from_tensor_slices(3), InputError, "scalar.*from_tensors"),
        (
            lambda: Dataset.from_tensor_slices({"x": [1, 2], "y": [1, 2, 3]}),
            InputError,
            r"tensors\['x'\] has 2, tensors\['y'\] has 3",
        ),
        (lambda: Dataset.from_tensor_slices([[1], [2, 3]]), InputError, "differ in shape"),
        (lambda: Dataset.from_tensor_slices(()), InputError, "no arrays"),
        (lambda: Dataset.from_tensor_slices((None,)), TypeError, "expected arrays, got None"),
        (lambda: Dataset.from_tensor_slices({1, 2}), TypeError, "expected arrays"),
        (lambda: Dataset.from_tensors(object()), TypeError, "expected arrays"),
        (lambda: Dataset.from_tensors(np.array([None])), TypeError, "Python object None"),
        (lambda: Dataset.from_tensors(np.zeros(2, "i4,f4")), InputError, "structured dtype"),
        (lambda: Dataset.from_generator(lambda: [1]), TypeError, "output_signature="),
        (lambda: Dataset.from_generator([1], np.int32), TypeError, "takes a function"),
        (lambda: Dataset.from_generator(list, np.int32, output_signature=SCALAR), TypeError, "not both"),
        (
            lambda: Dataset.from_generator(list, output_signature=np.int32),
            TypeError,
            "must consist of tf.TensorSpec",
        ),
        (lambda: Dataset.from_generator(list, "no dtype"), TypeError, "is not a dtype"),
        (
            lambda: Dataset.from_generator(list, (np.int32, np.int32), ((),)),
            InputError,
            "must have the structure of output_types",
        ),
        (lambda: data.experimental.cardinality([1]), TypeError, "takes a tf.data.Dataset"),
        (lambda: data.experimental.assert_cardinality(-3), InputError, "at least -2"),
        (lambda: D.assert_cardinality(-3), InputError, r"Dataset.assert_cardinality\(-3\).*at least -2"),
    ],
)
def test_bad_arguments(call, kind, message):
    with pytest.raises(kind, match=message):
        call()


@pytest.mark.parametrize(
    "value, signature, message",
    [
        (
            1.5,
            SCALAR,
            "dtype float32, but its signature says shape .* dtype int32",
        ),
        ([1], SCALAR, "shape \\(1,\\)"),
        ("text", SCALAR, "dtype object"),
        ((1, 2), SCALAR, "but its signature has"),
        (1, (SCALAR, SCALAR), "but its signature has"),
        ([1, 2, 3], rx.TensorSpec((2,), np.int32), "shape \\(3,\\)"),
        ({"a": 1}, {"b": SCALAR}, "but its signature has"),
    ],
)
def test_a_generator_that_does_not_fit_its_signature(value, signature, message):
    dataset = Dataset.from_generator(lambda: iter([value]), output_signature=signature)
    with pytest.raises(InputError, match=f"Element 0 .*{message}"):
        list(dataset)


def test_a_generator_that_is_none():
    with pytest.raises(TypeError, match="not iterable"):
        list(Dataset.from_generator(lambda: 3, np.int32))
    with pytest.raises(TypeError, match=r"element 0.*got None"):
        list(Dataset.from_generator(lambda: [None], np.int32))


def stop(*_):
    raise StopIteration


@pytest.mark.parametrize(
    "dataset, kind, message",
    [
        (
            D.map(lambda i: None),
            TypeError,
            "function given to Dataset.map returned: expected arrays, got None",
        ),
        (D.map(lambda i: {1, 2}), TypeError, "expected arrays"),
        (D.map(stop), RuntimeError, "Dataset.map raised StopIteration"),
        (D.filter(stop), RuntimeError, "Dataset.filter raised StopIteration"),
        (D.flat_map(stop), RuntimeError, "Dataset.flat_map raised StopIteration"),
        (D.filter(lambda i: i), TypeError, "must return True or False, got 0"),
        (D.filter(lambda i: [True]), TypeError, "must return True or False"),
        (
            D.flat_map(lambda i: [i]),
            TypeError,
            "Dataset.flat_map: the function must return a tf.data.Dataset",
        ),
        (D.map(lambda i: np.zeros(i)).batch(2), InputError, r"shapes \(0,\) and \(1,\).*padded_batch"),
        (D.map(lambda i: 1 if i else 1.0).batch(2), InputError, "dtypes float32 and int32"),
        (D.map(lambda i: (1,) if i else {"a": 1}).batch(2), InputError, "structures differ"),
        (D.map(lambda i: np.zeros([2] * int(i))).padded_batch(2), InputError, "0 axes .* and 1 axes"),
        (D.map(lambda i: np.zeros(3)).padded_batch(2, [2]), InputError, r"shape \(2,\), but .* \(3,\)"),
        (
            D.map(lambda i: (i, i)).padded_batch(2, {"a": []}),
            InputError,
            "padded_shapes=.*must have the structure of the elements",
        ),
        (D.map(lambda i: i).unbatch(), InputError, "Dataset.unbatch.*scalar"),
        (
            D.apply(data.experimental.assert_cardinality(3)),
            InputError,
            "should have 3 elements, but it has more",
        ),
        (
            D.apply(data.experimental.assert_cardinality(5)),
            InputError,
            "should have 5 elements, but it has only 4",
        ),
        (D.apply(data.experimental.assert_cardinality(-1)), InputError, "infinitely many elements"),
        (D.assert_cardinality(3), InputError, "should have 3 elements, but it has more"),
    ],
)
def test_errors_while_reading(dataset, kind, message):
    with pytest.raises(kind, match=message):
        list(dataset)


def test_a_dataset_without_elements_has_no_spec_to_find_out():
    with pytest.raises(InputError, match="no elements"):
        _ = D.filter(lambda i: False).map(abs).element_spec


def test_an_attribute_error_of_a_function_is_not_taken_for_a_missing_attribute():
    with pytest.raises(RuntimeError, match="no attribute 'nonsense'"):
        _ = D.map(lambda i: i.nonsense).element_spec


def test_options_that_mean_nothing_are_refused():
    options = data.Options()
    for name in ("experimental_external_state_policy", "experimental_service", "dataset_name"):
        with pytest.raises(AttributeError, match=f"{name} has no meaning here"):
            setattr(options, name, 1)
    with pytest.raises(AttributeError, match="num_devices has no meaning here"):
        options.experimental_distribute.num_devices = 2
    with pytest.raises(AttributeError, match="no option 'determinstic'; it has deterministic"):
        options.determinstic = True
    with pytest.raises(AttributeError, match="no option 'nothing'"):
        _ = options.nothing
    with pytest.raises(InputError, match=r"Options.deterministic = 'yes': pass True or False"):
        options.deterministic = "yes"
    with pytest.raises(InputError, match="pass one of OFF, AUTO"):
        options.experimental_distribute.auto_shard_policy = "ALL"
    with pytest.raises(InputError, match="pass a DistributeOptions"):
        options.experimental_distribute = 3
    with pytest.raises(InputError, match="pass True"):
        options.experimental_symbolic_checkpoint = False
    with pytest.raises(InputError, match="pass 0, 1, 2"):
        options.threading.private_threadpool_size = -1


def test_hints_are_taken():
    options = data.Options()
    options.autotune.enabled = False
    options.threading.max_intra_op_parallelism = 1
    options.experimental_threading.private_threadpool_size = 1
    options.experimental_optimization.map_fusion = True
    options.experimental_slack = options.experimental_warm_start = True
    options.experimental_distribute = data.experimental.DistributeOptions()
    assert len(list(D.with_options(options))) == 4
    assert "map_fusion=True" in repr(options)


@pytest.mark.parametrize(
    "get, message",
    [
        (lambda: D.bucket_by_sequence_length, "'bucket_by_sequence_length'. Use `from_generator`"),
        (lambda: Dataset.from_list, "Use `from_generator"),
        (lambda: D.nonsense, "no attribute 'nonsense'.$"),
        (lambda: data.FixedLengthRecordDataset, "has no 'FixedLengthRecordDataset'. Use `np.memmap`"),
        (lambda: data.nonsense, "has no 'nonsense'. Use what JAX, Keras or Python has"),
        (lambda: data.experimental.SHARD_HINT, "Use `strategy.distribute_datasets_from_function`"),
        (lambda: data.experimental.make_csv_dataset, "pandas"),
    ],
)
def test_what_is_missing_names_an_alternative(get, message):
    with pytest.raises(AttributeError, match=message):
        get()


@pytest.mark.parametrize("read", [next, lambda dataset: [*dataset]], ids=["iterator", "dataset"])
def test_data_read_from_a_closure_is_refused(read):
    data = iter(Dataset.range(3)) if read is next else Dataset.range(3)

    @tf.function
    def step():
        return read(data)

    with pytest.raises(InputError, match="Pass the dataset or its iterator to the"):
        step()
