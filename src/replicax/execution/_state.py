"""Moving arrays between the variables' stores and the program of a compiled step.

Nearly every step uses the variables of one strategy, which are in one store, and runs in C. Two other cases
are handled here: variables of several strategies, and variables that are not placed on the step's devices
(in central storage, or created without a strategy). The latter are copied to the step's devices and back
afterwards.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Sequence
from typing import Any, final

import jax

from replicax._native import hold
from replicax.errors import ContextError
from replicax.topology import ReplicaMesh
from replicax.values import on_first_replica
from replicax.variables import Places, Store, Variable

__all__ = ["StepState", "in_store_order"]


def in_store_order(variables: Iterable[Variable]) -> list[Variable]:
    """Sort variables by their index in the store: the arrays of one model are nearly always adjacent."""
    return sorted(variables, key=lambda v: (v._store.number, v._place))


@final
class StepState:
    """The variables that a step only reads and those that it writes, both in store order."""

    def __init__(
        self, read: Sequence[Variable], written: Sequence[Variable], mesh: ReplicaMesh | None
    ) -> None:
        self.read, self.written = list(read), list(written)
        self._mesh = mesh
        self.stores = _in_order({v._store for v in (*read, *written)})
        self._locks = tuple(store.lock for store in self.stores)
        self._read = _by_store(read)
        self._written = _by_store(written)
        self._read_copied = [i for i, v in enumerate(read) if self._is_copied(v)]
        self._written_copied = [i for i, v in enumerate(written) if self._is_copied(v)]
        self._refuse_copied_parts()

    def _is_copied(self, variable: Variable) -> bool:
        """Whether the variable's array must be copied to the step's devices and back."""
        layout = variable.layout
        return self._mesh is not None and not (layout.on_mesh and layout.mesh == self._mesh)

    def _refuse_copied_parts(self) -> None:
        for i in self._written_copied:
            if self.written[i].layout.differs:
                raise ContextError(
                    f"The ON_READ variable {self.written[i].name!r} was written in a step of another "
                    "strategy. Write it in a step of its own strategy."
                )
        for i in self._read_copied:
            if self.read[i].layout.differs and self._is_elsewhere(self.read[i]):
                raise ContextError(
                    f"The ON_READ variable {self.read[i].name!r} has a part on each replica of "
                    f"{self.read[i].distribute_strategy!r}, but was read in a step on {self._mesh}. "
                    "Read it outside of the step, and pass the value as an argument."
                )

    def _is_elsewhere(self, variable: Variable) -> bool:
        """Whether a variable with a mesh is placed on devices that the step does not use."""
        own = variable.mesh
        assert own is not None
        assert self._mesh is not None
        return own.mesh.devices.tolist() != self._mesh.mesh.devices.tolist()

    @property
    def lock(self) -> contextlib.AbstractContextManager[Any]:
        """A `with` block that holds the locks of the stores."""
        return self._locks[0] if len(self._locks) == 1 else hold(self._locks)

    @property
    def only(self) -> Store | None:
        """The store that has all of the arrays, where the step needs them; None if there is none."""
        copied = self._read_copied or self._written_copied
        return self.stores[0] if len(self.stores) == 1 and not copied else None

    def make_ready(self) -> None:
        """Complete interrupted calls, and copy the arrays that have views. The caller holds the lock."""
        for store in self.stores:
            store.complete()
        for store, places in self._written:
            store.detach_views(places.indices)

    def take(self) -> tuple[list[Any], list[Any]]:
        """The arrays to read, and those to write, which may be donated. The caller holds the lock."""
        self.make_ready()
        read = [array for store, places in self._read for array in places.take(store.arrays)]
        written = [array for store, places in self._written for array in places.take(store.arrays)]
        return self._on_mesh(read, self._read_copied), self._on_mesh(written, self._written_copied)

    def _on_mesh(self, arrays: list[Any], copied: list[int]) -> list[Any]:
        for i in copied:
            assert self._mesh is not None
            arrays[i] = self._mesh.replicate(on_first_replica(arrays[i]))
        return arrays

    def shape_of(self, variable: Variable) -> jax.ShapeDtypeStruct:
        """The shape, dtype and sharding of a variable's array in the step."""
        layout, mesh = variable.layout, self._mesh
        shape = layout.array_shape(variable._spec)
        if mesh is None:
            return jax.ShapeDtypeStruct(shape, variable.dtype)
        sharding = mesh.replicated if self._is_copied(variable) else layout.sharding(mesh)
        return jax.ShapeDtypeStruct(shape, variable.dtype, sharding=sharding)

    def announce(self, finish: Callable[[], None] | None) -> None:
        """Register a function that completes this call if it is interrupted; None when it is complete."""
        for store, _ in self._written:
            store.unfinished = finish

    def put(self, new: Sequence[Any]) -> None:
        """Store the new arrays of the written variables. Calling it twice is harmless."""
        arrays = list(new)
        for i in self._written_copied:
            arrays[i] = self.written[i].layout.place(on_first_replica(arrays[i]))
        start = 0
        for store, places in self._written:
            stop = start + len(places.indices)
            places.put(store.arrays, arrays[start:stop])
            start = stop

    def add_note_of_losses(self, error: BaseException) -> None:
        """Add a note to `error` about variables that lost their values because they were donated."""
        arrays = [array for store, places in self._written for array in places.take(store.arrays)]
        lost = [v.name for v, array in zip(self.written, arrays, strict=True) if array.is_deleted()]
        if lost:
            error.add_note(
                f"The step failed after the arrays of {', '.join(lost)} were donated to it, so their "
                "values are lost. Assign them, or restore a checkpoint, before the next step."
            )


def _in_order(stores: Iterable[Store]) -> list[Store]:
    return sorted(stores, key=lambda store: store.number)


def _by_store(variables: Sequence[Variable]) -> list[tuple[Store, Places]]:
    """The indices of `variables`, which are in store order, by store."""
    stores = _in_order({v._store for v in variables})
    return [(store, Places([v._place for v in variables if v._store is store])) for store in stores]
