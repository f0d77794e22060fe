"""A node: one step of a dataset, described.

A `Dataset` holds the last node of a chain. Nodes are immutable; nothing is read until one is opened, for a
certain epoch, which builds a Grain pipeline: a `MapDataset` as long as elements can be had by index, an
`IterDataset` after that. Epochs are counted over all passes, so that looping twice over a dataset gives
what looping once over one that repeats twice does.
"""

from __future__ import annotations

import abc
import dataclasses
import functools
import math
from collections.abc import Iterator, Sequence
from typing import Any, Self, final

from replicax.input import INFINITE_CARDINALITY, UNKNOWN_CARDINALITY

__all__ = ["Node", "Opening", "Transformation", "engine", "least", "total", "walk"]


@final
@dataclasses.dataclass(frozen=True)
class Opening:
    """How a dataset is opened.

    Args:
        epoch: which pass over the node this is; it selects the order of a shuffle.
        num_threads: how many threads read elements that can be had by index; 0 reads in the caller's.
        buffer_size: how many elements they read ahead.
    """

    epoch: int = 0
    num_threads: int = 0
    buffer_size: int = 0

    def at(self, epoch: int) -> Opening:
        """The same for another epoch."""
        return dataclasses.replace(self, epoch=epoch)


class Node(abc.ABC):
    """One step of a dataset."""

    name: str
    """What the dataset is called when it is printed."""

    @property
    @abc.abstractmethod
    def parents(self) -> tuple[Node, ...]:
        """The nodes that it reads."""

    @property
    @abc.abstractmethod
    def cardinality(self) -> int:
        """How many elements one pass gives."""

    @property
    def batch_size(self) -> int | None:
        """How many rows a full element has, if that is known."""
        return None

    @abc.abstractmethod
    def with_parents(self, parents: Sequence[Node]) -> Node:
        """The same step on other nodes."""

    @abc.abstractmethod
    def spec(self) -> Any:
        """What an element looks like; None if only reading one can tell."""

    @abc.abstractmethod
    def _build(self, opening: Opening) -> Any:
        """The Grain dataset of a node that is not known to be empty."""

    @final
    def build(self, opening: Opening) -> Any:
        """The Grain dataset: a `MapDataset` or an `IterDataset`."""
        if self.cardinality == 0:
            return engine().Rows(0, lambda index: index)
        return self._build(opening)


class Transformation(Node):
    """A node with one parent, which it is a dataclass of."""

    parent: Node

    @property
    @final
    def parents(self) -> tuple[Node, ...]:
        """The parent."""
        return (self.parent,)

    @final
    def with_parents(self, parents: Sequence[Node]) -> Self:
        """The same step on another node."""
        (parent,) = parents
        changed: Any = dataclasses.replace(self, parent=parent)  # pyright: ignore
        return changed


@functools.cache
def engine() -> Any:
    """The module with the Grain pipelines; raises `ImportError` if Grain is not there."""
    try:
        import grain  # noqa: F401  # pyright: ignore[reportUnusedImport]
    except ImportError as error:
        raise ImportError(
            "replicax.tf.data reads through Grain, which is not installed: pip install 'replicax[grain]'. "
            "Without it, use rx.from_arrays or rx.from_files."
        ) from error
    from replicax.tf.data import _engine

    return _engine


def walk(node: Node) -> Iterator[Node]:
    """`node` and all nodes that it reads."""
    yield node
    for parent in node.parents:
        yield from walk(parent)


# Cardinalities are numbers, except for two.


def least(cardinalities: Sequence[int]) -> int:
    """The smallest cardinality; not known if one is not."""
    if UNKNOWN_CARDINALITY in cardinalities:
        return UNKNOWN_CARDINALITY
    found = min(math.inf if count == INFINITE_CARDINALITY else count for count in cardinalities)
    return INFINITE_CARDINALITY if found == math.inf else int(found)


def total(cardinalities: Sequence[int]) -> int:
    """The cardinality of one dataset after the other."""
    if INFINITE_CARDINALITY in cardinalities:
        return INFINITE_CARDINALITY
    return UNKNOWN_CARDINALITY if UNKNOWN_CARDINALITY in cardinalities else sum(cardinalities)
