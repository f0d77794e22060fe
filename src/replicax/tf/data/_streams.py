"""Streaming transformations: each is a generator over the elements of its input.

The elements of such a dataset can't be read by index, and a restored iterator reads again from the start.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
import numpy as np

from replicax.errors import InputError
from replicax.input import UNKNOWN_CARDINALITY
from replicax.tf.data._elements import guarded, stack, to_element
from replicax.tf.data._node import Node, Opening, engine, step

__all__ = [
    "chosen",
    "grouped",
    "rebatched",
    "scanned",
    "streamed",
    "taken_while",
    "unique",
    "windows",
]

Elements = Iterator[Any]


@step
def streamed(*parents: Node, name: str, transform: Callable[..., Elements], spec: Any = None) -> Node:
    """What the generator function `transform` yields, given the elements of each parent."""

    def make(opening: Opening) -> Any:
        def begin() -> Elements:
            with contextlib.ExitStack() as stack:
                opened = [
                    stack.enter_context(
                        contextlib.closing(engine().iterate(parent.build(opening), opening))
                    )
                    for parent in parents
                ]
                yield from transform(*opened)

        return engine().replayed(begin, lambda _, element: element, f"a {name}")

    return Node(name, parents, make, UNKNOWN_CARDINALITY, spec)


def scanned(initial_state: Any, function: Callable[..., Any]) -> Callable[[Elements], Elements]:
    """Compute each element, and the next state, from the state and an input element."""
    what = "What the function given to Dataset.scan returned"

    def transform(elements: Elements) -> Elements:
        state = to_element(initial_state, "Dataset.scan(initial_state=...)")
        for element in elements:
            try:
                state, result = function(state, *(element if type(element) is tuple else (element,)))
            except (TypeError, ValueError) as error:
                error.add_note("The function given to Dataset.scan returns (new_state, element).")
                raise
            state = to_element(state, what)
            yield to_element(result, what)

    return transform


def taken_while(predicate: Callable[..., Any]) -> Callable[[Elements], Elements]:
    """The elements before the first for which `predicate` is false."""
    call = guarded(predicate, "Dataset.take_while")
    return lambda elements: itertools.takewhile(lambda element: bool(call(element)), elements)


def unique(elements: Elements) -> Elements:
    """The first occurrence of each element."""
    seen: set[Any] = set()
    for element in elements:
        key = tuple((np.shape(leaf), np.asarray(leaf).tobytes()) for leaf in jax.tree.leaves(element))
        if key not in seen:
            seen.add(key)
            yield element


def rebatched(sizes: Sequence[int], drop_remainder: bool) -> Callable[[Elements], Elements]:
    """Regroup the rows of batches into batches of these sizes, in turn."""

    def transform(batches: Elements) -> Elements:
        rows = (
            jax.tree.map(lambda leaf, i=i: leaf[i], batch)
            for batch in batches
            for i in range(len(jax.tree.leaves(batch)[0]))
        )
        for size in itertools.cycle(sizes):
            batch = list(itertools.islice(rows, size))
            if batch and (len(batch) == size or not drop_remainder):
                yield stack(batch)
            if len(batch) < size:
                return

    return transform


def windows(
    size: int, shift: int, stride: int, drop_remainder: bool, make: Callable[[Any], Any]
) -> Callable[[Elements], Elements]:
    """Datasets of `size` elements, `stride` apart, one starting every `shift` elements."""
    reach = (size - 1) * stride + 1

    def transform(elements: Elements) -> Elements:
        held: list[Any] = []
        for element in elements:
            held.append(element)
            if len(held) == max(reach, shift):
                yield jax.tree.map(make, stack(held[:reach:stride]))
                del held[:shift]
        while held and not drop_remainder:
            yield jax.tree.map(make, stack(held[:reach:stride]))
            del held[:shift]

    return transform


def grouped(
    key_of: Callable[..., Any], inner: Callable[[Any, Sequence[Any]], Any], size_of: Callable[[Any], int]
) -> Callable[[Elements], Elements]:
    """The elements of the datasets that `inner` creates from windows of elements with the same key."""
    call = guarded(key_of, "Dataset.group_by_window(key_func=...)")

    def transform(elements: Elements) -> Elements:
        windows: dict[int, list[Any]] = {}
        for element in elements:
            key = int(call(element))
            window = windows.setdefault(key, [])
            window.append(element)
            if len(window) == size_of(key):
                yield from inner(np.int64(key), windows.pop(key))
        for key, window in sorted(windows.items()):
            yield from inner(np.int64(key), window)

    return transform


def chosen(stop_on_empty_dataset: bool) -> Callable[..., Elements]:
    """Elements of several datasets; the first dataset has the index of the dataset for each element."""

    def transform(choices: Elements, *datasets: Elements) -> Elements:
        ended: set[int] = set()
        for choice in choices:
            number = int(choice)
            if not 0 <= number < len(datasets):
                raise InputError(
                    f"choose_from_datasets: dataset {number} was chosen, but there are {len(datasets)} "
                    "datasets."
                )
            try:
                if number not in ended:
                    yield next(datasets[number])
            except StopIteration:
                ended.add(number)
                if stop_on_empty_dataset or len(ended) == len(datasets):
                    return

    return transform
