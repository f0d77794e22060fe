"""Mixed precision: computing in a small dtype with variables in a large one."""

from __future__ import annotations

import dataclasses
from typing import Any, final

import jax
import jax.numpy as jnp

from replicax.values import is_array
from replicax.variables import is_variable

__all__ = ["MixedPrecision"]


@final
@dataclasses.dataclass(frozen=True)
class MixedPrecision:
    """Compute in `compute_dtype`, while variables, gradients and the loss keep float32.

    Give it to `rx.value_and_grad`. bfloat16 has the range of float32 and needs nothing else; for float16
    use a `DynamicLossScale` too.

    Args:
        compute_dtype: what a loss function sees of floating-point arguments and of the variables that it is
            differentiated with respect to.

    >>> w = rx.Variable(jnp.ones((2, 2)))
    >>> def loss(x):
    ...     y = x @ w.value
    ...     assert y.dtype == jnp.bfloat16
    ...     return jnp.mean(y)
    >>> value, gradient = rx.value_and_grad(loss, w, precision=rx.MixedPrecision())(jnp.ones((3, 2)))
    >>> value.dtype.name, gradient.dtype.name
    ('float32', 'float32')
    """

    compute_dtype: Any = jnp.bfloat16

    def __post_init__(self) -> None:
        """Check that it is a floating-point dtype."""
        if not jnp.issubdtype(self.compute_dtype, jnp.floating):
            raise ValueError(
                f"MixedPrecision(compute_dtype={self.compute_dtype!r}): choose jnp.bfloat16 or jnp.float16."
            )

    def cast(self, structure: Any) -> Any:
        """`structure` with its floating-point arrays in the compute dtype.

        >>> rx.MixedPrecision(jnp.float16).cast({"x": jnp.ones(2), "label": jnp.arange(2)})["x"].dtype.name
        'float16'
        """

        def convert(leaf: Any) -> Any:
            wide = is_array(leaf) and leaf.dtype in (jnp.float32, jnp.float64)
            return jnp.asarray(leaf, self.compute_dtype) if wide else leaf

        return jax.tree.map(convert, structure, is_leaf=is_variable)
