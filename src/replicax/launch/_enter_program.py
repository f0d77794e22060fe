"""The entry program of a worker process: it registers with the guard, then execs the worker.

Usage: `_enter_program.py DESCRIPTOR COMMAND ...`. If the launcher registered its workers instead, a worker
would be lost when the launcher is killed between starting and registering it.
"""

import os
import sys


def main() -> None:
    """Register this process, then exec the worker's command."""
    descriptor, command = int(sys.argv[1]), sys.argv[2:]
    os.write(descriptor, f"+{os.getpid()}\n".encode())
    os.close(descriptor)
    os.execvp(command[0], command)


if __name__ == "__main__":
    main()
