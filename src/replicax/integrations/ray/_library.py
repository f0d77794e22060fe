"""Imports Ray as `Any`: its types are incomplete, and type checking must work without Ray."""

from __future__ import annotations

import importlib
from typing import Any

__all__ = ["RayError", "placement_groups", "ray", "scheduling"]

try:
    ray: Any = importlib.import_module("ray")
except ImportError as error:
    raise ImportError(
        "replicax.integrations.ray needs Ray, which is optional: pip install 'replicax[ray]'."
    ) from error

placement_groups: Any = importlib.import_module("ray.util.placement_group")
scheduling: Any = importlib.import_module("ray.util.scheduling_strategies")
RayError: type[Exception] = importlib.import_module("ray.exceptions").RayError
