"""Names that have a successor say so, the first time that each is used."""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable
from typing import Any, TypeVar

__all__ = ["deprecated"]

_F = TypeVar("_F", bound=Callable[..., Any])

_already_said: set[str] = set()


def deprecated(instead: str) -> Callable[[_F], _F]:
    """Mark a method as one that `instead` has replaced."""

    def mark(method: Any) -> Any:
        @functools.wraps(method)
        def marked(*args: Any, **kwargs: Any) -> Any:
            if method.__qualname__ not in _already_said:
                _already_said.add(method.__qualname__)
                warnings.warn(
                    f"{method.__qualname__} is of version 1: use {instead}.",
                    DeprecationWarning,
                    stacklevel=2,
                )
            return method(*args, **kwargs)

        return marked

    return mark
