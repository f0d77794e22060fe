"""Differentiable collectives of eager replicas.

An eager replica waits at a collective until the other replicas have reached it. It can't wait in the middle
of its own trace, as under `jax.grad`. There the collective is a JAX primitive, which exchanges values
outside of the trace and cotangents in the backward pass. An all-reduce is its own transpose, as in
tf.distribute.
"""

from __future__ import annotations

import abc
from collections.abc import Sequence
from typing import Any, ClassVar, NoReturn

import jax.numpy as jnp
from jax.interpreters import ad, batching, mlir

from replicax._jax import Primitive, at_trace, trace_of
from replicax._recording import followed
from replicax.errors import TracingError

__all__ = ["Exchange", "out_of_reach"]


class Exchange(abc.ABC):
    """A linear collective between eager replicas."""

    name: ClassVar[str]
    """Its name in messages."""

    def __init__(self, base_trace: Any) -> None:
        """`base_trace` is the trace that the replicas were started in; its values need no primitive."""
        self._base_trace = base_trace

    def __call__(self, values: Sequence[Any]) -> list[Any]:
        """Exchange `values`; differentiable.

        Values that do not belong to a trace inside the replica are exchanged at once.
        """
        values = list(map(followed, values))
        if all(trace_of(value) in (None, self._base_trace) for value in values):
            with at_trace(self._base_trace):
                return self.exchange(values)
        return _exchange_p.bind(*map(jnp.asarray, values), exchange=self)

    @abc.abstractmethod
    def exchange(self, values: Sequence[Any]) -> list[Any]:
        """Exchange `values` with the other replicas, which wait for each other."""

    @abc.abstractmethod
    def linear(self) -> Exchange:
        """The exchange of the tangents, which follows that of the primals."""

    @abc.abstractmethod
    def transpose(self) -> Exchange:
        """The exchange of the cotangents."""

    @abc.abstractmethod
    def result_shapes(self, shapes: Sequence[tuple[int, ...]]) -> list[tuple[int, ...]]:
        """The shapes of the results for values of `shapes`."""


_exchange_p = Primitive("replicax_exchange")
_exchange_p.multiple_results = True


@_exchange_p.def_impl
def _impl(*values: Any, exchange: Exchange) -> list[Any]:
    return exchange.exchange(values)


@_exchange_p.def_abstract_eval
def _abstract(*avals: Any, exchange: Exchange) -> list[Any]:
    shapes = exchange.result_shapes([a.shape for a in avals])
    return [aval.update(shape=shape) for shape, aval in zip(shapes, avals, strict=True)]


def _jvp(primals: Sequence[Any], tangents: Sequence[Any], *, exchange: Exchange) -> Any:
    results = exchange(primals)
    tangents = [ad.instantiate_zeros(t) for t in tangents]
    return results, _exchange_p.bind(*tangents, exchange=exchange.linear())


def _transpose(cotangents: Sequence[Any], *_: Any, exchange: Exchange) -> list[Any]:
    return exchange.transpose()([ad.instantiate_zeros(ct) for ct in cotangents])


def _batch(values: Sequence[Any], dims: Sequence[Any], *, exchange: Exchange) -> Any:
    size = next(v.shape[d] for v, d in zip(values, dims, strict=True) if d is not None)
    moved = [batching.bdim_at_front(v, d, size) for v, d in zip(values, dims, strict=True)]
    # Move the batch axis to the end, so that it does not shift the axis of a gather.
    moved = [jnp.moveaxis(v, 0, -1) for v in moved]
    results = exchange(moved)
    return results, [r.ndim - 1 for r in results]


def _refuse_lowering(*_: Any, **__: Any) -> NoReturn:
    raise out_of_reach()


def out_of_reach() -> TracingError:
    """The error for a collective of an eager replica inside a compiled function."""
    return TracingError(
        "An eager replica called all_reduce or all_gather inside jax.jit, lax.scan, lax.cond or "
        "another function that JAX compiles, where it can't wait for the other replicas. Call it outside "
        "of that function, or compile the whole step with `rx.function`, where this works if all replicas "
        "have the same number of rows, as with `InputOptions(partial_batch='pad')`. A loss that gets its "
        "`global_batch_size` does not have to count the rows, and needs no collective."
    )


ad.primitive_jvps[_exchange_p] = _jvp
ad.primitive_transposes[_exchange_p] = _transpose
batching.primitive_batchers[_exchange_p] = _batch
mlir.register_lowering(_exchange_p, _refuse_lowering)
