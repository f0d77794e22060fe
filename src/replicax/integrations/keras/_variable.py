"""Keras variables that are backed by an `rx.Variable`.

A variable that Keras creates in a strategy's scope is a `DistributedVariable`. Keras uses it like any
other, but an `rx.Variable` has its value: a replica function reads the replica's copy, and writes follow
the strategy's rules. During `fit`, `evaluate` and `predict`, Keras' own program takes the value as an
array that is replicated on all devices.

Synchronization and aggregation depend on what the variable is for:

    trainable                            mirrored; only an optimizer writes it
    metrics                              ON_READ, SUM, as Keras specifies
    slots and counters of optimizers     mirrored, ONLY_FIRST_REPLICA: written once for all replicas
    averages of batch normalization,     ON_READ, MEAN: each replica writes its own without communication;
    other floating-point state           reading outside of replicas gives the mean, as in TensorFlow
    random seeds, other integers         ON_READ, ONLY_FIRST_REPLICA
"""

from __future__ import annotations

from collections.abc import Callable
from contextvars import ContextVar
from typing import Any

import jax.numpy as jnp
import keras
import numpy as np

from replicax._jax import at_trace, eval_trace
from replicax.contexts import StrategyProtocol, current, get_replica_context
from replicax.errors import ContextError, TracingError, VariableError
from replicax.integrations.keras._private import in_stateless_scope
from replicax.integrations.keras._run import Run, running
from replicax.strategies import DefaultStrategy
from replicax.types import VariableAggregation, VariableSynchronization
from replicax.values import Mirrored
from replicax.variables import Variable

__all__ = [
    "DistributedVariable",
    "move",
    "optimizer_state",
    "place_in_checkpoint",
]

place_in_checkpoint: ContextVar[tuple[Any, str]] = ContextVar("replicax_keras_place", default=(None, ""))
"""The layer, optimizer or metric that is creating a variable, and the variable's path in it."""

optimizer_state: ContextVar[tuple[Variable, ...] | None] = ContextVar("replicax_keras_state", default=None)
"""The variables that the optimizer state being created belongs to; () means all of them."""

_SEED = "seed_generator_state"


