"""Errors for state and steps that do not fit in memory: what takes the memory, and what would help."""

from __future__ import annotations

import contextlib
import dataclasses
import math
from collections.abc import Iterator, Sequence
from typing import Protocol

import jax

from replicax._messages import size_text
from replicax.contexts import StrategyProtocol
from replicax.errors import OutOfMemoryError
from replicax.topology import memory_limit
from replicax.types import Device
from replicax.variables._memory import Memory, stored_bytes, variables_in
from replicax.variables._variable import Variable

__all__ = [
    "advise",
    "creating_state",
    "is_out_of_memory",
    "out_of_memory_in_step",
]

_MOST_VARIABLES = 3
_MOST_PARTS = 64


def is_out_of_memory(error: BaseException) -> bool:
    """Whether XLA raised `error` because a device has too little memory."""
    return isinstance(error, jax.errors.JaxRuntimeError) and "RESOURCE_EXHAUSTED" in str(error)


class _Placement(Protocol):
    """The properties of a strategy that the advice depends on."""

    @property
    def num_replicas_in_sync(self) -> int: ...
    @property
    def shard(self) -> str: ...


# Advice.


def advise(memory: Memory, limit: int | None, num_replicas: int, shard: str) -> list[str]:
    """Settings that would reduce the memory of a step, those with a known effect first.

    Args:
        memory: what the step needs on each device.
        limit: what a device has, if known.
        num_replicas: the number of devices that state can be sharded over.
        shard: what is sharded already: "mirrored" (nothing), "optimizer" or "all".
    """
    return [
        *_advise_sharding(memory, limit, num_replicas, shard),
        *_advise_smaller_activations(memory, limit),
        *_advise_smaller_slots(memory),
    ]


def _advise_sharding(memory: Memory, limit: int | None, num_replicas: int, shard: str) -> Iterator[str]:
    left_out = 1 - 1 / num_replicas
    slots = 0 if shard != "mirrored" else round(memory.optimizer * left_out)
    everything = 0 if shard == "all" else slots + round(memory.parameters * left_out)
    if everything < 0.01 * memory.peak:
        if num_replicas == 1 and memory.state > 0.25 * memory.peak:
            yield "More devices: ShardedStrategy shards state over devices, but there is only one."
        return
    enough = limit is not None and memory.peak - slots <= limit
    if slots and enough:
        setting, what, saved = "optimizer", "the optimizer state", slots
    else:
        setting, what, saved = "all", "parameters and optimizer state", everything
    yield (
        f'rx.ShardedStrategy(shard="{setting}"): shards {what} over the {num_replicas} devices, '
        f"{size_text(saved)} less on each."
    )


def _advise_smaller_activations(memory: Memory, limit: int | None) -> Iterator[str]:
    # Gradients are temporaries too, and do not become smaller.
    activations = memory.temporaries - memory.parameters
    if activations < 0.1 * memory.peak:
        return
    others = memory.peak - activations
    parts = 2
    if limit is not None and others < limit:
        parts = 1 << max(1, math.ceil(math.log2(activations / (limit - others))))
    if parts <= _MOST_PARTS:
        yield (
            f"rx.value_and_grad(..., microbatches={parts}): computes a batch in {parts} parts, with about "
            f"{size_text(activations / parts)} of activations instead of {size_text(activations)}. If you "
            f"already use microbatches, use {parts} times as many."
        )
    yield "jax.checkpoint around each layer: recomputes activations instead of storing them."
    yield "rx.value_and_grad(..., precision=rx.MixedPrecision()): activations in bfloat16."


def _advise_smaller_slots(memory: Memory) -> Iterator[str]:
    if memory.optimizer > 0.2 * memory.peak:
        yield (
            "Smaller optimizer state: optax.adam(..., mu_dtype=jnp.bfloat16) saves a quarter of it, and "
            "optax.adafactor needs almost none."
        )


# Messages.


def memory_text(memory: Memory, sizes: Sequence[tuple[Variable, int]] = ()) -> str:
    """One line per use of memory, with the largest variables."""
    rows = [
        ("parameters", memory.parameters, "parameters"),
        ("optimizer state", memory.optimizer, "optimizer"),
        ("other variables", memory.other_state, "other_state"),
        ("arguments", memory.arguments, ""),
        ("results", memory.results, ""),
        ("temporaries (activations, gradients)", memory.temporaries, ""),
    ]
    return "\n".join(
        f"  {label:37} {size_text(size):>10}{_largest(sizes, kind)}" for label, size, kind in rows if size
    )


