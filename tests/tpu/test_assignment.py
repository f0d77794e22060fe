"""Topologies and the assignment of their cores to replicas."""

import jax
import numpy as np
import pytest

import replicax as rx
from replicax.errors import DeviceError
from replicax.topology import find_device
from replicax.tpu import _topology


def names(n):
    return [f"CPU:{i}" for i in range(n)]


@pytest.mark.parametrize(
    ("count", "shape"),
    [
        (1, (1, 1, 1, 1)),
        (2, (1, 1, 1, 2)),
        (3, (1, 1, 3, 1)),
        (4, (1, 1, 2, 2)),
        (6, (1, 1, 3, 2)),
        (8, (1, 2, 2, 2)),
    ],
)
def test_made_up_topologies(count, shape):
    topology = rx.Topology(names(count))
    assert topology.mesh_shape == shape
    assert topology.mesh_rank == 4
    assert (topology.num_tasks, topology.num_tpus_per_task) == (1, count)
    assert topology.device_coordinates.shape == (1, count, 4)
    assert len({tuple(place) for place in topology.device_coordinates[0]}) == count
    assert [topology.device_at(place).id for place in topology.device_coordinates[0]] == list(range(count))


@pytest.mark.parametrize("count", [16, 32, 24, 128])
def test_made_up_shapes_hold_all_devices(count):
    shape = _topology._made_up_shape(count)
    assert np.prod(shape) == count
    assert shape[-1] == 2


def test_a_shape_of_ones_own():
    topology = rx.Topology(mesh_shape=[2, 2, 1, 2])
    assert topology.mesh_shape == (2, 2, 1, 2)
    assert rx.DeviceAssignment.build(topology, [2, 2, 1, 2]).num_cores_per_replica == 8
    for shape in ([2, 2, 2, 2], [2, 2, 2], [2, 2, 2, 0], 8, [2.0, 2, 1, 2]):
        with pytest.raises(DeviceError, match=r"mesh_shape"):
            rx.Topology(mesh_shape=shape)


class FakeCore:
    platform = "tpu"

    def __init__(self, x, y, z, core, task=0):
        self.coords, self.core_on_chip, self.process_index = (x, y, z), core, task


def real_topology(monkeypatch, cores):
    monkeypatch.setattr(_topology, "resolve_devices", lambda devices: list(devices))
    return rx.Topology(cores)


def test_tpu_cores_know_their_places(monkeypatch):
    """Counted from the first core of the slice, wherever the slice is in its pod."""
    cores = [FakeCore(4 + x, y, 0, c) for y in range(2) for x in range(2) for c in range(2)]
    topology = real_topology(monkeypatch, cores)
    assert topology.mesh_shape == (2, 2, 1, 2)
    assert topology.device_at([1, 0, 0, 1]) is cores[3]
    with pytest.raises(DeviceError, match="TPU cores already have coordinates"):
        rx.Topology(cores, mesh_shape=[1, 2, 2, 2])


