"""A real `tf.data.Dataset`, read as NumPy arrays, if the program has imported TensorFlow."""

from __future__ import annotations

import re
import sys
from typing import Any, final

import jax
import numpy as np

from replicax.errors import InputError
from replicax.input._batch import Batch, WholeBatch
from replicax.input._options import AutoShardPolicy
from replicax.input._source import NoFiles, Reader, Source
from replicax.values import TensorSpec

__all__ = ["TfDataSource", "tf_data_source"]


def tf_data_source(dataset: Any) -> TfDataSource | None:
    """The source of a `tf.data.Dataset`; None for anything else."""
    tensorflow = sys.modules.get("tensorflow")
    if tensorflow is None or not hasattr(tensorflow, "data"):
        return None
    return TfDataSource(dataset) if isinstance(dataset, tensorflow.data.Dataset) else None


@final
class TfDataSource(Source):
    """A `tf.data.Dataset`."""

    def __init__(self, dataset: Any) -> None:
        self._dataset = dataset
        tensorflow = sys.modules["tensorflow"]
        for spec in tensorflow.nest.flatten(dataset.element_spec):
            if not isinstance(spec, tensorflow.TensorSpec):
                raise InputError(
                    f"A tf.data.Dataset with elements of {spec} can't be distributed: elements must be "
                    "dense tensors. Use `padded_batch`, or `.to_dense()`/`.to_tensor()` in a `map`."
                )

    @property
    def policy(self) -> AutoShardPolicy:
        """The policy in the dataset's own options."""
        policy = self._dataset.options().experimental_distribute.auto_shard_policy
        return AutoShardPolicy[policy.name]

    @property
    def cardinality(self) -> int:
        """TensorFlow's own cardinality, which uses the same values for endless (-1) and unknown (-2)."""
        return int(self._dataset.cardinality())

    def open(self, number: int) -> Reader:
        return _TfDataReader(self._dataset)

    def spec(self) -> Any:
        tensorflow = sys.modules["tensorflow"]

        def convert(spec: Any) -> TensorSpec:
            dtype = np.dtype(object) if spec.dtype == tensorflow.string else spec.dtype.as_numpy_dtype
            if spec.shape.rank is None:
                raise InputError(f"The rank of {spec} is unknown; call `tf.ensure_shape` in a `map`.")
            return TensorSpec(tuple(spec.shape.as_list()), dtype)

        return jax.tree.map(convert, self._dataset.element_spec)

    def of_files(self, num_shards: int, index: int) -> Source:
        """Let TensorFlow shard the dataset by file: it finds the files in the dataset's graph."""
        return self._sharded(AutoShardPolicy.FILE, num_shards, index)

    def of_hints(self, num_shards: int, index: int) -> Source:
        """Let TensorFlow shard the dataset at its `SHARD_HINT`."""
        return self._sharded(AutoShardPolicy.HINT, num_shards, index)

    def _sharded(self, policy: AutoShardPolicy, num_shards: int, index: int) -> Source:
        tensorflow = sys.modules["tensorflow"]
        try:
            # TensorFlow notices that there are too few files only when it reads. Every pipeline tries the
            # same shard, so that all of them reach the same conclusion.
            next(iter(self._of_shard(self._dataset.take(1), policy, num_shards, 0)), None)
            return TfDataSource(self._of_shard(self._dataset, policy, num_shards, index))
        except tensorflow.errors.OpError as error:
            reason = re.sub(r"\{\{.*?\}\}\s*", "", error.message).splitlines()[0].split(". ")[0]
            raise NoFiles(f"TensorFlow says: {reason}") from error

    def _of_shard(self, dataset: Any, policy: AutoShardPolicy, num_shards: int, index: int) -> Any:
        tensorflow = sys.modules["tensorflow"]
        from tensorflow.python.data.experimental.ops.distribute import (  # pyright: ignore
            _AutoShardDataset,
        )

        options = tensorflow.data.Options()
        policies = tensorflow.data.experimental.AutoShardPolicy
        options.experimental_distribute.auto_shard_policy = getattr(policies, policy.name)
        return _AutoShardDataset(dataset.with_options(options), num_shards, index)


@final
class _TfDataReader(Reader):
    def __init__(self, dataset: Any) -> None:
        super().__init__()
        self._dataset = dataset
        self._iterator: Any = None

    def _read(self) -> Batch:
        if self._iterator is None:
            # Not earlier: a dataset that reshuffles in every pass counts its iterators.
            self._iterator = self._dataset.as_numpy_iterator()
        return WholeBatch(next(self._iterator), private=True)

    def _seek(self, position: dict[str, Any]) -> None:
        self._iterator = self._dataset.skip(position["batches"]).as_numpy_iterator()

    def close(self) -> None:
        self._iterator = iter(())
