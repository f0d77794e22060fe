"""How the devices of a machine are divided between workers, and the traceback that is shown."""

import pytest

from replicax.errors import DeviceError
from replicax.launch import Devices, divide_devices
from replicax.launch._output import last_traceback


@pytest.fixture
def gpus(monkeypatch):
    """As if JAX could use GPUs."""
    monkeypatch.setattr("replicax.launch._devices._GPU_PLUGINS", ("jax",))


def test_gpus_are_divided(gpus):
    visible = {"CUDA_VISIBLE_DEVICES": "0,1,GPU-abc,3"}
    assert divide_devices(2, None, visible) == [Devices(("0", "1")), Devices(("GPU-abc", "3"))]
    assert divide_devices(3, None, visible) == [Devices(("0",)), Devices(("1",)), Devices(("GPU-abc",))]
    assert divide_devices(1, 3, visible) == [Devices(("0", "1", "GPU-abc"))]


@pytest.mark.parametrize(("num_workers", "each", "needed"), [(2, 3, 6), (5, None, 5)])
def test_more_gpus_than_there_are_is_an_error(gpus, num_workers, each, needed):
    with pytest.raises(
        DeviceError, match=rf"need {needed} GPUs, but this machine has 4: 0, 1, 2, 3\. Start"
    ):
        divide_devices(num_workers, each, {"CUDA_VISIBLE_DEVICES": "0,1,2,3"})


@pytest.mark.parametrize(
    "variables",
    [{"CUDA_VISIBLE_DEVICES": ""}, {"CUDA_VISIBLE_DEVICES": "-1"}, {"JAX_PLATFORMS": "cpu"}],
)
def test_workers_without_gpus_have_cpu_devices(gpus, variables):
    assert divide_devices(2, None, variables) == [Devices(), Devices()]
    assert divide_devices(1, 4, variables) == [Devices(cpu_devices=4)]


TRACEBACK = ["Traceback (most recent call last):", '  File "x.py", line 1, in <module>', "ValueError: x"]


def test_the_last_traceback_is_found_without_log_lines_of_native_code():
    noise = ["W0000 00:00:1 1 service.cc:1] something", "2026-01-01 10:00:00.123456: E xla/a.cc:3] b"]
    assert last_traceback(["before", *TRACEBACK, *noise]) == "\n".join(TRACEBACK)
    assert last_traceback([*TRACEBACK, "printed", *TRACEBACK]) == "\n".join(TRACEBACK)
    chained = [*TRACEBACK, "", "During handling of the above exception, another", "", *TRACEBACK]
    assert last_traceback(["before", *chained]) == "\n".join(chained)
    assert last_traceback([str(i) for i in range(50)]) == "\n".join(str(i) for i in range(30, 50))
    assert len(last_traceback([*TRACEBACK, *map(str, range(500))]).splitlines()) == 81
