"""`rx.report`: runs and profiles some steps, and says why they are not faster."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import jax

from replicax._messages import brief
from replicax.errors import ContextError, ReplicaxError
from replicax.planning import short_line
from replicax.reporting._alone import seconds_alone
from replicax.reporting._intervals import Intervals, difference, intersection, length, union
from replicax.reporting._parts import PARTS, device_parts, mean_parts
from replicax.reporting._profile import Operation, Profile
from replicax.reporting._programs import Programs
from replicax.reporting._recorder import Recorder
from replicax.reporting._report import Compilation, OperationTime, Report
from replicax.values import DistributedValues, is_array

__all__ = ["make_report", "report"]

_MOST_OPERATIONS = 5
_COMMAND_BUFFER = "command_buffer"  # a GPU graph of many operations; not an operation of the program
_NUM_SHOWN = 3
"""The number of steps in the timeline of a report."""


def report(
    step: Callable[[Any], Any],
    batches: Iterable[Any],
    *,
    num_steps: int = 20,
    num_warmup: int = 3,
    compare: bool = True,
) -> Report:
    """Find out why a step is not faster.

    This calls the step with batches, profiles some of the calls, and splits the time of each device into
    computation, collectives, and waiting for input, for Python, for compilation and for other devices.
    Print the result, or open it in a browser: `report.save("report.html")`. These are real training steps:
    they change the variables.

    Args:
        step: called with each batch; it must call a function made by `rx.function`.
        batches: a distributed dataset, or any other iterable of at least `num_warmup + 1` batches.
        num_steps: how many steps to profile; as many more are then timed without the profiler.
        num_warmup: how many steps to run first, to compile the programs.
        compare: also compile the step for one device, and time it there on copies of the variables.

    Raises:
        ContextError: there were too few batches, or the step does not call a compiled function.
        TypeError: `step` is not a function, or `batches` is one batch.

    >>> strategy = rx.MirroredStrategy(["CPU:0", "CPU:1"])
    >>> @rx.function
    ... def step(x):
    ...     return strategy.reduce("SUM", strategy.run(lambda x: jnp.sum(x @ x.T), args=(x,)), axis=None)
    >>> dataset = rx.from_arrays(np.ones((64, 8), np.float32)).batch(4)
    >>> report = rx.report(step, strategy.distribute_dataset(dataset), num_steps=5)
    >>> report.num_steps, list(report.devices)
    (5, ['CPU:0', 'CPU:1'])
    >>> print(report)                                                              # doctest: +ELLIPSIS
    step on 2 CPU devices: ... a step, ... while 5 steps were recorded
    ...
    """
    if not callable(step):
        raise TypeError(f"rx.report(step, batches) takes a function, the step, got {brief(step)}.")
    _check(num_steps, "num_steps")
    _check(num_warmup, "num_warmup")
    _check_batches(batches)
    recorder = Recorder(num_steps, num_warmup)
    with recorder.watching():
        for batch in recorder.reading(batches):
            step(batch)
            if recorder.is_done:
                break
    return make_report(recorder, compare=compare)


def _check(count: Any, name: str) -> None:
    if isinstance(count, bool) or not isinstance(count, int) or count < 1:
        raise ValueError(f"rx.report({name}={count!r}): pass an integer, 1 or more.")


def _check_batches(batches: Any) -> None:
    """Raise if `batches` is a single batch."""
    if (
        is_array(batches)
        or isinstance(batches, DistributedValues | dict)
        or not hasattr(batches, "__iter__")
    ):
        raise TypeError(
            f"rx.report(step, batches) takes a dataset or another iterable of batches, got "
            f"{brief(batches)}. To use one batch repeatedly, pass `[batch] * 50`."
        )


def make_report(recorder: Recorder, *, compare: bool = True) -> Report:
    """The report of what was recorded."""
    profile, function = recorder.profile, recorder.function
    if profile is None or function is None or recorder.num_steps == 0:
        raise _too_few_calls(recorder)
    functions = [function, *(other for other in recorder.functions if other != function)]
    compiled = [program for each in functions for program in each.programs]
    mesh = next((program.mesh for program in function.programs if program.mesh), None)
    programs = Programs([x.program for x in compiled if x.program is not None], mesh)
    intervals = device_parts(profile, programs.kinds)
    if not intervals:
        raise ContextError(
            "The profile has no operations of the step's devices. rx.report can read profiles of CPU and "
            "GPU devices; use `rx.profile` for others."
        )
    alone, not_compared = _compare(recorder, len(intervals), compare)
    parts = mean_parts(intervals.values(), recorder.num_steps)
    return Report(
        step=function.name,
        platform=next(iter(intervals)).split(":")[0].lower(),
        num_steps=recorder.num_steps,
        seconds=recorder.seconds or parts.total,
        devices={name: mean_parts([each], recorder.num_steps) for name, each in intervals.items()},
        parts=parts,
        host_between=_host_between(profile, intervals, recorder.num_steps),
        operations=_slowest(profile, programs, recorder.num_steps, parts.total),
        collectives=programs.collectives,
        compilation=Compilation(**recorder.compilation),
        retraces=tuple(f"{each.name}: {cause}" for each in functions for cause in each.retraces),
        seconds_alone=alone,
        not_compared=not_compared,
        timeline=tuple(_timeline(profile, intervals, recorder.num_steps)),
    )


def _too_few_calls(recorder: Recorder) -> ContextError:
    calls = recorder.num_calls
    needed = recorder.num_warmup + 1
    if not calls:
        return ContextError(
            "Nothing was recorded: no function made by rx.function was called. Decorate the training step "
            "with @rx.function."
        )
    name, count = calls[0]
    return ContextError(
        f"Nothing was recorded: {name} was called {count} times, but a report needs at least {needed} "
        f"calls; the first {recorder.num_warmup} compile it. Pass more batches, or fewer steps for "
        "warm-up."
    )


def _compare(recorder: Recorder, num_devices: int, compare: bool) -> tuple[float | None, str]:
    """The time on one device, or why it was not measured."""
    function = recorder.function
    assert function is not None
    if not compare or num_devices == 1:
        return None, ""
    if recorder.example is None:
        return None, f"the steps were run by {function.name}.many()"
    try:
        return seconds_alone(function, *recorder.example), ""
    except (ReplicaxError, ValueError, TypeError, jax.errors.JaxRuntimeError) as error:
        return None, str(error).partition("\n")[0]


def _host_between(profile: Profile, intervals: dict[str, dict[str, Intervals]], num_steps: int) -> float:
    """How long the devices wait for Python between calls, with no step queued."""
    waits = [
        length(
            difference(device["host"], union([*profile.steps, *_starting(profile, profile.devices[name])]))
        )
        for name, device in intervals.items()
    ]
    return sum(waits) / len(waits) / num_steps / 1e9


def _starting(profile: Profile, operations: Sequence[Operation]) -> Iterable[tuple[float, float]]:
    """From the end of each call of a step to the start of its run; empty unless each call is one run."""
    starts: dict[Any, float] = {}
    for operation in operations:
        if operation.run is not None and operation.end > profile.window[0]:
            starts.setdefault(operation.run, operation.start)
    if len(starts) == len(profile.steps):
        for (_, called), start in zip(profile.steps, sorted(starts.values()), strict=True):
            yield called, max(called, start)


def _slowest(
    profile: Profile, programs: Programs, num_steps: int, seconds: float
) -> tuple[OperationTime, ...]:
    totals: Counter[str] = Counter()
    for operations in profile.devices.values():
        for operation in operations:
            totals[operation.name] += _nanoseconds(operation, profile)
    kinds, scale = programs.kinds, 1e9 * num_steps * len(profile.devices)
    others = {*kinds.collectives, *kinds.containers}
    found = [
        name
        for name, _ in totals.most_common()
        if name not in others and not name.startswith(_COMMAND_BUFFER)
    ]
    return tuple(
        OperationTime(
            name, totals[name] / scale, totals[name] / scale / seconds, short_line(programs.line(name))
        )
        for name in found[:_MOST_OPERATIONS]
    )


def _nanoseconds(operation: Operation, profile: Profile) -> int:
    start, end = profile.window
    return round(max(0.0, min(operation.end, end) - max(operation.start, start)))


def _timeline(
    profile: Profile, intervals: dict[str, dict[str, Intervals]], num_steps: int
) -> Iterable[tuple[str, float, float, str]]:
    """What the devices do in the first steps, in seconds from their start."""
    start, end = profile.window
    shown = [(start, start + (end - start) * min(_NUM_SHOWN, num_steps) / num_steps)]
    for name, device in intervals.items():
        for part in PARTS:
            for first, last in intersection(device[part], shown):
                yield name, (first - start) / 1e9, (last - start) / 1e9, part
