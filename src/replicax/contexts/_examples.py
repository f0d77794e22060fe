"""Which values of a replica function have one row per example of a padded batch.

Equal sizes prove nothing: a vector with one entry per class may happen to be as long as the batch. So the
function is called once more, with abstract values and twice as many rows. A value whose first axis has the
size of the batch in both calls has one row per example. A value of the same size in both does not depend on
the number of rows. Any other value depends on the rows in a way that shapes do not show (it may be
flattened), and reducing it over its first axis raises an error that says what to do.

A replica may have several padded batches. Each is enlarged separately. Batches that the function combines
row by row can only grow together; a combined row counts as an example if it is one in all of them.

Losses and metrics take rows of the batch by definition. So where the extra call is not possible, and in
eager replicas, where it would repeat side effects, an array that they get counts as rows of the only padded
batch if the sizes match.

Each loss, metric and merge_call in the function, and its end, asks a *question*: the origin of some values.
Questions are numbered, so that the answers of both calls can be compared; `Origins` does that. `Padding`
belongs to one `strategy.run`, `Examples` to one of its replicas.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple, final

import jax
import numpy as np

from replicax.contexts._rows import Rows
from replicax.errors import InputError
from replicax.topology import ReplicaMesh
from replicax.values import PerReplica, flatten, intersection, is_array, num_rows

__all__ = ["BatchMask", "Examples", "Incomplete", "Origin", "Origins", "Padding", "Record"]

Origin = tuple[int, ...] | str | None
"""The batches whose rows a value has, None if it has no batch's rows, or the reason why that is unknown."""

_MOST_COMBINED = 4


class _Unknown(str):
    """The reason why the function could not be called with more rows."""

    __slots__ = ()


class Incomplete(BaseException):
    """The call with more rows would create variables; the real call must create them first.

    It is not an `Exception`, so that an `except Exception` in the function does not catch it.
    """


class _Seen(NamedTuple):
    """The sizes of some values' first axes, and the batches' numbers of rows at that time."""

    sizes: tuple[int | None, ...]
    rows: tuple[int, ...]

    def batch_of_same_size(self, leaf: int) -> tuple[int] | None:
        """The batch that has as many rows as a value."""
        return next(((j,) for j, rows in enumerate(self.rows) if rows == self.sizes[leaf]), None)


@final
@dataclasses.dataclass
class Record:
    """The shapes in one call of a replica function: of its results, and of values that it asked about."""

    asked: dict[int | None, _Seen] = dataclasses.field(default_factory=dict)
    """Keyed by the number of the question; None is the key of the results."""


@final
class Origins:
    """Where the rows of values come from, for one function and one kind of arguments.

    Args:
        num_batches: how many padded batches the function gets.
        probe: calls the function with more rows in some of the batches; raises if that is impossible.
    """

    def __init__(self, num_batches: int, probe: Callable[[frozenset[int]], Record]) -> None:
        self._num_batches = num_batches
        self._probe: Callable[[frozenset[int]], Record] | None = probe
        self._failure = ""
        self.is_complete = True

    @functools.cached_property
    def _groups(self) -> list[tuple[tuple[int, ...], Record]]:
        """The smallest sets of batches that can grow together, each with the resulting sizes."""
        rest, found = list(range(self._num_batches)), []
        for count in range(1, min(len(rest), _MOST_COMBINED) + 1):
            for group in itertools.combinations(rest, count):
                record = self._try(group) if all(i in rest for i in group) else None
                if record is not None:
                    found.append((group, record))
                    rest = [i for i in rest if i not in group]
        self._probe = None  # it refers to the function
        return found

    def _try(self, group: tuple[int, ...]) -> Record | None:
        assert self._probe is not None
        if not self.is_complete:
            return None
        try:
            return self._probe(frozenset(group))
        except Incomplete:
            self.is_complete = False
        except Exception as error:
            text = str(error).strip() or type(error).__name__
            self._failure = f"{type(error).__name__}: {text.splitlines()[0][:200]}"
        return None

    def prepare(self) -> None:
        """Make the calls now, instead of at the first question."""
        _ = self._groups

    def of(self, seen: _Seen, event: int | None, leaf: int) -> Origin:
        """The origin of one value of a question."""
        size, rows = seen.sizes[leaf], seen.rows
        if not size:
            return None
        found: Origin = None
        for group, record in self._groups:
            larger = record.asked.get(event)
            if larger is None or leaf >= len(larger.sizes):
                return _different_calls(size)
            one = group[0]
            if size == rows[one] and larger.rows[one] == rows[one]:
                return _different_calls(size)  # e.g. more microbatches, of one row each
            if larger.sizes[leaf] == size:
                continue
            if found is not None or size != rows[one] or larger.sizes[leaf] != larger.rows[one]:
                return _depends(size, rows[one])
            found = group
        return found if found is not None else self._of_fixed_batches(size, rows)

    def _of_fixed_batches(self, size: int, rows: Sequence[int]) -> Origin:
        """The origin of a value that may have the rows of a batch that can't grow."""
        known = {i for group, _ in self._groups for i in group}
        for i, count in enumerate(rows):
            if i not in known and count and size % count == 0:
                return _unknown(size, count, self._failure)
        return None


