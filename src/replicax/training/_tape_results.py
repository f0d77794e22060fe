"""Gradients and Jacobians from what a tape has recorded."""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Sequence
from typing import Any, final

import jax
import jax.numpy as jnp
import numpy as np

from replicax._recording import Recorded, Recording, unrecorded
from replicax.types import UnconnectedGradients

__all__ = ["Pullback", "as_unconnected", "batch_jacobian", "jacobian"]

_Pull = Callable[[Sequence[Any]], list[Any]]


@final
class Pullback:
    """The function from gradients of targets to gradients of sources.

    Args:
        recording: the recording that both belong to.
        targets: the values to differentiate.
        recorded: the recorded values of each target: one, or none.
        sources: the recorded values of each source. A variable may have been read repeatedly.
    """

    def __init__(
        self,
        recording: Recording,
        targets: Sequence[Any],
        recorded: Sequence[Sequence[Recorded]],
        sources: Sequence[Sequence[Recorded]],
    ) -> None:
        self._targets = [(i, unrecorded(target)) for i, target in enumerate(targets) if recorded[i]]
        self._counts = [len(reads) for reads in sources]
        self._transposed = recording.transposed(
            [only for found in recorded for only in found], [read for reads in sources for read in reads]
        )

    def __call__(self, given: Sequence[Any]) -> list[Any]:
        """The gradient of each source, or None; `given` has each target's gradient, None for ones."""
        cotangents = [_cotangent(given[i], target) for i, target in self._targets]
        gradients = iter(self._transposed(cotangents))
        return [_sum([next(gradients) for _ in range(count)]) for count in self._counts]


def _cotangent(given: Any, target: Any) -> Any:
    target = jnp.asarray(target)
    if given is None:
        return jnp.ones(target.shape, target.dtype)
    return _conjugate(jnp.asarray(given, target.dtype))


def _sum(gradients: Sequence[Any]) -> Any:
    known = [gradient for gradient in gradients if gradient is not None]
    return _conjugate(functools.reduce(operator.add, known)) if known else None


def _conjugate(gradient: Any) -> Any:
    """TensorFlow's gradient of a complex number is the conjugate of JAX's."""
    return jnp.conj(gradient) if jnp.iscomplexobj(gradient) else gradient


def as_unconnected(choice: UnconnectedGradients | str) -> Callable[..., Any]:
    """The function that is applied to gradients that may be None."""
    try:
        chosen = UnconnectedGradients(choice)
    except ValueError:
        raise ValueError(
            f"unconnected_gradients={choice!r}: pass 'none', for None, or 'zero', for zeros."
        ) from None
    return _or_none if chosen is UnconnectedGradients.NONE else _or_zeros


def _or_none(gradient: Any, source: Any, shape: tuple[int, ...] = (), *, per_row: bool = False) -> Any:
    return gradient


def _or_zeros(gradient: Any, source: Any, shape: tuple[int, ...] = (), *, per_row: bool = False) -> Any:
    if gradient is not None:
        return gradient
    return jnp.zeros((*shape, *source.shape[1 if per_row else 0 :]), source.dtype)


def jacobian(pull: _Pull, target: Any, at_a_time: int | None, in_parallel: bool) -> list[Any]:
    """The Jacobians of `target`, with its shape followed by that of the source."""
    shape, size = np.shape(target), int(np.size(target))
    basis = jnp.eye(size, dtype=jnp.result_type(target)).reshape(size, *shape)
    rows = _each(lambda one: pull([one]), basis, at_a_time, in_parallel)
    return [row if row is None else row.reshape(*shape, *row.shape[1:]) for row in rows]


def batch_jacobian(pull: _Pull, target: Any, source: Any, at_a_time: int | None, in_parallel: bool) -> Any:
    """The Jacobian of each row of `target` with respect to the same row of `source`."""
    shape = np.shape(target)
    if not shape or not source.shape or shape[0] != source.shape[0]:
        raise ValueError(
            f"GradientTape.batch_jacobian() got a target of shape {shape} and a source of shape "
            f"{tuple(source.shape)}. Their first axes must have the same size."
        )
    size = int(np.prod(shape[1:]))
    basis = jnp.eye(size, dtype=jnp.result_type(target)).reshape(size, 1, *shape[1:])
    rows = _each(lambda one: pull([jnp.broadcast_to(one, shape)]), basis, at_a_time, in_parallel)[0]
    return rows if rows is None else jnp.moveaxis(rows, 0, 1).reshape(*shape, *rows.shape[2:])


def _each(fn: Callable[[Any], Any], basis: Any, at_a_time: int | None, in_parallel: bool) -> list[Any]:
    if in_parallel and at_a_time is None:
        return jax.vmap(fn)(basis)
    return jax.lax.map(fn, basis, batch_size=at_a_time if in_parallel else None)
