"""The guard's program; see `_guard.py`. It uses only the standard library, to start quickly.

It reads a line `+PID` for each worker that starts and `-PID` for each that has exited. At EOF the launcher
is gone, and the guard kills the workers that remain.
"""

import contextlib
import os
import signal
import sys


def main() -> None:
    """Read until the launcher is gone; then kill the process groups of its workers."""
    for ignored in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(ignored, signal.SIG_IGN)
    groups = set()
    for line in sys.stdin:
        if line.startswith("+"):
            groups.add(int(line[1:]))
        else:
            groups.discard(int(line[1:]))
    for group in groups:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(group, signal.SIGKILL)


if __name__ == "__main__":
    main()
