"""What the watchdog of a cluster costs: a step of 1 ms with and without its thread.

    python benchmarks/watchdog.py [--quick] [--json FILE] [--no-check]

The steps record a collective each, as steps of several workers do. The thread reports them to a
coordinator, a process beside this one, four times a second. The ratio is noisy on a busy machine; the time
that the thread itself computes, which is printed too, is not.
"""

from __future__ import annotations

import functools
import socket
import sys
import threading
import time
from collections.abc import Callable

import jax
import jax.numpy as jnp
from harness import compare, run, step_seconds, take_turns
from rows import Row

from replicax.cluster import ClusterOptions, Collective, collective_log
from replicax.cluster._coordinator import Rendezvous, start_coordinator
from replicax.cluster._watchdog import PERIOD_SECONDS, Watchdog


class Reporting:
    """The watchdog's work, in a thread that can be paused."""

    def __init__(self) -> None:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            address = f"127.0.0.1:{free.getsockname()[1]}"
        start_coordinator(address, ["only"], ClusterOptions())
        connection, _ = Rendezvous(address, 0, ["only"], 60.0).join()
        self._watchdog = Watchdog(connection, 0, ClusterOptions())
        self.enabled, self.seconds, self.num_reports = threading.Event(), 0.0, 0
        threading.Thread(target=self._run, daemon=True).start()

    def _run(self) -> None:
        while True:
            self.enabled.wait()
            start, waited = time.thread_time(), time.monotonic()
            self._watchdog.report_once()
            self.seconds += time.thread_time() - start
            self.num_reports += 1
            time.sleep(max(0.0, PERIOD_SECONDS - (time.monotonic() - waited)))


def make_step(milliseconds: float) -> Callable[[], jax.Array]:
    """A step that computes for this long."""
    collective, log = Collective("train_step", "float32[8]", "train.py:1"), collective_log()

    @functools.partial(jax.jit, static_argnums=1)
    def work(x: jax.Array, n: int) -> jax.Array:
        return jax.lax.fori_loop(0, n, lambda _, y: jnp.tanh(y @ x), x)

    x, count = jnp.ones((64, 64)), 1
    work(x, count)
    while min(step_seconds(lambda n=count: work(x, n), 10) for _ in range(9)) < milliseconds / 1000:
        count *= 2
        work(x, count).block_until_ready()  # compiles

    def step() -> jax.Array:
        log.record(collective)
        return work(x, count).block_until_ready()

    step()
    return step


def bench_watchdog(quick: bool) -> list[Row]:
    step, reporting = make_step(1.0), Reporting()

    def measure(enabled: bool, num_steps: int) -> float:
        (reporting.enabled.set if enabled else reporting.enabled.clear)()
        return step_seconds(step, num_steps)

    rounds = take_turns(
        {"with": True, "without": False}, measure, num_rounds=7 if quick else 41, num_steps=300
    )
    row = compare(rounds, "a step of 1 ms or more", "with", ["without"])
    per_report = reporting.seconds / reporting.num_reports
    print(
        f"The thread computes for {1e6 * per_report:.0f} us per report, "
        f"{100 * per_report / PERIOD_SECONDS:.3f} % of a core."
    )
    return [row]


BENCHMARKS = {"watchdog": bench_watchdog}

if __name__ == "__main__":
    sys.exit(run("What the watchdog costs.", BENCHMARKS, num_devices=1))
