"""A `Dataset` as the source of a distributed dataset."""

from __future__ import annotations

import os
from typing import Any, final

import jax
import numpy as np

from replicax.input import AutoShardPolicy, Batch, NoFiles, Reader, Source, WholeBatch
from replicax.tf.data._arguments import AUTOTUNE
from replicax.tf.data._changes import Batched, Mapped
from replicax.tf.data._node import Node, Opening, engine, walk
from replicax.tf.data._options import Options
from replicax.tf.data._orders import Counted, Prefetched, Sharded, Skipped, Taken, Zipped
from replicax.tf.data._sources import FileNames

__all__ = ["DatasetSource", "open_iterator"]


def open_iterator(node: Node, options: Options, number: int) -> Any:
    """The Grain iterator of one pass over a dataset."""
    opening = Opening(number, _num_threads(node, options), _buffer_size(node))
    return engine().iterate(node.build(opening), opening)


def _num_threads(node: Node, options: Options) -> int:
    """How many threads read: none unless a step asks for them; then as many as the options or it says."""
    automatic = min(os.cpu_count() or 1, 16)
    calls = [each.num_parallel_calls for each in walk(node) if isinstance(each, Mapped | Batched)]
    asked = max((automatic if count == AUTOTUNE else count for count in calls), default=0)
    size = options.threading.private_threadpool_size
    if asked == 0 or size is None:
        return asked
    return size or automatic


def _buffer_size(node: Node) -> int:
    return max((each.buffer_size for each in walk(node) if isinstance(each, Prefetched)), default=0)


@final
class DatasetSource(Source):
    """What a strategy reads of a `Dataset`."""

    kind = "tf.data"

    def __init__(self, node: Node, options: Options) -> None:
        """Find out what is known beforehand."""
        self._node, self._options = node, options
        self.batch_size = node.batch_size
        self.files = tuple(
            path for leaf in walk(node) if isinstance(leaf, FileNames) for path in leaf.paths
        )

    @property
    def policy(self) -> AutoShardPolicy:
        """The policy in the dataset's options."""
        return self._options.experimental_distribute.auto_shard_policy or AutoShardPolicy.AUTO

    @property
    def cardinality(self) -> int:
        """The dataset's."""
        return self._node.cardinality

    def open(self, number: int) -> Reader:
        """Begin a pass, with its own orders of shuffled elements."""
        return _DatasetReader(open_iterator(self._node, self._options, number))

    def spec(self) -> Any:
        """What a batch looks like, if that is known without reading one."""
        return self._node.spec()

    def of_files(self, num_shards: int, index: int) -> Source:
        """The dataset with some of its files."""
        if len(self.files) < num_shards:
            raise NoFiles(f"it has {len(self.files)} files for {num_shards} pipelines")
        node, _ = _of_files(self._node, num_shards, index, 0)
        return DatasetSource(node, self._options)


_COUNTING = {Taken: "take", Skipped: "skip", Sharded: "shard", Counted: "assert_cardinality", Zipped: "zip"}


def _of_files(node: Node, num_shards: int, index: int, before: int) -> tuple[Node, int]:
    """`node` with every `num_shards`-th file, and the number of files up to here, counted from `before`."""
    if isinstance(node, FileNames):
        own = node.paths[(index - before) % num_shards :: num_shards]
        return FileNames(own), before + len(node.paths)
    if not node.parents:
        raise NoFiles(f"it reads not only files but a {node.name}")
    if type(node) in _COUNTING:
        raise NoFiles(f"`{_COUNTING[type(node)]}` counts the elements of all files")
    parents = []
    for parent in node.parents:
        own_parent, before = _of_files(parent, num_shards, index, before)
        parents.append(own_parent)
    return node.with_parents(parents), before


@final
class _DatasetReader(Reader):
    def __init__(self, iterator: Any) -> None:
        super().__init__()
        self._iterator = iterator

    def _read(self) -> Batch:
        return WholeBatch(jax.tree.map(_as_array, next(self._iterator)), private=False)

    def _bookmark(self) -> dict[str, Any]:
        return {"grain": self._iterator.get_state()}

    def _seek(self, position: dict[str, Any]) -> None:
        self._iterator.set_state(position["grain"])

    def close(self) -> None:
        self._iterator.close()


def _as_array(leaf: Any) -> Any:
    return np.array(leaf, object) if isinstance(leaf, bytes) else leaf
