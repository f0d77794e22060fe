from dataclasses import dataclass

import jax
import pytest
from hypothesis import given
from hypothesis import strategies as st

from replicax.errors import DeviceError
from replicax.topology import (
    DeviceName,
    device_name,
    find_device,
    parse_device_name,
    resolve_devices,
)

# Names.


@pytest.mark.parametrize(
    ("spelling", "name"),
    [
        ("GPU:0", DeviceName("GPU", 0)),
        ("gpu:1", DeviceName("GPU", 1)),
        ("/gpu:0", DeviceName("GPU", 0)),
        ("gpu", DeviceName("GPU", 0)),
        ("/CPU", DeviceName("CPU", 0)),
        ("cpu:12", DeviceName("CPU", 12)),
        ("/device:CPU:1", DeviceName("CPU", 1)),
        ("device:CPU:1", DeviceName("CPU", 1)),
        ("/device:TPU", DeviceName("TPU", 0)),
        ("cuda:1", DeviceName("GPU", 1)),
        ("rocm:2", DeviceName("GPU", 2)),
        ("/job:localhost/replica:0/task:0/device:GPU:0", DeviceName("GPU", 0)),
        ("/job:localhost/cpu:3", DeviceName("CPU", 3)),
        ("/replica:0/task:2/device:CPU:1", DeviceName("CPU", 1, task=2)),
        ("/job:worker/replica:0/task:1/device:GPU:0", DeviceName("GPU", 0, task=1)),
        ("/job:worker/device:GPU:0", DeviceName("GPU", 0)),
    ],
)
def test_every_spelling_is_read(spelling, name):
    assert parse_device_name(spelling) == name


@pytest.mark.parametrize(
    "garbage",
    [
        *[
            "",
            "/",
            "0",
            ":0",
            "GPU:",
            "GPU:x",
            "GPU:-1",
            "GPU:0:1",
            "GPU:*",
            "GPU:0\n",
            "CPU:\u0663",
        ],
        *["GPU 0", " GPU:0", "//gpu:0", "/task:1GPU:0", "/job:worker", "/replica:1/device:CPU:0"],
    ],
)
def test_garbage_is_refused_with_an_example(garbage):
    with pytest.raises(DeviceError, match=r"is not a device name\. Write it as 'GPU:0'"):
        parse_device_name(garbage)


@pytest.mark.parametrize("name", ["/job:ps/task:0/device:CPU:0", "/job:localhost/task:1/cpu:0"])
def test_a_job_that_has_no_devices_is_refused(name):
    with pytest.raises(DeviceError, match=r"names task \d of the job .* which is this process"):
        parse_device_name(name)


@given(
    st.builds(
        DeviceName,
        platform=st.sampled_from(["CPU", "GPU", "TPU"]),
        index=st.integers(0, 10**6),
        task=st.none() | st.integers(0, 10**6),
    )
)
def test_what_is_printed_can_be_read_back(name):
    assert parse_device_name(str(name)) == name
    assert parse_device_name(str(name).lower()) == name


# Finding devices.


def test_names_and_devices_are_inverse():
    for index, device in enumerate(jax.devices("cpu")):
        assert device_name(device) == f"CPU:{index}"
        assert find_device(f"/device:cpu:{index}") is device
        assert find_device(f"/job:worker/task:0/device:CPU:{index}") is device
        assert find_device(device) is device


def test_a_missing_cpu_device_names_the_call_that_makes_it():
    with pytest.raises(DeviceError) as caught:
        find_device("/cpu:8")
    assert str(caught.value) == (
        "There is no device '/cpu:8'. "
        "This process has CPU:0, CPU:1, CPU:2, CPU:3, CPU:4, CPU:5, CPU:6, CPU:7. "
        "To have 9 CPU devices, call `rx.set_cpu_devices(9)` before JAX is first used."
    )


def test_a_missing_platform_says_where_to_look():
    with pytest.raises(DeviceError, match=r"CPU:7\. `jax\.devices\('tpu'\)` shows why JAX finds no TPU"):
        find_device("TPU:0")


def test_an_unknown_platform_shows_a_device_name():
    with pytest.raises(DeviceError, match=r"no device 'banana'\. .* look like 'GPU:0'"):
        find_device("banana")


