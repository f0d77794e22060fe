"""Steps may be queued without end: XLA's CPU collectives must never run out of threads.

A deadlock there aborts the whole process after 40 seconds, so every case runs in its own process with a
time limit. Nothing waits for a step before the last one has been started.
"""

import os
import subprocess
import sys
import textwrap

import numpy as np
import pytest

SETTINGS = ("PJRT_NPROC", "NPROC", "XLA_FLAGS", "JAX_NUM_CPU_DEVICES")

# Each step has five all-reduces that depend on each other, so XLA can't combine them.
QUEUED_STEPS = """
    import logging
    logging.basicConfig(format="%(name)s %(levelname)s %(message)s")
    {start}
    import jax.numpy as jnp
    import replicax as rx

    strategy = rx.MirroredStrategy()
    with strategy.scope():
        total = rx.Variable(jnp.zeros(64), aggregation=rx.VariableAggregation.MEAN)

    @rx.function
    def step(x):
        def replica_fn(x):
            context = rx.get_replica_context()
            for _ in range(3):
                x = x / context.all_reduce("SUM", x)
            total.assign_add(x)
            return x
        return strategy.reduce("SUM", strategy.run(replica_fn, args=(x,)), axis=None)

    x = strategy.distribute_values_from_function(lambda context: jnp.ones(64))
    for _ in range({num_steps}):
        last = step(x)
    print("finished", strategy.num_replicas_in_sync, float(last[0]), float(total.value[0]))
"""


def run_steps(start, num_steps, **environment):
    """Run `QUEUED_STEPS` in its own process and return what it printed to either stream."""
    inherited = {name: value for name, value in os.environ.items() if name not in SETTINGS}
    program = textwrap.dedent(QUEUED_STEPS).format(start=start, num_steps=num_steps)
    finished = subprocess.run(
        [sys.executable, "-c", program],
        env=inherited | {"JAX_PLATFORMS": "cpu"} | environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=240,
    )
    assert finished.returncode == 0, finished.stdout
    return finished.stdout


def check_results(printed, num_replicas, num_steps):
    line = next(line for line in printed.splitlines() if line.startswith("finished"))
    _, replicas, last, total = line.split()
    assert int(replicas) == num_replicas
    np.testing.assert_allclose(float(last), 1.0, rtol=1e-6)
    np.testing.assert_allclose(float(total), num_steps / num_replicas, rtol=1e-4)


@pytest.mark.parametrize("num_devices", [2, 4, 8])
def test_two_thousand_queued_steps_finish(num_devices):
    start = f"import replicax; replicax.set_cpu_devices({num_devices})"
    printed = run_steps(start, 2000)
    check_results(printed, num_devices, 2000)
    assert "WARNING" not in printed


@pytest.mark.parametrize("pool", [{}, {"PJRT_NPROC": "2"}])
def test_steps_finish_where_jax_started_first_with_too_small_a_pool(pool):
    devices = {"XLA_FLAGS": "--xla_force_host_platform_device_count=8"}
    printed = run_steps("import jax; jax.devices()", 300, **devices, **pool)
    check_results(printed, 8, 300)
    num_threads = int(pool.get("PJRT_NPROC", len(os.sched_getaffinity(0))))
    if num_threads < 16:
        assert "replicax WARNING JAX started with 8 CPU devices but only" in printed
