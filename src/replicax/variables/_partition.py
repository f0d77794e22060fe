"""How a variable is partitioned over the devices of a replica, its logical devices.

A *partition* is the number of parts along each axis: `(1, 4)` shards the columns of a matrix over four
devices. It is given when a variable is created, or by a rule of the strategy that matches its name.
"""

from __future__ import annotations

import dataclasses
import math
import operator
import re
from collections.abc import Mapping, Sequence
from typing import Any, final

from replicax.errors import VariableError
from replicax.topology import ReplicaMesh
from replicax.types import VariableSynchronization
from replicax.variables._spec import VariableSpec

__all__ = ["NO_RULES", "PartitionRules", "check_partition", "checked_parts"]


def checked_parts(partition: Any, what: str) -> tuple[int, ...]:
    """Check a partition; returns a tuple of positive integers."""
    try:
        parts = tuple(operator.index(number) for number in partition)
    except TypeError:
        parts = (0,)
    if any(number < 1 for number in parts):
        raise VariableError(
            f"{what} got the partition {partition!r}. Pass the number of parts along each axis as a list "
            "of positive integers, such as [1, 4]."
        )
    return parts


@final
class PartitionRules:
    """Partitions for variables by name.

    Args:
        rules: maps regular expressions, which are searched for in variables' names, to partitions.
    """

    def __init__(self, rules: Mapping[str, Sequence[int]] | None = None) -> None:
        if not isinstance(rules, Mapping | None):
            raise TypeError(
                f"partition_rules must be a dict such as {{'mlp/in': [1, 4]}}, got {rules!r} of type "
                f"{type(rules).__name__}."
            )
        self._rules = [
            (pattern, _compiled(pattern), checked_parts(partition, f"The partition rule {pattern!r}"))
            for pattern, partition in (rules or {}).items()
        ]

    def apply(self, spec: VariableSpec) -> VariableSpec:
        """`spec` with the partition of the rule that matches its name.

        Slots have the partitions of their parameters. ON_READ variables have none.
        """
        on_read = spec.synchronization is VariableSynchronization.ON_READ
        if not self._rules or spec.partition is not None or spec.is_slot or on_read:
            return spec
        found = [(pattern, parts) for pattern, regex, parts in self._rules if regex.search(spec.name)]
        if len({parts for _, parts in found}) > 1:
            listed = ", ".join(f"{pattern!r}: {list(parts)}" for pattern, parts in found)
            raise VariableError(
                f"The partition rules {listed} all match the variable '{spec.name}:0'. Write rules that "
                "match different names; '^' and '$' match the start and the end of a name."
            )
        if not found:
            return spec
        pattern, parts = found[0]
        return dataclasses.replace(spec, partition=parts, partition_rule=pattern)


NO_RULES = PartitionRules()


def _compiled(pattern: str) -> re.Pattern[str]:
    try:
        return re.compile(pattern)
    except (re.error, TypeError) as error:
        raise ValueError(
            f"The partition rule {pattern!r} is not a regular expression: {error}. The rules are searched "
            "for in the names of variables."
        ) from error


def check_partition(spec: VariableSpec, mesh: ReplicaMesh, strategy: object) -> None:
    """Raise unless the variable can be partitioned over the devices of a replica."""
    if spec.partition is None:
        return
    parts, count, product = spec.partition, mesh.num_logical_devices, math.prod(spec.partition)
    if (problem := _shape_problem(spec.shape, parts)) is not None:
        pass
    elif product > 1 and spec.synchronization is VariableSynchronization.ON_READ:
        problem = "but variables with synchronization ON_READ can't be partitioned."
    elif product > 1 and count == 1:
        problem = (
            f"but each replica of {strategy} has only one device. Give the replicas several devices, "
            f"`rx.MirroredStrategy(logical_devices={product})`, or leave out the partition."
        )
    elif count % product:
        problem = (
            f"which makes {product} parts, but each replica of {strategy} has {count} logical devices. The "
            f"number of parts must divide {count}."
        )
    if problem is not None:
        rule = "" if spec.partition_rule is None else f" by the rule {spec.partition_rule!r}"
        raise VariableError(
            f"The variable '{spec.name}:0' of shape {spec.shape} has the partition {list(parts)}{rule}, "
            f"{problem}"
        )


def _shape_problem(shape: tuple[int, ...], parts: tuple[int, ...]) -> str | None:
    if len(parts) != len(shape):
        return f"but {len(shape)} axes. Pass one number per axis, 1 for axes that are not partitioned."
    for axis, (size, number) in enumerate(zip(shape, parts, strict=True)):
        if size % number:
            return (
                f"but axis {axis} can't be divided into {number} equal parts. Partition another axis, or "
                f"choose a size that is a multiple of {number}."
            )
    return None
