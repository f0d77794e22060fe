"""`rx.ExponentialMovingAverage`: moving averages of variables, each in its own variable.

An update computes the new averages from values that are equal on all replicas, so it needs no
communication. The averages are placed like optimizer state: if the strategy shards that, they are sharded
too.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any, final

import jax
import jax.numpy as jnp

from replicax.contexts import current, has_strategy
from replicax.errors import ContextError, VariableError
from replicax.execution import function
from replicax.training._pytrees import flatten_variables, repeated_names
from replicax.training._slots import initial_values
from replicax.types import VariableAggregation
from replicax.values import Mirrored
from replicax.variables import Variable, creating_state

__all__ = [
    "ExponentialMovingAverage",
    "create_averages",
    "move_averages",
    "once_for_all_replicas",
    "warmed_up",
]


@final
class ExponentialMovingAverage:
    """Moving averages of variables: an update computes `decay * average + (1 - decay) * value`.

    Call `update` after the optimizer, preferably in the step but outside of the replica function. Evaluate
    with `rx.read_values(ema.averages)` or, if the model holds its own variables, in a
    `with ema.applied():` block. Pass the object to `rx.Checkpoint` to save the averages.

    Args:
        variables: the variables to average, in any structure.
        decay: how slowly the averages change, between 0 and 1: they cover about `1 / (1 - decay)` updates.
        warmup: use the smaller decay `(1 + n) / (10 + n)` in the first updates, so that the initial values
            are forgotten quickly.
        name: the last part of the averages' names.

    Raises:
        VariableError: something is not a floating-point variable with one value for all replicas, or is on
            parameter servers.

    >>> strategy = rx.MirroredStrategy(["CPU:0", "CPU:1"])
    >>> with strategy.scope():
    ...     params = rx.create_variables({"w": jnp.zeros(2)})
    ...     ema = rx.ExponentialMovingAverage(params, decay=0.5)
    >>> for value in (4.0, 8.0):
    ...     params["w"].assign(jnp.full(2, value), read_value=False)
    ...     ema.update()
    >>> rx.read_values(ema.averages)
    {'w': Array([5., 5.], dtype=float32)}
    """

    def __init__(
        self, variables: Any, decay: float = 0.999, *, warmup: bool = False, name: str = "average"
    ) -> None:
        """Create the averages, which start at the variables' values."""
        if isinstance(decay, bool) or not isinstance(decay, int | float) or not 0 <= decay <= 1:
            raise ValueError(
                f"rx.ExponentialMovingAverage(decay={decay!r}): pass a number from 0 to 1, such as 0.999."
            )
        _, self._variables, structure = flatten_variables(variables)
        check_followable(self._variables)
        self._decay, self._warmup = decay, bool(warmup)
        own = create_averages(self._variables, name)
        self.averages: Any = structure.unflatten(own)
        """The averages: variables, in the structure of the averaged ones."""
        self._averages = own
        self.num_updates: Variable = self._variables[0].distribute_strategy.create_variable(
            0,
            name=f"{name}/num_updates",
            trainable=False,
            aggregation=VariableAggregation.ONLY_FIRST_REPLICA,
        )
        """The number of updates so far."""
        self._is_applied = False

    def __repr__(self) -> str:
        return f"<rx.ExponentialMovingAverage of {len(self._averages)} variables, decay {self._decay}>"

    def checkpoint_items(self) -> dict[str, Any]:
        """What a checkpoint saves: the averages and the number of updates."""
        return {"averages": self.averages, "num_updates": self.num_updates}

    def update(self) -> None:
        """Move the averages towards the current values of the variables.

        In a replica function every replica must make this call.

        >>> w = rx.Variable(1.0)
        >>> ema = rx.ExponentialMovingAverage([w], decay=0.9, warmup=True)
        >>> w.assign(2.0, read_value=False)
        >>> ema.update()                                    # the decay of the first update is 1 / 10
        >>> ema.averages[0].read_value()
        Array(1.9, dtype=float32)
        """
        if self._is_applied:
            raise ContextError(
                f"update() of {self!r} was called in a `with ema.applied():` block, where the variables "
                "have the values of the averages. Update after the block."
            )
        once_for_all_replicas(self._update)

    def _update(self) -> None:
        decay: Any = self._decay
        if self._warmup:
            decay = warmed_up(decay, self.num_updates.read_value())
        move_averages(self._averages, self._variables, decay)
        self.num_updates.assign_add(1, read_value=False)

    @contextlib.contextmanager
    def applied(self) -> Iterator[None]:
        """A `with` block in which the variables have the values of their averages, to evaluate a model.

        Variables and averages swap their values, which needs no extra memory, and swap them back at the end
        of the block. Do not train or save checkpoints in the block.

        Raises:
            ContextError: in a replica function, or inside another such block.
            VariableError: a variable has fewer bits than its average, which would be rounded.

        >>> w = rx.Variable(1.0)
        >>> ema = rx.ExponentialMovingAverage([w], decay=0.5)
        >>> w.assign(3.0, read_value=False)
        >>> ema.update()
        >>> with ema.applied():
        ...     w.read_value()
        Array(2., dtype=float32)
        >>> w.read_value()
        Array(3., dtype=float32)
        """
        self._check_applicable()
        self._is_applied = True
        try:
            self._exchange()
            try:
                yield
            finally:
                self._exchange()
        finally:
            self._is_applied = False

    @function
    def _exchange(self) -> None:
        for average, variable in zip(self._averages, self._variables, strict=True):
            new, old = average.held(), variable.held()
            variable.assign(new, read_value=False)
            average.assign(old, read_value=False)

    def _check_applicable(self) -> None:
        if self._is_applied or (current().replica is not None and has_strategy()):
            where = "inside another such block" if self._is_applied else "in a replica function"
            raise ContextError(
                f"applied() of {self!r} {where}. Write `with ema.applied():` once, around the whole "
                "evaluation."
            )
        pairs = zip(self._averages, self._variables, strict=True)
        narrow = [variable.name for average, variable in pairs if average.dtype != variable.dtype]
        if narrow:
            raise VariableError(
                f"applied() of {self!r}: the averages are float32, and would be rounded in "
                f"{', '.join(map(repr, narrow[:3]))}{', ...' * (len(narrow) > 3)}. Evaluate with "
                "`rx.read_values(ema.averages)`, or train float32 variables with `rx.MixedPrecision`."
            )


