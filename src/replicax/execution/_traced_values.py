"""The error for a traced value that is used as a Python number."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import jax

from replicax.errors import TracedValueError

__all__ = ["explain_traced_values"]


@contextlib.contextmanager
def explain_traced_values(explanation: str) -> Iterator[None]:
    """Inside, the error of JAX comes as a `TracedValueError` with this `explanation`."""
    try:
        yield
    except (
        jax.errors.ConcretizationTypeError,
        jax.errors.TracerArrayConversionError,
        jax.errors.TracerIntegerConversionError,
    ) as error:
        raise TracedValueError(f"{explanation} JAX says: {str(error).splitlines()[0]}") from error
