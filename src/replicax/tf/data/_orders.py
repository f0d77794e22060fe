"""Nodes that leave elements as they are: which of them, how often, and in which order."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Sequence
from typing import Any, final

import jax
import numpy as np

from replicax.input import INFINITE_CARDINALITY, UNKNOWN_CARDINALITY
from replicax.tf.data._node import Node, Opening, Transformation, engine, least, total
from replicax.values import TensorSpec

__all__ = [
    "Cached",
    "Concatenated",
    "Counted",
    "Prefetched",
    "Repeated",
    "Sharded",
    "Shuffled",
    "Skipped",
    "Store",
    "Taken",
    "Zipped",
]


class _Unchanged(Transformation):
    """A transformation whose elements look like its parent's."""

    @final
    def spec(self) -> Any:
        return self.parent.spec()

    @property
    @final
    def batch_size(self) -> int | None:
        return self.parent.batch_size


@final
@dataclasses.dataclass(frozen=True, eq=False)
class Shuffled(_Unchanged):
    """Elements in a random order, within windows of `buffer_size`."""

    parent: Node
    buffer_size: int
    seed: int
    reshuffle: bool
    name = "ShuffleDataset"

    @property
    def cardinality(self) -> int:
        """As many."""
        return self.parent.cardinality

    def _build(self, opening: Opening) -> Any:
        parent = self.parent.build(opening)
        epoch = opening.epoch if self.reshuffle else 0
        if engine().is_by_index(parent):
            return engine().ShuffledRows(parent, self.buffer_size, self.seed, epoch, self.reshuffle)
        seed = int(np.random.SeedSequence([self.seed, epoch]).generate_state(1)[0]) >> 1
        return engine().window_shuffle(parent, self.buffer_size, seed)


@final
@dataclasses.dataclass(frozen=True, eq=False)
class Repeated(_Unchanged):
    """Several epochs in one; without end if `count` is None."""

    parent: Node
    count: int | None
    name = "RepeatDataset"

    @property
    def cardinality(self) -> int:
        """That of all epochs together."""
        once = self.parent.cardinality
        if once == 0 or self.count == 0:
            return 0
        if self.count is None or once == INFINITE_CARDINALITY:
            return INFINITE_CARDINALITY
        return UNKNOWN_CARDINALITY if once == UNKNOWN_CARDINALITY else once * self.count

    def _build(self, opening: Opening) -> Any:
        # Endless epochs of one pass are kept apart from those of the next.
        first = opening.epoch << 40 if self.count is None else opening.epoch * self.count
        parent = self.parent.build(opening.at(first))
        if self.parent.cardinality == INFINITE_CARDINALITY:
            return parent
        if engine().is_by_index(parent):
            return parent.repeat(self.count)

        def begin(epoch: int) -> Any:
            return engine().iterate(self.parent.build(opening.at(first + epoch)), opening)

        return engine().stream((), lambda: engine().RepeatIterator(begin, self.count))


@final
@dataclasses.dataclass(frozen=True, eq=False)
class Taken(_Unchanged):
    """The first elements."""

    parent: Node
    count: int
    name = "TakeDataset"

    @property
    def cardinality(self) -> int:
        """No more than `count`."""
        return 0 if self.count == 0 else least([self.parent.cardinality, self.count])

    def _build(self, opening: Opening) -> Any:
        parent = self.parent.build(opening)
        if engine().is_by_index(parent):
            return parent.slice(slice(0, self.count))
        return engine().limit(parent, self.count)


@final
@dataclasses.dataclass(frozen=True, eq=False)
class Skipped(_Unchanged):
    """All but the first elements."""

    parent: Node
    count: int
    name = "SkipDataset"

    @property
    def cardinality(self) -> int:
        """What is left."""
        once = self.parent.cardinality
        return once if once < 0 else max(once - self.count, 0)

    def _build(self, opening: Opening) -> Any:
        return engine().stride(self.parent.build(opening), self.count, 1)


@final
@dataclasses.dataclass(frozen=True, eq=False)
class Sharded(_Unchanged):
    """Every `num_shards`-th element, from `index`."""

    parent: Node
    num_shards: int
    index: int
    name = "ShardDataset"

    @property
    def cardinality(self) -> int:
        """That of this shard."""
        once = self.parent.cardinality
        return once if once < 0 else len(range(self.index, once, self.num_shards))

    def _build(self, opening: Opening) -> Any:
        return engine().stride(self.parent.build(opening), self.index, self.num_shards)


class Store:
    """What a `Cached` node keeps: elements by index, or all of them once the last was read."""

    def __init__(self) -> None:
        """Empty."""
        self.by_index: dict[int, Any] = {}
        self.elements: list[Any] | None = None


