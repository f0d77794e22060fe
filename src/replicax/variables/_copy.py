"""One replica's copy of a variable."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, final

import jax
import numpy as np

from replicax.contexts import current
from replicax.errors import ContextError
from replicax.values import Component, TensorShape
from replicax.variables._readable import describe, seen_by_jax
from replicax.variables._rows import HasRows
from replicax.variables._writes import ADD, METHODS, REPLACE, SUBTRACT, Method

if TYPE_CHECKING:
    from replicax.variables._variable import Variable

__all__ = ["VariableCopy"]


@final
@seen_by_jax
class VariableCopy(HasRows, Component):
    """One replica's copy of a distributed variable; `strategy.local_results(v)` returns them.

    It can be written only inside `strategy.extended.update`, so that the copies stay equal.
    """

    __slots__ = ("_local_index", "_variable")

    def __init__(self, variable: Variable, local_index: int) -> None:
        self._variable = variable
        self._local_index = local_index

    @property
    def container(self) -> Variable:
        return self._variable

    @property
    def name(self) -> str:
        """The variable's name, with the replica's number for all but the first replica."""
        mesh = self._variable.mesh
        replica = mesh.local_replica_ids[self._local_index] if mesh else 0
        base = self._variable.name.removesuffix(":0")
        return f"{base}/replica_{replica}:0" if replica else f"{base}:0"

    @property
    def shape(self) -> TensorShape:
        """The shape of the value."""
        return self._variable.shape

    @property
    def dtype(self) -> np.dtype:
        """The dtype of the value."""
        return self._variable.dtype

    @property
    def device(self) -> Any:
        """The device of this copy."""
        mesh = self._variable.mesh
        return mesh.local_devices[self._local_index] if mesh else None

    def held(self) -> Any:
        """The value of this copy."""
        return self.read_value()

    def read_value(self) -> jax.Array:
        """The value of this copy."""
        return self._variable.layout.read_copy(self._variable, self._local_index)

    def assign(
        self, value: Any, use_locking: bool = False, name: str | None = None, read_value: bool = True
    ) -> Any:
        """Replace the value of this copy."""
        return self._write(REPLACE, value, read_value, name)

    def assign_add(
        self, delta: Any, use_locking: bool = False, name: str | None = None, read_value: bool = True
    ) -> Any:
        """Add to this copy."""
        return self._write(ADD, delta, read_value, name)

    def assign_sub(
        self, delta: Any, use_locking: bool = False, name: str | None = None, read_value: bool = True
    ) -> Any:
        """Subtract from this copy."""
        return self._write(SUBTRACT, delta, read_value, name)

    def _write_rows(self, name: str, rows: Any, scope: str | None) -> Any:
        return self._write(METHODS[name], rows, True, scope)

    def _write(self, method: Method, value: Any, read_value: bool, scope: str | None = None) -> Any:
        here = current()
        variable = self._variable
        if here.strategy is not variable._strategy or here.update_replica_id is None:
            raise ContextError(
                f"{method.name} of one copy of the variable {variable.name!r} would make it differ from "
                "the others. Write the variable itself, or use `strategy.extended.update(variable, fn)`."
            )
        return variable._write(method, value, read_value, scope)

    def __repr__(self) -> str:
        return describe(self.name, self)
