"""The transformations of a dataset: their Grain pipelines, and the specs and counts of their elements.

Each function takes nodes first, then the arguments of the step, and returns a node.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
import numpy as np

from replicax.errors import InputError
from replicax.input import INFINITE_CARDINALITY, UNKNOWN_CARDINALITY
from replicax.tf.data._elements import frozen, guarded, stack, to_element
from replicax.tf.data._node import Node, Opening, engine, least, step, total
from replicax.values import TensorSpec

__all__ = ["batched", "cached", "concatenated", "counted", "filtered", "mapped", "nested", "prefetched"]
__all__ += ["repeated", "shuffled", "sliced", "taken", "zipped"]

# Epoch numbers, or those of inner datasets, in two passes are this far apart.
_MANY = 1_000_003


@step
def shuffled(parent: Node, buffer_size: int, seed: int, reshuffle: bool) -> Node:
    def make(opening: Opening) -> Any:
        return engine().shuffle(parent.build(opening), buffer_size, seed, opening.epoch, reshuffle)

    return parent.then("ShuffleDataset", make)


@step
def repeated(parent: Node, count: int | None) -> Node:
    once = parent.cardinality
    if once == 0 or count == 0:
        cardinality = 0
    elif count is None or once == INFINITE_CARDINALITY:
        cardinality = INFINITE_CARDINALITY
    else:
        cardinality = UNKNOWN_CARDINALITY if once == UNKNOWN_CARDINALITY else once * count

    def make(opening: Opening) -> Any:
        first = opening.epoch * (_MANY if count is None else count)
        dataset = parent.build(opening.at(first))
        if once == INFINITE_CARDINALITY:
            return dataset
        if engine().is_by_index(dataset):
            return dataset.repeat(count)

        # Grain's `RepeatIterDataset` gives the same order in each epoch.
        def begin(epoch: int) -> Any:
            return engine().iterate(parent.build(opening.at(first + epoch)), opening)

        return engine().chain(count, begin)

    return parent.then("RepeatDataset", make, cardinality=cardinality)


@step
def taken(parent: Node, count: int) -> Node:
    make = functools.partial(_first, parent, count)
    return parent.then("TakeDataset", make, cardinality=least(parent.cardinality, count))


def _first(node: Node, count: int, opening: Opening) -> Any:
    dataset = node.build(opening)
    if node.cardinality != INFINITE_CARDINALITY or not engine().is_by_index(dataset):
        return engine().limit(dataset, count)

    # In a slice of an infinite dataset, the second epoch would start 2**63 - 1 elements later.
    @functools.lru_cache(maxsize=4)
    def of_epoch(epoch: int) -> Any:
        return node.build(opening.at(opening.epoch + epoch))

    return engine().rows_of_epochs(count, lambda epoch, row: of_epoch(epoch)[row])


@step
def sliced(parent: Node, name: str, chosen: slice) -> Node:
    """The elements `[n:]` or `[i::n]`."""
    once = parent.cardinality
    return parent.then(
        name,
        lambda opening: engine().sliced(parent.build(opening), chosen),
        cardinality=len(range(once)[chosen]) if once >= 0 else once,
    )


@step
def prefetched(parent: Node, buffer_size: int) -> Node:
    return parent.then("PrefetchDataset", parent.build, buffer_size=max(parent.buffer_size, buffer_size))


@step
def cached(parent: Node) -> Node:
    """Cache elements in memory for all passes; Grain's `CacheIterDataset` only serves one iterator."""
    by_index: dict[int, Any] = {}
    complete: list[list[Any]] = []

    def make(opening: Opening) -> Any:
        # The order of a preceding shuffle is cached, too: it is always that of the first epoch.
        dataset = parent.build(opening.at(0))
        if not engine().is_by_index(dataset):
            return engine().replayed(lambda: read(dataset, opening), lambda _, x: x, "a cached dataset")

        def row(index: int) -> Any:
            if index not in by_index:
                by_index[index] = frozen(dataset[index])
            return by_index[index]

        return engine().rows(len(dataset), row)

    def read(dataset: Any, opening: Opening) -> Iterator[Any]:
        if complete:
            yield from complete[0]
            return
        elements = []
        with contextlib.closing(engine().iterate(dataset, opening)) as iterator:
            for element in iterator:
                elements.append(frozen(element))
                yield elements[-1]
        complete.append(elements)

    return parent.then("CacheDataset", make)


