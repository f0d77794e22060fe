"""What the workers print: shown with a rank prefix, and written to one log per worker.

Lines of different workers are never interleaved. A worker's stdout goes to our stdout and its stderr to our
stderr; its log has both.
"""

from __future__ import annotations

import collections
import os
import re
import selectors
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import IO, TextIO, final

from replicax.launch._process import WorkerProcess

__all__ = ["Output", "last_traceback"]

_LINES_KEPT = 2000
_LONGEST_TRACEBACK = 80
_LINES_WITHOUT_TRACEBACK = 20
_COLORS = ("36", "33", "35", "32", "34", "31")
_LINE_END = re.compile(rb"\r\n|\n|\r")  # progress bars end their lines with \r
_NATIVE_LOG = re.compile(r"^([IWEF]\d{4} |\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d+: [IWEF] )")
_CHAINED = ("During handling of the above exception", "The above exception was the direct cause")
_TRACEBACK = "Traceback (most recent call last):"


@final
class Output:
    """The output of the workers of one attempt.

    Args:
        folder: where the logs are; existing logs are appended to.
        stdout: where the workers' stdout is shown.
        stderr: where their stderr is shown.
    """

    def __init__(self, folder: Path, stdout: TextIO, stderr: TextIO) -> None:
        self._folder, self._stdout, self._stderr = folder, stdout, stderr
        self._selector = selectors.DefaultSelector()
        self._logs: dict[int, IO[bytes]] = {}
        self._last_lines: dict[int, collections.deque[str]] = {}

    def add(self, worker: WorkerProcess) -> None:
        """Start showing what this worker prints."""
        rank = worker.rank
        self._logs[rank] = self.log_path(rank).open("ab", buffering=0)
        self._last_lines[rank] = collections.deque(maxlen=_LINES_KEPT)
        for pipe, shown in ((worker.stdout, self._stdout), (worker.stderr, self._stderr)):
            assert pipe is not None
            os.set_blocking(pipe.fileno(), False)
            stream = _Stream(pipe, self._logs[rank], self._printer(rank, shown))
            self._selector.register(pipe, selectors.EVENT_READ, stream)

    def log_path(self, rank: int) -> Path:
        """The worker's log file."""
        return self._folder / f"worker_{rank}.log"

    def last_lines(self, rank: int) -> Sequence[str]:
        """The last lines that the worker printed."""
        return list(self._last_lines.get(rank, ()))

    def show(self, timeout_seconds: float) -> None:
        """Show what the workers have printed, or print within this time."""
        if not self._selector.get_map():
            time.sleep(timeout_seconds)
        for key, _ in self._selector.select(timeout_seconds):
            if not key.data.read():
                self._selector.unregister(key.fileobj)
                key.data.close()
        self._stdout.flush()
        self._stderr.flush()

    def finish(self, timeout_seconds: float) -> None:
        """Show the rest after the workers have exited; a process they left behind may keep a pipe open."""
        deadline = time.monotonic() + timeout_seconds
        while self._selector.get_map() and time.monotonic() < deadline:
            self.show(0.05)
        for key in list(self._selector.get_map().values()):
            self._selector.unregister(key.fileobj)
            key.data.close()
        self._selector.close()
        for log in self._logs.values():
            log.close()

    def _printer(self, rank: int, shown: TextIO) -> Callable[[str], None]:
        prefix = f"[worker {rank}] "
        if shown.isatty() and "NO_COLOR" not in os.environ:
            prefix = f"\x1b[{_COLORS[rank % len(_COLORS)]}m{prefix}\x1b[0m"
        lines = self._last_lines[rank]

        def print_line(line: str) -> None:
            lines.append(line)
            shown.write(f"{prefix}{line}\n")

        return print_line


@final
class _Stream:
    """One pipe of a worker."""

    def __init__(self, pipe: IO[bytes], log: IO[bytes], print_line: Callable[[str], None]) -> None:
        self._pipe, self._log, self._print_line = pipe, log, print_line
        self._rest = b""

    def read(self) -> bool:
        """Show the complete lines that have arrived; returns False at EOF."""
        try:
            data = os.read(self._pipe.fileno(), 1 << 16)
        except BlockingIOError:
            return True
        *lines, self._rest = _LINE_END.split(self._rest + data)
        for line in lines:
            self._show(line)
        return bool(data)

    def close(self) -> None:
        """Show a last line without a newline."""
        if self._rest:
            self._show(self._rest)
        self._pipe.close()

    def _show(self, line: bytes) -> None:
        self._log.write(line + b"\n")
        self._print_line(line.decode(errors="replace"))


def last_traceback(lines: Sequence[str]) -> str:
    """The last traceback in the lines, with the ones that it chains; without any, the last lines.

    Native log lines of XLA, which often follow a traceback, are skipped.
    """
    lines = [line for line in lines if not _NATIVE_LOG.match(line)]
    starts = [i for i, line in enumerate(lines) if line.startswith(_TRACEBACK)]
    if not starts:
        return "\n".join(lines[-_LINES_WITHOUT_TRACEBACK:])
    start = starts.pop()
    while starts and any(line.startswith(_CHAINED) for line in lines[starts[-1] : start]):
        start = starts.pop()
    found = lines[start:]
    if len(found) > _LONGEST_TRACEBACK:
        half = _LONGEST_TRACEBACK // 2
        found = [*found[:half], f"... {len(found) - 2 * half} lines ...", *found[-half:]]
    return "\n".join(found).rstrip()
