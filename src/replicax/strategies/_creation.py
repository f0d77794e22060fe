"""How a strategy creates a variable: prepare the value, choose the layout, place the array."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from replicax.contexts import current
from replicax.errors import ContextError
from replicax.strategies._initial_values import of_first_process
from replicax.variables import (
    EagerFrame,
    Layout,
    TracedValue,
    Variable,
    VariableSpec,
    check_partition,
    creating_state,
    current_frame,
    prepare_variable,
)

if TYPE_CHECKING:
    from replicax.strategies._strategy import StrategyBase

__all__ = ["create_variable"]

_LARGE_BYTES = 1 << 20


def create_variable(self: StrategyBase, *args: Any, **kwargs: Any) -> Variable:
    """Create a variable. `rx.Variable(...)` calls it with its own arguments."""

    def make() -> Variable:
        frame = current_frame()
        with frame.creating():
            in_parts = self.find_shards is not None and isinstance(frame, EagerFrame)
            with creating_state(self, "the initial value of a variable"):
                spec, value = prepare_variable(*args, **kwargs, in_parts=in_parts)
            spec = self.answers.partition_rules.apply(spec)
            check_partition(spec, self.mesh, self)
            spec, layout = self.answers.choose_layout(spec)
            with creating_state(self, f"the variable '{spec.name}:0'", spec.num_bytes):
                array = _placed(self, spec, layout, value)
                if array is not None and spec.num_bytes >= _LARGE_BYTES:
                    array.block_until_ready()  # raises here if it does not fit into memory
            variable = Variable._make(spec, layout, self, array)
        frame.adopt(variable)
        return variable

    replica = current().replica
    if replica is None:
        return make()
    variable = replica.create(make)
    _check_name(variable, kwargs.get("name") or (args[2] if len(args) > 2 else None))
    return variable


def _check_name(variable: Variable, name: str | None) -> None:
    """Raise if another replica gave the variable a different name: then it is not the same variable."""
    created = variable.name.removesuffix(":0")
    if created != (name or "Variable"):
        raise ContextError(
            f"The replicas create different variables at the same point: {created!r} on the first replica, "
            f"{name or 'Variable'!r} on another one. Every replica must create the same variables, in the "
            "same order."
        )


def _placed(strategy: StrategyBase, spec: VariableSpec, layout: Layout, value: Any) -> Any:
    """The array of a new variable; None if its value is on servers."""
    if layout.servers is None and strategy.mesh.is_local and isinstance(value, TracedValue):
        return value.placed(layout)
    if isinstance(value, TracedValue):
        value = value.computed()
    if not strategy.mesh.is_local:
        value = of_first_process(strategy.communicator, spec, value)
    return layout.initial(spec, value)