class DistributedVariable(keras.Variable):
    """A Keras variable that was created in `strategy.scope()`.

    >>> import keras
    >>> strategy = rx.MirroredStrategy(["CPU:0", "CPU:1"])
    >>> with strategy.scope():
    ...     metric = keras.metrics.Sum()
    >>> def replica_fn():
    ...     metric.update_state(rx.get_replica_context().replica_id_in_sync_group + 1.0)
    >>> strategy.run(replica_fn)
    >>> strategy.local_results(metric.variables[0].replicax_variable)[1]
    <rx.Variable 'sum/total/replica_1:0' shape=() dtype=float32, numpy=2.0>
    >>> metric.result()
    Array(3., dtype=float32)
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self._distribute_strategy = current().strategy
        self._place_in_checkpoint = place_in_checkpoint.get()
        self._variable: Variable | None = None
        self._donated_to: Run | None = None
        self._was_read = False
        super().__init__(*args, **kwargs)

    @property
    def replicax_variable(self) -> Variable:
        """The `rx.Variable` with the value, for `rx.value_and_grad` and `rx.Optimizer`.

        >>> import keras
        >>> with rx.MirroredStrategy(["CPU:0", "CPU:1"]).scope():
        ...     w = keras.Variable([1.0, 2.0], name="w")
        >>> isinstance(w.replicax_variable, rx.MirroredVariable), w.replicax_variable.name
        (True, 'w:0')
        """
        if self._variable is None:
            raise ContextError(f"The Keras variable {self.path!r} has no value yet: build its model first.")
        self._complete_write_back()
        self._was_read = True
        return self._variable

    # The value. Keras reads and writes `_value`. None means no value yet, or that a `Run` has it.

    @property
    def _value(self) -> Any:
        if self._variable is None or not self._complete_write_back():
            return None
        self._was_read = True
        try:
            return self._read(self._variable)
        except TracingError:
            # Keras traces functions itself, to infer shapes or for a scan; give it the current value.
            with at_trace(eval_trace):
                return self._read(self._variable)

    @_value.setter
    def _value(self, value: Any) -> None:
        if self._variable is None:
            return
        if value is not None:
            offset = self._replica_offset()
            self._variable.assign(value if offset is None else value - offset, read_value=False)
            self._donated_to = None

    def _donate(self, run: Run) -> Any:
        """The value for the steps of `run`, as an array that can be donated: nothing else refers to it."""
        assert self._variable is not None
        array = _on_all_devices(self._variable)
        if self._variable.layout.servers is not None:
            self._donated_to = run
            return jnp.copy(array)
        if not self._variable.layout.on_mesh:
            array = jnp.copy(array)  # it may be the store's own array
        elif self._was_read:
            array = jnp.copy(array)
            if not self._variable.layout.differs:
                self._variable.assign(array, read_value=False)  # frees the old array unless the user has it
                array = _on_all_devices(self._variable)
            self._was_read = False
        self._donated_to = run
        return array

    def _write_back(self, array: Any) -> None:
        """Take the value that a `Run` computed; None takes the old value, if that still exists."""
        assert self._variable is not None
        if array is None:
            if not _on_all_devices(self._variable).is_deleted():
                self._donated_to = None
        elif not array.is_deleted():
            self._write_replicated(array)
            self._donated_to = None

    def _write_replicated(self, array: Any) -> None:
        """Assign an array that is replicated on the strategy's mesh, without the checks of `assign`."""
        variable = self._variable
        assert variable is not None
        if variable.layout.servers is not None:
            return  # only `predict` computes in this process; the servers have the value
        if variable.layout.has_value_on_mesh:
            current().frame.store(variable, variable.layout.wrap(array, not variable.shape))
        else:
            variable.assign(array, read_value=False)

    def _complete_write_back(self) -> bool:
        """Complete an interrupted write-back; returns False if the value is donated to a current `Run`."""
        if self._donated_to is None:
            return True
        if not self._donated_to.is_over:
            return False
        self._donated_to.write_back()
        if self._donated_to is not None:
            raise VariableError(
                f"The value of the Keras variable {self.path!r} is lost: a step failed on a device after "
                "the value was donated to it. Load the weights that were saved last."
            )
        return True

    def _read(self, variable: Variable) -> Any:
        if running.get() is not None:
            return _on_all_devices(variable)
        offset = self._replica_offset()
        value = variable.read_value()
        return value if offset is None else value + offset

    def _replica_offset(self) -> Any:
        """An offset for the seed, so that replicas draw different random numbers."""
        if not self._path.endswith(_SEED) or not self._in_replica():
            return None
        if self._distribute_strategy.num_replicas_in_sync == 1:
            return None
        replica_id = jnp.asarray(get_replica_context().replica_id_in_sync_group, jnp.uint32)
        return jnp.stack([replica_id * jnp.uint32(0x9E3779B9), jnp.uint32(0)])

    def _in_replica(self) -> bool:
        here = current()
        return here.replica is not None and here.strategy is self._distribute_strategy

    def assign_add(self, value: Any) -> Any:
        """Add `value`. In a replica function, combine the replicas' values as the aggregation says."""
        if not self._in_replica() or in_stateless_scope():
            return super().assign_add(value)
        value = self._convert_to_tensor(value, dtype=self._dtype)
        return self.replicax_variable.assign_add(value)

    def assign_sub(self, value: Any) -> Any:
        """Subtract `value`, combined over the replicas as in `assign_add`."""
        if not self._in_replica() or in_stateless_scope():
            return super().assign_sub(value)
        value = self._convert_to_tensor(value, dtype=self._dtype)
        return self.replicax_variable.assign_sub(value)

    # Creation: the methods that Keras' backends override.

    def _initialize(self, value: Any) -> None:
        self._shape = self._validate_shape(value.shape)
        self._create(value)

    def _initialize_with_initializer(self, initializer: Callable[..., Any]) -> None:
        self._create(lambda: self._convert_to_tensor(initializer(self._shape, dtype=self._dtype)))

    def _convert_to_tensor(self, value: Any, dtype: Any = None) -> Any:
        if self._variable is None and isinstance(value, int | float | np.ndarray | np.generic):
            # An initial value such as 0 must not become part of the program that is being traced.
            with at_trace(eval_trace):
                return super()._convert_to_tensor(value, dtype)
        return super()._convert_to_tensor(value, dtype)

    def _direct_assign(self, value: Any) -> None:
        self._value = value

    def _create(self, initial_value: Any) -> None:
        synchronization, aggregation = self._how_combined()
        self._variable = self._distribute_strategy.create_variable(
            initial_value,
            trainable=self._trainable,
            name=self._path,
            synchronization=synchronization,
            aggregation=aggregation,
            constraint=self._constrained,
            beside=self._place_in_checkpoint,
            **self._slot_options(),
        )
        self._place_in_checkpoint = (None, "")

    def _slot_options(self) -> dict[str, Any]:
        """Place optimizer state with its variables on parameter servers."""
        owners = optimizer_state.get()
        if owners is None or self._distribute_strategy.servers is None:
            return {}
        return {"is_slot": True, "slot_of": owners}

    def _move_from_default(self, strategy: StrategyProtocol) -> bool:
        """Move the variable here if it was used without a strategy; returns whether it was."""
        if strategy is self._distribute_strategy:
            return False
        value = None if self._variable is None else self.replicax_variable.read_value()
        self._distribute_strategy = strategy
        if value is not None:
            self._create(value)
        return True

    def _how_combined(self) -> tuple[VariableSynchronization, VariableAggregation]:
        synchronization = VariableSynchronization.AUTO
        if self._synchronization == "on_read":
            synchronization = VariableSynchronization.ON_READ
        aggregation = VariableAggregation[self._aggregation.upper()]
        if self._trainable or aggregation is not VariableAggregation.NONE:
            return synchronization, aggregation
        if jnp.issubdtype(self._dtype, jnp.inexact):
            return VariableSynchronization.ON_READ, VariableAggregation.MEAN
        return VariableSynchronization.ON_READ, VariableAggregation.ONLY_FIRST_REPLICA

    def _constrained(self, value: Any) -> Any:
        """Apply the constraint, for an `rx.Optimizer`; Keras optimizers do that themselves."""
        return value if self._constraint is None else self._constraint(value)


