"""Warnings, logged once, about input that works but is probably not what the user meant."""

from __future__ import annotations

import logging
import weakref
from collections.abc import Hashable
from typing import Any, ClassVar, final

__all__ = ["RepeatedOrder"]

_logger = logging.getLogger("replicax")

_NUM_BEGUN = 3  # passes in the same order; two may be a look at the first batch, then training


@final
class RepeatedOrder:
    """Warns when a shuffled dataset is distributed again, so that its first order is repeated.

    Args:
        anchor: an object that lives as long as the data.
        key: the seed, and the devices that get the examples.
    """

    # Maps (id of the anchor, key) to a reference to the anchor, the number of passes and whether one ended.
    _known: ClassVar[dict[tuple[int, Hashable], list[Any]]] = {}
    _warned: ClassVar[bool] = False

    def __init__(self, anchor: Any, key: Hashable) -> None:
        self._key = (id(anchor), key)
        entry = self._known.get(self._key)
        if entry is None or entry[0]() is not anchor:
            forget = lambda _, key=self._key: self._known.pop(key, None)  # noqa: E731
            entry = self._known[self._key] = [weakref.ref(anchor, forget), 0, False]
        self._entry = entry

    def begin(self) -> None:
        """Count a pass; call this before its first batch."""
        self._entry[1] += 1
        if RepeatedOrder._warned or not (self._entry[2] or self._entry[1] >= _NUM_BEGUN):
            return
        RepeatedOrder._warned = True
        _logger.warning(
            "A shuffled dataset was distributed again, so its examples come in the same order as before. "
            "Call strategy.distribute_dataset once, before the loop over epochs: then each pass over the "
            "result has a different order. Or choose the order by epoch: "
            "`for batch in strategy.distribute_dataset(dataset).epoch(epoch)`."
        )

    def end(self) -> None:
        """Note that a pass was read to the end."""
        self._entry[2] = True
