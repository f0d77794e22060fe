"""Control flow that can be compiled: thin wrappers around `jax.lax`.

Outside a trace, the condition has a value and plain Python runs, so that breakpoints work.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from replicax._jax import is_tracer
from replicax._recording import is_transforming
from replicax.tf._op import array, named
from replicax.tf.dtypes import on_device

__all__ = ["cond", "executing_eagerly", "map_fn", "print", "switch_case", "while_loop"]

_print = print


@named
def cond(pred: Any, true_fn: Callable[[], Any], false_fn: Callable[[], Any]) -> Any:
    """Call `true_fn` or `false_fn`, depending on `pred`.

    >>> from replicax import tf
    >>> tf.cond(tf.constant(1.0) > 0, lambda: "yes", lambda: "no")
    'yes'
    """
    decided = pred if isinstance(pred, bool | np.bool_ | np.ndarray) else array(pred)
    if not is_tracer(decided):
        return true_fn() if decided else false_fn()
    return jax.lax.cond(decided, true_fn, false_fn)


@named
def switch_case(
    branch_index: Any, branch_fns: Sequence[Callable[[], Any]], default: Callable[[], Any] | None = None
) -> Any:
    """Call the function with this index; if there is none, `default` or the last one.

    >>> from replicax import tf
    >>> tf.switch_case(tf.constant(1), [lambda: "zero", lambda: "one"])
    'one'
    """
    functions = [*branch_fns, *([] if default is None else [default])]
    index = array(branch_index)
    last = len(functions) - 1
    index = jnp.where((index < 0) | (index > last), last, index)
    return jax.lax.switch(index, functions) if is_tracer(index) else functions[int(index)]()


@named
def while_loop(
    cond: Callable[..., Any],
    body: Callable[..., Any],
    loop_vars: Any,
    maximum_iterations: int | None = None,
) -> Any:
    """Repeat `body` while `cond` is true.

    >>> from replicax import tf
    >>> tf.while_loop(lambda i, x: i < 3, lambda i, x: (i + 1, 2 * x), [0, 1])
    [3, 8]
    """
    names, count = type(loop_vars), 0
    state = tuple(loop_vars)
    while maximum_iterations is None or count < maximum_iterations:
        going = cond(*state)
        if is_tracer(array(going)) or any(map(is_tracer, jax.tree.leaves(state))):
            # Even with plain numbers in `loop_vars`, `cond` or `body` may close over traced values.
            left = None if maximum_iterations is None else maximum_iterations - count
            return names(_traced_loop(cond, body, state, left))
        if not going:
            break
        new = body(*state)
        state = tuple(new) if isinstance(new, list | tuple) else (new,)
        count += 1
    return names(state)


def _traced_loop(cond: Any, body: Any, state: tuple[Any, ...], at_most: int | None) -> tuple[Any, ...]:
    def go_on(carry: Any) -> Any:
        count, state = carry
        going = array(cond(*state))
        return going if at_most is None else going & (count < at_most)

    def step(carry: Any) -> Any:
        count, state = carry
        new = body(*state)
        new = tuple(new) if isinstance(new, list | tuple) else (new,)
        return count + 1, jax.tree.map(lambda x, old: jnp.asarray(x, old.dtype), new, state)

    arrays = jax.tree.map(jnp.asarray, state)
    return jax.lax.while_loop(go_on, step, (jnp.int32(0), arrays))[1]


@named
def map_fn(fn: Callable[..., Any], elems: Any, fn_output_signature: Any = None) -> Any:
    """Apply `fn` to every row.

    Args:
        fn: the function.
        elems: an array, or a structure of arrays.
        fn_output_signature: if given, the dtype or `tf.TensorSpec` that each result must have.
    """
    results = jax.lax.map(fn, jax.tree.map(array, elems))
    if fn_output_signature is not None:
        jax.tree.map(_check_dtype, results, fn_output_signature)
    return results


def _check_dtype(result: Any, signature: Any) -> None:
    wanted = on_device(getattr(signature, "dtype", signature))
    if result.dtype != wanted:
        raise TypeError(
            f"tf.map_fn: the function returned {result.dtype}, but the signature says {wanted}."
        )


def print(*inputs: Any, sep: str = " ", end: str = "\n") -> None:
    """Print values; in a compiled function, each time it runs, one line per call."""
    traced = any(is_tracer(leaf) for leaf in jax.tree.leaves(inputs))
    if traced and end != "\n":
        raise ValueError(
            f"tf.print(end={end!r}) in a compiled function: each call prints a whole line; leave `end` out."
        )
    if traced:
        jax.debug.print(sep.join("{}" for _ in inputs), *inputs)
        return
    _print(*inputs, sep=sep, end=end)


def executing_eagerly() -> bool:
    """Whether ops run immediately, which they don't while a function is traced.

    >>> from replicax import tf
    >>> tf.executing_eagerly()
    True
    """
    return not is_transforming()
