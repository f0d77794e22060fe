"""Things that are easy to get wrong and give no error: the log tells the user once."""

from __future__ import annotations

import logging
import weakref
from collections.abc import Hashable
from typing import Any, ClassVar, final

__all__ = ["RepeatedOrder", "UnevenBatches"]

_logger = logging.getLogger("replicax")

_NUM_UNEVEN = 3  # in a row: more than the partial batch at the end of an epoch
_NUM_BEGUN = 3  # as often as that, reading has begun in the same order by mistake


@final
class UnevenBatches:
    """Warns when batch after batch does not divide evenly by the number of replicas."""

    _warned: ClassVar[set[tuple[int, int]]] = set()  # batch size, number of replicas

    def __init__(self) -> None:
        """No batch has been seen yet."""
        self._count, self._told = 0, False

    def note(self, sizes: tuple[int, ...]) -> None:
        """Take account of a batch with these numbers of examples, one for each replica."""
        if len(set(sizes)) == 1:
            self._count = 0
            return
        self._count += 1
        rows, count = sum(sizes), len(sizes)
        if self._count < _NUM_UNEVEN or self._told or (rows, count) in self._warned:
            return
        self._told = True
        self._warned.add((rows, count))
        smaller = rows // count * count
        better = f"{smaller} or {smaller + count}" if smaller else str(count)
        _logger.warning(
            "%d batches in a row did not divide evenly by the number of replicas; the last one has %d "
            "examples for %d replicas. Compiled steps are slow with such batches: every device computes "
            "the work of all replicas. Use a batch size such as %s, or partial_batch='pad'.",
            self._count,
            rows,
            count,
            better,
        )


@final
class RepeatedOrder:
    """Warns when a shuffled dataset is distributed again and so begins again with its first order.

    Args:
        anchor: an object that lives as long as the data.
        key: everything else that decides the order, and the replicas that get the examples.
    """

    # By what is read: a reference to the anchor, how often it was begun, whether it was read to the end.
    _known: ClassVar[dict[tuple[int, Hashable], list[Any]]] = {}
    _warned: ClassVar[bool] = False

    def __init__(self, anchor: Any, key: Hashable) -> None:
        """Look up what has been read before."""
        self._key = (id(anchor), key)
        entry = self._known.get(self._key)
        if entry is None or entry[0]() is not anchor:
            forget = lambda _, key=self._key: self._known.pop(key, None)  # noqa: E731
            entry = self._known[self._key] = [weakref.ref(anchor, forget), 0, False]
        self._entry = entry

    def begin(self) -> None:
        """The first batch is being read."""
        self._entry[1] += 1
        if RepeatedOrder._warned or not (self._entry[2] or self._entry[1] >= _NUM_BEGUN):
            return
        RepeatedOrder._warned = True
        _logger.warning(
            "A shuffled dataset was distributed again, and its first epoch has the same order as the first "
            "epoch before. Call strategy.distribute_dataset once, before the loop over epochs: every loop "
            "over the result has another order. Or choose the order by number: "
            "`for batch in strategy.distribute_dataset(dataset).epoch(epoch)`."
        )

    def end(self) -> None:
        """The last batch has been read."""
        self._entry[2] = True
