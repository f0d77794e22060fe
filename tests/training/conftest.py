"""The strategies and modes that tests of training run in."""

import pytest

import replicax as rx

from .helpers import mirrored

STRATEGIES = {
    "default": rx.get_strategy,
    "one_device": lambda: rx.OneDeviceStrategy("CPU:1"),
    "mirrored_1": lambda: mirrored(1),
    "mirrored_2": lambda: mirrored(2),
    "mirrored_3": lambda: mirrored(3),
    "mirrored_8": lambda: mirrored(8),
    "central": lambda: rx.CentralStorageStrategy(["CPU:0", "CPU:1"], "CPU:0"),
}
MODES = {"eager": lambda fn: fn, "compiled": rx.function}


@pytest.fixture(params=STRATEGIES)
def strategy(request):
    """Every strategy."""
    return STRATEGIES[request.param]()


@pytest.fixture(params=["mirrored_2", "mirrored_3", "mirrored_8", "central"])
def several(request):
    """Every strategy with more than one replica."""
    return STRATEGIES[request.param]()


@pytest.fixture
def two():
    """Two mirrored replicas, for what does not depend on the strategy."""
    return mirrored(2)


@pytest.fixture(params=MODES)
def mode(request):
    """Both ways to run a step: `mode(step)` is the step itself, or the step compiled."""
    return MODES[request.param]
