"""Checks that compute something: collectives, training with every strategy, a checkpoint, input."""

from __future__ import annotations

import dataclasses
import functools
import os
import tempfile
import time
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import replicax as rx
from replicax.cli._check import Check, Finding, failed, passed, skipped
from replicax.cli._check_devices import with_devices
from replicax.cluster import ClusterSpec, SimpleClusterResolver, TFConfigClusterResolver, find_place
from replicax.errors import ClusterError
from replicax.topology import resolve_devices

__all__ = ["computing_checks"]

_DTYPES = ("float32", "bfloat16", "int32")
_SMALL_BYTES = 1 << 10
_LARGE_BYTES = {"cpu": 16 << 20}
_LARGE_BYTES_OF_ACCELERATORS = 256 << 20
_REPORT = "Report this with the output of `python -m replicax doctor`."


def computing_checks() -> list[Check]:
    """The checks of all-reduces, training, checkpoints and input, all of which need devices."""
    drivers = "Check drivers and the links between devices; NCCL_DEBUG=INFO prints more on GPUs."
    checks = [
        Check(f"all-reduce {dtype}", functools.partial(_check_all_reduce, dtype), 45, drivers)
        for dtype in _DTYPES
    ]
    for name, make in _STRATEGIES.items():
        checks.append(Check(f"training {name}", functools.partial(_check_training, make), 45, _REPORT))
    folder = f"Check free space and permissions of {tempfile.gettempdir()}; TMPDIR sets another folder."
    checks.append(Check("checkpoint", _check_checkpoint, 30, folder))
    checks.append(Check("input", _check_input, 30, _REPORT))
    return [dataclasses.replace(check, find=with_devices(check.find)) for check in checks]


# Collectives.


def _check_all_reduce(dtype: str) -> Finding:
    strategy = rx.MirroredStrategy()
    count = strategy.num_replicas_in_sync
    if count == 1:
        return skipped("MirroredStrategy has one device on this machine: there is nothing to exchange")
    platform = resolve_devices()[0].platform
    large = _LARGE_BYTES.get(platform, _LARGE_BYTES_OF_ACCELERATORS)
    wrong, latency = _all_reduce(strategy, dtype, _SMALL_BYTES, num_times=20)
    wrong_large, seconds = _all_reduce(strategy, dtype, large, num_times=5)
    if wrong or wrong_large:
        return failed(f"{count} replicas got a wrong sum", _REPORT)
    bandwidth = large / seconds / 1e9
    return passed(
        f"{count} replicas: 1 KiB in {latency * 1e6:,.0f} us; {large >> 20} MiB in "
        f"{seconds * 1e3:,.1f} ms, {bandwidth:.2f} GB/s",
        replicas=count,
        small_seconds=latency,
        large_bytes=large,
        large_seconds=seconds,
        gigabytes_per_second=bandwidth,
    )


