"""The interface that layouts, frames and compiled steps use to reach parameter servers.

`parameter_server/` implements it.
"""

from __future__ import annotations

import abc
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from replicax.variables._frames import Sending
    from replicax.variables._spec import VariableSpec
    from replicax.variables._variable import Variable

__all__ = ["Servers"]


class Servers(abc.ABC):
    """The processes that hold the values of variables, as seen from this process."""

    @abc.abstractmethod
    def create(self, spec: VariableSpec, placement: Any, value: Any) -> None:
        """Give a new variable its value."""

    @abc.abstractmethod
    def pull(
        self, variables: Sequence[Variable], lookups: Sequence[tuple[Variable, np.ndarray]] = ()
    ) -> list[tuple[np.ndarray, np.ndarray]]:
        """Fetch the current values of `variables` into their stores, and rows of other variables.

        Args:
            variables: the variables to fetch in full.
            lookups: variables with the row numbers to fetch; numbers out of range are ignored.

        Returns:
            For each of `lookups`, the distinct row numbers in ascending order, and the rows.
        """

    @abc.abstractmethod
    def pack(self, sendings: Sequence[Sending]) -> tuple[list[Any], Any]:
        """Pack sendings into as few arrays as possible; returns the arrays and a parcel describing them.

        Compiled steps trace this, so the arrays may be tracers.
        """

    @abc.abstractmethod
    def push(self, parcel: Any, arrays: Sequence[Any], *, wait: bool = False) -> None:
        """Send the arrays of a parcel; if `wait`, block until the servers have used them."""

    @abc.abstractmethod
    def reference(self, variable: Variable) -> Any:
        """How a variable is pickled: as a reference that is valid in every process of the cluster."""

    # Optimizers.

    @property
    @abc.abstractmethod
    def builds_elsewhere(self) -> bool:
        """Whether the coordinator, another process, creates the slots of optimizers."""

    @abc.abstractmethod
    def request_build(self, optimizer: Any, variables: Any) -> None:
        """Ask the coordinator to build an optimizer, and wait until it has."""

    @abc.abstractmethod
    def check_updates(
        self, optimizer: Any, parameters: Any, state_structure: Any, state: Any, owners: Any
    ) -> None:
        """Raise unless each server can compute its part of the updates of an optimizer."""

    @abc.abstractmethod
    def register_optimizer(self, optimizer: Any, variables: Sequence[Variable]) -> None:
        """Tell the servers how to apply gradients."""

    @abc.abstractmethod
    def apply_gradients(
        self, optimizer: Any, variables: Sequence[Variable], gradients: Sequence[Any]
    ) -> None:
        """Send gradients, one for each variable, to the servers."""

    @abc.abstractmethod
    def optimizer_reference(self, optimizer: Any, variables: Any) -> Any:
        """How an optimizer is pickled; `variables` are those it has slots for."""
