"""The enums of the programming model, and the types that JAX does not offer.

`ReduceOp` says how per-replica values become one. `VariableSynchronization` says *when* the copies
of a variable are brought together, `VariableAggregation` says *how*. Names and numbers are
TensorFlow's.
"""

from __future__ import annotations

import enum
from typing import Any, Protocol

from replicax.errors import CollectiveError, ReduceOpTypeError

__all__ = ["Device", "ReadInPython", "ReduceOp", "VariableAggregation", "VariableSynchronization"]


class Device(Protocol):
    """What Replicax uses of a `jax.Device`, which has no type that a checker could see."""

    @property
    def id(self) -> int:
        """Its number, unique among the devices of one platform in all processes."""
        ...

    @property
    def platform(self) -> str:
        """Such as `"cpu"` or `"gpu"`."""
        ...

    @property
    def process_index(self) -> int:
        """The process that it belongs to."""
        ...


class ReadInPython:
    """Marks what gives another value each time that it is read, which no compiled program can hold."""


@enum.unique
class ReduceOp(enum.Enum):
    """How the values of all replicas are combined into one.

    Wherever Replicax takes a `reduce_op`, a member or its name will do, in any case.

    >>> rx.ReduceOp.SUM
    <ReduceOp.SUM: 'SUM'>
    >>> rx.ReduceOp.parse("mean")
    <ReduceOp.MEAN: 'MEAN'>
    """

    SUM = "SUM"
    """Add the values up."""

    MEAN = "MEAN"
    """The sum divided by the number of values."""

    @classmethod
    def parse(cls, value: ReduceOp | str | Any) -> ReduceOp:
        """The reduction that a user's argument means.

        Args:
            value: A `ReduceOp`, or its name as a string in upper or lower case.

        Returns:
            The member.

        Raises:
            CollectiveError: A string that names no reduction (a `ValueError`).
            ReduceOpTypeError: Neither a `ReduceOp` nor a string, for instance a
                `VariableAggregation` (a `TypeError` and an `AssertionError`).

        >>> rx.ReduceOp.parse("Sum") is rx.ReduceOp.SUM
        True
        >>> rx.ReduceOp.parse("MAX")
        Traceback (most recent call last):
        replicax.errors.CollectiveError: 'MAX' is not a valid ReduceOp. Choose "SUM" or "MEAN".
        """
        if isinstance(value, cls):
            return value
        choices = " or ".join(f'"{op.value}"' for op in cls)
        if isinstance(value, str):
            try:
                return cls(value.upper())
            except ValueError:
                raise CollectiveError(f"{value!r} is not a valid ReduceOp. Choose {choices}.") from None
        raise ReduceOpTypeError(
            f"A reduction is an rx.ReduceOp or one of the strings {choices}; "
            f"got {value!r} of type {type(value).__name__}."
        )


@enum.unique
class VariableSynchronization(enum.Enum):
    """When the copies of a variable on the replicas are brought together.

    >>> [policy.name for policy in rx.VariableSynchronization]
    ['AUTO', 'NONE', 'ON_WRITE', 'ON_READ']
    """

    AUTO = 0
    """The strategy decides; for all of Replicax's strategies this is `ON_WRITE`."""

    NONE = 1
    """A single copy with nothing to bring together. Strategies with several copies refuse it."""

    ON_WRITE = 2
    """Every write reaches all copies, so they are always equal. For weights."""

    ON_READ = 3
    """Each replica writes its own copy; a read outside the replicas combines them. For metrics."""


@enum.unique
class VariableAggregation(enum.Enum):
    """How the values that the replicas write to one variable are combined.

    >>> [policy.name for policy in rx.VariableAggregation]
    ['NONE', 'SUM', 'MEAN', 'ONLY_FIRST_REPLICA']
    """

    NONE = 0
    """Not at all: several replicas may not write such a variable."""

    SUM = 1
    """The sum over the replicas."""

    MEAN = 2
    """The arithmetic mean over the replicas."""

    ONLY_FIRST_REPLICA = 3
    """The value of replica 0. For state on which all replicas agree, such as a step counter."""
