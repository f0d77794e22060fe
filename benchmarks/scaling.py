"""What grows with the number of replicas and of variables, and what does not.

    python benchmarks/scaling.py [--quick] [--only replicas,variables,model] [--json FILE]

    replicas    1 to 64 replicas with 50 variables: tracing, compiling, host time, memory of a device and
                collectives of a step. More than 8 replicas are compiled and not run: this is about what
                the host does, and few machines have the cores.
    variables   10 to 2,000 variables on two replicas
    model       the predicted efficiency on 8 to 4,096 devices (`Explanation.scaling`), beside published
                results

The networks are regressions with Adam, as in `training.py`, with 8 rows for each replica.
"""

from __future__ import annotations

import dataclasses
import statistics
import sys
import tempfile
import time
from typing import Any

import jax
import training
import training_work as work
from harness import host_seconds, run, shown
from rows import Row

import replicax as rx
from replicax.planning import Collective, collectives_in
from replicax.planning._scaling import predict

REPLICAS = (1, 2, 4, 8, 16, 32, 64)
VARIABLES = (10, 30, 100, 300, 1000, 2000)
MOST_RUN = 8
ROWS_PER_REPLICA = 8
points: dict[str, Any] = {}


@dataclasses.dataclass(frozen=True)
class Point:
    """What a step takes with some replicas and variables."""

    num_replicas: int
    num_variables: int
    tracing: float
    compiling: float
    host: float | None
    """The calling thread's time of a step; None if it was not run."""
    argument_bytes: int
    temporary_bytes: int
    collectives: int
    """How many a step runs."""
    bytes_sent: int


def workload(num_replicas: int, num_variables: int) -> work.Workload:
    return dataclasses.replace(
        work.WORKLOADS["many"],
        batch_size=ROWS_PER_REPLICA * num_replicas,
        make_parameters=lambda random: work.regressions(random, num_variables),
    )


def measured(num_replicas: int, num_variables: int) -> Point:
    strategy = training.replicas(num_replicas)
    step = training.train_with_replicax(workload(num_replicas, num_variables), strategy)
    print(f"{num_replicas} replicas, {num_variables} variables", file=sys.stderr, flush=True)
    start = time.thread_time()  # tracing is Python, in this thread
    lowered = step.func.lower(*step.args)
    traced, start_compiling = time.thread_time(), time.perf_counter()
    compiled = lowered.compile()
    ended = time.perf_counter()
    found, memory = collectives_in(compiled, strategy.mesh), compiled.memory_analysis()
    return Point(
        num_replicas,
        num_variables,
        tracing=traced - start,
        compiling=ended - start_compiling,
        host=_host_seconds(step) if num_replicas <= MOST_RUN else None,
        argument_bytes=memory.argument_size_in_bytes,
        temporary_bytes=memory.temp_size_in_bytes,
        collectives=sum(c.times or 1 for c in found),
        bytes_sent=sum(c.bytes_sent for c in found),
    )


def _host_seconds(step: Any) -> float:
    jax.block_until_ready(step())
    return statistics.median(host_seconds(step, 20) for _ in range(5))


def compared(name: str, found: list[Point], ours: Point, baseline: Point, count: str) -> list[Row]:
    """The largest against a smaller one."""
    labels = [f"{getattr(point, count):,} {name}" for point in (ours, baseline)]

    def row(what: str, mine: float, other: float, text: Any) -> Row:
        return Row(what, labels[0], text(mine), labels[1], text(other), mine / other)

    points[name] = [dataclasses.asdict(point) for point in found]
    return [
        row("collectives of a step", ours.collectives, baseline.collectives, str),
        row("tracing", ours.tracing, baseline.tracing, shown),
        row("compiling", ours.compiling, baseline.compiling, shown),
    ]


def bench_replicas(quick: bool) -> list[Row]:
    measured(2, 5)  # JAX itself has started
    found = [measured(count, 50) for count in (REPLICAS[:4] if quick else REPLICAS)]
    return compared("replicas", found, found[-1], found[1], "num_replicas")


