"""Errors for traced values: used as Python numbers, or used outside of their trace."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import jax

from replicax.errors import TracedValueError, TracingError

__all__ = ["explain_leaks", "explain_traced_values"]


@contextlib.contextmanager
def explain_traced_values(explanation: str) -> Iterator[None]:
    """A `with` block that turns JAX's error into a `TracedValueError` with this `explanation`."""
    try:
        yield
    except (
        jax.errors.ConcretizationTypeError,
        jax.errors.TracerArrayConversionError,
        jax.errors.TracerIntegerConversionError,
    ) as error:
        raise TracedValueError(f"{explanation} JAX says: {str(error).splitlines()[0]}") from error


@contextlib.contextmanager
def explain_leaks() -> Iterator[None]:
    """A `with` block that turns JAX's error for a leaked tracer into a `TracingError` with advice."""
    try:
        yield
    except jax.errors.UnexpectedTracerError as error:
        raise TracingError(
            "A traced value was used outside of the function that it was traced in. If a `jax.custom_vjp` "
            "function, or one of its rules, reads a variable that is being differentiated: such functions "
            "can't close over traced values, so pass the variable's value as an argument, `f(x, w.value)`, "
            "and return its gradient from the rule. Otherwise look for a value that a function stored in a "
            f"list or an attribute. JAX says: {str(error).splitlines()[0]}"
        ) from error
