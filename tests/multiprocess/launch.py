"""Starts one program in several processes that form a JAX cluster on this machine, with `replicax.testing`.

Each process runs `program.py` as a script. The coordinator's address, the number of processes and the
process's own number are in the environment, where `join_cluster` reads them. If a process fails or the time
is up, all are killed, and the error shows what each of them printed.
"""

import json
import os
import runpy
import sys
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
    from replicax import testing

    with testing.start(run_program, (str(program),), num_workers=num_processes) as workers:
        outcomes = workers.wait(timeout, grace_seconds=0)
    failed = [outcome for outcome in outcomes if outcome.failed]
    printed = [f"---- process {outcome.rank} printed:\n{outcome.output[-6000:]}" for outcome in outcomes]
    assert not failed, "\n".join([*map(str, failed), *printed])
    return [outcome.output for outcome in outcomes]


def run_program(program):
    """Run the program as a script that was started without a cluster in the environment."""
    config = json.loads(os.environ.pop("TF_CONFIG"))
    workers, process = config["cluster"]["worker"], config["task"]["index"]
    os.environ.update(zip(_VARIABLES, (workers[0], str(len(workers)), str(process)), strict=True))
    del os.environ["JAX_NUM_CPU_DEVICES"]
    sys.argv[:] = [program]
    sys.path.insert(0, str(Path(program).parent))
    runpy.run_path(program, run_name="__main__")
