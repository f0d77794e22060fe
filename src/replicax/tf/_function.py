"""`tf.function`: `rx.function` with TensorFlow's arguments."""

from __future__ import annotations

import functools
import logging
from typing import Any, NoReturn

import jax
import jax.numpy as jnp

from replicax import execution
from replicax.errors import OutOfRangeError, TracedValueError
from replicax.tf._tensors import convert_to_tensor
from replicax.values import is_number
from replicax.variables import Variable, VariableCopy

__all__ = ["function"]

_logger = logging.getLogger("replicax")

_NO_AUTOGRAPH = (
    "tf.function has no AutoGraph here: Python's `if`, `while` and `range` can't use a traced value. Use "
    "tf.cond, tf.while_loop or tf.where, or leave @tf.function out to see the values."
)
_NO_VALUES = (
    "A tf.function used a traced value as a Python number or a NumPy array (in `if`, `while`, `int()`, "
    "`range()`, `np.asarray()`, ...). Results that depend on its arguments or on variables have no value "
    f"while it is traced. {_NO_AUTOGRAPH}"
)

_WITHOUT_MEANING = {
    "autograph": "Python's `if` on a traced value is not rewritten: use tf.cond and tf.while_loop",
    "reduce_retracing": "XLA compiles a program for each shape",
    "experimental_relax_shapes": "XLA compiles a program for each shape",
    "experimental_autograph_options": "there is no AutoGraph",
    "experimental_implements": "there is no graph in which a function could be replaced",
    "experimental_attributes": "there is no graph that could have attributes",
    "experimental_follow_type_hints": "arguments are traced according to their values",
}


def function(
    func: Any = None,
    input_signature: Any = None,
    autograph: bool | None = None,
    jit_compile: bool | None = None,
    experimental_compile: bool | None = None,
    **options: Any,
) -> Any:
    """Compile a step; see `rx.function`.

    Python numbers that the step returns become tensors. XLA compiles everything, with or without
    `jit_compile`. Options that only affect how TensorFlow builds graphs have no effect, which is logged
    once.

    Args:
        func: the step; None returns a decorator.
        input_signature: the specs of the positional arguments.
        autograph: no effect: there is no AutoGraph; use `tf.cond`.
        jit_compile: None or True.
        experimental_compile: the older spelling of `jit_compile`.
        **options: TensorFlow's other options.

    >>> from replicax import tf
    >>> @tf.function
    ... def double(x):
    ...     return 2 * x
    >>> double(tf.constant(3.0))
    Array(6., dtype=float32)
    >>> double(3)
    Array(6, dtype=int32)
    """
    if jit_compile is False or experimental_compile is False:
        raise ValueError(
            "tf.function(jit_compile=False): only XLA compiles functions here. Leave @tf.function out to "
            "run the function as plain Python."
        )
    for option, value in {"autograph": autograph, **options}.items():
        if option not in _WITHOUT_MEANING:
            raise TypeError(f"tf.function() got an unexpected keyword argument {option!r}.")
        if value:
            _note(option)
    if func is None:
        return functools.partial(function, input_signature=input_signature)
    return execution.function(_returning_tensors(func), input_signature=input_signature)


def _returning_tensors(func: Any) -> Any:
    if not callable(func):
        return func  # `rx.function` raises the error

    @functools.wraps(func)
    def step(*args: Any, **kwargs: Any) -> Any:
        try:
            with execution.explain_traced_values(_NO_VALUES):
                result = func(*args, **kwargs)
        except StopIteration as error:
            raise OutOfRangeError(
                "next(iterator) in a tf.function: the dataset has no more elements."
            ) from error
        except TracedValueError as error:  # possibly from a replica function
            if _NO_AUTOGRAPH not in "".join([str(error), *getattr(error, "__notes__", ())]):
                error.add_note(_NO_AUTOGRAPH)
            raise
        return jax.tree.map(_as_tensor, result, is_leaf=_is_variable)

    with_attributes: Any = step
    # `rx.function` copies the attributes of its function, also for methods.
    with_attributes.get_concrete_function = _no_concrete_function
    return step


def _no_concrete_function(*_: Any, **__: Any) -> NoReturn:
    raise NotImplementedError(
        "tf.function(...).get_concrete_function: Replicax has no graphs. To compile the function for "
        "certain arguments, call it with them; to refuse others, pass input_signature; to save a "
        "program, use `jax.export`."
    )


def _as_tensor(leaf: Any) -> Any:
    """Convert numbers to an array, including known integers (see `_op.py`)."""
    is_tensor = isinstance(leaf, jax.Array) or not is_number(leaf)
    return leaf if is_tensor else jnp.asarray(convert_to_tensor(leaf))


def _is_variable(value: Any) -> bool:
    """Whether `value` is a variable, which `jax.tree` would replace by its value."""
    return isinstance(value, Variable | VariableCopy)


@functools.cache
def _note(option: str) -> None:
    _logger.info("tf.function(%s=...) has no effect here: %s.", option, _WITHOUT_MEANING[option])
