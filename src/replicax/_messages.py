"""How error messages show the values that arrived: an array by its dtype and shape, not by its numbers."""

from __future__ import annotations

from typing import Any

__all__ = ["brief"]

_LONGEST = 160


def brief(value: Any) -> str:
    """A `repr` that fits into one line of an error message.

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
