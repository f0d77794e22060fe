"""Starts one program in several processes that form a JAX cluster on this machine.

Each process runs `python program.py`. The coordinator's address, the number of processes and the
process's own number are in the environment, where `join_cluster` reads them. If a process fails or the
time is up, all are killed, and the error shows what each of them printed.
"""

import contextlib
import os
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

_VARIABLES = ("REPLICAX_TEST_COORDINATOR", "REPLICAX_TEST_PROCESSES", "REPLICAX_TEST_PROCESS")


def join_cluster(devices_per_process):
    """Ask for CPU devices and join the other processes; the program calls this first."""
    import jax

    import replicax as rx

    coordinator, num_processes, process = (os.environ[name] for name in _VARIABLES)
    rx.set_cpu_devices(devices_per_process)
    jax.config.update("jax_cpu_collectives_implementation", "gloo")
    jax.distributed.initialize(coordinator, int(num_processes), int(process))


def launch(program, num_processes=2, timeout=240):
    """Run `program`, a file, in `num_processes` processes; what each of them printed.

    Raises:
        AssertionError: a process failed, or not all were done after `timeout` seconds.
    """
    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as stack:
        outputs = [Path(folder, f"process_{i}") for i in range(num_processes)]
        files = [stack.enter_context(path.open("w")) for path in outputs]
        coordinator = f"localhost:{_free_port()}"
        processes = [
            subprocess.Popen(
                [sys.executable, str(program)],
                env=_environment(coordinator, num_processes, i),
                stdout=file,
                stderr=subprocess.STDOUT,
            )
            for i, file in enumerate(files)
        ]
        try:
            problem = _wait(processes, time.monotonic() + timeout)
        finally:
            for process in processes:
                process.kill()
                process.wait()
        printed = [path.read_text() for path in outputs]
        assert problem is None, "\n".join([problem, *map(_titled, range(num_processes), printed)])
        return printed


def _environment(coordinator, num_processes, process):
    from tests import environment  # the programs import this module without `tests`

    mine = dict(zip(_VARIABLES, (coordinator, str(num_processes), str(process)), strict=True))
    return environment.of_programs(JAX_PLATFORMS="cpu", PYTHONUNBUFFERED="1", **mine)


def _free_port():
    with socket.socket() as probe:
        probe.bind(("localhost", 0))
        return probe.getsockname()[1]


def _wait(processes, deadline):
    """None once all processes have succeeded; otherwise what went wrong, as soon as it is known."""
    while True:
        codes = [process.poll() for process in processes]
        for i, code in enumerate(codes):
            if code:
                return f"process {i} failed with exit status {code}"
        if None not in codes:
            return None
        if time.monotonic() > deadline:
            late = [i for i, code in enumerate(codes) if code is None]
            return f"out of time; still running: {late}"
        time.sleep(0.02)


def _titled(process, printed):
    return f"---- process {process} printed:\n{printed[-6000:]}"
