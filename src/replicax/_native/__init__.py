"""The parts of Replicax that are in C, and Python classes in their place where they could not be built.

`_warm.c` needs a C compiler when Replicax is installed, and an interpreter with a global lock. Without it,
or with the environment variable REPLICAX_PURE_PYTHON, everything works as well, but a warm call of a
compiled step takes a few microseconds longer.
"""

from __future__ import annotations

import contextlib
import os
import zlib
from collections.abc import Iterator
from pathlib import Path
from threading import RLock
from typing import TYPE_CHECKING, Any

__all__ = ["Caller", "Lock", "Program", "configure", "hold", "is_built"]

is_built = False
"""Whether the C module is in use."""

if TYPE_CHECKING:
    from replicax._native._warm import Caller, Lock, Program, configure, hold
else:
    try:
        if os.environ.get("REPLICAX_PURE_PYTHON"):
            raise ImportError("REPLICAX_PURE_PYTHON is set")
        from replicax._native._warm import Caller, Lock, Program, configure, hold, source_checksum

        if zlib.crc32(Path(__file__).with_name("_warm.c").read_bytes()) != source_checksum:
            raise ImportError("_warm.c has changed since it was compiled: install Replicax again")
        is_built = True
    except ImportError:
        Lock, Program = RLock, None

        @contextlib.contextmanager
        def hold(locks: Any, seconds: float = -1, late: Any = None, ready: Any = None) -> Iterator[None]:
            """A `with` block that holds several locks.

            If an exception of a signal handler comes between its lines, they are released with the
            traceback, which refers to this generator.
            """
            missing = [lock for lock in locks if not lock._is_owned()]
            try:
                for lock in missing:
                    while not lock.acquire(timeout=seconds):
                        late()
                if ready is not None:
                    ready()
                yield
            finally:
                try:
                    _release(missing)
                finally:  # an exception may have interrupted it
                    _release(missing)

        def _release(locks: list[Any]) -> None:
            for lock in reversed(locks):
                if lock._is_owned():
                    lock.release()

        class Caller:
            """Calls the method `_call`."""

            __slots__ = ("_known",)

            def __call__(self, *args: Any, **kwargs: Any) -> Any:
                return self._call(*args, **kwargs)

        def configure(**_: Any) -> None:
            """Nothing to configure."""
