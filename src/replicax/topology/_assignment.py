"""Which devices make up which replica: a `Topology` of cores, and a `DeviceAssignment` that carves it up.

A TPU's cores have places: the chip's coordinates x, y and z, and a number on the chip. A replica that
computes on several cores wants neighbours. So an assignment names a box of cores, and as many copies of
it as there are replicas are laid into the grid, in row-major order:

    topology [1, 2, 2, 2]    box [1, 1, 1, 2]    4 replicas of 2 logical devices
                             box [1, 2, 2, 2]    1 replica  of 8

Devices without places (CPUs and GPUs that stand in for TPU cores) are given made-up ones: two cores on
each chip if their number is even, and chips in a grid as close to a cube as their number allows.
"""

from __future__ import annotations

import operator
from collections.abc import Iterable, Sequence
from functools import cached_property
from typing import Any, final

import numpy as np

from replicax.errors import DeviceError
from replicax.topology._devices import device_name, parse_device_name, resolve_devices
from replicax.topology._mesh import prime_factors
from replicax.types import Device

__all__ = ["DeviceAssignment", "Topology"]

_RANK = 4  # x, y, z, core
_ONES = (1,) * _RANK


@final
class Topology:
    """The grid of cores that devices form, as `initialize_tpu_system` returns it.

    Args:
        devices: the devices, or their names; None takes all of JAX's default backend.
        mesh_shape: the grid to arrange devices in that do not know their places, `[x, y, z, cores]`. TPU
            cores know theirs.

    Raises:
        DeviceError: the devices do not fill `mesh_shape`, or it is given for TPU cores.

    >>> topology = rx.Topology()
    >>> topology.mesh_shape
    (1, 2, 2, 2)
    >>> topology.num_tasks, topology.num_tpus_per_task
    (1, 8)
    """

    def __init__(
        self, devices: Iterable[str | Device] | None = None, mesh_shape: Sequence[int] | None = None
    ) -> None:
        """Find out, or make up, where the devices are."""
        found = resolve_devices(devices)
        places = _known_places(found)
        if places is None:
            places = _made_up_places(len(found), mesh_shape)
        elif mesh_shape is not None:
            raise DeviceError(
                f"Topology(mesh_shape={list(mesh_shape)}): these TPU cores know their places. Leave it out."
            )
        self._devices = dict(zip(places, found, strict=True))
        tasks = sorted({device.process_index for device in found})
        by_task = [[p for p, d in self._devices.items() if d.process_index == task] for task in tasks]
        if len({len(row) for row in by_task}) > 1:
            sizes = ", ".join(f"{task}: {len(row)}" for task, row in zip(tasks, by_task, strict=True))
            raise DeviceError(f"Every process must have the same number of devices; they have {sizes}.")
        self._coordinates = np.asarray(by_task, np.int32)
        self._coordinates.flags.writeable = False
        self._tasks = tasks

    def __repr__(self) -> str:
        return f"Topology(mesh_shape={list(self.mesh_shape)}, {len(self._devices)} devices)"

    @property
    def mesh_shape(self) -> tuple[int, ...]:
        """The extent of the grid along x, y, z and the cores of a chip.

        >>> rx.Topology(["CPU:0", "CPU:1"]).mesh_shape
        (1, 1, 1, 2)
        """
        return tuple(int(size) for size in self._coordinates.reshape(-1, _RANK).max(axis=0) + 1)

    @property
    def mesh_rank(self) -> int:
        """How many numbers say where a core is: 4.

        >>> rx.Topology().mesh_rank
        4
        """
        return _RANK

    @property
    def num_tasks(self) -> int:
        """How many processes the devices belong to.

        >>> rx.Topology().num_tasks
        1
        """
        return self._coordinates.shape[0]

    @property
    def num_tpus_per_task(self) -> int:
        """How many devices each process has.

        >>> rx.Topology().num_tpus_per_task
        8
        """
        return self._coordinates.shape[1]

    @property
    def device_coordinates(self) -> np.ndarray:
        """Where each process's devices are: an array of shape (tasks, devices of a task, 4).

        >>> rx.Topology(["CPU:0", "CPU:1"]).device_coordinates.tolist()
        [[[0, 0, 0, 0], [0, 0, 0, 1]]]
        """
        return self._coordinates

    def device_at(self, coordinates: Sequence[int]) -> Device:
        """The device at a place.

        Raises:
            DeviceError: there is none.

        >>> rx.Topology().device_at([0, 0, 0, 1]) is jax.devices()[1]
        True
        """
        place = tuple(int(i) for i in coordinates)
        if place not in self._devices:
            raise DeviceError(f"{self!r} has no device at {list(place)}.")
        return self._devices[place]

    def task_of(self, device: Device) -> int:
        """The number of the process that a device belongs to, counted from 0.

        >>> rx.Topology().task_of(jax.devices()[3])
        0
        """
        return self._tasks.index(device.process_index)

    def has(self, coordinates: Sequence[int]) -> bool:
        """Whether there is a device at a place: a slice of a TPU need not fill its grid.

        >>> rx.Topology().has([0, 0, 0, 2])
        False
        """
        return tuple(int(i) for i in coordinates) in self._devices


