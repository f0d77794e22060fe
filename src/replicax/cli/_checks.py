"""All checks of `python -m replicax doctor`, in the order in which they run."""

from __future__ import annotations

from replicax.cli._check import Check
from replicax.cli._check_computing import computing_checks
from replicax.cli._check_devices import device_checks
from replicax.cli._check_packages import package_checks

__all__ = ["all_checks"]


def all_checks() -> list[Check]:
    """The checks; creating the list does not start JAX."""
    return [*package_checks(), *device_checks(), *computing_checks()]
