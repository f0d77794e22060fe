"""The pool is fixed when JAX starts, so most of these tests need a process of their own."""

import os
import subprocess
import sys
import textwrap

import pytest

import replicax as rx
from replicax.errors import BackendStartedError, DeviceError

SETTINGS = ("PJRT_NPROC", "NPROC", "XLA_FLAGS", "JAX_NUM_CPU_DEVICES")
FOUR_BY_FLAG = {"XLA_FLAGS": "--xla_force_host_platform_device_count=4"}
NUM_CORES = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def run_python(code, **environment):
    """Run `code` in a process where JAX has not started; return what it printed to either stream."""
    inherited = {name: value for name, value in os.environ.items() if name not in SETTINGS}
    finished = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)],
        env=inherited | {"JAX_PLATFORMS": "cpu"} | environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=240,
    )
    assert finished.returncode == 0, finished.stdout
    return finished.stdout


# Asking for devices.


@pytest.mark.parametrize("num_devices", [0, -1, 2.0, "2", True, None])
def test_a_number_of_devices_is_a_positive_integer(num_devices):
    with pytest.raises(DeviceError, match="takes the number of devices, 1 or more; got"):
        rx.set_cpu_devices(num_devices)


def test_asking_again_for_the_same_number_is_fine():
    rx.set_cpu_devices(8)


@pytest.mark.parametrize("caught_as", [BackendStartedError, RuntimeError, ValueError])
def test_asking_too_late_for_another_number_is_refused(caught_as):
    with pytest.raises(
        caught_as, match=r"set_cpu_devices\(3\)` was called too late: .* 8 CPU.* Call it first"
    ):
        rx.set_cpu_devices(3)


def test_devices_come_with_the_threads_they_need():
    printed = run_python(
        """
        import os, jax, replicax as rx
        from replicax.topology import collectives_must_wait
        rx.set_cpu_devices(2)
        rx.set_cpu_devices(16)
        print(len(jax.devices()), os.environ["PJRT_NPROC"], collectives_must_wait(jax.devices()))
        """
    )
    assert printed.split() == ["16", str(max(32, NUM_CORES)), "False"]


def test_a_larger_pool_is_left_alone():
    printed = run_python(
        "import os, replicax as rx; rx.set_cpu_devices(2); print(os.environ.get('PJRT_NPROC'))",
        NPROC="50",
    )
    assert printed.split() == ["None"]


# Devices that were asked for in JAX's own ways.


@pytest.mark.parametrize(
    ("environment", "num_threads"),
    [
        ({"NPROC": "1"}, None),
        ({"NPROC": "1", "XLA_FLAGS": "--xla_force_host_platform_device_count=1"}, None),
        (FOUR_BY_FLAG | {"NPROC": "8"}, None),
        (FOUR_BY_FLAG | {"NPROC": "7"}, 8),
        (FOUR_BY_FLAG | {"PJRT_NPROC": "5", "NPROC": "8"}, 8),
        (FOUR_BY_FLAG | {"PJRT_NPROC": "none", "NPROC": "5"}, 8),
        (FOUR_BY_FLAG | {"NPROC": "1", "JAX_NUM_CPU_DEVICES": "3"}, 6),
    ],
)
def test_the_pool_is_prepared_before_replicax_starts_jax(environment, num_threads):
    printed = run_python(
        """
        import os, jax, replicax
        from replicax.topology import collectives_must_wait, find_device
        find_device("CPU:0")
        print(os.environ.get("PJRT_NPROC"), collectives_must_wait(jax.devices()))
        """,
        **environment,
    )
    assert printed.split() == [str(num_threads and max(num_threads, NUM_CORES)), "False"]


# JAX had started before.


def test_a_pool_that_is_too_small_makes_collectives_wait_and_warns_once():
    printed = run_python(
        """
        import logging, os, jax
        logging.basicConfig(format="%(name)s %(levelname)s %(message)s")
        jax.devices()
        os.environ["PJRT_NPROC"] = "64"  # too late, and noticed
        import replicax
        from replicax.topology import collectives_must_wait, prepare_cpu_pool
        prepare_cpu_pool()
        devices = jax.devices()
        print([collectives_must_wait(some) for some in (devices, devices[:2], devices[:1])])
        """,
        PJRT_NPROC="5",
        **FOUR_BY_FLAG,
    )
    assert "[True, True, False]" in printed
    assert printed.count("replicax WARNING") == 1
    assert "JAX started with 4 CPU devices but only 5 threads" in printed
    assert "`rx.set_cpu_devices(4)` before JAX is first used" in printed
    assert "PJRT_NPROC=8" in printed


# Queued collectives.

QUEUED_STEPS = """
    import jax, jax.numpy as jnp, numpy as np
    from jax.sharding import PartitionSpec
    {start}
    from replicax.topology import collectives_must_wait
    devices = jax.devices()
    mesh = jax.sharding.Mesh(np.array(devices), ("replica",))

    @jax.jit
    @jax.shard_map(mesh=mesh, in_specs=PartitionSpec("replica"), out_specs=PartitionSpec("replica"))
    def step(x):
        for _ in range(4):
            x = x + jax.lax.pmean(jnp.sin(x), "replica")
        return x

    wait = collectives_must_wait(devices)
    x = jnp.zeros((len(devices), 64))
    for _ in range(300):
        x = step(x)
        if wait:
            x.block_until_ready()
    print(wait, float(x.sum()))
"""


@pytest.mark.parametrize("num_devices", [2, 3, 8])
def test_queued_collectives_do_not_deadlock(num_devices):
    start = f"import replicax as rx; rx.set_cpu_devices({num_devices})"
    assert "False 0.0" in run_python(QUEUED_STEPS.format(start=start))


def test_collectives_that_wait_do_not_deadlock_on_a_small_pool():
    printed = run_python(
        QUEUED_STEPS.format(start="jax.devices()"), JAX_NUM_CPU_DEVICES="8", PJRT_NPROC="8"
    )
    assert "True 0.0" in printed
