"""`strategy.run`: decides whether the replicas run eagerly or become part of a compiled step."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax.numpy as jnp

from replicax._jax import eval_trace, trace_state
from replicax.contexts import StrategyProtocol, current
from replicax.errors import TracingError
from replicax.execution._eager import run_replicas
from replicax.execution._function import in_replicas
from replicax.execution._program import ProgramFrame, ReplicaFrame
from replicax.execution._single import run_single
from replicax.execution._spmd import run_inline, run_spmd
from replicax.values import PerReplica, attach_masks, find_masks, flatten
from replicax.variables import EagerFrame, Frame, RecordingFrame

__all__ = ["run"]


def run(
    strategy: StrategyProtocol, fn: Callable[..., Any], args: Any, kwargs: Any, *, padded: bool = False
) -> Any:
    """Call `fn` once for each replica of `strategy`, in replica context; return the merged results.

    `padded`: some argument has a mask.
    """
    frame = current().frame
    if isinstance(frame, ProgramFrame):
        if strategy.places_values:
            frame.use_mesh(strategy.mesh)
    elif isinstance(frame, EagerFrame) and frame.loop is not None and trace_state.trace is eval_trace:
        with frame.loop.compiling(fn) as compiled:
            if compiled is not None:
                return in_replicas(strategy, compiled)(*args, **kwargs)
    if not padded:
        return _run(strategy, fn, args, kwargs, frame, ())
    masks = find_masks((args, kwargs))
    result = _run(strategy, fn, args, kwargs, frame, masks)
    return attach_masks(result, masks, strategy.mesh)


def _run(
    strategy: StrategyProtocol,
    fn: Callable[..., Any],
    args: Any,
    kwargs: Any,
    frame: Frame,
    masks: Sequence[PerReplica],
) -> Any:
    if strategy.num_replicas_in_sync == 1:
        return run_single(strategy, fn, args, kwargs, masks)
    if isinstance(frame, ReplicaFrame):
        return run_inline(strategy, fn, args, kwargs, masks)
    if isinstance(frame, ProgramFrame):
        frame.enter_run(strategy.mesh)
        if _all_alike((args, kwargs)):
            return run_spmd(strategy, fn, args, kwargs, frame, masks)
        ids = [jnp.int32(i) for i in range(strategy.num_replicas_in_sync)]
        return run_replicas(strategy, fn, args, kwargs, ids, masks=masks, traced=True)
    if isinstance(frame, RecordingFrame):
        raise TracingError(
            "strategy.run was called in a function that rx.value_and_grad differentiates. Differentiate "
            "inside the replica function, and reduce its gradients."
        )
    if trace_state.trace is not eval_trace:
        raise TracingError(
            "strategy.run was called inside jax.jit, jax.grad or another JAX transformation. Compile "
            "the step with `rx.function` instead of `jax.jit`, and differentiate inside the replica "
            "function: gradients do not pass through an eager strategy.run."
        )
    return run_replicas(strategy, fn, args, kwargs, strategy.replica_ids, masks=masks)


def _all_alike(structure: Any) -> bool:
    """Whether one program serves all replicas: each per-replica value has one shape and dtype."""
    leaves, _ = flatten(structure)
    return all(leaf.uniform is not None for leaf in leaves if isinstance(leaf, PerReplica))
