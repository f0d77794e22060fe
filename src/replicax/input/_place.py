"""From host to devices: makes per-replica values from the rows of a step.

If all replicas have the same number of rows, each leaf becomes one global array, to which this process
contributes its own rows. Otherwise each replica's rows are padded to the largest number of rows, and the
value remembers how many are real. Leaves that can't form one array become one value per replica.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, final

import jax
import numpy as np

from replicax.errors import InputError
from replicax.input._batch import Batch, aligned_empty, device_dtype, is_numeric, leaf_names
from replicax.input._stream import Piece, Step
from replicax.topology import ReplicaMesh, is_key
from replicax.values import HostArray, PerReplica

__all__ = ["Placer"]


@final
class Placer:
    """Places the rows of steps on the devices of a strategy.

    Args:
        mesh: the strategy's devices.
        on_device: whether to place the arrays on the devices, or leave them in host memory.
        committed: whether a single replica's arrays are committed to its device.
    """

    def __init__(self, mesh: ReplicaMesh, *, on_device: bool, committed: bool) -> None:
        self.mesh = self._mesh = mesh
        self._on_device, self._committed = on_device, committed
        self._single = mesh.num_replicas == 1
        # Copy what a CPU device aliases, and what stays in host memory, where the user may change it.
        self._copied = not on_device or mesh.platform == "cpu"

    def place(self, step: Step, padded_size: int | None) -> Any:
        """The structure of values for `step`, padded to `padded_size` rows per replica unless None."""
        first = step.pieces[0].batch
        if padded_size is not None and first.num_rows is not None:
            leaves = self._padded(step, padded_size)
        elif self._single:
            leaves = self._alone(step.pieces[0])
        elif step.is_even and _are_contiguous(step.pieces):
            leaves = self._even(step)
        elif not (step.is_even and (self._mesh.is_local or any(step.sizes))):
            leaves = self._uneven(step)
        else:
            leaves = self._apart(step.pieces)
        return first.treedef.unflatten(leaves)

    def _rows(self, first: Piece, last: Piece | None = None) -> list[Any]:
        """The rows from the start of `first` to the end of `last`, which are pieces of one batch."""
        rows = first.batch.rows(first.start, (last or first).stop, aligned=self._copied)
        return [
            row if self._on_device and is_numeric(row) else np.asarray(row).view(HostArray) for row in rows
        ]

    def _alone(self, piece: Piece) -> list[Any]:
        rows = self._rows(piece)
        if not self._on_device:
            return rows
        where = self._mesh.replica_shardings[0] if self._committed else None
        moved = iter(jax.device_put([row for row in rows if is_numeric(row)], where))
        return [next(moved) if is_numeric(row) else row for row in rows]

    def _even(self, step: Step) -> list[Any]:
        pieces, mesh = step.pieces, self._mesh
        rows = self._rows(pieces[0], pieces[-1])
        if self._on_device and all(map(is_numeric, rows)):
            return [PerReplica.from_global(mesh.shard(row), mesh, scalar=False) for row in rows]
        size = pieces[0].size
        sliced = [[row[i * size : (i + 1) * size] for i in range(len(pieces))] for row in rows]
        return [self._assembled(parts) for parts in sliced]

    def _apart(self, pieces: Sequence[Piece]) -> list[Any]:
        by_replica = [self._rows(piece) for piece in pieces]
        return [self._assembled(list(parts)) for parts in zip(*by_replica, strict=True)]

    def _uneven(self, step: Step) -> list[Any]:
        """Place rows of replicas with different numbers of rows or, across processes, with none."""
        by_replica = [self._rows(piece) for piece in step.pieces]
        # Without other processes the mesh has just these replicas, even if other pipelines share the step.
        sizes = tuple(piece.size for piece in step.pieces) if self._mesh.is_local else step.sizes
        largest = max(*sizes, 1)
        return [self._padded_value(list(parts), largest, sizes) for parts in zip(*by_replica, strict=True)]

    def _padded_value(self, parts: list[Any], largest: int, sizes: tuple[int, ...]) -> PerReplica:
        mesh = self._mesh
        if not mesh.is_local and not (self._on_device and all(map(is_numeric, parts))):
            return PerReplica(parts, mesh=mesh, sizes=sizes)
        if mesh.is_local and not (self._on_device and _fit_together(parts)):
            return self._assembled(parts)
        if is_key(parts[0]):
            data = [jax.random.key_data(part) for part in parts]
            array = mesh.shard(_joined(list(map(np.asarray, data)), largest))
            array = jax.random.wrap_key_data(array, impl=jax.random.key_impl(parts[0]))
        else:
            array = mesh.shard(_joined(list(map(np.asarray, parts)), largest))
        return PerReplica.from_padded(array, mesh, sizes)

    def _assembled(self, parts: list[Any]) -> PerReplica:
        if self._on_device and all(map(is_numeric, parts)):
            parts = [self._mesh.place(part, i) for i, part in enumerate(parts)]
        return PerReplica(parts, mesh=self._mesh)

    # Padding.

    def _padded(self, step: Step, size: int) -> list[Any]:
        mesh, pieces = self._mesh, step.pieces
        sizes = tuple(piece.size for piece in pieces)
        _check_paddable(pieces[0].batch)
        if set(sizes) == {size} and _are_contiguous(pieces):
            columns = self._rows(pieces[0], pieces[-1])
        else:
            columns = _padded_rows(pieces, size)
        mask = self._mask(sizes, size)
        arrays = [mesh.shard(column) for column in columns]
        return [PerReplica.from_global(array, mesh, scalar=False).with_mask(mask) for array in arrays]

    def _mask(self, sizes: tuple[int, ...], size: int) -> PerReplica:
        """The mask for these numbers of examples: always a new array, which identifies its batch."""
        rows = np.concatenate([np.arange(size) < count for count in sizes])
        return PerReplica.from_global(self._mesh.shard(rows), self._mesh, scalar=False)


def _check_paddable(batch: Batch) -> None:
    for name, leaf in zip(leaf_names(batch.treedef), batch.leaves, strict=True):
        if is_key(leaf) or not is_numeric(leaf):
            raise InputError(
                f"partial_batch='pad' can't pad {name}, an array of {leaf.dtype}. Remove it from the "
                "batch, or use partial_batch='exact'."
            )


def _are_contiguous(pieces: Sequence[Piece]) -> bool:
    """Whether the pieces are consecutive rows of one batch, and not all empty."""
    batch, end = pieces[0].batch, pieces[0].start
    if batch.num_rows is None or pieces[-1].stop == end:
        return False
    for piece in pieces:
        if piece.batch is not batch or piece.start != end:
            return False
        end = piece.stop
    return True


def _fit_together(parts: Sequence[Any]) -> bool:
    """Whether the rows of `parts` have the same shape and dtype, so that one array can hold them."""
    return all(map(is_numeric, parts)) and len({(part.shape[1:], part.dtype) for part in parts}) == 1


def _joined(parts: Sequence[np.ndarray], size: int) -> np.ndarray:
    """The rows of `parts`, each padded to `size` with zeros that no replica sees."""
    column = aligned_empty((len(parts) * size, *parts[0].shape[1:]), device_dtype(parts[0]))
    for i, part in enumerate(parts):
        column[i * size : i * size + len(part)] = part
        column[i * size + len(part) : (i + 1) * size] = 0
    return column


def _padded_rows(pieces: Sequence[Piece], size: int) -> list[Any]:
    """The rows of all pieces, each padded to `size` with copies of real rows, which are valid input."""
    by_piece = [piece.batch.rows(piece.start, piece.stop) for piece in pieces]
    spare: list[Any] | None = None
    if not all(piece.size for piece in pieces):
        # From the batch, not from a piece: this process may have no rows of the batch.
        spare = next((piece.batch.rows(0, 1) for piece in pieces if piece.batch.num_rows), None)
    columns = []
    names = leaf_names(pieces[0].batch.treedef)
    for i, (name, *parts) in enumerate(zip(names, *by_piece, strict=True)):
        arrays = [np.asarray(part) for part in parts]
        shapes = {array.shape[1:] for array in arrays}
        if len(shapes) > 1:
            raise InputError(
                f"partial_batch='pad' can't combine rows of {name} with shapes {sorted(shapes)} into one "
                "array. Give all examples the same shape, or use partial_batch='exact'."
            )
        column = aligned_empty((len(pieces) * size, *arrays[0].shape[1:]), device_dtype(arrays[0]))
        for j, array in enumerate(arrays):
            start, count = j * size, len(array)
            column[start : start + count] = array
            if count:
                column[start + count : start + size] = array[-1:]
            else:
                column[start : start + size] = 0 if spare is None else np.asarray(spare[i])
        columns.append(column)
    return columns