def _all_reduce(strategy: rx.Strategy, dtype: str, num_bytes: int, num_times: int) -> tuple[bool, float]:
    """Whether the sum is wrong, and the best time of an all-reduce."""
    size = num_bytes // jnp.dtype(dtype).itemsize

    def numbers(context: Any) -> Any:
        return jnp.full(size, context.replica_id_in_sync_group + 1, dtype)

    def total(x: Any) -> Any:
        return rx.get_replica_context().all_reduce("SUM", x)

    @rx.function
    def step(x: Any) -> Any:
        return strategy.run(total, args=(x,))

    values = strategy.distribute_values_from_function(numbers)
    parts = strategy.local_results(step(values))
    count = strategy.num_replicas_in_sync
    wrong = any(np.any(np.asarray(part) != count * (count + 1) // 2) for part in parts)
    return bool(wrong), min(_seconds(step, values) for _ in range(num_times))


def _seconds(step: Callable[[Any], Any], values: Any) -> float:
    began = time.perf_counter()
    jax.block_until_ready(step(values))
    return time.perf_counter() - began


# Training: three steps of 30 examples each, which most numbers of replicas do not divide. Replicas sum in
# another order than one device, so the weights agree only up to rounding.

_TOLERANCE = 1e-5
_NUM_STEPS, _NUM_EXAMPLES, _LEARNING_RATE = 3, 30, 0.1


def _one_worker_with_all_devices() -> rx.Strategy:
    devices = resolve_devices()
    counts = {devices[0].platform.upper(): len(devices)}
    return rx.MultiWorkerMirroredStrategy(SimpleClusterResolver(ClusterSpec({}), num_accelerators=counts))


_STRATEGIES: dict[str, Callable[[], rx.Strategy]] = {
    "OneDeviceStrategy": lambda: rx.OneDeviceStrategy(resolve_devices()[0]),
    "MirroredStrategy": lambda: rx.MirroredStrategy(),
    "CentralStorageStrategy": lambda: rx.CentralStorageStrategy(resolve_devices()),
    "TPUStrategy": lambda: rx.TPUStrategy(),
    "MultiWorkerMirroredStrategy": _one_worker_with_all_devices,
}


def _check_training(make: Callable[[], rx.Strategy]) -> Finding:
    if make is _one_worker_with_all_devices and (reason := _why_not_checked()):
        return skipped(reason, "Unset TF_CONFIG to check it.")
    strategy = make()
    count = strategy.num_replicas_in_sync
    where = "1 replica" if count == 1 else f"{count} replicas"
    difference = float(np.max(np.abs(_train(strategy) - _train_without_replicax())))
    if not difference <= _TOLERANCE:  # "not", so that NaN fails
        return failed(f"{where}: weights differ by {difference:.1e} from plain JAX on one device", _REPORT)
    return passed(
        f"{where}: weights match plain JAX on one device to {difference:.0e}",
        replicas=count,
        difference=difference,
    )


def _why_not_checked() -> str:
    """Why MultiWorkerMirroredStrategy is not checked; "" if this process is the only worker."""
    if not os.environ.get("TF_CONFIG"):
        return ""
    try:
        place = find_place(TFConfigClusterResolver())
    except ClusterError:
        return "TF_CONFIG has an invalid cluster: see its check"
    if place is None or len(place.tasks) == 1:
        return ""
    return f"TF_CONFIG has {len(place.tasks)} workers, so this one would wait for the others"


def _examples() -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    shape = (_NUM_STEPS * _NUM_EXAMPLES, 8)
    x = rng.normal(size=shape).astype(np.float32)
    return x, np.sin(x.sum(1))


def _errors(weights: Any, x: Any, y: Any) -> Any:
    return (jnp.tanh(x @ weights) - y) ** 2


def _train(strategy: rx.Strategy) -> np.ndarray:
    """The weights after training with `strategy`."""
    import optax  # here, so that the other checks run without it

    with strategy.scope():
        weights = rx.create_variables(jnp.zeros(8), name="weights")
        optimizer = rx.Optimizer(optax.sgd(_LEARNING_RATE))

    def replica_step(x: Any, y: Any) -> None:
        def loss() -> Any:
            return rx.compute_average_loss(_errors(weights.read_value(), x, y))

        optimizer.minimize(loss, [weights])

    @rx.function
    def step(batch: Any) -> None:
        strategy.run(replica_step, args=batch)

    for batch in strategy.distribute_dataset(rx.from_arrays(_examples()).batch(_NUM_EXAMPLES)):
        step(batch)
    return weights.numpy()


@functools.cache
def _train_without_replicax() -> np.ndarray:
    """The weights after the same training in plain JAX."""
    weights = jnp.zeros(8)
    gradient = jax.jit(jax.grad(lambda weights, x, y: jnp.mean(_errors(weights, x, y))))
    for x, y in rx.from_arrays(_examples()).batch(_NUM_EXAMPLES):
        weights = weights - _LEARNING_RATE * gradient(weights, x, y)
    return np.asarray(weights)


# Checkpoints and input.


def _check_checkpoint() -> Finding:
    strategy = rx.MirroredStrategy()
    numbers = np.random.default_rng(0).normal(size=1 << 20).astype(np.float32)
    began = time.perf_counter()
    with strategy.scope(), tempfile.TemporaryDirectory() as folder:
        saved, restored = rx.create_variables([numbers, np.zeros_like(numbers)])
        with rx.CheckpointManager(rx.Checkpoint(w=saved), folder) as manager:
            manager.save(1)
            manager.wait()
        with rx.CheckpointManager(rx.Checkpoint(w=restored), folder) as manager:
            manager.restore_or_initialize()
    seconds = time.perf_counter() - began
    if not np.array_equal(restored.numpy(), numbers):
        return failed("the restored values differ from the saved ones", _REPORT)
    return passed(f"4 MiB written and read in {seconds:.2f} s", seconds=seconds)


def _check_input() -> Finding:
    strategy = rx.MirroredStrategy()
    examples = rx.from_arrays((np.arange(100_000), np.zeros((100_000, 16), np.float32)))
    num_seen = np.zeros(100_000, int)
    with iter(strategy.distribute_dataset(examples.shuffle(seed=0).batch(512))) as batches:
        for indices, _ in batches:
            for part in strategy.local_results(indices):
                num_seen[np.asarray(part)] += 1
        stats = batches.stats()
    if np.any(num_seen != 1):
        return failed(f"{np.sum(num_seen != 1)} examples were not seen exactly once", _REPORT)
    rate = stats.examples / max(stats.seconds, 1e-9)
    return passed(f"100,000 examples, each once; {rate:,.0f} examples/s", examples_per_second=rate)