def test_a_missing_process_says_how_many_there_are():
    with pytest.raises(DeviceError, match=r"no device .*task:1.* JAX runs in 1 process"):
        find_device("/job:worker/task:1/device:CPU:0")


@pytest.mark.parametrize("device", [0, None, b"CPU:0"])
def test_what_is_no_device_is_refused(device):
    with pytest.raises(DeviceError, match=r"Expected a device name such as 'GPU:0' or a `jax\.Device`"):
        find_device(device)


# Devices of a strategy.


def test_none_means_all_devices_of_the_default_backend():
    assert resolve_devices(None) == jax.devices()


def test_order_is_kept_and_spellings_may_differ():
    cpus = jax.devices("cpu")
    assert resolve_devices(["CPU:2", "/cpu:0", cpus[5]]) == [cpus[2], cpus[0], cpus[5]]
    assert resolve_devices(name for name in ("cpu:1",)) == [cpus[1]]


def test_the_same_device_twice_is_refused():
    with pytest.raises(DeviceError) as caught:
        resolve_devices(["CPU:1", "CPU:0", "/device:cpu:1"])
    assert "lists CPU:1 twice, as 'CPU:1' and as '/device:cpu:1'" in str(caught.value)
    assert "This process has CPU:0, CPU:1" in str(caught.value)
    assert "set_cpu_devices" not in str(caught.value)


def test_the_same_device_twice_for_want_of_devices_names_the_call_that_makes_them():
    with pytest.raises(DeviceError, match=r"call `rx\.set_cpu_devices\(9\)`"):
        resolve_devices([f"CPU:{index % 8}" for index in range(9)])


@pytest.mark.parametrize("single", ["GPU:0", "CPU:0"])
def test_a_string_is_not_a_list(single):
    with pytest.raises(DeviceError, match=rf"must be a list of devices; .* write \['{single}'\]"):
        resolve_devices(single)


def test_a_device_is_not_a_list():
    with pytest.raises(DeviceError, match=r"must be a list of devices; .* write \['CPU:3'\]"):
        resolve_devices(jax.devices("cpu")[3])


def test_a_number_is_not_a_list():
    with pytest.raises(DeviceError, match="got 2 of type int"):
        resolve_devices(2)


def test_an_empty_list_is_refused():
    with pytest.raises(DeviceError, match=r"`devices` is empty.* None for all\. This process has CPU:0"):
        resolve_devices([])


# A machine with GPUs, and a second process, as far as names go.


@dataclass(frozen=True)
class Device:
    platform: str
    id: int
    process_index: int


@pytest.fixture
def gpu_machine(monkeypatch):
    by_platform = {
        "gpu": [Device("gpu", id=2 * task + i, process_index=task) for task in (0, 1) for i in (0, 1)],
        "cpu": [Device("cpu", id=100 * task, process_index=task) for task in (0, 1)],
    }

    def devices(platform="gpu"):
        if platform not in by_platform:
            raise RuntimeError(f"Unknown backend {platform}")
        return by_platform[platform]

    monkeypatch.setattr(jax, "Device", Device)
    monkeypatch.setattr(jax, "devices", devices)
    monkeypatch.setattr(jax, "process_index", lambda: 1)
    monkeypatch.setattr(jax, "process_count", lambda: 2)
    return by_platform


def test_indices_count_the_devices_of_one_process(gpu_machine):
    gpus = gpu_machine["gpu"]
    assert find_device("GPU:0") is gpus[2]
    assert find_device("/job:worker/task:0/device:GPU:1") is gpus[1]
    assert device_name(gpus[3]) == "GPU:1"
    assert device_name(gpus[1]) == "/job:worker/replica:0/task:0/device:GPU:1"


def test_a_missing_gpu_lists_those_there_are(gpu_machine):
    with pytest.raises(DeviceError, match=r"no device 'GPU:2'\. This process has GPU:0, GPU:1, CPU:0\.$"):
        find_device("GPU:2")


def test_mixed_platforms_are_refused(gpu_machine):
    with pytest.raises(DeviceError) as caught:
        resolve_devices(["GPU:0", "CPU:0"])
    assert "mixes platforms: GPU:0, CPU:0." in str(caught.value)
    assert "This process has GPU:0, GPU:1, CPU:0." in str(caught.value)
