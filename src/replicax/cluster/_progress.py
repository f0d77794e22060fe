"""What a worker reports about its collectives: the latest ones, and a running digest of all of them.

Workers report at different times, so the latest collectives of one may not be among the latest of another.
All of them report every `_STRIDE`-th collective with a digest of everything up to it: if two workers have
ever started different collectives, their digests differ.
"""

from __future__ import annotations

import zlib
from collections import deque
from typing import Any, final

from replicax.cluster._log import CollectiveLog, Entry

__all__ = ["Progress"]

_STRIDE = 64
_NUM_MARKS = 16
_NUM_LAST = 16
_MOST = 1024  # the size of the log

_Mark = tuple[Entry, int | None]


@final
class Progress:
    """Follows a log in the background; `report` is called periodically."""

    def __init__(self, log: CollectiveLog) -> None:
        self._log, self._seen = log, 0
        self._digest: int | None = 0
        self._marks: deque[_Mark] = deque(maxlen=_NUM_MARKS)
        self._last: deque[_Mark] = deque(maxlen=_NUM_LAST)

    def report(self) -> list[list[Any]]:
        """Recent collectives: number, fingerprint, description, batch, and the digest up to it or None."""
        for entry in self._log.recent(min(_MOST, self._log.seq - self._seen)):
            seq, collective, _ = entry
            if seq != self._seen + 1:
                self._digest = None  # more than the log holds since the last report
            self._seen = seq
            if self._digest is not None:
                self._digest = zlib.crc32(collective.fingerprint.encode(), self._digest)
            self._last.append((entry, self._digest))
            if seq % _STRIDE == 0:
                self._marks.append((entry, self._digest))
        return [_as_list(*mark) for mark in (*self._marks, *self._last)]

    def pending(self) -> list[Any] | None:
        """The collective that is about to start, as in `report`, and since when."""
        entry, since = self._log.pending, self._log.state.since
        return None if entry is None else [*_as_list(entry, None), since]


def _as_list(entry: Entry, digest: int | None) -> list[Any]:
    seq, collective, batch = entry
    return [seq, collective.fingerprint, str(collective), batch, digest]