def _depends(size: int, rows: int) -> str:
    times = f"{size // rows} times the {rows}" if rows and size % rows == 0 else f"made from the {rows}"
    return (
        f"its first axis, {size}, is {times} rows of a padded batch, so Replicax can't tell which entries "
        f"are padding. Give it one row per example, as in `value.reshape({rows}, -1)`"
    )


def _unknown(size: int, rows: int, failure: str) -> str:
    return _Unknown(
        f"Replicax can't tell whether its first axis, {size}, is that of a padded batch of {rows} rows: "
        f"the replica function can't be called with abstract values and twice as many rows ({failure}). "
        "Derive its sizes from the shapes of its arguments"
    )


def _different_calls(size: int) -> str:
    return _Unknown(
        f"Replicax can't tell whether its first axis, {size}, is that of a padded batch: with twice as "
        "many rows, the replica function makes different calls to losses, metrics or merge_call"
    )


class BatchMask(NamedTuple):
    """Which rows are examples: of those that a replica processes now, and of the whole batch."""

    now: Any
    whole: Any


@final
class Padding:
    """The padded batches of one `strategy.run`.

    Args:
        masks: their masks, as seen from the cross-replica context.
        origins: knows which values have their rows.
        is_eager: whether the function runs as ordinary Python. Then it is called with more rows only if
            necessary, since that repeats its side effects.
        record: collects the questions, in a call that only determines shapes.
        doubts: maps a number of rows to the reason why values of that size are in doubt.
    """

    def __init__(
        self,
        masks: Sequence[PerReplica],
        origins: Origins | None = None,
        *,
        is_eager: bool = False,
        record: Record | None = None,
        doubts: dict[int, str] | None = None,
    ) -> None:
        self.masks, self.origins, self.is_eager, self.record = masks, origins, is_eager, record
        self._doubts = doubts or {}
        self._known: dict[Any, PerReplica] = {}
        self.rows = tuple(map(num_rows, masks))

    def examples(self, masks: Iterable[Any], shared: Sequence[PerReplica] | None = None) -> Examples:
        """The view of one replica; `shared` are the masks as its merge_calls see them."""
        return Examples(self, list(masks), self.masks if shared is None else shared)

    def note(self, event: int | None, seen: _Seen) -> None:
        """Record a question. Replicas traced one by one ask the same questions; the first one counts."""
        if self.record is not None:
            self.record.asked.setdefault(event, seen)

    def mark(self, structure: Any, mesh: ReplicaMesh) -> Any:
        """Attach masks to the results of the replica function."""
        leaves, treedef = flatten(structure)
        seen = _Seen(tuple(_first_axis(leaf, mesh) for leaf in leaves), self.rows)
        self.note(None, seen)
        if self.record is not None:
            return structure
        marked = [self.marked(leaf, seen, None, i, mesh, self.masks) for i, leaf in enumerate(leaves)]
        return treedef.unflatten(marked)

    def marked(
        self,
        leaf: Any,
        seen: _Seen,
        event: int | None,
        i: int,
        mesh: ReplicaMesh,
        masks: Sequence[PerReplica],
    ) -> Any:
        """One value of a question, with its mask from `masks`."""
        size = seen.sizes[i]
        if size is None:
            return leaf

        def find() -> PerReplica | str | None:
            origin = self.origin(seen, event, i) if self.record is None else seen.batch_of_same_size(i)
            return self._combined(origin, masks) if isinstance(origin, tuple) else origin

        if isinstance(leaf, PerReplica):
            return leaf.with_mask_from(find) if self.is_eager else leaf.with_mask(find())
        if self.is_eager and not any(rows and size % rows == 0 for rows in (*seen.rows, *self._doubts)):
            return leaf
        found = find()
        return leaf if found is None else PerReplica.from_global(leaf, mesh, scalar=False).with_mask(found)

    def _combined(self, batches: tuple[int, ...], masks: Sequence[PerReplica]) -> PerReplica:
        """The mask shared by all values that combine the rows of these batches."""
        key = (batches, masks is self.masks)
        if key not in self._known:
            self._known[key] = intersection([masks[i] for i in batches])
        return self._known[key]

    def origin(self, seen: _Seen, event: int | None, i: int) -> Origin:
        """The origin of one value."""
        size = seen.sizes[i]
        found = None if self.origins is None else self.origins.of(seen, event, i)
        return self._doubts.get(size or 0) if found is None else found


