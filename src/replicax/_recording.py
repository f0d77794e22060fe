"""A JAX trace that records operations on chosen values, so that they can be differentiated afterwards.

`jax.vjp` runs a function in a trace that executes each operation and also records the operation's linear
map from tangents to tangents. The records form a program, which `jax.vjp` then transposes. Here the same
trace, JAX's own `LinearizeTrace`, is opened and closed by a `with` block instead of a function call, and
values can start being followed at any time. So operations, rules and costs are those of `jax.vjp`. The
private parts of JAX that this takes are all in this module, in `_transposing.py` and in `replicax/_jax`.

A value that a recording follows is a `Recorded`. After the block the user still holds some of them, such as
the loss and the predictions, which must then behave like plain values. JAX asks about a value of another
trace in three places, and we return the plain value in each: before an operation
(`canonicalize_value_handlers`), when it is about to compute (`full_lower`), and when a program captures a
constant (`dimension_as_value`).
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from typing import Any, final

import jax
import numpy as np

from replicax._jax import ArrayImpl, constants_in, current_trace, eval_trace, private, unsupported
from replicax._transposing import Transposed
from replicax.errors import TracingError

__all__ = [
    "Recorded",
    "Recording",
    "followed",
    "innermost_but_recordings",
    "is_transforming",
    "settled",
    "unrecorded",
]

_LinearizeTrace = private("interpreters.ad", "LinearizeTrace")
_LinearizeTracer = private("interpreters.ad", "LinearizeTracer")
_JaxprTrace = private("interpreters.partial_eval", "DynamicJaxprTrace")
_TraceTag = private("core", "TraceTag")
_typeof = private("core", "typeof")
_full_lower = private("core", "full_lower")
_to_concrete_value = private("core", "to_concrete_value")
_current_source = private("source_info_util", "current")
_handlers = private("dtypes", "canonicalize_value_handlers")


def _placeholder() -> None:
    """A placeholder: JAX's messages name the function being traced, and a recording has none."""


_DEBUG_INFO = jax.api_util.debug_info("GradientTape", _placeholder, (), {})


@final
class Recorded(_LinearizeTracer):
    """A value that a recording follows; after the recording it behaves like the plain value, `primal`."""

    __slots__ = ()

    def full_lower(self) -> Any:
        """The value that JAX computes with."""
        return self if self._trace.is_open else _full_lower(self.primal)

    @property
    def dimension_as_value(self) -> Callable[[], Any]:
        """The constant that a program gets if it captures this value."""
        if self._trace.is_open:
            raise AttributeError("dimension_as_value")
        return lambda: self.primal

    def to_concrete_value(self) -> Any:
        """The value if it is concrete, for Python's `if` and `int`."""
        return _to_concrete_value(self.primal)

    def __array__(self, *args: Any, **kwargs: Any) -> np.ndarray:
        return np.asarray(self.primal, *args, **kwargs)

    def __float__(self) -> float:
        return float(self.primal)

    def __complex__(self) -> complex:
        return complex(self.primal)

    def __format__(self, spec: str) -> str:
        return format(self.primal, spec)

    def __repr__(self) -> str:
        return repr(self.primal)

    def __str__(self) -> str:
        return str(self.primal)

    def __reduce__(self) -> Any:
        return self.primal.__reduce__()

    def __getattr__(self, name: str) -> Any:
        # Methods that compute are JAX's own, and recorded. Others, such as `numpy`, use the plain value.
        try:
            return super().__getattr__(name)
        except AttributeError:
            if name.startswith("__") or not hasattr(ArrayImpl, name):
                raise
        return getattr(self.primal, name)


def _plain_attribute(name: str) -> Any:
    return property(lambda self: getattr(self.primal, name))


_OF_PLAIN_VALUES = (
    *("addressable_data", "addressable_shards", "block_until_ready", "committed", "copy_to_host_async"),
    *("delete", "device", "devices", "global_shards", "is_deleted", "is_fully_addressable"),
    *("is_fully_replicated", "item", "on_device_size_in_bytes", "sharding", "tobytes", "tolist"),
    *("unsafe_buffer_pointer", "__dlpack__", "__dlpack_device__"),
)
for _name in _OF_PLAIN_VALUES:
    setattr(Recorded, _name, _plain_attribute(_name))


def settled(value: Any) -> Any:
    """`value`, or its plain value if its recording has ended."""
    while type(value) is Recorded and not value._trace.is_open:
        value = value.primal
    return value


_handlers[Recorded] = settled


def unrecorded(value: Any) -> Any:
    """The plain value of `value`, even if its recording is still open."""
    while type(value) is Recorded:
        value = value.primal
    return value


def followed(value: Any) -> Any:
    """The recorded value for `value` if the current recording follows it, else `value`."""
    trace = current_trace()
    return trace.follow(value) if type(trace) is Recording else settled(value)


def is_transforming() -> bool:
    """Whether JAX is differentiating, batching or staging this code; recording alone does not count."""
    return innermost_but_recordings() is not eval_trace


def innermost_but_recordings() -> Any:
    """The innermost current trace that is not a recording."""
    trace = current_trace()
    while type(trace) is Recording:
        trace = trace.parent_trace
    return trace


