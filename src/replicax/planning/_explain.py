"""`rx.explain`: traces and compiles a step for any number of devices, without running it."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any, NamedTuple, get_args

import jax

from replicax._jax import with_source_lines
from replicax._messages import brief
from replicax.contexts import current, has_strategy
from replicax.errors import ContextError
from replicax.execution import CompiledStep, Function, StepMemory
from replicax.planning._arguments import Arguments
from replicax.planning._collectives import collectives_in
from replicax.planning._explanation import Explanation, ShardingEffect, VariableUse
from replicax.planning._plan import as_planned, plan
from replicax.strategies import Answers, ShardSetting, Strategy
from replicax.topology import ReplicaMesh, memory_limit
from replicax.variables import Layout, Variable

__all__ = ["explain", "lower_as_planned", "strategy_of"]

_SETTINGS: tuple[ShardSetting, ...] = get_args(ShardSetting)
_tags = itertools.count()


def explain(
    step: Callable[..., Any],
    /,
    *args: Any,
    num_replicas: int | None = None,
    shard: ShardSetting | None = None,
    compare: bool = True,
    device_memory: int | None = None,
    **kwargs: Any,
) -> Explanation:
    """Find out what a step needs on each device, before it runs.

    The step is traced and compiled from shapes: nothing is computed, and no array is moved. Variables that
    its first call would create, such as optimizer state, are created. Print the result, or open it in a
    browser: `explanation.save("step.html")`.

    Args:
        step: a function made by `rx.function`, or one that could be.
        args: the arguments of the step. You can pass a `jax.ShapeDtypeStruct` or an `rx.TensorSpec` instead
            of an array and, in a strategy's scope, an `rx.PerReplicaSpec` instead of a per-replica value,
            for example the `element_spec` of a distributed dataset.
        num_replicas: explain the step for this number of replicas instead of the strategy's. The rows per
            replica stay the same. If this machine does not have that many devices, XLA compiles for CPU
            devices instead.
        shard: explain the step with "mirrored", "optimizer" or "all" (see `rx.ShardedStrategy`) instead of
            the strategy's own setting.
        compare: also compile the step with the other settings of `shard`, to show their effect.
        device_memory: the memory of a device in bytes; by default what JAX reports, if anything.
        kwargs: keyword arguments of the step.

    Raises:
        TypeError: `step` is not a function.
        ContextError: `num_replicas` or `shard` was given, but the step has no strategy that supports them.

    >>> import optax
    >>> strategy = rx.MirroredStrategy(["CPU:0", "CPU:1"])
    >>> with strategy.scope():
    ...     w = rx.Variable(jnp.ones((512, 256)), name="w")
    ...     optimizer = rx.Optimizer(optax.adam(1e-3))
    >>> def replica_step(x):
    ...     return optimizer.minimize(lambda: jnp.mean(x @ w), [w])
    >>> @rx.function
    ... def step(x):
    ...     return strategy.reduce("MEAN", strategy.run(replica_step, args=(x,)), axis=None)
    >>> with strategy.scope():
    ...     batch = rx.PerReplicaSpec(rx.TensorSpec([4, 512]))
    ...     now, many = rx.explain(step, batch), rx.explain(step, batch, num_replicas=64, shard="all")
    >>> now.memory.parameters, now.memory.optimizer
    (524288, 1048580)
    >>> many.memory.parameters, many.memory.optimizer
    (8192, 16388)
    >>> [collective.kind for collective in many.collectives if collective.bytes > 1000]
    ['all-gather', 'reduce-scatter']
    """
    _check(step, num_replicas, shard)
    fn = step.python_function if isinstance(step, Function) else step
    arguments = Arguments(args, kwargs)
    first = CompiledStep(fn, *arguments.on(None))
    chosen, others = _choices(first, num_replicas, shard, compare)
    explained = [_compile(fn, arguments, first, choice) for choice in (chosen, *others)]
    effects = [ShardingEffect(p.shard, p.memory, p.flops, p.collectives) for p in explained]
    return _explanation(
        explained[0], sorted(effects, key=lambda e: _SETTINGS.index(e.shard)), device_memory
    )


def _check(step: Any, num_replicas: Any, shard: Any) -> None:
    if not callable(step):
        raise TypeError(
            f"rx.explain takes a step, a function, got {brief(step)}. Pass the step first and then its "
            "arguments: `rx.explain(step, batch)`."
        )
    if shard is not None and shard not in _SETTINGS:
        raise ValueError(f"rx.explain(shard={shard!r}): pass one of {', '.join(map(repr, _SETTINGS))}.")
    is_count = isinstance(num_replicas, int) and not isinstance(num_replicas, bool) and num_replicas > 0
    if num_replicas is not None and not is_count:
        raise ValueError(f"rx.explain(num_replicas={num_replicas!r}): pass an int, 1 or more.")


class _Choice(NamedTuple):
    """One way to place the step; `answers` None means the strategy's own."""

    strategy: Strategy | None
    answers: Answers | None
    shard: ShardSetting


