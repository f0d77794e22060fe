"""The memory that a compiled step needs per device, and the errors if a device has too little."""

from __future__ import annotations

import contextlib
import functools
import gc
from collections.abc import Iterable, Sequence
from typing import Any, final

import jax

from replicax.errors import OutOfMemoryError
from replicax.topology import ReplicaMesh, largest_free_block, memory_in_use, memory_limit
from replicax.variables import (
    Memory,
    Variable,
    bytes_on_device,
    is_out_of_memory,
    out_of_memory_in_step,
)

__all__ = ["StepMemory"]


@final
class StepMemory:
    """The memory of one compiled step.

    Args:
        name: the step's name.
        state: its variables, each with the shape and sharding of its array.
        mesh: its devices; None if JAX chooses.
        compiled: the program.
        arguments: the arrays that it is called with, or their shapes.
    """

    def __init__(
        self,
        name: str,
        state: Sequence[tuple[Variable, jax.ShapeDtypeStruct]],
        mesh: ReplicaMesh | None,
        compiled: jax.stages.Compiled,
        arguments: Iterable[Any],
    ) -> None:
        self._name, self._state, self._mesh, self._compiled = name, state, mesh, compiled
        self._arguments = sum(map(bytes_on_device, arguments))

    @property
    def sizes(self) -> list[tuple[Variable, int]]:
        """The variables of the step, each with its bytes per device."""
        return [(variable, bytes_on_device(shape)) for variable, shape in self._state]

    @functools.cached_property
    def memory(self) -> Memory:
        """What the step needs on each device; XLA reports the temporaries and results."""
        stats: Any = self._compiled.memory_analysis()
        new = max(0, stats.output_size_in_bytes - stats.alias_size_in_bytes)
        return Memory.of_variables(
            self.sizes, arguments=self._arguments, results=new, temporaries=stats.temp_size_in_bytes
        )

    @property
    def _devices(self) -> Sequence[Any]:
        return jax.local_devices()[:1] if self._mesh is None else self._mesh.mesh.local_devices

    def refuse_too_large(self) -> None:
        """Raise if the step can't fit on a device: once it has started, donated arrays may be lost."""
        limit = memory_limit(self._devices)
        if limit is None or (self._fits_into(limit) and self._fits_into_block()):
            return
        _settle()
        if not self._fits_into(limit):
            raise self._error(was_run=False, others=self._others())
        if not self._fits_into_block():
            for store in {variable._store for variable, _ in self._state}:
                store.compact()
        if not self._fits_into_block():
            raise self._error(was_run=False, block=largest_free_block(self._devices))

    def _fits_into(self, limit: int) -> bool:
        return self.memory.peak + self._others() <= limit

    def _fits_into_block(self) -> bool:
        """Whether the temporaries, which XLA allocates as one block, fit into the largest free block."""
        block = largest_free_block(self._devices)
        return block is None or self.memory.temporaries <= block

    def _others(self) -> int:
        """The bytes per device that other arrays take; 0 if the platform does not report it."""
        memory = self.memory
        return max(0, memory_in_use(self._devices) - memory.state - memory.arguments)

    @property
    def may_run_out(self) -> bool:
        """Whether the step may run out of memory at run time: on devices with their own memory."""
        return self._devices[0].platform != "cpu"

    def explain(self, error: BaseException) -> None:
        """If `error` is about memory, raise an error that lists what takes memory and what would help."""
        if is_out_of_memory(error):
            raise self._error(was_run=True) from error

    def _error(self, *, was_run: bool, others: int = 0, block: int | None = None) -> OutOfMemoryError:
        return out_of_memory_in_step(
            self._name, self.memory, self.sizes, self._devices, was_run=was_run, others=others, block=block
        )


def _settle() -> None:
    """Collect garbage, and wait for steps that are still running."""
    gc.collect()
    for array in jax.live_arrays():
        with contextlib.suppress(Exception):  # the program that computes it has failed
            array.block_until_ready()