def _first_axis(leaf: Any, mesh: ReplicaMesh) -> int | None:
    """The size of a value's first axis on each replica; None for scalars and non-arrays."""
    if isinstance(leaf, PerReplica):
        uniform = leaf.uniform
        return uniform.shape[0] if uniform is not None and uniform.shape else None
    return leaf.shape[0] if mesh.num_replicas == 1 and is_array(leaf) and np.ndim(leaf) else None


@final
class Examples:
    """The padded batches of one replica."""

    def __init__(self, padding: Padding, masks: list[Any], shared: Sequence[PerReplica]) -> None:
        self._padding, self._masks, self._shared = padding, masks, shared
        self._num_asked = 0

    @property
    def num_batches(self) -> int:
        """How many padded batches there are."""
        return len(self._masks)

    @property
    def is_recording(self) -> bool:
        """Whether this call only determines shapes."""
        return self._padding.record is not None

    def only_mask(self, rows: Rows | None) -> Any:
        """The mask of the only padded batch; of its `rows` if it is processed in parts."""
        if len(self._masks) > 1:
            sizes = " and ".join(str(mask.shape[0]) for mask in self._masks)
            raise InputError(
                f"This replica got padded batches with {sizes} rows, so `example_mask` is ambiguous. "
                "Pass the mask of the batch that you mean as another argument: "
                "`strategy.run(fn, args=(a, b, a.example_mask))`."
            )
        return self.mask((0,), rows).now

    def mask(self, batches: tuple[int, ...], rows: Rows | None) -> BatchMask:
        """The mask of rows that combine these batches; `rows` are those that are processed now."""
        whole = functools.reduce(jax.numpy.logical_and, [self._masks[i] for i in batches])
        if rows is None or not any(i in rows.batches for i in batches):
            return BatchMask(whole, whole)
        return BatchMask(whole[rows.start : rows.stop], whole)

    def sizes(self, rows: Rows | None) -> tuple[int, ...]:
        """The number of rows of each batch; of its `rows` if it is processed in parts."""

        def now(i: int, mask: Any) -> int:
            return rows.stop - rows.start if rows is not None and i in rows.batches else mask.shape[0]

        return tuple(now(i, mask) for i, mask in enumerate(self._masks))

    def find(self, values: Sequence[Any], rows: Rows | None) -> Origin:
        """The origin of values that belong together, such as predictions and labels."""
        sizes = tuple(np.shape(value)[0] if np.ndim(value) else None for value in values)
        seen, event = _Seen(sizes, self.sizes(rows)), self.next_event()
        self._padding.note(event, seen)
        origins = [self._origin(seen, event, i) for i in range(len(values))]
        batches = {origin for origin in origins if isinstance(origin, tuple)}
        if len(batches) > 1:
            return "they have the rows of different padded batches"
        if batches:
            return batches.pop()
        return next((origin for origin in origins if origin is not None), None)

    def next_event(self) -> int:
        """The number of the next question."""
        self._num_asked += 1
        return self._num_asked - 1

    def _origin(self, seen: _Seen, event: int, i: int) -> Origin:
        """The origin of one value that should have the rows of a batch."""
        size, padding = seen.sizes[i], self._padding
        by_size = seen.batch_of_same_size(i)
        if padding.record is not None:
            return by_size
        if len(self._masks) > 1 or not padding.is_eager:
            found = padding.origin(seen, event, i)
            is_only = len(self._masks) == 1 and isinstance(found, _Unknown)
            return by_size if is_only and by_size else found
        rows = seen.rows[0]
        return by_size or (_depends(size, rows) if size and rows and size % rows == 0 else None)

    def merged(self, event: int, structure: Any, mesh: ReplicaMesh) -> Any:
        """The arguments of a merge function, with their masks."""
        leaves, treedef = flatten(structure)
        sizes = tuple(_first_axis(leaf, mesh) for leaf in leaves)
        seen = _Seen(sizes, tuple(mask.shape[0] for mask in self._masks))
        padding = self._padding
        padding.note(event, seen)
        marked = [padding.marked(leaf, seen, event, i, mesh, self._shared) for i, leaf in enumerate(leaves)]
        return treedef.unflatten(marked)
