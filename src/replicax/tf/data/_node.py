"""A node: the description of one step of a dataset.

A `Dataset` holds the last node of a chain. Nodes are immutable, and nothing is read until a node is built
for an epoch. That creates a Grain pipeline: a `MapDataset` as long as elements can be read by index, and an
`IterDataset` (a stream) after that. Epochs are counted over all passes, so that two loops over a dataset
give the same elements as one loop over `dataset.repeat(2)`.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple, final

from replicax.input import INFINITE_CARDINALITY, UNKNOWN_CARDINALITY

__all__ = ["Node", "Opening", "engine", "least", "step", "total", "walk"]


class Opening(NamedTuple):
    """How a dataset is opened."""

    epoch: int = 0
    """Which pass over the node this is; it selects the order of a shuffle."""
    num_threads: int = 0
    """How many threads read elements by index; 0 reads in the caller's thread."""
    buffer_size: int = 0
    """How many elements they read ahead."""

    def at(self, epoch: int) -> Opening:
        return self._replace(epoch=epoch)


@final
@dataclasses.dataclass(frozen=True, eq=False)
class Node:
    """One step of a dataset.

    Args:
        name: the name of the dataset in its repr.
        parents: the nodes that it reads.
        make: creates the Grain dataset, unless the node is known to be empty.
        cardinality: the number of elements in one pass.
        spec: the spec of an element; None if it is unknown until one is read.
        batch_size: the number of rows in a full element, if known.
        open_rows: the number of rows in a full batch, if the last batch may have fewer.
        num_parallel_calls: how many threads this step or an earlier one asks for.
        buffer_size: how many elements this step or an earlier one asks to read ahead.
        paths: the files, if the elements are file names.
        rows: for the rows of arrays, a function of an index, or of several for a batch.
        with_parents: creates the same step on other nodes.
    """

    name: str
    parents: tuple[Node, ...]
    make: Callable[[Opening], Any]
    cardinality: int
    spec: Any = None
    batch_size: int | None = None
    open_rows: int | None = None
    num_parallel_calls: int = 0
    buffer_size: int = 0
    paths: tuple[str, ...] = ()
    rows: Callable[[Any], Any] | None = None
    with_parents: Callable[..., Node] | None = None

    def build(self, opening: Opening) -> Any:
        """The Grain dataset: a `MapDataset` or an `IterDataset`."""
        return engine().rows(0, int) if self.cardinality == 0 else self.make(opening)

    def then(self, name: str, make: Callable[[Opening], Any], **changes: Any) -> Node:
        """A node that reads this one, with the same properties except for `changes`."""
        fields: dict[str, Any] = {"paths": (), "rows": None, **changes}
        return dataclasses.replace(self, name=name, parents=(self,), make=make, **fields)


def step(function: Callable[..., Node]) -> Callable[..., Node]:
    """Decorate a function that creates a node from nodes and other arguments: sets `with_parents`."""

    @functools.wraps(function)
    def make(*arguments: Any, **options: Any) -> Node:
        node = function(*arguments, **options)
        others = arguments[len(node.parents) :]
        return dataclasses.replace(node, with_parents=lambda *parents: make(*parents, *others, **options))

    return make


def walk(node: Node) -> Iterator[Node]:
    """`node` and all nodes that it reads."""
    yield node
    for parent in node.parents:
        yield from walk(parent)


@functools.cache
def engine() -> Any:
    """The module with the Grain pipelines; raises `ImportError` if Grain is not installed."""
    try:
        import grain  # noqa: F401  # pyright: ignore[reportUnusedImport]
    except ImportError as error:
        raise ImportError(
            "replicax.tf.data reads through Grain, which is not installed: pip install 'replicax[grain]'. "
            "Without it, use rx.from_arrays or rx.from_files."
        ) from error
    from replicax.tf.data import _engine

    return _engine


def least(*cardinalities: int) -> int:
    """The smallest cardinality; unknown if one is, unless another is 0."""
    if 0 in cardinalities or UNKNOWN_CARDINALITY in cardinalities:
        return 0 if 0 in cardinalities else UNKNOWN_CARDINALITY
    return min(filter(lambda count: count >= 0, cardinalities), default=INFINITE_CARDINALITY)


def total(*cardinalities: int) -> int:
    """The cardinality of concatenated datasets."""
    if INFINITE_CARDINALITY in cardinalities:
        return INFINITE_CARDINALITY
    return UNKNOWN_CARDINALITY if UNKNOWN_CARDINALITY in cardinalities else sum(cardinalities)