def bench_variables(quick: bool) -> list[Row]:
    measured(2, 5)  # JAX itself has started
    found = [measured(2, count) for count in (VARIABLES[:4] if quick else VARIABLES)]
    return compared("variables", found, found[-1], found[-2], "num_variables")


# The model.

COUNTS = [2**i for i in range(3, 13)]


@dataclasses.dataclass(frozen=True)
class Curve:
    """Gradients of some bytes on devices that compute for some seconds, and what was published of it."""

    title: str
    num_bytes: float
    compute: float
    interconnect: rx.Interconnect
    overlap: float
    published: dict[int, float] = dataclasses.field(default_factory=dict)

    def efficiencies(self, counts: list[int]) -> dict[int, float]:
        gradients = Collective("all-reduce", int(self.num_bytes), "replica", "", 1, 2)
        scaling = predict([gradients], self.compute, counts, self.interconnect, overlap=self.overlap)
        return {point.num_replicas: point.efficiency for point in scaling.points}


ETHERNET = rx.Interconnect(bandwidth=25e9 / 8, devices_per_host=4)
INFINIBAND = rx.Interconnect(
    bandwidth=400e9, latency=5e-6, devices_per_host=8, local_bandwidth=450e9, local_latency=2e-6
)
# Horovod: 128 servers of 4 P100, 25 Gbit/s. Images/s of one GPU are TensorFlow's (May 2017), for ResNet-101
# those of 16 GPUs in Horovod's documentation. GPT-2: a step of 32.1 ms on an H200 (`gpt.py`); its servers
# have 8 GPUs with 400 Gbit/s each, and no collective is hidden.
CURVES = (
    Curve("Inception V3, P100, 25 Gbit/s", 4 * 23.9e6, 64 / 142, ETHERNET, 0.4, {512: 0.90}),
    Curve("ResNet-101, P100, 25 Gbit/s", 4 * 44.7e6, 64 * 16 / 1656.82, ETHERNET, 0.4, {512: 0.90}),
    Curve("VGG-16, P100, 25 Gbit/s", 4 * 138.4e6, 64 / 154, ETHERNET, 0.4, {512: 0.68}),
    Curve("GPT-2 124M, H200, 8 x 400 Gbit/s", 4 * 124.4e6, 0.0321, INFINIBAND, 0.0),
)
# MaxText, 16 billion parameters on slices of 256 TPU v5e: utilization with 1 to 32 slices. The bandwidth
# between slices is that which explains two of them.
UTILIZATION = {1: 61.10, 2: 59.37, 4: 59.14, 8: 58.27, 16: 56.56, 32: 54.65}


def maxtext() -> Curve:
    lost = UTILIZATION[1] / UTILIZATION[2] - 1
    published = {256 * n: value / UTILIZATION[1] for n, value in UTILIZATION.items()}
    slices = rx.Interconnect(bandwidth=1 / lost, latency=0.0, devices_per_host=256)
    return Curve("MaxText 16B, slices of 256 TPU v5e", 1, 1.0, slices, 0.0, published)


def bench_model(quick: bool) -> list[Row]:
    curves = [*CURVES, maxtext()]
    points["model"] = [
        {
            "title": curve.title,
            "predicted": curve.efficiencies(sorted({*COUNTS, *curve.published})),
            "published": curve.published,
        }
        for curve in curves
    ]
    rows = []
    for curve in curves:
        for count, value in curve.published.items():
            predicted = curve.efficiencies([count])[count]
            what = f"efficiency on {count:,} devices: {curve.title}"
            texts = (f"{100 * predicted:.0f} %", f"{100 * value:.0f} %")
            rows.append(Row(what, "predicted", texts[0], "published", texts[1], predicted / value))
    return rows


BENCHMARKS = {"replicas": bench_replicas, "variables": bench_variables, "model": bench_model}

if __name__ == "__main__":
    # A program that is lowered twice, to look at it and to run it, is compiled once.
    with tempfile.TemporaryDirectory() as folder:
        jax.config.update("jax_compilation_cache_dir", folder)
        jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.5)
        sys.exit(run("What grows with replicas and variables.", BENCHMARKS, max(REPLICAS), points))
