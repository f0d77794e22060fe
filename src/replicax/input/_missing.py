"""Attributes that users of tf.data and torch expect on our datasets, and what to write instead."""

from __future__ import annotations

from typing import Any

from replicax.input._source import INFINITE_CARDINALITY

__all__ = ["length", "no_attribute", "refuse_pickling"]

_TRANSFORM = (
    "Do it beforehand with NumPy, in the step, or with Grain: "
    "`grain.MapDataset.source(examples).map(fn).batch(batch_size)`, which a strategy accepts."
)
_READ_AHEAD = "Batches are prefetched anyway; `rx.InputOptions(per_replica_buffer_size=n)` sets how many."
_SLICE = "Slice the arrays first: `rx.from_arrays(jax.tree.map(lambda x: x[start:stop], arrays))`."
_SHARD = "strategy.distribute_dataset gives every process and replica its part anyway."
_HINTS = {
    "map": _TRANSFORM,
    "filter": _TRANSFORM,
    "flat_map": _TRANSFORM,
    "interleave": _TRANSFORM,
    "padded_batch": _TRANSFORM,
    "unbatch": _TRANSFORM,
    "window": _TRANSFORM,
    "enumerate": _TRANSFORM,
    "concatenate": _TRANSFORM,
    "zip": "Put the arrays into one structure: `rx.from_arrays((x, y))`.",
    "cache": "Arrays are already in memory; files are read again in every pass.",
    "prefetch": _READ_AHEAD,
    "shard": _SHARD,
    "skip": _SLICE,
    "take": _SLICE,
    "with_options": "Write `strategy.distribute_dataset(dataset, rx.InputOptions(...))`.",
    "shuffle": "Shuffle the list of paths, or use rx.from_arrays or Grain, which shuffle examples.",
    "repeat": "Loop over the distributed dataset several times.",
}


def no_attribute(owner: object, name: str, *, distributed: bool = False) -> AttributeError:
    """The error for an attribute that a dataset does not have."""
    hint = _HINTS.get(name, "")
    if distributed and name != "prefetch" and name in (*_HINTS, "batch"):
        hint = f"Transform before distributing: strategy.distribute_dataset(dataset.{name}(...))."
    return AttributeError(f"{type(owner).__name__!r} object has no attribute {name!r}. {hint}".rstrip())


def length(owner: object, cardinality: int) -> int:
    """What `len` returns for a dataset; raises TypeError if it is unknown."""
    if cardinality >= 0:
        return cardinality
    why = "it never ends" if cardinality == INFINITE_CARDINALITY else "it is known only after reading"
    raise TypeError(
        f"{type(owner).__name__} has no length: {why}. Count the batches in the loop, or use the "
        "`cardinality` of a distributed dataset, which is -1 for endless and -2 for unknown."
    )


def refuse_pickling(owner: object) -> Any:
    """Raise: an object that belongs to the devices of this process can't be sent to another one."""
    raise TypeError(
        f"A {type(owner).__name__} can't be pickled or copied: it belongs to the devices of this process. "
        "Pickle the dataset that it was made from, and call strategy.distribute_dataset in the other "
        "process. To save how far it has been read, use `iterator.state()`."
    )
