"""`tf.debugging`: checks of values, outside compiled functions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from replicax._jax import at_trace, eval_trace, is_tracer
from replicax.errors import OpArgumentError
from replicax.tf._missing import refuse
from replicax.tf._op import array
from replicax.tf.dtypes import on_device

__all__ = [
    "Assert",
    "assert_all_finite",
    "assert_equal",
    "assert_greater",
    "assert_greater_equal",
    "assert_integer",
    "assert_less",
    "assert_less_equal",
    "assert_near",
    "assert_negative",
    "assert_non_negative",
    "assert_non_positive",
    "assert_none_equal",
    "assert_positive",
    "assert_rank",
    "assert_rank_at_least",
    "assert_rank_in",
    "assert_scalar",
    "assert_shapes",
    "assert_type",
    "check_numerics",
    "enable_check_numerics",
]


def _assertion(name: str, compare: Callable[[Any, Any], Any]) -> Callable[..., None]:
    def check(
        x: Any, y: Any, message: str | None = None, summarize: int | None = None, name: str = name
    ) -> None:
        x, y = _given(x), _given(y)
        if is_tracer(x) or is_tracer(y):
            raise NotImplementedError(
                f"tf.debugging.{name} in a compiled function: the values are not known while it is traced. "
                "Check outside it, or use `jax.experimental.checkify`."
            )
        with at_trace(eval_trace):
            holds = np.all(compare(x, y))
        if not holds:
            shown = f"x = {_shown(x, summarize)}, y = {_shown(y, summarize)}"
            raise OpArgumentError(f"{message or f'tf.debugging.{name} failed'}: {shown}.")

    check.__name__ = check.__qualname__ = name
    condition = name.removeprefix("assert_")
    check.__doc__ = f"Raise `tf.errors.InvalidArgumentError` unless `{condition}` holds for all elements."
    return check


def _given(value: Any) -> Any:
    """A value that is known during a trace, or an array."""
    return value if isinstance(value, np.ndarray | np.generic | bool | int | float) else array(value)


def _shown(x: Any, summarize: int | None) -> str:
    """All elements, or the first `summarize`."""
    x = np.asarray(x)
    cut = summarize is not None and x.size > summarize
    return f"{x.ravel()[:summarize]} and {x.size - (summarize or 0)} more" if cut else str(x)


assert_equal = _assertion("assert_equal", jnp.equal)
assert_greater = _assertion("assert_greater", jnp.greater)
assert_greater_equal = _assertion("assert_greater_equal", jnp.greater_equal)
assert_less = _assertion("assert_less", jnp.less)
assert_less_equal = _assertion("assert_less_equal", jnp.less_equal)
assert_near = _assertion("assert_near", lambda x, y: jnp.isclose(x, y, rtol=1e-5, atol=1e-5))


assert_none_equal = _assertion("assert_none_equal", jnp.not_equal)


def _of_zero(name: str, compare: Callable[[Any, Any], Any]) -> Callable[..., None]:
    compared = _assertion(name, compare)

    def check(
        x: Any, message: str | None = None, summarize: int | None = None, name: str | None = None
    ) -> None:
        compared(x, 0, message, summarize)

    check.__name__ = check.__qualname__ = name
    check.__doc__ = compared.__doc__
    return check


assert_negative = _of_zero("assert_negative", jnp.less)
assert_non_negative = _of_zero("assert_non_negative", jnp.greater_equal)
assert_non_positive = _of_zero("assert_non_positive", jnp.less_equal)
assert_positive = _of_zero("assert_positive", jnp.greater)


def Assert(condition: Any, data: Any = None, summarize: int | None = None, name: str | None = None) -> None:
    """Raise `tf.errors.InvalidArgumentError` with `data` unless `condition` holds."""
    shown = "" if data is None else ", ".join(_shown(x, summarize) for x in data)
    assert_equal(condition, True, f"tf.debugging.Assert failed: {shown}")


def assert_rank(x: Any, rank: Any, message: str | None = None, name: str | None = None) -> None:
    """Raise a ValueError unless `x` has this number of axes."""
    assert_rank_in(x, [rank], message)


def assert_rank_at_least(x: Any, rank: Any, message: str | None = None, name: str | None = None) -> None:
    """Raise a ValueError unless `x` has at least this number of axes."""
    _check_rank(x, jnp.ndim(array(x)) >= int(rank), f"at least {rank}", message)


def assert_rank_in(x: Any, ranks: Any, message: str | None = None, name: str | None = None) -> None:
    """Raise a ValueError unless the number of axes of `x` is one of `ranks`."""
    allowed = [int(rank) for rank in ranks]
    _check_rank(x, jnp.ndim(array(x)) in allowed, " or ".join(map(str, allowed)), message)


def assert_scalar(tensor: Any, name: str | None = None, message: str | None = None) -> jax.Array:
    """`tensor`, after checking that it has no axes; otherwise a ValueError."""
    assert_rank(tensor, 0, message)
    return array(tensor)


def _check_rank(x: Any, holds: bool, wanted: str, message: str | None) -> None:
    if not holds:
        given = f"expected {wanted} axes, got an array of shape {jnp.shape(array(x))}"
        raise OpArgumentError(f"{message or 'tf.debugging.assert_rank failed'}: {given}.")


def assert_type(tensor: Any, tf_type: Any, message: str | None = None, name: str | None = None) -> None:
    """Raise a TypeError unless `tensor` has this dtype."""
    given, wanted = array(tensor).dtype, on_device(tf_type)
    if given != wanted:
        failure = message or "tf.debugging.assert_type failed"
        raise OpArgumentError(f"{failure}: expected {wanted.name}, got {given.name}.")


def assert_integer(x: Any, message: str | None = None, name: str | None = None) -> None:
    """Raise a TypeError unless the dtype of `x` is an integer."""
    given = array(x).dtype
    if given.kind not in "iu":
        failure = message or "tf.debugging.assert_integer failed"
        raise OpArgumentError(f"{failure}: expected integers, got {given.name}.")


def assert_all_finite(x: Any, message: str, name: str | None = None) -> jax.Array:
    """`x`, after checking that it contains neither NaN nor infinity."""
    return check_numerics(x, message)


def assert_shapes(shapes: Any, message: str | None = None) -> None:
    """Raise `tf.errors.InvalidArgumentError` unless arrays have these shapes; None matches any size."""
    for x, shape in shapes.items() if isinstance(shapes, dict) else shapes:
        actual = jnp.shape(array(x))
        fits = len(actual) == len(shape) and all(
            want in (None, size) for want, size in zip(shape, actual, strict=True)
        )
        if not fits:
            failure = message or "tf.debugging.assert_shapes failed"
            raise OpArgumentError(f"{failure}: the shape is {actual}, not {tuple(shape)}.")


def check_numerics(tensor: Any, message: str) -> jax.Array:
    """Check that `tensor` contains neither NaN nor infinity, and return it."""
    x = array(tensor)
    if is_tracer(x):
        raise NotImplementedError(
            "tf.debugging.check_numerics in a compiled function: use "
            "`jax.config.update('jax_debug_nans', True)`."
        )
    if not np.all(np.isfinite(x)):
        raise OpArgumentError(f"{message}: the tensor contains NaN or infinity.")
    return x


def enable_check_numerics() -> None:
    """Make JAX raise when a computation produces NaN: sets `jax_debug_nans`."""
    jax.config.update("jax_debug_nans", True)


__getattr__ = refuse(
    "tf.debugging",
    {
        "disable_check_numerics": '`jax.config.update("jax_debug_nans", False)`',
        "get_log_device_placement": "`x.devices()`, which tells where an array is placed",
        "set_log_device_placement": "`x.devices()`, which tells where an array is placed",
    },
)