def _on_all_devices(variable: Variable) -> Any:
    """The value, replicated on all devices of the strategy."""
    if variable.layout.has_value_on_mesh:
        cell = variable.held()
        assert isinstance(cell, Mirrored)
        return cell.whole
    return variable.distribute_strategy.mesh.replicate(variable.read_value())


def move(variable: Any, strategy: StrategyProtocol) -> bool:
    """Move a variable to the strategy if it was created outside; returns whether it was."""
    if isinstance(variable, DistributedVariable):
        if isinstance(variable._distribute_strategy, DefaultStrategy):
            return variable._move_from_default(strategy)
        if variable._distribute_strategy is not strategy:
            raise ContextError(
                f"The Keras variable {variable.path!r} was created in the scope of another strategy, "
                f"{variable._distribute_strategy!r}, and can't be used by {strategy!r}. Create the "
                "model, its optimizer and its metrics in scopes of one strategy, or save the model and "
                "load it in the other scope."
            )
        return False
    if type(variable) is not keras.Variable:
        raise ContextError(
            f"The Keras variable {variable.path!r} is a {type(variable).__name__}, but {strategy!r} can "
            "distribute only keras.Variable itself. Create it as a keras.Variable."
        )
    moved: Any = object.__new__(DistributedVariable)
    attributes = {**variable.__dict__, "_layout": None, "_distribute_strategy": strategy}
    attributes["_place_in_checkpoint"] = (None, "")
    value = attributes.pop("_value", None)
    moved.__dict__.update(attributes, _variable=None, _donated_to=None, _was_read=False)
    if value is not None:
        moved._create(value)
    # Last, so that an interrupt can't leave the variable without a value.
    variable.__dict__.update(moved.__dict__)
    variable.__class__ = DistributedVariable
    variable.__dict__.pop("_value", None)
    return True
