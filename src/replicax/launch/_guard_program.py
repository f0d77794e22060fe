"""The program of the guard; see `_guard.py`. It imports only the standard library, to start quickly.

Its input has a line `+PID` for each worker that starts and `-PID` for each that has ended. When the input
ends, everyone who could write to it has ended or is done, and the workers that are left are killed.
"""

import contextlib
import os
import signal
import sys


def main() -> None:
    """Read until the launcher ends; then kill the process groups of its workers."""
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
