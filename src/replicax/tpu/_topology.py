"""`Topology`: the grid of a TPU's cores.

A core has four coordinates: x, y and z of its chip, and its number on the chip. Devices without coordinates
(CPUs and GPUs that stand in for TPU cores) get made-up ones: two cores per chip if their number is even,
and chips in a grid that is as close to a cube as possible.
"""

from __future__ import annotations

import json
import operator
from collections.abc import Iterable, Sequence
from typing import Any, final

import numpy as np

from replicax.errors import DeviceError
from replicax.topology import prime_factors, resolve_devices
from replicax.types import Device

__all__ = ["RANK", "Topology", "checked_box"]

RANK = 4  # x, y, z, core


@final
class Topology:
    """The grid of a TPU's cores, as `initialize_tpu_system` returns it.

    Args:
        devices: the devices, or their names; None means all devices of JAX's default backend.
        mesh_shape: the grid for devices without coordinates, `[x, y, z, cores]`. TPU cores have
            coordinates.
        device_coordinates: the coordinates of each process's devices, an array of shape (tasks, devices of
            a task, 4), to describe a grid instead of detecting it. It may be larger than the real one; only
            devices that exist can be looked up.
        serialized: what `serialized()` of another topology returned.

    Raises:
        DeviceError: the devices do not fill `mesh_shape`, or it is given for TPU cores.

    >>> topology = rx.Topology()
    >>> topology.mesh_shape
    (1, 2, 2, 2)
    >>> topology.num_tasks, topology.num_tpus_per_task
    (1, 8)
    """

    def __init__(
        self,
        devices: Iterable[str | Device] | None = None,
        mesh_shape: Sequence[int] | None = None,
        device_coordinates: Any = None,
        *,
        serialized: bytes | None = None,
    ) -> None:
        found = resolve_devices(devices)
        if serialized is not None:
            device_coordinates = json.loads(serialized)["device_coordinates"]
        if device_coordinates is not None:
            self._describe(found, device_coordinates, mesh_shape)
            return
        places = _coordinates_of(found)
        if places is None:
            places = _made_up_coordinates(len(found), mesh_shape)
        elif mesh_shape is not None:
            raise DeviceError(
                f"Topology(mesh_shape={list(mesh_shape)}): TPU cores already have coordinates. Leave out "
                "mesh_shape."
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

    def _describe(self, devices: Sequence[Any], coordinates: Any, mesh_shape: Sequence[int] | None) -> None:
        given = np.array(coordinates, np.int32)
        if given.ndim != 3 or given.shape[2] != RANK:
            raise DeviceError(
                f"Topology(device_coordinates=...) must have the shape (tasks, devices of a task, {RANK}), "
                f"got {given.shape}."
            )
        given.flags.writeable = False
        self._coordinates, self._tasks = given, list(range(given.shape[0]))
        places = [tuple(int(i) for i in place) for place in given.reshape(-1, RANK)]
        self._devices = dict(zip(places, devices, strict=False))
        if mesh_shape is not None and self.mesh_shape != checked_box(mesh_shape, "mesh_shape"):
            raise DeviceError(
                f"Topology(mesh_shape={list(mesh_shape)}): the coordinates fill {list(self.mesh_shape)}."
            )

    def serialized(self) -> bytes:
        """The coordinates as bytes, for `Topology(serialized=...)`.

        >>> rx.Topology(serialized=rx.Topology().serialized()).mesh_shape
        (1, 2, 2, 2)
        """
        return json.dumps({"device_coordinates": self._coordinates.tolist()}).encode()

    def __repr__(self) -> str:
        return f"Topology(mesh_shape={list(self.mesh_shape)}, {len(self._devices)} devices)"

    @property
    def mesh_shape(self) -> tuple[int, ...]:
        """The size of the grid along x, y, z and the cores of a chip.

        >>> rx.Topology(["CPU:0", "CPU:1"]).mesh_shape
        (1, 1, 1, 2)
        """
        return tuple(int(size) for size in self._coordinates.reshape(-1, RANK).max(axis=0) + 1)

    @property
    def mesh_rank(self) -> int:
        """The number of coordinates of a core: 4.

        >>> rx.Topology().mesh_rank
        4
        """
        return RANK

    @property
    def num_tasks(self) -> int:
        """The number of processes that the devices belong to.

        >>> rx.Topology().num_tasks
        1
        """
        return self._coordinates.shape[0]

    @property
    def num_tpus_per_task(self) -> int:
        """The number of devices of each process.

        >>> rx.Topology().num_tpus_per_task
        8
        """
        return self._coordinates.shape[1]

    @property
    def device_coordinates(self) -> np.ndarray:
        """The coordinates of each process's devices, an array of shape (tasks, devices of a task, 4).

        >>> rx.Topology(["CPU:0", "CPU:1"]).device_coordinates.tolist()
        [[[0, 0, 0, 0], [0, 0, 0, 1]]]
        """
        return self._coordinates

    def device_at(self, coordinates: Sequence[int]) -> Device:
        """The device with these coordinates.

        Raises:
            DeviceError: the device does not exist.

        >>> rx.Topology().device_at([0, 0, 0, 1]) is jax.devices()[1]
        True
        """
        place = tuple(int(i) for i in coordinates)
        if place not in self._devices:
            raise DeviceError(f"{self!r} has no device at {list(place)}.")
        return self._devices[place]

    def task_of(self, device: Device) -> int:
        """The index of the process that a device belongs to, counted from 0.

        >>> rx.Topology().task_of(jax.devices()[3])
        0
        """
        return self._tasks.index(device.process_index)

    def has(self, coordinates: Sequence[int]) -> bool:
        """Whether there is a device at these coordinates; a TPU slice need not fill its grid.

        >>> rx.Topology().has([0, 0, 0, 2])
        False
        """
        return tuple(int(i) for i in coordinates) in self._devices


def _coordinates_of(devices: Sequence[Any]) -> list[tuple[int, ...]] | None:
    """The coordinates of TPU cores, starting at 0; None for other devices."""
    if any(device.platform != "tpu" for device in devices):
        return None
    rows = np.asarray([(*device.coords, device.core_on_chip) for device in devices])
    return [tuple(int(i) for i in row) for row in rows - rows.min(axis=0)]


def _made_up_coordinates(count: int, mesh_shape: Sequence[int] | None) -> list[tuple[int, ...]]:
    shape = _made_up_shape(count) if mesh_shape is None else checked_box(mesh_shape, "mesh_shape")
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


def checked_box(box: Any, name: str) -> tuple[int, ...]:
    """`box` as a tuple of four positive integers; `name` is the argument in error messages."""
    try:
        sizes = tuple(operator.index(size) for size in box)
    except TypeError:
        sizes = ()
    if len(sizes) != RANK or min(sizes) < 1:
        raise DeviceError(
            f"{name} must be a list of {RANK} positive integers, for x, y, z and the cores of a chip; got "
            f"{box!r}."
        )
    return sizes
