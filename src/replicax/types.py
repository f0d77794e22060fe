"""The enums of the programming model, and the types that JAX does not define.

`ReduceOp` says how per-replica values are combined. `VariableSynchronization` says *when* the copies of a
variable are synchronized, `VariableAggregation` says *how*. Names and numbers are TensorFlow's.
"""

from __future__ import annotations

import enum
from typing import Any, Literal, Protocol, TypeAlias

from replicax.errors import CollectiveError, ReduceOpTypeError

__all__ = [
    "AggregationLike",
    "Device",
    "ReduceOp",
    "ReduceOpLike",
    "SynchronizationLike",
    "UnconnectedGradients",
    "Untyped",
    "VariableAggregation",
    "VariableSynchronization",
]


class Device(Protocol):
    """The part of `jax.Device` that Replicax uses. Type checkers can't see the class itself."""

    @property
    def id(self) -> int:
        """Its id, unique among all processes' devices of one platform."""
        ...

    @property
    def platform(self) -> str:
        """For example `"cpu"` or `"gpu"`."""
        ...

    @property
    def process_index(self) -> int:
        """The index of the process that it belongs to."""
        ...


class Untyped:
    """A type without values: in an overload only `Any` matches it, so that an unknown type stays `Any`."""


@enum.unique
class ReduceOp(enum.Enum):
    """How the values of all replicas are combined into one.

    Every `reduce_op` argument takes a member or its name, in upper or lower case.

    >>> rx.ReduceOp.SUM
    <ReduceOp.SUM: 'SUM'>
    >>> rx.ReduceOp.parse("mean")
    <ReduceOp.MEAN: 'MEAN'>
    """

    SUM = "SUM"
    """The sum of the values."""

    MEAN = "MEAN"
    """The sum divided by the number of values."""

    @classmethod
    def parse(cls, value: ReduceOp | str | Any) -> ReduceOp:
        """Convert a user's argument to a member.

        Args:
            value: A `ReduceOp`, or its name as a string in upper or lower case.

        Returns:
            The member.

        Raises:
            CollectiveError: The string is not the name of a reduction (a `ValueError`).
            ReduceOpTypeError: `value` is neither a `ReduceOp` nor a string, for instance a
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
    """When the copies of a variable on the replicas are synchronized.

    >>> [policy.name for policy in rx.VariableSynchronization]
    ['AUTO', 'NONE', 'ON_WRITE', 'ON_READ']
    """

    AUTO = 0
    """The strategy decides; for all of Replicax's strategies this is `ON_WRITE`."""

    NONE = 1
    """Never: for a single copy. Strategies with several copies refuse it."""

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
    """They are not combined: only a single replica may write such a variable."""

    SUM = 1
    """The sum over the replicas."""

    MEAN = 2
    """The arithmetic mean over the replicas."""

    ONLY_FIRST_REPLICA = 3
    """The value of replica 0. For state that is the same on all replicas, such as a step counter."""


@enum.unique
class UnconnectedGradients(enum.Enum):
    """What a `GradientTape` returns for a source that the target does not depend on.

    >>> [choice.name for choice in rx.UnconnectedGradients]
    ['NONE', 'ZERO']
    """

    NONE = "none"
    """`None`."""

    ZERO = "zero"
    """Zeros in the shape of the source."""


ReduceOpLike: TypeAlias = ReduceOp | Literal["SUM", "MEAN", "sum", "mean"]
"""What arguments called `reduce_op` take: a member of `ReduceOp` or its name."""

SynchronizationLike: TypeAlias = VariableSynchronization | Literal["AUTO", "NONE", "ON_WRITE", "ON_READ"]
"""What `rx.Variable(synchronization=...)` takes: a member of `VariableSynchronization` or its name."""

AggregationLike: TypeAlias = VariableAggregation | Literal["NONE", "SUM", "MEAN", "ONLY_FIRST_REPLICA"]
"""What `rx.Variable(aggregation=...)` takes: a member of `VariableAggregation` or its name."""
