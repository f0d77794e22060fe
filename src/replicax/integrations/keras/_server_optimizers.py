"""Keras optimizers on parameter servers: workers send gradients, servers compute the update.

A server has the slots of its own variables, and copies of the shared state: the step counter and the
learning rate. It creates an optimizer of the same class and config, and calls its `stateless_apply`.
"""

from __future__ import annotations

import contextvars
import dataclasses
import functools
import weakref
from collections.abc import Callable, Mapping, Sequence
from typing import Any, final

import jax
import keras

from replicax._jax import at_trace, eval_trace
from replicax.contexts import current, enter_default
from replicax.errors import ContextError, VariableError
from replicax.integrations.keras._variable import DistributedVariable, optimizer_state
from replicax.parameter_server import RayServers, recall, remember
from replicax.variables import Variable

__all__ = ["as_rows", "creating_state", "creating_state_of", "send_gradients", "servers_of"]

_built_for: weakref.WeakKeyDictionary[Any, list[str]] = weakref.WeakKeyDictionary()
"""Optimizer -> the variables that the servers update with it, as far as this process knows."""


def creating_state(method: Callable[..., Any]) -> Callable[..., Any]:
    """Make the variables that an optimizer's method creates shared state of all variables it updates."""

    @functools.wraps(method)
    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        token = optimizer_state.set(())
        try:
            return method(self, *args, **kwargs)
        finally:
            optimizer_state.reset(token)

    return call


def creating_state_of(add_from_reference: Callable[..., Any]) -> Callable[..., Any]:
    """Make `add_variable_from_reference` create a slot of the variable it is given."""

    @functools.wraps(add_from_reference)
    def call(self: Any, reference_variable: Any, *args: Any, **kwargs: Any) -> Any:
        distributed = isinstance(reference_variable, DistributedVariable)
        token = optimizer_state.set((reference_variable.replicax_variable,) if distributed else ())
        try:
            return add_from_reference(self, reference_variable, *args, **kwargs)
        finally:
            optimizer_state.reset(token)

    return call


def servers_of(optimizer: Any) -> RayServers | None:
    """The parameter servers that hold an optimizer's state, if any."""
    counter = getattr(optimizer, "_iterations", None)
    if not isinstance(counter, DistributedVariable):
        return None
    servers = counter._distribute_strategy.servers
    assert servers is None or isinstance(servers, RayServers)
    return servers


def as_rows(optimizer: Any, variables: Sequence[Any] | None, gradients: Sequence[Any]) -> list[Any]:
    """The gradients; for a table of which the compiled step fetched only some rows, those of these rows."""
    given = optimizer._trainable_variables if variables is None else variables
    tables = [current().frame.table(_on_servers(variable)) for variable in given]
    both = zip(gradients, tables, strict=True)
    return [gradient if table is None else table.as_rows(gradient) for gradient, table in both]


def send_gradients(
    optimizer: Any, servers: RayServers, variables: Sequence[Any] | None, gradients: Sequence[Any]
) -> None:
    """Send the gradients of `variables` to the servers, which update them."""
    given = list(optimizer._trainable_variables if variables is None else variables)
    own, state = [_on_servers(variable) for variable in given], _State(optimizer)
    names = [variable.name for variable in own]
    if optimizer not in _built_for:
        for variable, keras_variable in zip(own, given, strict=True):
            remember(variable, keras_variable)
        if servers.builds_elsewhere:
            servers.request_build(state, own)
        else:
            with at_trace(eval_trace):  # not as a part of the step that is being traced
                contextvars.Context().run(state.build, own)
        _built_for[optimizer] = names
    elif _built_for[optimizer] != names:
        raise VariableError(_other_variables(optimizer, _built_for[optimizer], names))
    # As Keras on JAX does: zeros for variables that the loss does not depend on.
    arrays = [_zeros(v) if g is None else g for v, g in zip(own, gradients, strict=True)]
    servers.apply_gradients(state, own, arrays)


def _zeros(variable: Variable) -> Any:
    return jax.numpy.zeros(variable.shape, variable.dtype)