def _known_places(devices: Sequence[Any]) -> list[tuple[int, ...]] | None:
    """Where TPU cores are, counted from the first; None for devices without places."""
    if any(device.platform != "tpu" for device in devices):
        return None
    rows = np.asarray([(*device.coords, device.core_on_chip) for device in devices])
    return [tuple(int(i) for i in row) for row in rows - rows.min(axis=0)]


def _made_up_places(count: int, mesh_shape: Sequence[int] | None) -> list[tuple[int, ...]]:
    shape = _made_up_shape(count) if mesh_shape is None else _checked_box(mesh_shape, "mesh_shape")
    if np.prod(shape) != count:
        raise DeviceError(
            f"Topology(mesh_shape={list(shape)}) is a grid of {np.prod(shape)} cores, but there are "
            f"{count} devices."
        )
    return list(np.ndindex(*shape))


def _made_up_shape(count: int) -> tuple[int, ...]:
    cores = 2 if count % 2 == 0 else 1
    chips = [1, 1, 1]
    for factor in reversed(prime_factors(count // cores)):
        smallest = max(range(3), key=lambda axis: (-chips[axis], axis))
        chips[smallest] *= factor
    return (*chips, cores)


def _checked_box(box: Any, name: str) -> tuple[int, ...]:
    try:
        sizes = tuple(operator.index(size) for size in box)
    except TypeError:
        sizes = ()
    if len(sizes) != _RANK or min(sizes) < 1:
        raise DeviceError(
            f"{name} is a list of {_RANK} positive integers, for x, y, z and the cores of a chip; got "
            f"{box!r}."
        )
    return sizes


@final
class DeviceAssignment:
    """Which cores of a topology make up which replica; give it to `TPUStrategy`. Made by `build`.

    The cores of a replica are its *logical devices*, numbered from 0.

    Args:
        topology: what `initialize_tpu_system` returned.
        core_assignment: the places of the cores, an array of shape (replicas, cores of a replica, 4).

    Raises:
        DeviceError: the array has another shape, a place has no core, or a core is in it twice.

    >>> topology = rx.Topology()
    >>> assignment = rx.DeviceAssignment.build(topology, computation_shape=[1, 1, 1, 2], num_replicas=4)
    >>> assignment.num_replicas, assignment.num_cores_per_replica
    (4, 2)
    """

    def __init__(self, topology: Topology, core_assignment: Any) -> None:
        """Look up the cores."""
        if not isinstance(topology, Topology):
            raise TypeError(
                "DeviceAssignment takes the Topology that initialize_tpu_system returned, got "
                f"{topology!r}."
            )
        cores = np.array(core_assignment, np.int32)
        if cores.ndim != 3 or cores.shape[2] != _RANK or not cores.size:
            raise DeviceError(
                f"core_assignment has the shape (replicas, cores of a replica, {_RANK}); got {cores.shape}."
            )
        cores.flags.writeable = False
        self._topology, self._cores = topology, cores
        seen: set[Device] = set()
        for device in (device for row in self.devices for device in row):
            if device in seen:
                raise DeviceError(f"core_assignment has {device_name(device)} twice.")
            seen.add(device)

    @classmethod
    def build(
        cls,
        topology: Topology,
        computation_shape: Sequence[int] | None = None,
        computation_stride: Sequence[int] | None = None,
        num_replicas: int = 1,
    ) -> DeviceAssignment:
        """Lay `num_replicas` boxes of cores into the grid.

        Args:
            topology: what `initialize_tpu_system` returned.
            computation_shape: the box of cores that one replica computes on, `[x, y, z, cores]`; None is
                one core.
            computation_stride: the distance between neighbouring cores of a replica along each axis; None
                is 1, a box without gaps. Other replicas fill the gaps.
            num_replicas: how many replicas there shall be.

        Raises:
            DeviceError: so many of these boxes do not fit into the grid.

        >>> topology = rx.Topology()
        >>> rx.DeviceAssignment.build(topology, [1, 2, 2, 2]).num_cores_per_replica
        8
        >>> rx.DeviceAssignment.build(topology, [1, 2, 2, 2], num_replicas=2)
        Traceback (most recent call last):
            ...
        replicax.errors.DeviceError: DeviceAssignment.build(computation_shape=[1, 2, 2, 2], ...
        """
        if not isinstance(topology, Topology):
            raise TypeError(
                f"DeviceAssignment.build takes the Topology that initialize_tpu_system returned, got "
                f"{topology!r}."
            )
        box = _checked_box(_ONES if computation_shape is None else computation_shape, "computation_shape")
        stride = _checked_box(
            _ONES if computation_stride is None else computation_stride, "computation_stride"
        )
        if isinstance(num_replicas, bool) or not isinstance(num_replicas, int) or num_replicas < 1:
            raise DeviceError(
                f"DeviceAssignment.build(num_replicas={num_replicas!r}): pass an integer, 1 or more."
            )
        boxes = _lay_out(topology, box, stride, num_replicas)
        if len(boxes) < num_replicas:
            gaps = "" if stride == _ONES else f", computation_stride={list(stride)}"
            raise DeviceError(
                f"DeviceAssignment.build(computation_shape={list(box)}{gaps}, "
                f"num_replicas={num_replicas}): {len(boxes)} such replicas fit into a topology of "
                f"shape {list(topology.mesh_shape)}. Its axes are x, y, z and the cores of a chip; ask for "
                "fewer replicas or a smaller box."
            )
        return cls(topology, boxes)

    def __repr__(self) -> str:
        return f"DeviceAssignment({self.num_replicas} replicas of {self.num_cores_per_replica} devices)"

    @property
    def topology(self) -> Topology:
        """The grid of cores."""
        return self._topology

    @property
    def num_replicas(self) -> int:
        """How many replicas there are."""
        return self._cores.shape[0]

    @property
    def num_cores_per_replica(self) -> int:
        """How many logical devices each replica has."""
        return self._cores.shape[1]

    @property
    def core_assignment(self) -> np.ndarray:
        """The places of the cores: an array of shape (replicas, cores of a replica, 4).

        >>> assignment = rx.DeviceAssignment.build(rx.Topology(), [1, 1, 1, 2], num_replicas=2)
        >>> assignment.core_assignment.tolist()
        [[[0, 0, 0, 0], [0, 0, 0, 1]], [[0, 0, 1, 0], [0, 0, 1, 1]]]
        """
        return self._cores

    @cached_property
    def devices(self) -> tuple[tuple[Device, ...], ...]:
        """The devices of each replica.

        >>> assignment = rx.DeviceAssignment.build(rx.Topology(), [1, 1, 1, 2], num_replicas=2)
        >>> [[device.id for device in row] for row in assignment.devices]
        [[0, 1], [2, 3]]
        """
        return tuple(tuple(self._topology.device_at(core) for core in row) for row in self._cores)

    def coordinates(self, replica: int, logical_core: int) -> tuple[int, ...]:
        """The place of one core of a replica.

        >>> assignment = rx.DeviceAssignment.build(rx.Topology(), [1, 1, 1, 2], num_replicas=2)
        >>> assignment.coordinates(replica=1, logical_core=0)
        (0, 0, 1, 0)
        """
        self._check(replica, logical_core)
        return tuple(int(i) for i in self._cores[replica, logical_core])

    def lookup_replicas(self, task_id: int, logical_core: int) -> list[int]:
        """The replicas whose device `logical_core` belongs to a process.

        >>> assignment = rx.DeviceAssignment.build(rx.Topology(), [1, 1, 1, 2], num_replicas=2)
        >>> assignment.lookup_replicas(task_id=0, logical_core=1)
        [0, 1]
        """
        self._check(0, logical_core)
        tasks = [self._topology.task_of(row[logical_core]) for row in self.devices]
        found = [replica for replica, task in enumerate(tasks) if task == task_id]
        if not found:
            raise DeviceError(
                f"lookup_replicas(task_id={task_id!r}, logical_core={logical_core}): no replica has that "
                f"core in task {task_id!r}; the tasks are {sorted(set(tasks))}."
            )
        return found

    def tpu_ordinal(self, replica: int = 0, logical_core: int = 0) -> int:
        """The number of one core of a replica among the devices of its process.

        >>> rx.DeviceAssignment.build(rx.Topology(), num_replicas=8).tpu_ordinal(replica=5)
        5
        """
        self._check(replica, logical_core)
        return parse_device_name(device_name(self.devices[replica][logical_core])).index

    def tpu_device(self, replica: int = 0, logical_core: int = 0, job: str | None = None) -> str:
        """The name of one core of a replica.

        Args:
            replica: which replica.
            logical_core: which of its cores.
            job: if given, the name is written in full, with this job.

        >>> assignment = rx.DeviceAssignment.build(rx.Topology(), [1, 1, 1, 2], num_replicas=4)
        >>> assignment.tpu_device(replica=1, logical_core=1)
        'CPU:3'
        >>> assignment.tpu_device(1, 1, job="worker")
        '/job:worker/replica:0/task:0/device:CPU:3'
        """
        self._check(replica, logical_core)
        device = self.devices[replica][logical_core]
        if job is None:
            return device_name(device)
        name = parse_device_name(device_name(device))
        task = self._topology.task_of(device)
        return f"/job:{job}/replica:0/task:{task}/device:{name.platform}:{name.index}"

    def _check(self, replica: int, logical_core: int) -> None:
        for name, number, count in (
            ("replica", replica, self.num_replicas),
            ("logical_core", logical_core, self.num_cores_per_replica),
        ):
            if not 0 <= number < count:
                raise DeviceError(f"{name} {number} is out of range: there are {count}, counted from 0.")


def _lay_out(
    topology: Topology, box: tuple[int, ...], stride: tuple[int, ...], num_replicas: int
) -> list[list[tuple[int, ...]]]:
    """The places of up to `num_replicas` boxes, each at the first corner where it fits."""
    taken: set[tuple[int, ...]] = set()
    boxes: list[list[tuple[int, ...]]] = []
    steps = [tuple(np.multiply(step, stride)) for step in np.ndindex(*box)]
    for corner in np.ndindex(*topology.mesh_shape):
        if len(boxes) == num_replicas:
            break
        cores = [tuple(int(i) for i in np.add(corner, step)) for step in steps]
        if all(topology.has(core) and core not in taken for core in cores):
            taken.update(cores)
            boxes.append(cores)
    return boxes
