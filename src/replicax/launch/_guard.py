"""The guard: a small process that kills the workers if the launcher is gone.

It reads a pipe whose write end is held only by the launcher and, briefly, by each worker as it starts.
However the launcher dies, the kernel closes its end of the pipe, and the guard kills the process groups of
all workers that are still running.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, Self, final

__all__ = ["Guard"]

_FOLDER = Path(__file__).parent
_PLAIN_PYTHON = (sys.executable, "-I", "-S")  # isolated and without site-packages: starts in 15 ms


@final
class Guard:
    """Starts processes that do not outlive this one.

    Leave the `with` block only after the processes have exited: it kills those that remain.

    >>> import sys
    >>> from replicax.launch import Guard
    >>> with Guard() as guard:
    ...     process = guard.start([sys.executable, "-c", "pass"], {})
    ...     process.wait()
    ...     guard.forget(process.pid)
    0
    """

    def __init__(self) -> None:
        """Start the guard's process."""
        reading, self._writing = os.pipe()
        try:
            self._process = subprocess.Popen(
                [*_PLAIN_PYTHON, str(_FOLDER / "_guard_program.py")],
                stdin=reading,
                stdout=subprocess.DEVNULL,
                start_new_session=True,
            )
        except BaseException:
            os.close(self._writing)
            raise
        finally:
            os.close(reading)

    def start(
        self,
        command: Sequence[str],
        environment: Mapping[str, str],
        stdout: IO[bytes] | int | None = None,
        stderr: IO[bytes] | int | None = None,
    ) -> subprocess.Popen[bytes]:
        """Start `command` as the leader of a new session, without a terminal.

        Args:
            command: the program and its arguments.
            environment: all of its environment variables.
            stdout: where its output goes, as for `subprocess.Popen`.
            stderr: where its error output goes.
        """
        return subprocess.Popen(
            [*_PLAIN_PYTHON, str(_FOLDER / "_enter_program.py"), str(self._writing), *command],
            env=environment,
            stdin=subprocess.DEVNULL,
            pass_fds=(self._writing,),
            start_new_session=True,
            stdout=stdout,
            stderr=stderr,
        )

    def forget(self, pid: int) -> None:
        """Stop guarding the process group `pid`, which has exited."""
        with contextlib.suppress(BrokenPipeError):  # the guard was killed
            os.write(self._writing, f"-{pid}\n".encode())

    def close(self) -> None:
        """Kill the processes that are still guarded, and stop the guard."""
        if self._writing >= 0:
            os.close(self._writing)
            self._writing = -1
            self._process.wait()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
