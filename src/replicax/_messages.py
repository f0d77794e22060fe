"""How error messages show values and source lines: an array by its dtype and shape."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import jax

__all__ = ["brief", "size_text", "user_line"]

_LONGEST = 160
_PACKAGES = tuple(str(Path(path).resolve().parent) for path in (__file__, jax.__file__))


def brief(value: Any) -> str:
    """A `repr` that fits on one line of an error message.

    >>> from replicax._messages import brief
    >>> brief(jnp.zeros((512, 256)))
    'an array float32[512,256]'
    >>> brief("CPU:0")
    "'CPU:0'"
    """
    shape, dtype = getattr(value, "shape", None), getattr(value, "dtype", None)
    if isinstance(shape, tuple) and dtype is not None and not isinstance(value, type):
        kind = "an array" if hasattr(value, "__array__") else f"a {type(value).__name__}"
        return f"{kind} {dtype}[{','.join(map(str, shape))}]"
    text = " ".join(repr(value).split())
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}..."


def size_text(num_bytes: float) -> str:
    """A number of bytes in a suitable unit.

    >>> from replicax._messages import size_text
    >>> size_text(1536), size_text(3 << 30)
    ('1.5 KiB', '3.0 GiB')
    """
    if num_bytes < 1024:
        return f"{num_bytes:.0f} B"
    for unit in ("KiB", "MiB", "GiB", "TiB"):
        num_bytes /= 1024
        if num_bytes < 999.95 or unit == "TiB":
            break
    return f"{num_bytes:.1f} {unit}"


def user_line() -> str:
    """The innermost line of the call stack outside of Replicax and JAX, as "file:line"."""
    frame = sys._getframe(1)
    while frame is not None:
        path = frame.f_code.co_filename
        if not path.startswith((*_PACKAGES, "<frozen")):
            return f"{path}:{frame.f_lineno}"
        frame = frame.f_back
    return "an unknown place"
