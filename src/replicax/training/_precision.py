"""Mixed precision: computing in a small dtype while variables keep a large one."""

from __future__ import annotations

import dataclasses
import functools
import inspect
import warnings
from typing import Any, final

import jax
import jax.numpy as jnp
import numpy as np

from replicax.values import is_array
from replicax.variables import is_variable

__all__ = ["MixedPrecision"]


@final
@dataclasses.dataclass(frozen=True)
class MixedPrecision:
    """Compute in `compute_dtype`, while variables, gradients and the loss stay in float32.

    Pass it to `rx.value_and_grad`. bfloat16 has the range of float32 and needs nothing else; with float16,
    also use a `DynamicLossScale`. Pass the batch to the loss function as an argument: arrays that the
    function captures are not cast, and cause a warning.

    Args:
        compute_dtype: the dtype in which a loss function sees its floating-point arguments and the
            variables that it is differentiated with respect to.

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
            return jnp.asarray(leaf, self.compute_dtype) if _is_wide(leaf) else leaf

        return jax.tree.map(convert, structure, is_leaf=is_variable)

    def warn_of_captured(self, fn: Any, arguments: Any) -> None:
        """Warn if `fn` has no floating-point array among its `arguments`, but captures some.

        A captured array can't be cast, and an operation on a float32 array and a bfloat16 variable
        computes in float32.
        """
        if any(map(_is_wide, jax.tree.leaves(arguments, is_leaf=is_variable))):
            return
        names = _captured_arrays(fn)
        if names:
            warnings.warn(
                f"{getattr(fn, '__name__', fn)!r} is differentiated with {self}, but captures "
                f"floating-point arrays instead of taking them as arguments: {', '.join(names)}. They "
                "keep their dtype, so results computed from them are float32. Pass them as arguments, "
                f"`rx.value_and_grad(fn, variables, precision=...)({', '.join(names)})`, or cast them, "
                "`precision.cast(array)`.",
                stacklevel=3,
            )


def _is_wide(leaf: Any) -> bool:
    return is_array(leaf) and leaf.dtype in (jnp.float32, jnp.float64)


def _captured_arrays(fn: Any) -> list[str]:
    """The names of floating-point arrays, other than scalars, that a Python function captures."""
    while isinstance(fn, functools.partial):
        fn = fn.func
    if not inspect.isfunction(fn) and not inspect.ismethod(fn):
        return []
    captured = inspect.getclosurevars(fn)
    return [
        name
        for name, value in {**captured.nonlocals, **captured.globals}.items()
        if any(_is_wide(leaf) and np.ndim(leaf) for leaf in _leaves(value))
    ]


def _leaves(value: Any) -> list[Any]:
    containers = isinstance(value, dict | list | tuple)
    return jax.tree.leaves(value, is_leaf=is_variable) if containers else [value]
