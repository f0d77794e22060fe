"""`Report`, the result of `rx.report`: numbers, a text table with bars, and an HTML page."""

from __future__ import annotations

import dataclasses
import textwrap
from os import PathLike
from pathlib import Path
from typing import Any, final

from replicax._messages import size_text
from replicax._page import frame, page, save_page
from replicax._text import bar, table, time_text
from replicax.planning import Collective
from replicax.reporting._advice import Tip, tips_for
from replicax.reporting._parts import PARTS, Parts

__all__ = ["Compilation", "OperationTime", "Report"]

LABELS = {"input": "input wait"}
_MOST_DEVICES = 8
_MOST_RETRACES = 8


@final
@dataclasses.dataclass(frozen=True)
class OperationTime:
    """How long an operation takes in a step, averaged over the devices."""

    name: str
    """XLA's name."""
    seconds: float
    share: float
    """The same as a fraction of the step."""
    line: str
    """The line of user code that it comes from, as "file:line"; empty if XLA does not know."""


@final
@dataclasses.dataclass(frozen=True)
class Compilation:
    """How long JAX traced, lowered and compiled before the recorded steps, in seconds."""

    tracing: float
    lowering: float
    compiling: float

    @property
    def total(self) -> float:
        """The sum of all stages."""
        return self.tracing + self.lowering + self.compiling


@final
@dataclasses.dataclass(frozen=True)
class Report:
    """Where the time of a step goes: the result of `rx.report`.

    Times are in seconds per step.

    >>> double = rx.function(lambda x: 2 * x)
    >>> report = rx.report(double, [jnp.ones(3)] * 10, num_steps=5)
    >>> report.num_devices, report.num_steps, report.retraces
    (1, 5, ())
    >>> report.seconds > 0
    True
    """

    step: str
    """The name of the step's function."""
    platform: str
    """The platform of its devices, such as "cpu" or "gpu"."""
    num_steps: int
    """How many steps were recorded."""
    seconds: float
    """The step time without the profiler, or with it if the program ended too early."""
    devices: dict[str, Parts]
    """What each device of this process did, by its name."""
    parts: Parts
    """The mean of all devices."""
    host_between: float
    """The time in `parts.host` that the program spent between calls of its steps."""
    operations: tuple[OperationTime, ...]
    """The operations that take longest, apart from collectives."""
    collectives: tuple[Collective, ...]
    """The collectives of a step."""
    compilation: Compilation
    """The compilation time before the recorded steps."""
    retraces: tuple[str, ...]
    """Why functions were retraced, since the start of the program."""
    seconds_alone: float | None
    """The step time on a single device with its share of the rows; None if not measured."""
    not_compared: str
    """Why `seconds_alone` was not measured; empty if it was, or if there is only one device."""
    timeline: tuple[tuple[str, float, float, str], ...]
    """The first steps: device, start, end and part."""

    @property
    def num_devices(self) -> int:
        """The number of devices of this process."""
        return len(self.devices)

    @property
    def speedup(self) -> float | None:
        """The throughput of all devices relative to one device; None if not measured."""
        if self.seconds_alone is None:
            return None
        return self.num_devices * self.seconds_alone / self.seconds

    @property
    def tips(self) -> list[Tip]:
        """What would help, the most useful change first."""
        return tips_for(self)

    # Text.

    def __str__(self) -> str:
        sections = [
            self._title,
            self._parts_text,
            self._devices_text,
            self._operations_text,
            self._comparison,
            self._compilation_text,
            self._tips_text,
        ]
        return "\n\n".join(filter(None, sections))

    __repr__ = __str__

    @property
    def _title(self) -> str:
        devices = f"{self.num_devices} {self.platform.upper()} device{'s' * (self.num_devices > 1)}"
        recorded = f"{time_text(self.parts.total)} while {self.num_steps} steps were recorded"
        return f"{self.step} on {devices}: {time_text(self.seconds)} a step, {recorded}"

    @property
    def _parts_text(self) -> str:
        rows = [
            (
                LABELS.get(part, part),
                bar(self.parts.share(part)),
                f"{100 * self.parts.share(part):.1f} %",
                time_text(getattr(self.parts, part)),
            )
            for part in PARTS
        ]
        whose = "the devices spend" if self.num_devices > 1 else "the device spends"
        return table(f"what {whose} a step on", rows, numbers=(2, 3))

    @property
    def _devices_text(self) -> str:
        if self.num_devices < 2:
            return ""
        shown = list(self.devices.items())[:_MOST_DEVICES]
        header = ("", *(LABELS.get(part, part) for part in PARTS))
        rows = [(name, *(time_text(getattr(parts, part)) for part in PARTS)) for name, parts in shown]
        more = f"\n  and {self.num_devices - len(shown)} more" if len(shown) < self.num_devices else ""
        return table("each device", [header, *rows], numbers=range(1, 7)) + more

    @property
    def _operations_text(self) -> str:
        rows = [(x.name, f"{100 * x.share:.1f} %", time_text(x.seconds), x.line) for x in self.operations]
        return table("the slowest operations", rows, numbers=(1, 2)) if rows else ""

    @property
    def _comparison(self) -> str:
        if self.speedup is None:
            return f"not compared with one device: {self.not_compared}" if self.not_compared else ""
        assert self.seconds_alone is not None
        return (
            f"one device alone takes {time_text(self.seconds_alone)} for its rows: {self.num_devices} "
            f"devices process {self.speedup:.2f} times the examples per second of one "
            f"({100 * self.speedup / self.num_devices:.0f} % of {self.num_devices} times)"
        )

    @property
    def _compilation_text(self) -> str:
        made = self.compilation
        text = (
            f"before the recorded steps JAX took {time_text(made.total)} to make programs: tracing "
            f"{time_text(made.tracing)}, lowering {time_text(made.lowering)}, compiling "
            f"{time_text(made.compiling)}"
        )
        causes = [f"  - {cause}" for cause in self.retraces[:_MOST_RETRACES]]
        if len(self.retraces) > _MOST_RETRACES:
            causes.append(f"  - and {len(self.retraces) - _MOST_RETRACES} more")
        return "\n".join([text, *(["traced and compiled again"] if causes else []), *causes])

    @property
    def _tips_text(self) -> str:
        first, *others = [
            textwrap.fill(tip.text, 100, initial_indent="  - ", subsequent_indent="    ")
            for tip in self.tips
        ]
        return "\n".join(["the most useful change", first, *(["also"] if others else []), *others])

    # Pages.

    def save(self, path: str | PathLike[str]) -> Path:
        """Write a page for a browser, in one file that needs no network; returns its path."""
        return save_page(self._page(), path)

    def _repr_html_(self) -> str:
        """In a notebook: the page in a frame."""
        return frame(self._page())

    def _page(self) -> str:
        return page(Path(__file__).with_name("page.html"), self.to_dict())

    def to_dict(self) -> dict[str, Any]:
        """The report as plain dicts, lists, strings and numbers, for JSON."""
        return {
            **dataclasses.asdict(self),
            "recorded_seconds": self.parts.total,
            "speedup": self.speedup,
            "title": self._title,
            "comparison": self._comparison,
            "compilation_text": self._compilation_text.partition("\n")[0],
            "tips": [dataclasses.asdict(tip) for tip in self.tips],
            "bytes": size_text(sum(c.bytes * (c.times or 1) for c in self.collectives)),
        }
