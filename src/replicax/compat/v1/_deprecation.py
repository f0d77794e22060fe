"""Warns at the first use of a name that has a successor."""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable
from typing import Any, TypeVar

__all__ = ["deprecated"]

_F = TypeVar("_F", bound=Callable[..., Any])

_already_warned: set[str] = set()


def deprecated(instead: str) -> Callable[[_F], _F]:
    """Mark a method as deprecated in favour of `instead`."""

    def mark(method: Any) -> Any:
        @functools.wraps(method)
        def marked(*args: Any, **kwargs: Any) -> Any:
            if method.__qualname__ not in _already_warned:
                _already_warned.add(method.__qualname__)
                warnings.warn(
                    f"{method.__qualname__} belongs to version 1: use {instead}.",
                    DeprecationWarning,
                    stacklevel=2,
                )
            return method(*args, **kwargs)

        return marked

    return mark