_END = object()


@step
def counted(parent: Node, asserted: int) -> Node:
    """Count the elements while they are read; raises if their number is not as asserted."""

    def check(number: int, element: Any) -> Any:
        if element is _END:
            wrong, but = asserted not in (UNKNOWN_CARDINALITY, number), f"has only {number}"
        else:
            wrong, but = 0 <= asserted <= number, "has more"
        if wrong:
            wanted = "infinitely many" if asserted == INFINITE_CARDINALITY else asserted
            raise InputError(
                f"assert_cardinality: the dataset should have {wanted} elements, but it {but}."
            )
        return element

    def make(opening: Opening) -> Any:
        end = engine().rows(1, lambda index: _END)
        marked = engine().as_stream(engine().concatenate([parent.build(opening), end], opening), opening)
        return marked.map_with_index(check).filter(lambda element: element is not _END)

    return parent.then("AssertCardinalityDataset", make, cardinality=asserted)


@step
def concatenated(first: Node, second: Node) -> Node:
    def make(opening: Opening) -> Any:
        if first.cardinality == INFINITE_CARDINALITY:
            return first.build(opening)
        return engine().concatenate([first.build(opening), second.build(opening)], opening)

    return _joined(
        "ConcatenateDataset",
        (first, second),
        make,
        cardinality=total(first.cardinality, second.cardinality),
        spec=_in_common(first.spec, second.spec),
        batch_size=first.batch_size if first.batch_size == second.batch_size else None,
    )


def _in_common(first: Any, second: Any) -> Any:
    """The most specific common spec; raises `TypeError` if dtypes or structures differ."""
    if first is None or second is None:
        return None
    pairs = zip(jax.tree.leaves(first), jax.tree.leaves(second), strict=False)
    if jax.tree.structure(first) != jax.tree.structure(second) or any(
        a.dtype != b.dtype or len(a.shape) != len(b.shape) for a, b in pairs
    ):
        raise TypeError(
            f"Dataset.concatenate takes datasets with elements of the same kind, got {first} and {second}. "
            "Use `map` to convert them."
        )

    def leaf(a: TensorSpec, b: TensorSpec) -> TensorSpec:
        sizes = zip(a.shape, b.shape, strict=True)
        return TensorSpec(tuple(one if one == other else None for one, other in sizes), a.dtype)

    return jax.tree.map(leaf, first, second)


@step
def zipped(*nodes: Node, treedef: Any) -> Node:
    cardinality = least(*[node.cardinality for node in nodes])

    def make(opening: Opening) -> Any:
        parts = [node.build(opening) for node in nodes]
        if engine().is_by_index(*parts) and cardinality >= 0:
            parts = [_first(node, cardinality, opening) for node in nodes]
        return engine().side_by_side(parts, opening).map(treedef.unflatten)

    specs = [node.spec for node in nodes]
    return _joined(
        "ZipDataset",
        nodes,
        make,
        cardinality=cardinality,
        spec=None if any(spec is None for spec in specs) else treedef.unflatten(specs),
    )


def _joined(name: str, nodes: tuple[Node, ...], make: Callable[[Opening], Any], **properties: Any) -> Node:
    return Node(
        name,
        nodes,
        make,
        open_rows=next((node.open_rows for node in nodes if node.open_rows is not None), None),
        num_parallel_calls=max(node.num_parallel_calls for node in nodes),
        buffer_size=max(node.buffer_size for node in nodes),
        **properties,
    )


@step
def mapped(parent: Node, function: Callable[..., Any], num_parallel_calls: int) -> Node:
    call = guarded(function, "Dataset.map")

    def apply(element: Any) -> Any:
        result = call(element)
        # A list at the top level means several results; inside other structures it is an array.
        result = tuple(result) if isinstance(result, list) else result
        return to_element(result, "What the function given to Dataset.map returned")

    return parent.then(
        "MapDataset",
        lambda opening: parent.build(opening).map(apply),
        spec=None,
        batch_size=None,
        num_parallel_calls=max(parent.num_parallel_calls, num_parallel_calls),
    )