def _largest(sizes: Sequence[tuple[Variable, int]], kind: str) -> str:
    of_kind = [(v, size) for v, size in sizes if kind and Memory.of_variables([(v, 1)]).__dict__[kind]]
    largest = sorted(of_kind, key=lambda pair: pair[1], reverse=True)[:_MOST_VARIABLES]
    names = ", ".join(f"{v.name} {size_text(size)}" for v, size in largest)
    return f"   largest: {names}" if names else ""


def _message(start: str, table: str, tips: Sequence[str], end: str = "") -> str:
    parts = [start, table]
    if tips:
        parts.append("What would help:\n" + "\n".join(f"  - {tip}" for tip in tips))
    return "\n".join(filter(None, (*parts, end)))


def out_of_memory_in_step(
    name: str,
    memory: Memory,
    sizes: Sequence[tuple[Variable, int]],
    devices: Sequence[Device],
    *,
    was_run: bool,
    others: int = 0,
    block: int | None = None,
) -> OutOfMemoryError:
    """The error for a step that needs more memory than a device has.

    Args:
        name: the step's name.
        memory: what it needs on each device.
        sizes: its variables, with their bytes per device.
        devices: its devices in this process.
        was_run: whether it was started.
        others: the bytes per device that other arrays take.
        block: the size of the largest free block, if that is the reason.
    """
    limit = memory_limit(devices)
    available = "" if limit is None else f", and JAX may use {size_text(limit)}"
    if block is not None:
        available += f", but the free memory is fragmented into blocks of {size_text(block)} or less"
    elif limit is not None and others > 0.01 * limit:
        available += f", but other arrays take {size_text(others)}"
    start = (
        f"The step {name!r} {'ran out of memory' if was_run else 'does not fit into memory'}: it needs "
        f"{size_text(memory.peak)} on each device{available}."
    )
    strategies = {v._strategy for v, _ in sizes if v.layout.has_copies or v.layout.is_split}
    placement = strategies.pop() if len(strategies) == 1 else None
    room = None if limit is None else max(0, limit - others)
    if block is not None:
        room = memory.peak - memory.temporaries + block
    tips = advise(memory, room, *_placement(placement))
    end = "`rx.explain(step, ...)` shows all variables and collectives, and the effect of other settings."
    return OutOfMemoryError(_message(start, memory_text(memory, sizes), tips, end))


def _placement(strategy: _Placement | None) -> tuple[int, str]:
    return (1, "mirrored") if strategy is None else (strategy.num_replicas_in_sync, strategy.shard)


@contextlib.contextmanager
def creating_state(strategy: StrategyProtocol, what: str, num_bytes: int = 0) -> Iterator[None]:
    """A `with` block in which running out of memory raises an error that lists the variables.

    `num_bytes` is the size of the new variable, if known.
    """
    try:
        yield
    except jax.errors.JaxRuntimeError as error:
        if not is_out_of_memory(error):
            raise
        raise _out_of_memory_in_creation(strategy, what, num_bytes) from error


def _out_of_memory_in_creation(strategy: StrategyProtocol, what: str, num_bytes: int) -> OutOfMemoryError:
    limit = memory_limit(strategy.mesh.mesh.local_devices)
    size = f" ({size_text(num_bytes)})" if num_bytes else ""
    available = "" if limit is None else f" JAX may use {size_text(limit)}."
    sizes = [(v, stored_bytes(v)) for v in variables_in(strategy.store)]
    memory = Memory.of_variables(sizes)
    start = f"A device ran out of memory while {what}{size} was being created.{available}"
    if sizes:
        start += f" The variables of this strategy take {size_text(memory.state)} on each device:"
    wanted = dataclasses.replace(memory, parameters=memory.parameters + num_bytes)
    is_much = limit is None or wanted.state > 0.1 * limit
    tips = advise(wanted, limit, *_placement(strategy)) if is_much else []
    return OutOfMemoryError(_message(start, memory_text(memory, sizes), tips))
