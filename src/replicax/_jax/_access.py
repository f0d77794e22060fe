"""Access to JAX's private modules; a missing attribute raises `UnsupportedJaxError`."""

from __future__ import annotations

import importlib
import operator
from typing import Any

import jax

from replicax.errors import UnsupportedJaxError

__all__ = ["private", "unsupported"]


def unsupported(what: str) -> UnsupportedJaxError:
    """The error that says that JAX has no `what`."""
    return UnsupportedJaxError(
        f"Replicax needs `{what}`, a private part of JAX that JAX {jax.__version__} does not have. Install "
        "a version of JAX that this version of Replicax was tested with, or upgrade Replicax."
    )


def private(module: str, name: str) -> Any:
    """The attribute `name` of the module `jax._src.MODULE`."""
    try:
        return operator.attrgetter(name)(importlib.import_module(f"jax._src.{module}"))
    except (ImportError, AttributeError) as error:
        raise unsupported(f"jax._src.{module}.{name}") from error
