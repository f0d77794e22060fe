"""`DatasetSource`: a `Dataset` as the source of a distributed dataset."""

from __future__ import annotations

import os
from typing import Any, final

import jax
import numpy as np

from replicax.input import AutoShardPolicy, GrainReader, NoFiles, Reader, Source
from replicax.tf.data._node import Node, Opening, engine, walk
from replicax.tf.data._options import Options
from replicax.tf.data._sources import file_names

__all__ = ["DatasetSource", "open_iterator"]


def open_iterator(node: Node, options: Options, number: int) -> Any:
    """The Grain iterator of one pass over a dataset."""
    num_threads, size = node.num_parallel_calls, options.threading.private_threadpool_size
    if num_threads and size is not None:
        num_threads = size or min(os.cpu_count() or 1, 16)
    opening = Opening(number, num_threads, node.buffer_size)
    return engine().iterate(node.build(opening), opening)


@final
class DatasetSource(Source):
    """The source that a strategy reads for a `Dataset`."""

    kind = "tf.data"

    def __init__(self, node: Node, options: Options) -> None:
        self._node, self._options = node, options
        self.batch_size = node.batch_size
        self.files = tuple(path for leaf in walk(node) for path in leaf.paths)

    @property
    def policy(self) -> AutoShardPolicy:
        return self._options.experimental_distribute.auto_shard_policy or AutoShardPolicy.AUTO

    @property
    def cardinality(self) -> int:
        return self._node.cardinality

    def open(self, number: int) -> Reader:
        """Start a pass; each pass shuffles in its own order."""
        iterator = open_iterator(self._node, self._options, number)
        return GrainReader(iterator, lambda batch: jax.tree.map(_as_array, batch))

    def spec(self) -> Any:
        return self._node.spec

    def of_files(self, num_shards: int, index: int) -> Source:
        if len(self.files) < num_shards:
            raise NoFiles(f"it has {len(self.files)} files for {num_shards} pipelines")
        node, _ = _of_files(self._node, num_shards, index, 0)
        return DatasetSource(node, self._options)


_COUNTING = {
    "TakeDataset": "take",
    "SkipDataset": "skip",
    "ShardDataset": "shard",
    "ZipDataset": "zip",
    "AssertCardinalityDataset": "assert_cardinality",
}


def _of_files(node: Node, num_shards: int, index: int, before: int) -> tuple[Node, int]:
    """`node` with every `num_shards`-th file, and `before` plus the number of files in `node`."""
    if node.paths:
        own = node.paths[(index - before) % num_shards :: num_shards]
        return file_names(own), before + len(node.paths)
    if node.with_parents is None:
        raise NoFiles(f"it also reads a {node.name}, which has no files")
    if node.name in _COUNTING:
        raise NoFiles(f"`{_COUNTING[node.name]}` counts the elements of all files")
    parents = []
    for parent in node.parents:
        own_parent, before = _of_files(parent, num_shards, index, before)
        parents.append(own_parent)
    return node.with_parents(*parents), before


def _as_array(leaf: Any) -> Any:
    return np.array(leaf, object) if isinstance(leaf, bytes) else leaf
