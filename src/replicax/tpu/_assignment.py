"""`DeviceAssignment`: which cores of a `Topology` make up which replica.

A replica with several cores should get adjacent ones, so an assignment tiles the grid with boxes of cores,
one box for each replica, in row-major order:

    topology [1, 2, 2, 2]    box [1, 1, 1, 2]    4 replicas of 2 logical devices
                             box [1, 2, 2, 2]    1 replica  of 8
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import Any, final

import numpy as np

from replicax.errors import DeviceError
from replicax.topology import device_name, parse_device_name
from replicax.tpu._topology import RANK, Topology, checked_box
from replicax.types import Device

__all__ = ["DeviceAssignment"]

_ONES = (1,) * RANK


@final
class DeviceAssignment:
    """Which cores of a topology make up which replica; an argument of `TPUStrategy`.

    Create it with `build`. The cores of a replica are its *logical devices*, numbered from 0.

    Args:
        topology: what `initialize_tpu_system` returned.
        core_assignment: the coordinates of the cores, an array of shape (replicas, cores of a replica, 4).

    Raises:
        DeviceError: the array has the wrong shape, a core does not exist, or a core appears twice.

    >>> topology = rx.Topology()
    >>> assignment = rx.DeviceAssignment.build(topology, computation_shape=[1, 1, 1, 2], num_replicas=4)
    >>> assignment.num_replicas, assignment.num_cores_per_replica
    (4, 2)
    """

    def __init__(self, topology: Topology, core_assignment: Any) -> None:
        if not isinstance(topology, Topology):
            raise TypeError(
                "DeviceAssignment takes the Topology that initialize_tpu_system returned, got "
                f"{topology!r}."
            )
        cores = np.array(core_assignment, np.int32)
        if cores.ndim != 3 or cores.shape[2] != RANK or not cores.size:
            raise DeviceError(
                f"core_assignment must have the shape (replicas, cores of a replica, {RANK}), got "
                f"{cores.shape}."
            )
        cores.flags.writeable = False
        self._topology, self._cores = topology, cores
        seen: set[Device] = set()
        for device in (device for row in self.devices for device in row):
            if device in seen:
                raise DeviceError(f"core_assignment contains {device_name(device)} twice.")
            seen.add(device)

    @classmethod
    def build(
        cls,
        topology: Topology,
        computation_shape: Sequence[int] | None = None,
        computation_stride: Sequence[int] | None = None,
        num_replicas: int = 1,
    ) -> DeviceAssignment:
        """Place `num_replicas` boxes of cores in the grid.

        Args:
            topology: what `initialize_tpu_system` returned.
            computation_shape: the box of cores that one replica computes on, `[x, y, z, cores]`; None means
                one core.
            computation_stride: the distance between adjacent cores of a replica along each axis; None
                means 1, a box without gaps. Other replicas fill the gaps.
            num_replicas: the number of replicas.

        Raises:
            DeviceError: that many boxes do not fit into the grid.

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
        box = checked_box(_ONES if computation_shape is None else computation_shape, "computation_shape")
        stride = checked_box(
            _ONES if computation_stride is None else computation_stride, "computation_stride"
        )
        if isinstance(num_replicas, bool) or not isinstance(num_replicas, int) or num_replicas < 1:
            raise DeviceError(
                f"DeviceAssignment.build(num_replicas={num_replicas!r}): pass an integer, 1 or more."
            )
        boxes = _place_boxes(topology, box, stride, num_replicas)
        if len(boxes) < num_replicas:
            gaps = "" if stride == _ONES else f", computation_stride={list(stride)}"
            raise DeviceError(
                f"DeviceAssignment.build(computation_shape={list(box)}{gaps}, "
                f"num_replicas={num_replicas}): only {len(boxes)} such replicas fit into a topology of "
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
        """The number of replicas."""
        return self._cores.shape[0]

    @property
    def num_cores_per_replica(self) -> int:
        """The number of logical devices of each replica."""
        return self._cores.shape[1]

    @property
    def core_assignment(self) -> np.ndarray:
        """The coordinates of the cores, an array of shape (replicas, cores of a replica, 4).

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
        """The coordinates of one core of a replica.

        >>> assignment = rx.DeviceAssignment.build(rx.Topology(), [1, 1, 1, 2], num_replicas=2)
        >>> assignment.coordinates(replica=1, logical_core=0)
        (0, 0, 1, 0)
        """
        self._check(replica, logical_core)
        return tuple(int(i) for i in self._cores[replica, logical_core])

    def lookup_replicas(self, task_id: int, logical_core: int) -> list[int]:
        """The replicas whose logical device `logical_core` belongs to a process.

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
        """The index of one core of a replica within its process.

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
            job: if given, return the full name with this job.

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


def _place_boxes(
    topology: Topology, box: tuple[int, ...], stride: tuple[int, ...], num_replicas: int
) -> list[list[tuple[int, ...]]]:
    """The coordinates of up to `num_replicas` boxes, each at the first corner where it fits."""
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