@final
@dataclasses.dataclass(frozen=True, eq=False)
class Cached(_Unchanged):
    """Elements that are made once, in the first epoch, and kept in memory."""

    parent: Node
    store: Store = dataclasses.field(default_factory=Store, init=False)
    name = "CacheDataset"

    @property
    def cardinality(self) -> int:
        """As many."""
        return self.parent.cardinality

    def _build(self, opening: Opening) -> Any:
        # The order of a shuffle before the cache is kept with it: always that of the first epoch.
        parent = self.parent.build(opening.at(0))
        if engine().is_by_index(parent):
            return engine().CachedRows(parent, self.store.by_index)
        begin = functools.partial(engine().iterate, parent, opening)
        return engine().stream((), lambda: engine().CacheIterator(begin, self.store))


@final
@dataclasses.dataclass(frozen=True, eq=False)
class Prefetched(_Unchanged):
    """A hint how many elements to read ahead."""

    parent: Node
    buffer_size: int
    name = "PrefetchDataset"

    @property
    def cardinality(self) -> int:
        """As many."""
        return self.parent.cardinality

    def _build(self, opening: Opening) -> Any:
        return self.parent.build(opening)


@final
@dataclasses.dataclass(frozen=True, eq=False)
class Counted(_Unchanged):
    """A dataset that somebody vouches for the cardinality of."""

    parent: Node
    asserted: int
    name = "AssertCardinalityDataset"

    @property
    def cardinality(self) -> int:
        """What was said."""
        return self.asserted

    def _build(self, opening: Opening) -> Any:
        parent = engine().as_stream(self.parent.build(opening), opening)
        return engine().stream((parent,), lambda it: engine().CountingIterator(it, self.asserted))


@final
@dataclasses.dataclass(frozen=True, eq=False)
class Concatenated(Node):
    """The elements of one dataset after those of another."""

    first: Node
    second: Node
    name = "ConcatenateDataset"

    @property
    def parents(self) -> tuple[Node, ...]:
        """Both."""
        return self.first, self.second

    def with_parents(self, parents: Sequence[Node]) -> Node:
        """Other datasets one after the other."""
        return Concatenated(*parents)

    @property
    def cardinality(self) -> int:
        """The sum."""
        return total([self.first.cardinality, self.second.cardinality])

    @property
    def batch_size(self) -> int | None:
        """That of both, if it is the same."""
        size = self.first.batch_size
        return size if size == self.second.batch_size else None

    def spec(self) -> Any:
        """What both have in common; raises `TypeError` if that is too little."""
        specs = [self.first.spec(), self.second.spec()]
        if any(spec is None for spec in specs):
            return None
        leaves = [jax.tree.leaves(spec) for spec in specs]
        alike = jax.tree.structure(specs[0]) == jax.tree.structure(specs[1]) and all(
            a.dtype == b.dtype and len(a.shape) == len(b.shape) for a, b in zip(*leaves, strict=True)
        )
        if not alike:
            raise TypeError(
                f"Dataset.concatenate takes datasets with elements of the same kind, got {specs[0]} and "
                f"{specs[1]}. Make them alike with `map`."
            )
        return jax.tree.map(_in_common, *specs)

    def _build(self, opening: Opening) -> Any:
        first, second = self.first.build(opening), self.second.build(opening)
        if self.first.cardinality == INFINITE_CARDINALITY:
            return first
        if engine().is_by_index(first) and engine().is_by_index(second):
            return engine().JoinedRows(first, second)
        streams = [engine().as_stream(part, opening) for part in (first, second)]
        return engine().stream(streams, engine().ConcatenateIterator)


def _in_common(first: TensorSpec, second: TensorSpec) -> TensorSpec:
    shape = [a if a == b else None for a, b in zip(first.shape, second.shape, strict=True)]
    return TensorSpec(tuple(shape), first.dtype)


@final
@dataclasses.dataclass(frozen=True, eq=False)
class Zipped(Node):
    """The elements of several datasets side by side."""

    treedef: Any
    nodes: tuple[Node, ...]
    name = "ZipDataset"

    @property
    def parents(self) -> tuple[Node, ...]:
        """All of them."""
        return self.nodes

    def with_parents(self, parents: Sequence[Node]) -> Node:
        """Other datasets side by side."""
        return Zipped(self.treedef, tuple(parents))

    @property
    def cardinality(self) -> int:
        """That of the shortest."""
        counts = [node.cardinality for node in self.nodes]
        return 0 if 0 in counts else least(counts)

    def spec(self) -> Any:
        """Those of all, side by side."""
        specs = [node.spec() for node in self.nodes]
        return None if any(spec is None for spec in specs) else self.treedef.unflatten(specs)

    def _build(self, opening: Opening) -> Any:
        parts = [node.build(opening) for node in self.nodes]
        if not all(engine().is_by_index(part) for part in parts):
            parts = [engine().as_stream(part, opening) for part in parts]
        return engine().side_by_side(parts).map(self.treedef.unflatten)
