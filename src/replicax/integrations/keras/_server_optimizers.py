"""Keras' optimizers on parameter servers: workers send gradients, servers compute the update.

A server has the slots of its own variables, and a copy of what belongs to all of them: the counter and the
learning rate. It makes an optimizer of the same class and configuration, and calls its `stateless_apply`.
"""

from __future__ import annotations

import dataclasses
import functools
import weakref
from collections.abc import Callable, Mapping, Sequence
from typing import Any, final

import jax
import keras

from replicax.contexts import enter_default
from replicax.errors import ContextError, VariableError
from replicax.integrations.keras._variable import DistributedVariable, optimizer_state
from replicax.parameter_server import RayServers, recall, remember
from replicax.variables import Variable

__all__ = ["creating_state", "creating_state_of", "send_gradients", "servers_of"]

_built_for: weakref.WeakKeyDictionary[Any, list[str]] = weakref.WeakKeyDictionary()
"""The variables that the servers update with an optimizer, as far as this process knows."""


def creating_state(method: Callable[..., Any]) -> Callable[..., Any]:
    """Let the variables that a method of an optimizer creates belong to all variables it updates."""

    @functools.wraps(method)
    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        token = optimizer_state.set(())
        try:
            return method(self, *args, **kwargs)
        finally:
            optimizer_state.reset(token)

    return call


def creating_state_of(add_from_reference: Callable[..., Any]) -> Callable[..., Any]:
    """Let `add_variable_from_reference` create state that belongs to the variable it is given."""

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
    """The parameter servers that have the state of an optimizer, if any."""
    counter = getattr(optimizer, "_iterations", None)
    if not isinstance(counter, DistributedVariable):
        return None
    servers = counter._distribute_strategy.servers
    assert servers is None or isinstance(servers, RayServers)
    return servers


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
        build = functools.partial(servers.request_build, state) if servers.builds_elsewhere else state.build
        build(own)
        _built_for[optimizer] = names
    elif _built_for[optimizer] != names:
        raise VariableError(_other_variables(optimizer, _built_for[optimizer], names))
    # Keras on JAX computes zeros for variables that the loss does not depend on.
    arrays = [_zeros(v) if g is None else g for v, g in zip(own, gradients, strict=True)]
    servers.apply_gradients(state, own, arrays)


def _zeros(variable: Variable) -> Any:
    return jax.numpy.zeros(variable.shape, variable.dtype)


def _on_servers(variable: Any) -> Variable:
    own = variable.replicax_variable if isinstance(variable, DistributedVariable) else None
    if own is None or own.layout.servers is None:
        raise ContextError(
            f"The Keras variable {variable.path!r} is not on the parameter servers, but it is used with "
            "others that are. Create the model and its optimizer inside `with strategy.scope():`."
        )
    return own


def _other_variables(optimizer: Any, known: list[str], given: list[str]) -> str:
    return (
        f"The Keras optimizer {optimizer.name!r} got gradients for {given}, but the parameter servers have "
        f"its slots for {known}, in that order. Pass all of these to every `apply`, or create another "
        "optimizer."
    )


@final
class _State:
    """A Keras optimizer as the servers know it. Pickled, it refers to the coordinator's optimizer."""

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
        """The counter, by which the servers know the optimizer."""
        return _on_servers(self.optimizer._iterations)

    @property
    def slots(self) -> list[Variable]:
        """All variables of the optimizer."""
        return [_on_servers(variable) for variable in self.optimizer.variables]

    @property
    def computation(self) -> _Computation:
        """What a server computes."""
        trained = self.optimizer._trainable_variables
        return _Computation(
            type(self.optimizer),
            self.optimizer.get_config(),
            tuple(variable.path for variable in trained),
            tuple(variable.constraint for variable in trained),
        )

    def build(self, variables: Sequence[Variable]) -> None:
        """In the coordinator: create the slots, and tell the servers about them, the first time."""
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
            if not _on_servers(variable)._spec.is_slot:  # Keras has not said what it is for
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
    """What a Keras optimizer computes in one update, as a function of arrays.

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
        variable._path = self.paths[number]  # weight decay goes by it
        variable.constraint = self.constraints[number]
        return variable
