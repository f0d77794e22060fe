"""The first program of a worker's process: it reports to the guard, then becomes the worker.

Usage: `_enter_program.py DESCRIPTOR COMMAND ...`. A worker that reported itself after it started could be
missed by a launcher that is killed in between.
"""

import os
import sys


def main() -> None:
    """Report this process, then execute the worker's command in it."""
    descriptor, command = int(sys.argv[1]), sys.argv[2:]
    os.write(descriptor, f"+{os.getpid()}\n".encode())
    os.close(descriptor)
    os.execvp(command[0], command)


if __name__ == "__main__":
    main()
