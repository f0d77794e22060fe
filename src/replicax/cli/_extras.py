"""Optional packages that some commands need."""

from __future__ import annotations

import importlib.util
from typing import final

__all__ = ["MissingExtraError", "require_extra"]


@final
class MissingExtraError(ImportError):
    """A command needs packages that are not installed."""


def require_extra(extra: str, **packages: str) -> None:
    """Raise unless the packages of an extra are installed.

    Args:
        extra: its name in `pip install 'replicax[extra]'`.
        packages: the names of the packages, by module.
    """
    missing = [name for module, name in packages.items() if importlib.util.find_spec(module) is None]
    if missing:
        raise MissingExtraError(
            f"this needs {', '.join(missing)}, which {'is' if len(missing) == 1 else 'are'} not installed. "
            f"Install with: pip install 'replicax[{extra}]'"
        )
