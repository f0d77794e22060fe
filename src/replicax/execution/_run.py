"""`strategy.run`: decides whether the replicas run eagerly or become part of a compiled step."""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable
from typing import Any

import jax.numpy as jnp

from replicax._jax import eval_trace, trace_state
from replicax.contexts import Origins, Padding, StrategyProtocol, current, explain_unbound_axis
from replicax.errors import TracingError
from replicax.execution._eager import run_replicas
from replicax.execution._function import in_replicas
from replicax.execution._more_rows import Call
from replicax.execution._numbering import CannotWeave
from replicax.execution._program import ProgramFrame, ReplicaFrame
from replicax.execution._single import run_single
from replicax.execution._spmd import run_inline, run_spmd
from replicax.execution._uneven import run_uneven
from replicax.values import PerReplica, flatten
from replicax.variables import EagerFrame, Frame, RecordingFrame

__all__ = ["run"]

_logger = logging.getLogger("replicax")


def run(
    strategy: StrategyProtocol, fn: Callable[..., Any], args: Any, kwargs: Any, *, padded: bool = False
) -> Any:
    """Call `fn` once per replica of `strategy`, in replica context; return the merged results.

    `padded`: whether some argument has a mask, or may have one.
    """
    frame = current().frame
    if isinstance(frame, ProgramFrame):
        if strategy.places_values:
            frame.use_mesh(strategy.mesh)
    elif isinstance(frame, EagerFrame) and frame.loop is not None and trace_state.value is eval_trace:
        with frame.loop.compiling(fn) as compiled:
            if compiled is not None:
                return in_replicas(strategy, compiled)(*args, **kwargs)
    try:
        if not padded:
            return _run(strategy, fn, args, kwargs, frame, None)
        padding = _find_padding(Call(strategy, fn, args, kwargs), frame)
        return padding.mark(_run(strategy, fn, args, kwargs, frame, padding), strategy.mesh)
    except NameError as error:
        explain_unbound_axis(error, strategy.mesh.axis_name)
        raise


def _find_padding(call: Call, frame: Frame) -> Padding:
    """The padded batches of a call, and how to find out which values have their rows."""

    def find() -> Origins:
        return Origins(len(call.masks), lambda group: call.with_more_rows(group, frame, _run))

    def find_now() -> Origins:
        origins = find()
        origins.prepare()
        return origins

    if isinstance(frame, EagerFrame):
        return Padding(call.masks, find(), is_eager=True, doubts=call.doubts)
    is_program = isinstance(frame, ProgramFrame)
    origins = frame.origins_of(call.signature, find_now) if is_program else find_now()
    return Padding(call.masks, origins, doubts=call.doubts)


def _run(
    strategy: StrategyProtocol,
    fn: Callable[..., Any],
    args: Any,
    kwargs: Any,
    frame: Frame,
    padding: Padding | None,
) -> Any:
    if strategy.num_replicas_in_sync == 1:
        return run_single(strategy, fn, args, kwargs, padding)
    if isinstance(frame, ReplicaFrame):
        return run_inline(strategy, fn, args, kwargs, frame, padding)
    if isinstance(frame, ProgramFrame):
        frame.enter_run(strategy.mesh)
        if _all_alike((args, kwargs)):
            return run_spmd(strategy, fn, args, kwargs, frame, padding)
        if padding is None:
            try:
                with frame.attempt():
                    return run_uneven(strategy, fn, args, kwargs, frame)
            except CannotWeave as reason:
                if not (frame.created or frame.needs_parts):  # otherwise the step is traced again
                    _warn_once(str(reason))
        ids = [jnp.int32(i) for i in range(strategy.num_replicas_in_sync)]
        return run_replicas(strategy, fn, args, kwargs, ids, padding=padding, traced=True)
    if isinstance(frame, RecordingFrame):
        raise TracingError(
            "strategy.run was called in a function that rx.value_and_grad differentiates. Call "
            "rx.value_and_grad inside the replica function instead, and reduce its gradients."
        )
    if trace_state.value is not eval_trace:
        raise TracingError(
            "strategy.run was called inside jax.jit, jax.grad or another JAX transformation, or in the "
            "block of a GradientTape. Compile the step with `rx.function` instead of `jax.jit`, and "
            "differentiate inside the replica function, or open the tape there: gradients do not pass "
            "through an eager strategy.run."
        )
    return run_replicas(strategy, fn, args, kwargs, strategy.replica_ids, padding=padding)


@functools.cache
def _warn_once(reason: str) -> None:
    _logger.warning(
        "A compiled step got different numbers of rows on the replicas, and every device computes the rows "
        "of all replicas, because %s. That is slow if it happens for most batches: use a batch size "
        "that the number of replicas divides, or partial_batch='pad'.",
        reason,
    )


def _all_alike(structure: Any) -> bool:
    """Whether one program serves all replicas: each per-replica value has one shape and dtype."""
    leaves, _ = flatten(structure)
    return all(leaf.uniform is not None for leaf in leaves if isinstance(leaf, PerReplica))
