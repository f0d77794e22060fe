"""`python -m replicax doctor`: checks that Replicax works on this machine.

The checks run in a second process, the *patient*, because a hanging collective can't be interrupted, and a
broken driver may crash the process that uses it. This process waits for each result up to the check's
timeout. If there is none, the check has failed, and a new patient continues with the next one.
"""

from __future__ import annotations

import contextlib
import json
import os
import queue
import signal
import subprocess
import sys
import tempfile
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import IO, Any, final

from replicax._version import __version__
from replicax.cli._check import Check, Result, failed
from replicax.cli._checks import all_checks
from replicax.cli._remaining import RemainingTime, StatusLine

__all__ = ["examine", "run_doctor"]

_START_SECONDS = 60.0  # for importing JAX, perhaps from a slow disk
_COLORS = {"pass": "32", "fail": "1;31", "skipped": "33"}
_NAME_WIDTH = 38


def run_doctor(*, as_json: bool = False, only: Sequence[str] = ()) -> int:
    """Run the checks and print their results.

    Args:
        as_json: print one JSON object instead of lines.
        only: run only the checks whose names contain one of these words; empty runs all.

    Returns:
        The exit status: 1 if a check failed, 2 if no check has such a name.
    """
    checks = [c for c in all_checks() if not only or any(w.lower() in c.name.lower() for w in only)]
    if not checks:
        names = ", ".join(check.name for check in all_checks())
        words = " or ".join(only)
        print(f"replicax doctor: no check has {words} in its name. Checks: {names}", file=sys.stderr)
        return 2
    results = []
    for result in _with_status(checks):
        results.append(result)
        if not as_json:
            _print_result(result)
    counts = Counter(result.finding.status for result in results)
    if as_json:
        print(json.dumps(_report(results, counts), indent=2))
    else:
        print(f"\n{counts['pass']} passed, {counts['fail']} failed, {counts['skipped']} skipped")
    return 1 if counts["fail"] else 0


def _with_status(checks: Sequence[Check]) -> Iterator[Result]:
    """Yield the results; meanwhile a terminal shows the current check and the remaining time."""
    status, remaining = StatusLine(sys.stderr), RemainingTime(len(checks))
    status.show(f"{checks[0].name} (check 1 of {len(checks)})")
    remaining(0)
    for done, result in enumerate(examine(checks), 1):
        status.clear()
        yield result
        if done < len(checks):
            text = f"{checks[done].name} (check {done + 1} of {len(checks)}, {remaining(done)})"
            status.show(text)


def _report(results: list[Result], counts: Counter[str]) -> dict[str, Any]:
    return {
        "replicax": __version__,
        "passed": counts["pass"],
        "failed": counts["fail"],
        "skipped": counts["skipped"],
        "checks": [result.as_dict() for result in results],
    }


def _print_result(result: Result) -> None:
    finding = result.finding
    status = f"{finding.status:7}"
    if sys.stdout.isatty() and "NO_COLOR" not in os.environ:
        status = f"\033[{_COLORS[finding.status]}m{status}\033[0m"
    print(f"{status}  {result.name:{_NAME_WIDTH}}  {finding.detail}")
    if finding.advice:
        print(f"{'':7}  {'':{_NAME_WIDTH}}  -> {finding.advice}")
    sys.stdout.flush()


def examine(checks: Sequence[Check], command: Sequence[str] | None = None) -> Iterator[Result]:
    """Yield the result of each check, within its timeout.

    Args:
        checks: the checks to run.
        command: the command that starts a patient, without the names of the checks.
    """
    command = command or [sys.executable, "-m", "replicax.cli._patient"]
    remaining = list(checks)
    while remaining:
        with _patient([*command, *(check.name for check in remaining)]) as patient:
            while remaining:
                check = remaining.pop(0)
                result = patient.result_of(check)
                yield result or patient.failure_of(check)
                if result is None:
                    break


@contextlib.contextmanager
def _patient(command: Sequence[str]) -> Iterator[_Patient]:
    with tempfile.TemporaryFile("w+", errors="replace") as messages:
        # Leave most of the GPU memory to other programs.
        environment = {"XLA_PYTHON_CLIENT_PREALLOCATE": "false", **os.environ}
        process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=messages, text=True, env=environment
        )
        assert process.stdout is not None
        lines: queue.Queue[str] = queue.Queue()
        reader = threading.Thread(target=_read_lines, args=(process.stdout, lines.put), daemon=True)
        reader.start()
        try:
            yield _Patient(process, lines, messages)
        finally:
            process.kill()
            process.wait()
            reader.join()
            process.stdout.close()


def _read_lines(stream: IO[str], put: Callable[[str], None]) -> None:
    for line in stream:
        put(line)
    put("")


@final
class _Patient:
    """The process that runs the checks. It prints one line when it is ready and one per result."""

    def __init__(self, process: subprocess.Popen[str], lines: queue.Queue[str], messages: IO[str]) -> None:
        self._process = process
        self._lines = lines
        self._messages = messages
        self._started = False

    def result_of(self, check: Check) -> Result | None:
        """The result of the next check; None if the check timed out or the process died."""
        try:
            if not self._started:
                self._started = bool(self._lines.get(timeout=_START_SECONDS))
            line = self._lines.get(timeout=check.limit_seconds) if self._started else ""
        except queue.Empty:
            return None
        return Result.from_dict(json.loads(line)) if line else None

    def failure_of(self, check: Check) -> Result:
        """Why the result is missing."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(1)
        status = self._process.returncode
        if status is None:
            limit = check.limit_seconds if self._started else _START_SECONDS
            detail = f"did not finish within {limit:g} s"
        elif status < 0:
            detail = f"the process that ran it was killed by {signal.Signals(-status).name}"
        else:
            detail = f"the process that ran it exited with status {status}"
        self._messages.seek(0)
        last = self._messages.read().strip().rpartition("\n")[2]
        advice = check.advice or "Report this with the output of `python -m replicax doctor`."
        return Result(
            check.name, failed(f"{detail}. Its last message: {last}" if last else detail, advice), 0.0
        )