class _Program(NamedTuple):
    """The step, compiled for one `_Choice`."""

    name: str
    mesh: ReplicaMesh | None
    shard: ShardSetting
    state: list[tuple[Variable, Layout, jax.ShapeDtypeStruct]]
    memory: Any
    flops: float
    collectives: Any


def _choices(
    step: CompiledStep, num_replicas: int | None, shard: ShardSetting | None, compare: bool
) -> tuple[_Choice, list[_Choice]]:
    """The choice that was asked for, and those to compare it with."""
    strategy = strategy_of(step)
    if strategy is None:
        if num_replicas is not None or shard is not None:
            raise ContextError(
                "rx.explain(num_replicas=..., shard=...) needs a step that uses variables of one "
                "MirroredStrategy or ShardedStrategy, but this step uses none."
            )
        return _Choice(None, None, "mirrored"), []
    now = (strategy.num_replicas_in_sync, strategy.answers.shards.shard)
    count, chosen = num_replicas or now[0], shard or now[1]
    if count != now[0] and not strategy.mesh.is_local:
        raise ContextError(
            f"rx.explain(num_replicas={count}) was called in one of several processes. To explain another "
            "number of replicas, run the program in one process."
        )
    others: list[ShardSetting] = [s for s in _SETTINGS if s != chosen and compare and count > 1]
    settings: list[ShardSetting] = [chosen, *others]
    answers = [None if (count, s) == now else plan(strategy, count, s) for s in settings]
    choices = [_Choice(strategy, a, s) for a, s in zip(answers, settings, strict=True)]
    return choices[0], choices[1:]


def strategy_of(step: CompiledStep) -> Strategy | None:
    """The strategy of the step's variables, if it replicates or shards them over its devices."""
    found = {v.distribute_strategy for v, _ in step.shapes if v.layout.has_copies or v.layout.is_split}
    if not found and has_strategy():
        scope: Any = current().strategy
        found = {scope} if scope.answers.parameter_device is None else set()
    return found.pop() if len(found) == 1 else None


def _compile(
    fn: Callable[..., Any], arguments: Arguments, first: CompiledStep, choice: _Choice
) -> _Program:
    strategy, answers, shard = choice
    if answers is None or strategy is None:
        return _finish(*_lower(first, arguments.on(None)[0]), shard)
    return _finish(*lower_as_planned(fn, arguments, first, strategy, answers), shard)


def lower_as_planned(
    fn: Callable[..., Any], arguments: Arguments, first: CompiledStep, strategy: Strategy, answers: Answers
) -> tuple[CompiledStep, list[Any], list[tuple[Variable, Layout, jax.ShapeDtypeStruct]], Any]:
    """Lower the step as if the strategy gave other answers; returns it with its leaves and variables."""
    with as_planned(strategy, [v for v, _ in first.shapes], answers):
        leaves, treedef = arguments.on(answers.communicator.mesh)
        return _lower(CompiledStep(fn, leaves, treedef, tag=next(_tags)), leaves)


def _lower(step: CompiledStep, leaves: list[Any]) -> tuple[CompiledStep, list[Any], Any, Any]:
    """Lower the step, and collect what depends on the planned answers while they are in effect."""
    with with_source_lines():
        lowered = step.lower_shapes(leaves)
    return step, leaves, [(v, v.layout, shape) for v, shape in step.shapes], lowered


def _finish(step: CompiledStep, leaves: list[Any], state: Any, lowered: Any, shard: Any) -> _Program:
    with with_source_lines():
        compiled = lowered.compile()
    arguments = [leaf for leaf in leaves if isinstance(leaf, jax.ShapeDtypeStruct)]
    shapes = [(v, shape) for v, _, shape in state]
    memory = StepMemory(step.name, shapes, step.mesh, compiled, arguments).memory
    costs: Any = compiled.cost_analysis() or {}
    collectives = collectives_in(compiled, step.mesh)
    return _Program(step.name, step.mesh, shard, state, memory, float(costs.get("flops", 0)), collectives)


def _explanation(
    program: _Program, effects: list[ShardingEffect], device_memory: int | None
) -> Explanation:
    mesh = program.mesh
    if device_memory is None:
        device_memory = memory_limit(jax.local_devices()[:1] if mesh is None else mesh.mesh.local_devices)
    return Explanation(
        step=program.name,
        mesh_shape={} if mesh is None else dict(mesh.mesh.shape),
        platform=jax.default_backend() if mesh is None else mesh.platform,
        shard=program.shard,
        memory=program.memory,
        flops=program.flops,
        collectives=program.collectives,
        variables=tuple(VariableUse.of(*use) for use in program.state),
        settings=tuple(effects),
        device_memory=device_memory,
    )