def test_tasks_of_a_slice_with_several_hosts(monkeypatch):
    cores = [FakeCore(x, y, 0, 0, task=x // 2) for x in range(4) for y in range(2)]
    topology = real_topology(monkeypatch, cores)
    assert (topology.num_tasks, topology.num_tpus_per_task) == (2, 4)
    assignment = rx.DeviceAssignment.build(topology, [1, 2, 1, 1], num_replicas=4)
    assert assignment.lookup_replicas(task_id=0, logical_core=1) == [0, 1]
    assert assignment.lookup_replicas(task_id=1, logical_core=0) == [2, 3]
    with pytest.raises(DeviceError, match="same number"):
        real_topology(monkeypatch, cores[:-1])


def test_a_slice_with_holes(monkeypatch):
    """A box is assigned only where all of its cores exist."""
    cores = [FakeCore(x, y, 0, 0) for x in range(3) for y in range(2) if (x, y) != (0, 1)]
    topology = real_topology(monkeypatch, cores)
    assert not topology.has([0, 1, 0, 0])
    assignment = rx.DeviceAssignment.build(topology, [1, 2, 1, 1], num_replicas=2)
    assert assignment.core_assignment[:, 0].tolist() == [[1, 0, 0, 0], [2, 0, 0, 0]]
    with pytest.raises(DeviceError, match="2 such replicas"):
        rx.DeviceAssignment.build(topology, [1, 2, 1, 1], num_replicas=3)


@pytest.mark.parametrize(
    ("shape", "num_replicas", "cores"),
    [(None, 8, 1), ([1, 1, 1, 2], 4, 2), ([1, 1, 2, 2], 2, 4), ([1, 2, 2, 2], 1, 8), ([1, 2, 1, 1], 4, 2)],
)
def test_every_core_is_in_one_replica(shape, num_replicas, cores):
    assignment = rx.DeviceAssignment.build(rx.Topology(), shape, num_replicas=num_replicas)
    assert (assignment.num_replicas, assignment.num_cores_per_replica) == (num_replicas, cores)
    assert assignment.core_assignment.shape == (num_replicas, cores, 4)
    used = {device for row in assignment.devices for device in row}
    assert used == set(jax.devices())
    for replica, row in enumerate(assignment.devices):
        for core, device in enumerate(row):
            assert assignment.topology.device_at(assignment.coordinates(replica, core)) is device
            for job in (None, "worker", "localhost"):
                assert find_device(assignment.tpu_device(replica, core, job)) is device


def test_neighbours_make_up_a_replica():
    assignment = rx.DeviceAssignment.build(rx.Topology(), [1, 1, 1, 2], num_replicas=4)
    assert [[d.id for d in row] for row in assignment.devices] == [[0, 1], [2, 3], [4, 5], [6, 7]]
    assert assignment.lookup_replicas(0, 1) == [0, 1, 2, 3]
    assert [assignment.tpu_ordinal(i, 1) for i in range(4)] == [1, 3, 5, 7]
    assert repr(assignment) == "DeviceAssignment(4 replicas of 2 devices)"


def test_strides_leave_gaps_for_other_replicas():
    topology = rx.Topology(["CPU:0", "CPU:1", "CPU:2", "CPU:3"], mesh_shape=[1, 1, 4, 1])
    assignment = rx.DeviceAssignment.build(topology, [1, 1, 2, 1], [1, 1, 2, 1], num_replicas=2)
    assert [[d.id for d in row] for row in assignment.devices] == [[0, 2], [1, 3]]
    with pytest.raises(DeviceError, match=r"computation_stride=\[1, 1, 3, 1\]"):
        rx.DeviceAssignment.build(topology, [1, 1, 2, 1], [1, 1, 3, 1], num_replicas=2)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"computation_shape": [1, 1, 1, 4]}, "0 such replicas fit"),
        ({"computation_shape": [2, 2, 1, 2]}, r"shape \[1, 2, 2, 2\]"),
        ({"computation_shape": [1, 1, 1, 2], "num_replicas": 5}, "4 such replicas fit"),
        ({"num_replicas": 9}, "8 such replicas fit"),
        ({"computation_shape": [1, 1, 2]}, "4 positive integers"),
        ({"computation_shape": [1, 1, 0, 2]}, "4 positive integers"),
        ({"computation_shape": 2}, "4 positive integers"),
        ({"computation_stride": [1, 1, 1]}, "computation_stride must be a list"),
        ({"num_replicas": 0}, "num_replicas=0"),
        ({"num_replicas": True}, "num_replicas=True"),
    ],
)
def test_what_does_not_fit_is_refused(arguments, message):
    with pytest.raises(ValueError, match=message) as caught:
        rx.DeviceAssignment.build(rx.Topology(), **arguments)
    assert isinstance(caught.value, DeviceError)


def test_assignments_by_hand():
    topology = rx.Topology()
    assignment = rx.DeviceAssignment(topology, [[[0, 1, 1, 1]], [[0, 0, 0, 0]]])
    assert [[d.id for d in row] for row in assignment.devices] == [[7], [0]]
    for cores, message in [
        ([[[0, 0, 0, 0]], [[0, 0, 0, 0]]], "CPU:0 twice"),
        ([[[0, 0, 0, 2]]], "no device at"),
        ([[0, 0, 0, 0]], "must have the shape"),
        (np.zeros((0, 1, 4)), "must have the shape"),
    ]:
        with pytest.raises(DeviceError, match=message):
            rx.DeviceAssignment(topology, cores)
    with pytest.raises(TypeError, match="Topology"):
        rx.DeviceAssignment(None, [[[0, 0, 0, 0]]])
    with pytest.raises(TypeError, match="Topology"):
        rx.DeviceAssignment.build([1, 2, 2, 2])


def test_numbers_out_of_range():
    assignment = rx.DeviceAssignment.build(rx.Topology(), [1, 1, 1, 2], num_replicas=2)
    for call in (
        lambda: assignment.coordinates(2, 0),
        lambda: assignment.coordinates(0, 2),
        lambda: assignment.tpu_device(-1, 0),
        lambda: assignment.lookup_replicas(0, 2),
        lambda: assignment.lookup_replicas(1, 0),
    ):
        with pytest.raises(DeviceError):
            call()
