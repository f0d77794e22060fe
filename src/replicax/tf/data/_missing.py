"""What `tf.data` has and this module has not, with what to use in its place."""

from __future__ import annotations

import abc
from typing import Any

from replicax.tf._missing import WRITE_RECORDS

__all__ = ["OF_DATA", "OF_EXPERIMENTAL", "Helpful", "of_dataset"]

_MIX = "`grain.MapDataset.mix`, whose result a strategy distributes as it is"
_GROUP = "`from_generator` with a generator that groups the elements"

_METHODS = {
    "bucket_by_sequence_length": _GROUP,
    "choose_from_datasets": _MIX,
    "counter": "`Dataset.range(start, stop)` or `enumerate`",
    "fingerprint": "nothing: datasets are not serialised",
    "from_list": "`from_generator(lambda: elements, output_signature=...)`",
    "get_single_element": "`next(iter(dataset))`",
    "group_by_window": _GROUP,
    "ignore_errors": "a `map` that catches the error, and a `filter` after it",
    "load": "`TFRecordDataset`, or `rx.from_files`",
    "make_initializable_iterator": "`iter(dataset)`",
    "make_one_shot_iterator": "`iter(dataset)`",
    "ragged_batch": "`padded_batch`",
    "random": "`range(n).map(...)` with `np.random.default_rng([seed, i])`",
    "rebatch": "`unbatch().batch(batch_size)`",
    "rejection_resample": "`filter`, or weights in the loss",
    "sample_from_datasets": _MIX,
    "save": "`grain` and ArrayRecord files, or TFRecord files",
    "scan": "`from_generator` with a generator that keeps the state",
    "snapshot": "`cache`, which keeps elements in memory",
    "sparse_batch": "`padded_batch`",
    "take_while": "`from_generator` with `itertools.takewhile`",
    "unique": "`from_generator` with a generator that leaves out what it has seen",
    "window": "`batch`, or `map` over the indices of the windows",
}


def of_dataset(name: str) -> AttributeError:
    """The error for a method that a dataset has not."""
    hint = f" Use {_METHODS[name]}." if name in _METHODS else ""
    return AttributeError(f"replicax.tf.data.Dataset has no attribute {name!r}.{hint}")


class Helpful(abc.ABCMeta):
    """The class of a class that says what to use in place of what it has not."""

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
    "CsvDataset": "`Dataset.from_tensor_slices` of what pandas or `np.loadtxt` read",
    "ExternalStatePolicy": "nothing: datasets are not serialised",
    "RaggedTensorStructure": "arrays; `padded_batch` makes them of one size",
    "RandomDataset": _METHODS["random"],
    "SHARD_HINT": "`strategy.distribute_datasets_from_function`, and `shard` by context.input_pipeline_id",
    "SqlDataset": "`Dataset.from_generator`",
    "TFRecordWriter": WRITE_RECORDS,
    "bucket_by_sequence_length": _GROUP,
    "choose_from_datasets": _MIX,
    "dense_to_ragged_batch": "`padded_batch`",
    "dense_to_sparse_batch": "`padded_batch`",
    "enumerate_dataset": "`dataset.enumerate()`",
    "from_variant": "the dataset itself",
    "get_next_as_optional": "`next(iterator, None)`",
    "get_single_element": "`next(iter(dataset))`",
    "ignore_errors": _METHODS["ignore_errors"],
    "load": _METHODS["load"],
    "make_batched_features_dataset": "`TFRecordDataset(...).map(parse).batch(...)`",
    "make_csv_dataset": "`Dataset.from_tensor_slices` of what pandas read",
    "make_saveable_from_iterator": "`rx.Checkpoint(iterator=...)`",
    "map_and_batch": "`map` and `batch`",
    "parallel_interleave": "`interleave`",
    "parse_example_dataset": "`map` with a parser",
    "prefetch_to_device": "`strategy.distribute_dataset`, which reads ahead onto the devices",
    "rejection_resample": _METHODS["rejection_resample"],
    "sample_from_datasets": _MIX,
    "save": _METHODS["save"],
    "scan": _METHODS["scan"],
    "service": "`strategy.distribute_dataset`, which shares out input among processes",
    "shuffle_and_repeat": "`shuffle` and `repeat`",
    "snapshot": _METHODS["snapshot"],
    "take_while": _METHODS["take_while"],
    "unbatch": "`dataset.unbatch()`",
    "unique": _METHODS["unique"],
}
