"""What TensorFlow's `tf.data` has and this module does not, and what to use instead."""

from __future__ import annotations

import abc
from typing import Any

__all__ = ["OF_DATA", "OF_EXPERIMENTAL", "Helpful", "of_dataset"]

_TENSORFLOW = "TensorFlow's own `tf.data` if it is installed, whose datasets strategies distribute too"
_GENERATOR = f"`from_generator` with a generator that does it, or {_TENSORFLOW}"
_NOT_SERIALISED = "nothing: datasets are not serialised"

# Methods of a dataset; most are also functions in `experimental`.
_METHODS = {
    **dict.fromkeys(["bucket_by_sequence_length"], _GENERATOR),
    **dict.fromkeys(
        ["load", "save", "snapshot"], f"`cache`, which is in memory, `TFRecordDataset`, or {_TENSORFLOW}"
    ),
    **dict.fromkeys(["dense_to_ragged_batch", "dense_to_sparse_batch"], "`padded_batch`"),
    **dict.fromkeys(["make_initializable_iterator", "make_one_shot_iterator"], "`iter(dataset)`"),
    **dict.fromkeys(["ragged_batch", "sparse_batch"], "`padded_batch`"),
    "fingerprint": _NOT_SERIALISED,
    "from_list": "`from_generator(lambda: elements, output_signature=...)`",
    "ignore_errors": "a `map` that catches the error, and a `filter` after it",
    "rejection_resample": "`filter`, or weights in the loss",
}


def of_dataset(name: str) -> AttributeError:
    """The error for a method that a dataset does not have."""
    hint = f" Use {_METHODS[name]}." if name in _METHODS else ""
    return AttributeError(f"replicax.tf.data.Dataset has no attribute {name!r}.{hint}")


class Helpful(abc.ABCMeta):
    """A metaclass whose errors for missing attributes say what to use instead."""

    def __getattr__(cls, name: str) -> Any:
        raise of_dataset(name)


OF_DATA = {
    "DatasetSpec": "`dataset.element_spec`",
    "FixedLengthRecordDataset": "`np.memmap` with `Dataset.from_tensor_slices`, or `rx.from_files`",
    "Iterator": "`collections.abc.Iterator`; `iter(dataset)` is one",
    "IteratorSpec": "`dataset.element_spec`",
    "NumpyIterator": "`dataset.as_numpy_iterator()`",
}

OF_EXPERIMENTAL = {
    **_METHODS,
    **dict.fromkeys(
        ["choose_from_datasets", "sample_from_datasets", "group_by_window", "scan", "take_while", "unique"],
        "the method of `Dataset` with that name",
    ),
    "Counter": "`Dataset.counter`",
    "get_single_element": "`dataset.get_single_element()`",
    **dict.fromkeys(["CsvDataset", "make_csv_dataset"], "`Dataset.from_tensor_slices` of what pandas read"),
    "ExternalStatePolicy": _NOT_SERIALISED,
    "RaggedTensorStructure": "arrays; `padded_batch` makes them of one size",
    "RandomDataset": "`Dataset.random(seed)`",
    "SHARD_HINT": "`strategy.distribute_datasets_from_function`, and `shard` by context.input_pipeline_id",
    "SqlDataset": "`Dataset.from_generator`",
    "TFRecordWriter": "`tf.io.TFRecordWriter`",
    "enumerate_dataset": "`dataset.enumerate()`",
    "from_variant": "the dataset itself",
    "get_next_as_optional": "`next(iterator, None)`",
    "make_batched_features_dataset": "`TFRecordDataset(...).map(parse).batch(...)`",
    "make_saveable_from_iterator": "`rx.Checkpoint(iterator=...)`",
    "map_and_batch": "`map` and `batch`",
    "parallel_interleave": "`interleave`",
    "parse_example_dataset": "`map` with a parser",
    "prefetch_to_device": "`strategy.distribute_dataset`, which reads ahead onto the devices",
    "service": "`strategy.distribute_dataset`, which shards the input over processes",
    "shuffle_and_repeat": "`shuffle` and `repeat`",
    "unbatch": "`dataset.unbatch()`",
}
