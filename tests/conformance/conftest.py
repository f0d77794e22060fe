"""The strategies that every conformance test runs in; `mode` comes from `tests/conftest.py`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import pytest

import replicax as rx


class Case(NamedTuple):
    make: Callable[[], Any]
    num_replicas: int
    copies: bool = False  # one copy of a variable on each replica


def _mirrored(n: int) -> Case:
    return Case(lambda: rx.MirroredStrategy([f"CPU:{i}" for i in range(n)]), n, copies=True)


def _tpu() -> Any:
    """Two replicas, each on two logical devices."""
    assignment = rx.DeviceAssignment.build(rx.Topology(), [1, 1, 1, 2], num_replicas=2)
    return rx.TPUStrategy(experimental_device_assignment=assignment)


STRATEGIES = {
    "default": Case(rx.get_strategy, 1),
    "one_device": Case(lambda: rx.OneDeviceStrategy("CPU:1"), 1),
    "mirrored_1": _mirrored(1),
    "mirrored_2": _mirrored(2),
    "mirrored_3": _mirrored(3),
    "mirrored_8": _mirrored(8),
    "tpu_2x2": Case(_tpu, 2, copies=True),
    "sharded_3": Case(lambda: rx.ShardedStrategy(["CPU:0", "CPU:1", "CPU:2"], min_shard_bytes=1), 3),
    "central": Case(lambda: rx.CentralStorageStrategy(["CPU:0", "CPU:1"], "CPU:0"), 2),
}
SEVERAL = [name for name, case in STRATEGIES.items() if case.num_replicas > 1]
COPIES = [name for name in SEVERAL if STRATEGIES[name].copies]
PLACED = [name for name in STRATEGIES if name != "default"]


@pytest.fixture(params=STRATEGIES)
def strategy(request):
    """Every strategy."""
    return STRATEGIES[request.param].make()


@pytest.fixture(params=PLACED)
def placed(request):
    """Every strategy that decides where things are: all but the default one."""
    return STRATEGIES[request.param].make()


@pytest.fixture(params=SEVERAL)
def several(request):
    """Every strategy with more than one replica."""
    return STRATEGIES[request.param].make()


@pytest.fixture(params=COPIES)
def mirrored(request):
    """Every strategy with more than one replica and a copy of each variable on each."""
    return STRATEGIES[request.param].make()


@pytest.fixture
def two():
    """Two mirrored replicas, for what does not depend on the strategy."""
    return rx.MirroredStrategy(["CPU:0", "CPU:1"])


@pytest.fixture
def compiled(mode):
    """Whether `mode` compiles."""
    return mode is rx.function
