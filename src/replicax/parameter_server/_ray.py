"""Ray, imported when a cluster is used: it is optional and takes a second to import."""

from __future__ import annotations

import importlib
from typing import Any

__all__ = ["cloudpickle", "library"]


def library() -> Any:
    """The module `ray`."""
    try:
        return importlib.import_module("ray")
    except ImportError as error:
        raise ImportError(
            "rx.ParameterServerStrategy needs Ray, which is optional: pip install 'replicax[ray]'."
        ) from error


def cloudpickle() -> Any:
    """Ray's pickle, which also takes functions of the main program."""
    library()
    return importlib.import_module("ray.cloudpickle")
