"""The parts of Replicax that are in C, and Python classes in their place where they could not be built.

`_warm.c` needs a C compiler when Replicax is installed, and an interpreter with a global lock. Without it,
or with the environment variable REPLICAX_PURE_PYTHON, everything works as well, but a warm call of a
compiled step takes a few microseconds longer.
"""

from __future__ import annotations

import os
import zlib
from pathlib import Path
from threading import RLock
from typing import TYPE_CHECKING, Any

__all__ = ["Caller", "Lock", "Program", "configure", "is_built"]

is_built = False
"""Whether the C module is in use."""

if TYPE_CHECKING:
    from replicax._native._warm import Caller, Lock, Program, configure
else:
    try:
        if os.environ.get("REPLICAX_PURE_PYTHON"):
            raise ImportError("REPLICAX_PURE_PYTHON is set")
        from replicax._native._warm import Caller, Lock, Program, configure, source_checksum

        if zlib.crc32(Path(__file__).with_name("_warm.c").read_bytes()) != source_checksum:
            raise ImportError("_warm.c has changed since it was compiled: install Replicax again")
        is_built = True
    except ImportError:
        Lock, Program = RLock, None

        class Caller:
            """Calls the method `_call`."""

            __slots__ = ("_known",)

            def __call__(self, *args: Any, **kwargs: Any) -> Any:
                return self._call(*args, **kwargs)

        def configure(**_: Any) -> None:
            """Nothing to configure."""