@step
def filtered(parent: Node, predicate: Callable[..., Any]) -> Node:
    call = guarded(predicate, "Dataset.filter")

    def passes(element: Any) -> bool:
        answer = np.asarray(call(element))
        if answer.ndim or answer.dtype != np.bool_:
            raise TypeError(
                f"The function given to Dataset.filter must return True or False, got {answer}."
            )
        return bool(answer)

    return parent.then(
        "FilterDataset",
        lambda opening: engine().as_stream(parent.build(opening), opening).filter(passes),
        cardinality=least(parent.cardinality, UNKNOWN_CARDINALITY),
    )


@step
def batched(
    parent: Node,
    size: int,
    drop_remainder: bool,
    num_parallel_calls: int = 0,
    join: Callable[[Sequence[Any]], Any] = stack,
    row_spec: Callable[[Any], Any] = lambda spec: spec,
    name: str = "BatchDataset",
) -> Node:
    """Combine elements with `join`; `row_spec` maps the spec of an element to that of a row."""
    once, rows = parent.cardinality, _rows_below(parent) if join is stack else None
    elements = parent if rows is None else _indices(parent)

    def make(opening: Opening) -> Any:
        # An infinite dataset has no remainder, and Grain's computation of its length would overflow. `join`
        # is not passed as `batch_fn`, because Grain would add a note about filters to its errors.
        drop = drop_remainder or once == INFINITE_CARDINALITY
        lists = elements.build(opening).batch(size, drop_remainder=drop, batch_fn=list)
        return lists.map(join if rows is None else lambda indices, rows=rows: rows(np.asarray(indices)))

    def spec(row: TensorSpec) -> TensorSpec:
        return TensorSpec((size if drop_remainder else None, *row.shape), row.dtype)

    return parent.then(
        name,
        make,
        cardinality=once if once < 0 else once // size if drop_remainder else -(-once // size),
        spec=None if parent.spec is None else jax.tree.map(spec, row_spec(parent.spec)),
        batch_size=size,
        open_rows=None if drop_remainder else size if once < 0 else min(once, size),
        num_parallel_calls=max(parent.num_parallel_calls, num_parallel_calls),
    )


_ONLY_ORDER = {
    "ShuffleDataset",
    "RepeatDataset",
    "TakeDataset",
    "SkipDataset",
    "ShardDataset",
    "PrefetchDataset",
}


def _rows_below(node: Node) -> Callable[[Any], Any] | None:
    """The `rows` of the arrays that `node` reads, if it only reorders them; otherwise None."""
    while node.name in _ONLY_ORDER:
        (node,) = node.parents
    return node.rows


def _indices(node: Node) -> Node:
    """`node` with row indices instead of rows, so that a batch takes one indexing operation."""
    if node.rows is not None:
        return Node("RangeDataset", (), lambda _: engine().rows(node.cardinality, int), node.cardinality)
    assert node.with_parents is not None
    return node.with_parents(*map(_indices, node.parents))


@step
def nested(
    parent: Node,
    inner: Callable[[Any], Node],
    cycle_length: int = 1,
    block_length: int = 1,
    spec: Any = None,
    name: str = "FlatMapDataset",
) -> Node:
    """The elements of the nodes that `inner` returns for each element; `spec` is their spec, if known."""

    def make(opening: Opening) -> Any:
        def begin(element: Any, number: int) -> Any:
            node = inner(element)
            return engine().iterate(node.build(opening.at(opening.epoch * _MANY + number)), opening)

        outer = engine().as_stream(parent.build(opening), opening)
        return engine().nested(outer, begin, cycle_length, block_length)

    cardinality = least(parent.cardinality, UNKNOWN_CARDINALITY)
    return parent.then(name, make, cardinality=cardinality, spec=spec, batch_size=None, open_rows=None)
