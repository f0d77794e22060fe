"""Tips: which change would help most, one for each large part of a step."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, final

from replicax._messages import size_text
from replicax._text import time_text
from replicax.reporting._parts import Parts

if TYPE_CHECKING:
    from replicax.reporting._report import Report

__all__ = ["Tip", "tips_for"]

_SMALL = 0.05
"""Parts of a step below this fraction get no tip."""
_UNEVEN = 1.25
"""A device that computes this many times as long as the others is reported as the slowest."""


@final
@dataclasses.dataclass(frozen=True)
class Tip:
    """A change that would help."""

    part: str
    """The part of a step that it addresses."""
    share: float
    """The fraction of the step that this part takes: the most there is to gain."""
    text: str
    """What to do."""


def tips_for(report: Report) -> list[Tip]:
    """What would help, the most useful change first."""
    shares = {part: report.parts.share(part) for part in _TEXTS}
    large = sorted((part for part in _TEXTS if shares[part] >= _SMALL), key=lambda part: -shares[part])
    tips = [Tip(part, shares[part], _TEXTS[part](report)) for part in large]
    tips.append(Tip("compute", report.parts.share("compute"), _compute(report)))
    # While most of a step is compilation or input, a comparison with one device says little.
    first = tips[:1] if tips[0].part in ("compilation", "input") and tips[0].share > 0.5 else []
    return [*first, *_too_many_devices(report), *tips[len(first) :]]


def _too_many_devices(report: Report) -> list[Tip]:
    gain = report.speedup
    if gain is None or gain > 0.95:
        return []
    reason = "CPU devices of one machine share its cores" if report.platform == "cpu" else "they slow down"
    text = (
        f"{report.num_devices} devices process {gain:.2f} times the examples per second of one device: "
        f"{reason}. Use fewer devices, or a larger batch."
    )
    return [Tip("devices", 1 - gain, text)]


def _waiting_devices(report: Report) -> str:
    return "The devices wait" if report.num_devices > 1 else "The device waits"


def _input(report: Report) -> str:
    return (
        f"{_waiting_devices(report)} {time_text(report.parts.input)} in each step for input. Make reading "
        "faster: less work per example, a faster source, several reader processes, less to copy to the "
        "device (uint8 images that the step converts, bfloat16). A deeper prefetch, "
        "`rx.InputOptions(per_replica_buffer_size=...)`, helps only if the time per batch varies."
    )


def _host(report: Report) -> str:
    wait = f"{_waiting_devices(report)} {time_text(report.parts.host)} in each step for Python"
    if report.host_between > report.parts.host / 2:
        return (
            f"{wait}, mostly for what the program does between its steps. Do that less often, for example "
            "every 100th step, and read results (`float(loss)`) of earlier steps, not of the newest."
        )
    return (
        f"{wait}{' or a free core' if report.platform == 'cpu' else ''} to start it. Run several steps in "
        f"one program: `{report.step}.many(itertools.islice(batches, 10))`."
    )


def _compilation(report: Report) -> str:
    causes = f" ({report.retraces[0]})" if report.retraces else ""
    return (
        f"JAX traces and compiles programs during the recorded steps{causes}. Keep shapes the same, with "
        '`rx.InputOptions(partial_batch="pad")` for the last batch, and pass Python numbers that change '
        "from step to step as arrays (`jnp.asarray(x)`)."
    )


def _imbalance(report: Report) -> str:
    wait = f"Devices wait {time_text(report.parts.imbalance)} in each step for others to reach a collective"
    slowest, others = _slowest(report.devices)
    if report.devices[slowest].compute > _UNEVEN * others:
        return (
            f"{wait}: {slowest} computes {time_text(report.devices[slowest].compute)}, the others "
            f"{time_text(others)}. Give all replicas the same work: equally many rows, of the same length."
        )
    cores = " CPU devices share the cores of the machine; use as many as it has cores, or fewer."
    return f"{wait}, though they compute for equally long.{cores if report.platform == 'cpu' else ''}"


def _slowest(devices: Mapping[str, Parts]) -> tuple[str, float]:
    """The device that computes longest, and the mean compute time of the others."""
    slowest = max(devices, key=lambda name: devices[name].compute)
    others = [parts.compute for name, parts in devices.items() if name != slowest]
    return slowest, sum(others) / max(len(others), 1)


def _collectives(report: Report) -> str:
    num_bytes = sum(collective.bytes * (collective.times or 1) for collective in report.collectives)
    return (
        f"Collectives take {time_text(report.parts.collectives)} in each step, for {size_text(num_bytes)}. "
        "Use a larger batch on each replica: the communication in a step stays the same. If it does not "
        "fit into memory, `rx.value_and_grad(..., microbatches=n)` computes it in parts."
    )


def _compute(report: Report) -> str:
    who = "The devices compute" if report.num_devices > 1 else "The device computes"
    slowest = "".join(
        f" The slowest operation is {operation.name}, {100 * operation.share:.0f} % of the step"
        f"{f' ({operation.line})' if operation.line else ''}."
        for operation in report.operations[:1]
    )
    return (
        f"{who} {100 * report.parts.share('compute'):.0f} % of the time. Only faster computation "
        "helps: `rx.MixedPrecision`, other operations, more or faster devices."
        f"{slowest}"
    )


_TEXTS: dict[str, Callable[[Report], str]] = {
    "input": _input,
    "host": _host,
    "compilation": _compilation,
    "imbalance": _imbalance,
    "collectives": _collectives,
}
