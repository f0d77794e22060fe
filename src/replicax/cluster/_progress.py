"""What a worker reports about its collectives: the last ones, and a running digest of all of them.

Workers report at different moments, so the last collectives of one may not be among the last of another.
All report those whose numbers are multiples of `_STRIDE`, with a digest of everything up to there: if the
workers have ever started different collectives, their digests differ.
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
_MOST = 1024  # the log has no more

_Mark = tuple[Entry, int | None]


@final
class Progress:
    """Follows a log in the background; `report` is called periodically."""

    def __init__(self, log: CollectiveLog) -> None:
        """Follow `log` from its beginning."""
        self._log, self._seen = log, 0
        self._digest: int | None = 0
        self._marks: deque[_Mark] = deque(maxlen=_NUM_MARKS)
        self._last: deque[_Mark] = deque(maxlen=_NUM_LAST)

    def report(self) -> list[list[Any]]:
        """Some collectives: number, fingerprint, description, batch, and the digest up to it or None."""
        for entry in self._log.recent(min(_MOST, self._log.seq - self._seen)):
            seq, collective, _ = entry
            if seq != self._seen + 1:
                self._digest = None  # too many since the last report: the log has forgotten some
            self._seen = seq
            if self._digest is not None:
                self._digest = zlib.crc32(collective.fingerprint.encode(), self._digest)
            self._last.append((entry, self._digest))
            if seq % _STRIDE == 0:
                self._marks.append((entry, self._digest))
        return [_shown(*mark) for mark in (*self._marks, *self._last)]

    def pending(self) -> list[Any] | None:
        """The collective that is about to start, like an entry of `report`, and since when."""
        entry, since = self._log.pending, self._log.state.since
        return None if entry is None else [*_shown(entry, None), since]


def _shown(entry: Entry, digest: int | None) -> list[Any]:
    seq, collective, batch = entry
    return [seq, collective.fingerprint, str(collective), batch, digest]