@final
class Recording(_LinearizeTrace):
    """Follows values, and what is computed from them while it is open."""

    def __init__(self) -> None:
        tangents = _JaxprTrace(_DEBUG_INFO, auto_dce=True)
        tangents.tag = _TraceTag()
        super().__init__(current_trace(), tangents, is_vjp=True)
        self.is_open = True
        """Whether its values are still recorded rather than plain."""
        self.is_paused = False
        """Whether operations are computed without being recorded."""
        # Keyed by id, to recognise values that the user has watched. The recorded value refers to the
        # watched one, so the id is not reused.
        self._watched: dict[int, Recorded] = {}
        self._live: list[weakref.ref[Recorded]] = []

    def is_valid(self) -> bool:
        """Whether its values may be used, for versions of JAX without `canonicalize_value`."""
        return self.is_open or not isinstance(self.parent_trace, _TRANSFORMATIONS)

    # Recording.

    def watch(self, value: Any) -> Recorded:
        """Follow an array from here on."""
        known = self.find(value)
        if known is not None:
            return known
        tangent = self.tangent_trace.new_arg(_typeof(value).to_tangent_aval(), _current_source())
        recorded = self._watched[id(value)] = self._recorded(value, tangent)
        return recorded

    def _recorded(self, primal: Any, tangent: Any) -> Recorded:
        recorded = Recorded(self, primal, tangent)
        self._live.append(weakref.ref(recorded))
        return recorded

    def find(self, value: Any) -> Recorded | None:
        """The recorded value for a value that the user holds; None if it is not being followed."""
        while True:
            if type(value) is Recorded and value._trace is self:
                return value
            if id(value) in self._watched:
                return self._watched[id(value)]
            if type(value) is not Recorded:
                return None
            value = value.primal

    def follow(self, value: Any) -> Any:
        """What an operation gets in place of `value`."""
        value = settled(value)
        if self.is_paused:
            return value.primal if type(value) is Recorded and value._trace is self else value
        return self._watched.get(id(value), value)

    def process_primitive(self, primitive: Any, tracers: Any, params: Any, /) -> Any:
        self._check_constants(params)
        return self._own(super().process_primitive(primitive, self._inputs(tracers), params))

    def process_custom_jvp_call(
        self, primitive: Any, fun: Any, jvp: Any, tracers: Any, /, **params: Any
    ) -> Any:
        return self._own(
            super().process_custom_jvp_call(primitive, fun, jvp, self._inputs(tracers), **params)
        )

    def process_custom_vjp_call(
        self, primitive: Any, fun: Any, fwd: Any, bwd: Any, tracers: Any, /, **params: Any
    ) -> Any:
        return self._own(
            super().process_custom_vjp_call(primitive, fun, fwd, bwd, self._inputs(tracers), **params)
        )

    def process_call(self, call_primitive: Any, f: Any, tracers: Any, params: Any, /) -> Any:
        return self._own(super().process_call(call_primitive, f, self._inputs(tracers), params))

    def stage_value(self, val: Any) -> Any:
        return self._own(super().stage_value(self.follow(val)))

    def _check_constants(self, params: Any) -> None:
        """Raise if a compiled function has a watched array as a constant, which can't be followed."""
        if self.is_paused:
            return
        for constant in constants_in(params):
            if id(constant) in self._watched:
                raise TracingError(
                    f"A function compiled by jax.jit uses a watched array, of shape {constant.shape}, that "
                    "is not one of its arguments. The GradientTape can't follow it there: pass the array "
                    "to the function as an argument."
                )

    def _inputs(self, tracers: Any) -> list[Any]:
        return [self.follow(tracer) for tracer in tracers]

    def _own(self, results: Any) -> Any:
        """The results of an operation, as `Recorded` values."""
        if isinstance(results, list | tuple):
            return [self._own(result) for result in results]
        if type(results) is _LinearizeTracer and results._trace is self:
            return self._recorded(results.primal, results.tangent)
        return results

    # Differentiating.

    def transposed(self, targets: Sequence[Recorded], sources: Sequence[Recorded]) -> Transposed:
        """The function from gradients of `targets` to gradients of `sources`."""
        here = _current_source()
        outs = [self.tangent_trace.to_jaxpr_tracer(x.tangent, here) for x in (*targets, *sources)]
        jaxpr, consts = self.tangent_trace.to_jaxpr(outs, _DEBUG_INFO.with_unknown_names(), here)
        inputs = [*jaxpr.constvars, *jaxpr.invars]  # since JAX 0.11 constants are the first `invars`
        given = dict(zip(inputs, consts, strict=False))
        own = {recorded.tangent.val for recorded in self._watched.values()}
        others = [v for v in inputs[len(consts) :] if v not in own]
        given |= zip(others, _residual_inputs(self), strict=True)
        wanted = jaxpr.outvars[len(targets) :]
        return Transposed(jaxpr.replace(outvars=jaxpr.outvars[: len(targets)]), given, wanted)

    def release(self) -> None:
        """Drop everything, so that a loss that the user keeps does not keep all residuals alive."""
        self.is_open = False
        for reference in self._live:
            recorded = reference()
            if recorded is not None:
                recorded.tangent = None
        self._live.clear()
        self._watched.clear()
        self.tangent_trace.invalidate()


def _residual_inputs(trace: Any) -> list[Any]:
    """The residuals that are inputs of a trace's linear program, in addition to its constants."""
    if jax.__version_info__ < (0, 11, 1):
        return []
    try:
        return jax.tree.leaves(trace.structured_residuals)
    except AttributeError as error:
        raise unsupported("LinearizeTrace.structured_residuals") from error


# Traces around a recording that would treat the value of a closed recording as a constant.
_TRANSFORMATIONS = (
    private("interpreters.ad", "JVPTrace"),
    private("interpreters.batching", "BatchTrace"),
    _LinearizeTrace,
)
