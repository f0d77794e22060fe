"""What a check of `python -m replicax doctor` is, and what comes out of it."""

from __future__ import annotations

import dataclasses
import time
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, final

__all__ = ["Check", "Finding", "Result", "failed", "passed", "run_check", "skipped"]

# What brings the modules that a check needs; Replicax itself brings all others.
_PACKAGES = {"optax": "optax", "orbax": "orbax-checkpoint"}

Status = Literal["pass", "fail", "skipped"]


@final
@dataclass(frozen=True)
class Finding:
    """What a check found out.

    Args:
        status: "pass", "fail" or "skipped".
        detail: what is so.
        advice: what to do about it; "" if nothing needs to be done.
        numbers: what was measured, for machines.
    """

    status: Status
    detail: str
    advice: str = ""
    numbers: Mapping[str, float] = field(default_factory=dict)


def passed(detail: str, **numbers: float) -> Finding:
    """All is well."""
    return Finding("pass", detail, numbers=numbers)


def failed(detail: str, advice: str) -> Finding:
    """Something does not work."""
    return Finding("fail", detail, advice)


def skipped(detail: str, advice: str = "") -> Finding:
    """There is nothing to check here."""
    return Finding("skipped", detail, advice)


@final
@dataclass(frozen=True)
class Check:
    """A question about this machine.

    Args:
        name: what is checked.
        find: answers it; an exception is a failure.
        limit_seconds: how long that may take before it counts as hanging.
        advice: what to do if it raises or hangs.
    """

    name: str
    find: Callable[[], Finding]
    limit_seconds: float = 30.0
    advice: str = ""


@final
@dataclass(frozen=True)
class Result:
    """A check's name, what it found, and how long it took."""

    name: str
    finding: Finding
    seconds: float

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        return {
            "name": self.name,
            **dataclasses.asdict(self.finding),
            "seconds": round(self.seconds, 3),
        }

    @classmethod
    def from_dict(cls, content: Mapping[str, Any]) -> Result:
        """What `as_dict` gave."""
        names = ("status", "detail", "advice", "numbers")
        return cls(content["name"], Finding(**{name: content[name] for name in names}), content["seconds"])


def run_check(check: Check) -> Result:
    """Ask a question; whatever goes wrong is an answer, too."""
    began = time.perf_counter()
    try:
        finding = check.find()
    except ModuleNotFoundError as error:
        package = _PACKAGES.get(str(error.name).partition(".")[0], "replicax")
        finding = failed(f"{error.name} is not installed", f"pip install --upgrade {package}")
    except Exception as error:
        place = traceback.extract_tb(error.__traceback__)[-1]
        where = f"{place.filename.rpartition('/')[2]}:{place.lineno}"
        finding = failed(f"{type(error).__name__}: {error} ({where})", check.advice)
    return Result(check.name, finding, time.perf_counter() - began)
