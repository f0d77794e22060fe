"""Checks of the installed packages, against the versions in Replicax's own metadata."""

from __future__ import annotations

import functools
import platform
import re
from collections import defaultdict
from importlib import metadata

from replicax.cli._check import Check, Finding, failed, passed, skipped

__all__ = ["package_checks"]

_REQUIREMENT = re.compile(
    r"""([\w.-]+)(?:\[[^]]*])?\s*(?:>=\s*([\d.]+))?[^;]*(?:;.*extra\s*==\s*["'](\w+)["'])?"""
)
_FOR_DEVELOPERS = ("dev", "docs")


def package_checks() -> list[Check]:
    """Python, JAX, the other required packages, our C module, and the packages of each extra."""
    needed = _requirements()
    checks = [
        Check("Python", _check_python),
        Check("JAX", _check_jax, advice="pip install --upgrade jax"),
        Check("required packages", functools.partial(_check_needed, needed.pop("", {}))),
        Check("calls of compiled steps", _check_calls),
    ]
    for extra, packages in sorted(needed.items()):
        if extra not in _FOR_DEVELOPERS:
            find = functools.partial(_check_extra, extra, packages)
            checks.append(Check(f"extra {extra}", find))
    return checks


def _requirements() -> dict[str, dict[str, str]]:
    """Extra -> package -> minimum version; the extra "" has the required packages."""
    by_extra: dict[str, dict[str, str]] = defaultdict(dict)
    for requirement in metadata.requires("replicax") or ():
        if match := _REQUIREMENT.match(requirement):
            name, least, extra = match.groups(default="")
            by_extra[extra][name] = least
    return dict(by_extra)


def _check_python() -> Finding:
    version = platform.python_version()
    least = metadata.metadata("replicax")["Requires-Python"].removeprefix(">=")
    if _as_numbers(version) < _as_numbers(least):
        return failed(f"{version} is too old", f"Install Python {least} or newer.")
    return passed(f"{version} on {platform.system()} {platform.machine()}")


def _check_jax() -> Finding:
    import jax

    least = _requirements().get("", {}).get("jax", "")
    if _as_numbers(jax.__version__) < _as_numbers(least):
        return failed(f"{jax.__version__} is older than {least}", f"pip install --upgrade 'jax>={least}'")
    return passed(f"{jax.__version__}, jaxlib {_installed('jaxlib')}; {least} or newer is required")


def _check_needed(packages: dict[str, str]) -> Finding:
    wrong = _wrong(packages)
    if wrong:
        return failed(", ".join(wrong), "pip install --upgrade replicax")
    return passed(_versions(packages))


def _check_calls() -> Finding:
    from replicax import _native

    if _native.is_built:
        return passed("in C")
    return skipped(
        "in Python, which takes a few microseconds longer",
        "Install a C compiler, then reinstall Replicax; unset REPLICAX_PURE_PYTHON.",
    )


def _check_extra(extra: str, packages: dict[str, str]) -> Finding:
    wrong = _wrong(packages)
    if wrong:
        return skipped(", ".join(wrong), f"To install: pip install 'replicax[{extra}]'")
    return passed(_versions(packages))


def _wrong(packages: dict[str, str]) -> list[str]:
    """The packages that are missing or too old."""
    wrong = []
    for name, least in packages.items():
        version = _installed(name)
        if version is None:
            wrong.append(f"{name} is not installed")
        elif _as_numbers(version) < _as_numbers(least):
            wrong.append(f"{name} {version} is older than {least}")
    return wrong


def _versions(packages: dict[str, str]) -> str:
    return ", ".join(f"{name} {_installed(name)}" for name in packages)


def _installed(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def _as_numbers(version: str) -> tuple[int, ...]:
    """The leading numbers of a version: "0.10.2.dev3" becomes (0, 10, 2)."""
    match = re.match(r"\d+(\.\d+)*", version)
    return tuple(map(int, match.group().split("."))) if match else ()