def _on_servers(variable: Any) -> Variable:
    own = variable.replicax_variable if isinstance(variable, DistributedVariable) else None
    if own is None or own.layout.servers is None:
        raise ContextError(
            f"The Keras variable {variable.path!r} is not on the parameter servers, but other variables of "
            "the same optimizer are. Create the model and its optimizer inside `with strategy.scope():`."
        )
    return own


def _other_variables(optimizer: Any, known: list[str], given: list[str]) -> str:
    return (
        f"The Keras optimizer {optimizer.name!r} got gradients for {given}, but the parameter servers have "
        f"its slots for {known}. Pass exactly these, in that order, to every `apply`, or create another "
        "optimizer."
    )


@final
class _State:
    """A Keras optimizer as the servers see it. Pickled, it refers to the coordinator's optimizer."""

    loss_scale = None

    def __init__(self, optimizer: Any) -> None:
        self.optimizer = optimizer

    def __repr__(self) -> str:
        return f"<keras.optimizers.{type(self.optimizer).__name__} {self.optimizer.name!r}>"

    def __reduce__(self) -> Any:
        return _State._recalled, (self.iterations,)

    @staticmethod
    def _recalled(iterations: Variable) -> _State:
        return _State(recall(iterations))

    @property
    def iterations(self) -> Variable:
        """The step counter, which identifies the optimizer on the servers."""
        return _on_servers(self.optimizer._iterations)

    @property
    def slots(self) -> list[Variable]:
        """All variables of the optimizer."""
        return [_on_servers(variable) for variable in self.optimizer.variables]

    @property
    def computation(self) -> _Computation:
        """The update, as a server computes it."""
        trained = self.optimizer._trainable_variables
        return _Computation(
            type(self.optimizer),
            self.optimizer.get_config(),
            tuple(variable.path for variable in trained),
            tuple(variable.constraint for variable in trained),
        )

    def build(self, variables: Sequence[Variable]) -> None:
        """In the coordinator, the first time: create the slots and announce them to the servers."""
        optimizer, names = self.optimizer, [variable.name for variable in variables]
        if optimizer in _built_for:
            if _built_for[optimizer] != names:
                raise VariableError(_other_variables(optimizer, _built_for[optimizer], names))
            return
        strategy = variables[0].distribute_strategy
        servers = strategy.servers
        assert isinstance(servers, RayServers)
        if not optimizer.built:
            with strategy.scope(), keras.name_scope(optimizer.name, caller=optimizer):
                optimizer.build([recall(variable) for variable in variables])
        for variable in optimizer.variables:
            if not _on_servers(variable)._spec.is_slot:  # Keras did not say which variable it belongs to
                creating_state(DistributedVariable._create)(variable, variable.numpy())
        trained = [_on_servers(variable) for variable in optimizer._trainable_variables]
        if [variable.name for variable in trained] != names:
            raise VariableError(_other_variables(optimizer, [v.name for v in trained], names))
        owners = [slot._spec.slot_of[0] if slot._spec.slot_of else None for slot in self.slots]
        servers.check_computation(self, self.computation, trained, self.slots, owners)
        servers.register_optimizer(self, trained)
        _built_for[optimizer] = names


@final
@dataclasses.dataclass(frozen=True)
class _Computation:
    """One update of a Keras optimizer, as a function of arrays.

    Args:
        kind: the class of the optimizer.
        config: its configuration.
        paths: the paths of the variables.
        constraints: their constraints.
    """

    kind: Any
    config: Mapping[str, Any]
    paths: tuple[str, ...]
    constraints: tuple[Any, ...]

    def __call__(
        self, gradients: list[Any], slots: list[Any], values: list[Any]
    ) -> tuple[list[Any], list[Any]]:
        """The new values and the new slots."""
        with enter_default():
            optimizer = self.kind.from_config(dict(self.config))
            optimizer.build([self._variable(i, value) for i, value in enumerate(values)])
            return optimizer.stateless_apply(slots, gradients, values)

    def _variable(self, number: int, value: Any) -> Any:
        variable: Any = keras.Variable(value, name=f"variable{number}")
        variable._path = self.paths[number]  # weight decay selects variables by path
        variable.constraint = self.constraints[number]
        return variable
