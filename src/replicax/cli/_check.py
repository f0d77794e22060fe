"""`Check` and `Finding`: one check of `python -m replicax doctor`, and its outcome."""

from __future__ import annotations

import dataclasses
import time
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, final

__all__ = ["Check", "Finding", "Result", "failed", "passed", "run_check", "skipped"]

# Optional modules that checks import -> the package to install.
_PACKAGES = {"optax": "optax", "orbax": "orbax-checkpoint"}

Status = Literal["pass", "fail", "skipped"]


@final
@dataclass(frozen=True)
class Finding:
    """The outcome of a check.

    Args:
        status: "pass", "fail" or "skipped".
        detail: what the check found.
        advice: what to do about it; "" if nothing.
        numbers: the measurements, for `--json`.
    """

    status: Status
    detail: str
    advice: str = ""
    numbers: Mapping[str, float] = field(default_factory=dict)


def passed(detail: str, **numbers: float) -> Finding:
    return Finding("pass", detail, numbers=numbers)


def failed(detail: str, advice: str) -> Finding:
    return Finding("fail", detail, advice)


def skipped(detail: str, advice: str = "") -> Finding:
    """The check does not apply to this machine."""
    return Finding("skipped", detail, advice)


@final
@dataclass(frozen=True)
class Check:
    """A check of one property of this machine.

    Args:
        name: what is checked.
        find: runs the check; an exception is a failure.
        limit_seconds: the timeout.
        advice: what to do if it raises or times out.
    """

    name: str
    find: Callable[[], Finding]
    limit_seconds: float = 30.0
    advice: str = ""


@final
@dataclass(frozen=True)
class Result:
    """A check's name, outcome and duration."""

    name: str
    finding: Finding
    seconds: float

    def as_dict(self) -> dict[str, Any]:
        """The result as a JSON object."""
        return {
            "name": self.name,
            **dataclasses.asdict(self.finding),
            "seconds": round(self.seconds, 3),
        }

    @classmethod
    def from_dict(cls, content: Mapping[str, Any]) -> Result:
        """The inverse of `as_dict`."""
        names = ("status", "detail", "advice", "numbers")
        return cls(content["name"], Finding(**{name: content[name] for name in names}), content["seconds"])


def run_check(check: Check) -> Result:
    """Run a check; an exception is a failure."""
    began = time.perf_counter()
    try:
        finding = check.find()
    except Exception as error:
        finding = _failure(error, check)
    return Result(check.name, finding, time.perf_counter() - began)


def _failure(error: Exception, check: Check) -> Finding:
    missing = error if isinstance(error, ModuleNotFoundError) else error.__cause__
    if isinstance(missing, ModuleNotFoundError):
        package = _PACKAGES.get(str(missing.name).partition(".")[0], "replicax")
        return failed(f"{missing.name} is not installed", f"pip install --upgrade {package}")
    place = traceback.extract_tb(error.__traceback__)[-1]
    where = f"{place.filename.rpartition('/')[2]}:{place.lineno}"
    return failed(f"{type(error).__name__}: {error} ({where})", check.advice)
