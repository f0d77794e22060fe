"""What optax computes in one update, as a function of arrays: new values and new state."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any, final

import jax

__all__ = ["Transformation"]


@final
@dataclasses.dataclass(frozen=True)
class Transformation:
    """An optax transformation with the structures of its parameters and its state.

    It can be pickled: parameter servers compute updates with it.

    Args:
        optax: the transformation.
        structure: the treedef of the parameters.
        state_structure: the treedef of the state.
        constraints: for each parameter, a function to apply to its new value, or None.
    """

    optax: Any
    structure: Any
    state_structure: Any
    constraints: Sequence[Callable[[Any], Any] | None]

    def __reduce__(self) -> Any:
        # Not every treedef can be pickled, but an example of the structure can.
        examples = [s.unflatten(range(s.num_leaves)) for s in (self.structure, self.state_structure)]
        return _rebuilt, (self.optax, *examples, tuple(self.constraints))

    def __call__(
        self, gradients: list[Any], slots: list[Any], values: list[Any]
    ) -> tuple[list[Any], list[Any]]:
        """The new values and the new slots."""
        import optax

        params = self.structure.unflatten(values)
        updates, state = self.optax.update(
            self.structure.unflatten(gradients), self.state_structure.unflatten(slots), params
        )
        new = jax.tree.leaves(optax.apply_updates(params, updates))
        constrained = [x if c is None else c(x) for c, x in zip(self.constraints, new, strict=True)]
        return constrained, jax.tree.leaves(state)


def _rebuilt(optax: Any, parameters: Any, state: Any, constraints: Any) -> Transformation:
    return Transformation(optax, jax.tree.structure(parameters), jax.tree.structure(state), constraints)
