"""What layouts, frames and compiled steps ask of parameter servers; `parameter_server/` implements it."""

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
    """Processes that hold the values of variables, as this process sees them."""

    @abc.abstractmethod
    def create(self, spec: VariableSpec, placement: Any, value: Any) -> None:
        """Give a new variable its value."""

    @abc.abstractmethod
    def pull(
        self, variables: Sequence[Variable], lookups: Sequence[tuple[Variable, np.ndarray]] = ()
    ) -> list[tuple[np.ndarray, np.ndarray]]:
        """Fetch the current values of `variables` into their stores, and rows of other variables.

        Args:
            variables: those to fetch as a whole.
            lookups: variables with the numbers of the rows to fetch; numbers without a row are ignored.

        Returns:
            For each of `lookups` the numbers of the rows in ascending order, each once, and the rows.
        """

    @abc.abstractmethod
    def pack(self, sendings: Sequence[Sending]) -> tuple[list[Any], Any]:
        """The arrays to transfer, as few as possible, and a parcel that says what they are.

        Compiled steps trace this, so the arrays may be tracers.
        """

    @abc.abstractmethod
    def push(self, parcel: Any, arrays: Sequence[Any], *, wait: bool = False) -> None:
        """Send the arrays of a parcel; `wait` until the servers have used them."""

    @abc.abstractmethod
    def reference(self, variable: Variable) -> Any:
        """How a variable is pickled: as a reference that is valid in every process of the cluster."""