def check_followable(variables: Sequence[Any]) -> None:
    """Raise unless averages can follow all of `variables`."""
    others = [variable for variable in variables if not isinstance(variable, Variable)]
    if others or not variables:
        found = f"{others[0]!r} in it" if others else "none"
        raise VariableError(
            "rx.ExponentialMovingAverage takes variables: one, or a structure of them such as a dict. Got "
            f"{found}. `rx.create_variables(arrays)` makes variables from arrays. A model's variables are "
            "`replicax.integrations.flax.variables(model)` or, in Keras, `model.trainable_variables`."
        )
    if repeated := repeated_names(variables):
        raise VariableError(f"rx.ExponentialMovingAverage got {', '.join(repeated)} more than once.")
    for variable in variables:
        if problem := _problem(variable):
            raise VariableError(
                f"rx.ExponentialMovingAverage can't follow the variable {variable.name!r}: {problem}. "
                "Leave it out."
            )


def _problem(variable: Variable) -> str:
    if not jnp.issubdtype(variable.dtype, jnp.inexact):
        return f"it has dtype {variable.dtype}, which can't hold an average"
    if variable.layout.differs:
        return "it is ON_READ, so each replica has its own value"
    return "it is on parameter servers" if variable.layout.servers is not None else ""


# `replicax.tf` uses the following functions, too.


def once_for_all_replicas(fn: Callable[[], None]) -> None:
    """Call `fn` once for all replicas: in a replica function, when all of them have reached this call."""
    replica = current().replica
    if replica is not None and has_strategy():
        replica.merge_call(lambda strategy: fn())
    else:
        fn()


def create_averages(variables: Sequence[Variable], name: str) -> list[Variable]:
    """For each variable, a new variable for its average, with the same value in at least float32."""
    strategy = variables[0].distribute_strategy
    with creating_state(strategy, "moving averages"):
        values = initial_values(lambda arrays: list(map(_widened, arrays)), list(map(_whole, variables)))
    return [_create(variable, value, name) for variable, value in zip(variables, values, strict=True)]


def _create(variable: Variable, value: Any, name: str) -> Variable:
    return variable.distribute_strategy.create_variable(
        value,
        trainable=False,
        name=f"{variable.name.removesuffix(':0')}/{name}",
        aggregation=VariableAggregation.ONLY_FIRST_REPLICA,
        is_slot=True,
        partition=variable.partition,
        slot_of=(variable,),
    )


def _widened(value: Any) -> Any:
    return value.astype(jnp.promote_types(value.dtype, jnp.float32))


def move_averages(averages: Sequence[Variable], variables: Sequence[Variable], decay: Any) -> None:
    """Move each average towards the value of its variable, outside of replica functions."""
    new = _moved(list(map(_whole, averages)), list(map(_whole, variables)), decay)
    for average, value in zip(averages, new, strict=True):
        average.assign(Mirrored.from_whole(value, average.mesh), read_value=False)


@jax.jit
def _moved(averages: list[Any], values: list[Any], decay: Any) -> list[Any]:
    weight = 1 - jnp.asarray(decay, jnp.float32)
    return [
        a + weight.astype(a.dtype) * (v.astype(a.dtype) - a) for a, v in zip(averages, values, strict=True)
    ]


def warmed_up(decay: Any, count: Any) -> Any:
    """The decay after `count` updates: smaller at first."""
    count = jnp.asarray(count, jnp.float32)
    return jnp.minimum(decay, (1 + count) / (10 + count))


def _whole(variable: Variable) -> Any:
    """The value as one array."""
    return variable.held().whole
