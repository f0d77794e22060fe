"""What Replicax costs on top of hand-written JAX.

Every comparison runs both sides in this process, in turns (see `harness.py`). The hand-written side is
`jax.jit(jax.shard_map(...))` over a flat list of arrays whose written ones are donated, with the same
math; the two sides are checked to agree first.

    python benchmarks/overhead.py [--quick] [--only host,tiny] [--json FILE] [--no-check]

    host       Python and dispatch of a compiled step that writes 1 to 1,000 variables
    tiny       the same of the tiny network of `training.py`, with one shape of batches and with two
    loop       the same of steps in a loop inside an `rx.function`, against a loop around the step
    gradients  200 small gradients: one all_reduce of a list, one by one, packed by hand
    tracing    tracing a step for 8 replicas, against 2
    eager      an eager training step of a small network, beside the gradients alone; and beside
               TensorFlow's eager step, if it is installed

Replicax writes its variables as an optimizer does: a `merge_call` whose function reduces all gradients
with `extended.batch_reduce_to` and writes each variable in `extended.update`.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import itertools
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import training
import training_work as work
from by_hand import AXIS, ROWS, Reduce, mapped, reduce_concatenated, reduce_packed
from harness import (
    Rounds,
    Step,
    Steps,
    compare,
    compare_or_dash,
    host_seconds,
    run,
    start_peers,
    step_seconds,
    take_turns,
)
from rows import Row
from training import replicas

import replicax as rx

LEARNING_RATE = 1e-4
PEERS = {"TensorFlow": ("tensorflow", "eager_tensorflow.py")}


# The work: networks as lists of arrays, and data.


def make_network(*sizes: int) -> list[np.ndarray]:
    random = np.random.default_rng(0)
    arrays: list[np.ndarray] = []
    for rows, columns in itertools.pairwise(sizes):
        weights = random.normal(size=(rows, columns)) * np.sqrt(2 / rows)
        arrays += [weights.astype(np.float32), np.zeros(columns, np.float32)]
    return arrays


def make_batch(size: int, num_features: int, num_classes: int) -> tuple[np.ndarray, np.ndarray]:
    random = np.random.default_rng(1)
    images = random.normal(size=(size, num_features)).astype(np.float32)
    return images, random.integers(0, num_classes, size).astype(np.int32)


def network_loss(parameters: Sequence[Any], images: Any, labels: Any) -> Any:
    hidden = images
    layers = list(zip(parameters[::2], parameters[1::2], strict=True))
    for weights, bias in layers[:-1]:
        hidden = jax.nn.relu(hidden @ weights + bias)
    weights, bias = layers[-1]
    scores = jax.nn.log_softmax(hidden @ weights + bias)
    return -jnp.mean(jnp.take_along_axis(scores, labels[:, None], axis=-1))


# The hand-written side.


def train_by_hand(
    loss_fn: Callable[..., Any], reduce: Reduce, state: Sequence[Any], batch: Sequence[Any]
) -> Step:
    def body(parameters: list[Any], *batch: Any) -> Any:
        loss, gradients = jax.value_and_grad(loss_fn)(parameters, *batch)
        loss, *gradients = reduce([loss, *gradients])
        new = [p - LEARNING_RATE * g for p, g in zip(parameters, gradients, strict=True)]
        return loss, new

    return mapped(body, state, batch)


# Replicax's side.


def shard(strategy: Any, array: np.ndarray) -> Any:
    rows = len(array) // strategy.num_replicas_in_sync
    return strategy.distribute_values_from_function(
        lambda ctx: array[ctx.replica_id_in_sync_group * rows :][:rows]
    )


def make_variables(strategy: Any, arrays: Sequence[np.ndarray]) -> list[Any]:
    with strategy.scope():
        return [rx.Variable(array) for array in arrays]


def descend(variable: Any, gradient: Any) -> None:
    variable.assign_sub(LEARNING_RATE * gradient)


def apply_gradients(strategy: Any, gradients: list[Any], loss: Any, variables: list[Any]) -> Any:
    """Called by `merge_call`, once for all replicas; returns the mean of their losses."""
    pairs = [(loss, loss), *zip(gradients, variables, strict=True)]
    loss, *means = strategy.extended.batch_reduce_to("MEAN", pairs)
    for variable, mean in zip(variables, means, strict=True):
        strategy.extended.update(variable, descend, args=(mean,))
    return loss


def replica_step(loss_fn: Callable[..., Any], variables: list[Any], batch: Sequence[Any]) -> Any:
    values = [v.value for v in variables]
    loss, gradients = jax.value_and_grad(loss_fn)(values, *batch)
    context = rx.get_replica_context()
    return context.merge_call(apply_gradients, args=(gradients, loss, variables))


def train_with_replicax(
    strategy: Any, loss_fn: Callable[..., Any], state: Sequence[Any], batch: Sequence[Any]
) -> tuple[Callable[..., Any], list[Any]]:
    """An eager training step and what to call it with; `rx.function(step)` compiles it."""
    variables = make_variables(strategy, state)

    def step(*batch: Any) -> Any:
        losses = strategy.run(lambda *batch: replica_step(loss_fn, variables, batch), args=batch)
        return strategy.local_results(losses)[0]

    return step, [shard(strategy, array) for array in batch]


def compiled(step: Callable[..., Any], batch: Sequence[Any]) -> functools.partial[Any]:
    return functools.partial(rx.function(step), *batch)


def check_agreement(contenders: dict[str, Step]) -> None:
    """All contenders must compute the same results over a few steps."""
    results = {n: [_numpy(step()) for _ in range(3)] for n, step in contenders.items()}
    first, *others = results
    for other in others:
        np.testing.assert_allclose(results[other], results[first], rtol=2e-5, atol=1e-6, err_msg=other)


def _numpy(result: Any) -> np.ndarray:
    return np.asarray(jax.tree.leaves(result)[0])  # of a per-replica value: the global array


# What is measured.


def bench_host(quick: bool) -> list[Row]:
    """Many variables and hardly any work, with one shape of batches, and with two."""
    rows = []
    for count in (1, 50, 400, 1000):
        state = [np.full(3, i / count, np.float32) for i in range(count)]
        batch = [np.arange(8, dtype=np.float32)]
        contenders = {
            "by hand": shift_by_hand(state, batch),
            "Replicax": shift_with_replicax(state, batch),
        }
        check_agreement(contenders)
        contenders["Replicax, two shapes"] = shift_with_replicax(state, batch, two_shapes=True)
        if count == 1:
            contenders["Replicax, loss reduced"] = shift_with_replicax(state, batch, reduced=True)
        num_rounds, num_steps = (7, 40) if quick else (25, 80)
        rounds = take_turns(contenders, host_seconds, num_rounds=num_rounds, num_steps=num_steps)
        what = f"host time of a step, {count} variable{'s' if count > 1 else ''}"
        rows += [compare(rounds, what, name, ["by hand"]) for name in ("Replicax", "Replicax, two shapes")]
        if count == 1:
            what = "the same, and reduces the loss to one plain array"
            rows.append(compare(rounds, what, "Replicax, loss reduced", ["by hand"]))
    return rows


def shift_by_hand(state: Sequence[np.ndarray], batch: Sequence[np.ndarray]) -> Step:
    def body(parameters: list[Any], x: Any) -> Any:
        loss = jnp.mean(x)
        shift = LEARNING_RATE * jax.lax.pmean(loss, AXIS)
        return loss[None], [p - shift for p in parameters]

    return mapped(body, state, batch, result_spec=ROWS)


def shift_with_replicax(
    state: Sequence[np.ndarray],
    batch: Sequence[np.ndarray],
    *,
    reduced: bool = False,
    two_shapes: bool = False,
) -> Step:
    strategy = replicas(2)
    variables = make_variables(strategy, state)

    def apply_shift(strategy: Any, loss: Any) -> None:
        mean = strategy.extended.reduce_to("MEAN", loss, variables[0])
        for variable in variables:
            strategy.extended.update(variable, descend, args=(mean,))

    def replica_fn(x: Any) -> Any:
        loss = jnp.mean(x)
        rx.get_replica_context().merge_call(apply_shift, args=(loss,))
        return loss

    def step(x: Any) -> Any:
        losses = strategy.run(replica_fn, args=(x,))
        return strategy.reduce("MEAN", losses, axis=None) if reduced else losses

    result = compiled(step, [shard(strategy, array) for array in batch])
    if two_shapes:
        result.func(*[shard(strategy, array[: len(array) // 2]) for array in batch])
    return result


def bench_tiny(quick: bool) -> list[Row]:
    """The tiny network, whose step has one program, and then two."""
    workload = work.WORKLOADS["tiny"]
    by_hand, ours = training.train_by_hand(workload, reduce_packed), training.train_with_replicax(workload)
    strategy = replicas(work.NUM_REPLICAS)
    twice = training.train_with_replicax(workload, strategy)
    half = dataclasses.replace(workload, batch_size=workload.batch_size // 2)
    twice.func(*training.distributed_batch(half, strategy))
    contenders = {"by hand": by_hand, "Replicax": ours, "Replicax, two shapes": twice}
    num_rounds, num_steps = (7, 40) if quick else (25, 80)
    rounds = take_turns(contenders, host_seconds, num_rounds=num_rounds, num_steps=num_steps)
    what = "host time of a step of 784-128-10, Adam"
    return [compare(rounds, what, name, ["by hand"]) for name in ("Replicax", "Replicax, two shapes")]


def bench_loop(quick: bool) -> list[Row]:
    """A loop over batches inside an `rx.function`, and the same loop around a compiled step."""
    strategy = replicas(2)
    with strategy.scope():
        variable = rx.Variable(np.zeros(3, np.float32), aggregation="MEAN")
    batch = shard(strategy, np.arange(8, dtype=np.float32))

    def replica_fn(x: Any) -> Any:
        loss = jnp.mean(x)
        variable.assign_sub(LEARNING_RATE * loss * jnp.ones(3), read_value=False)
        return loss

    step = rx.function(lambda x: strategy.run(replica_fn, args=(x,)))

    def around(batches: Any) -> Any:
        return [step(x) for x in batches][-1]

    def inside(batches: Any) -> Any:
        return [strategy.run(replica_fn, args=(x,)) for x in batches][-1]

    def seconds(train: Any, num_steps: int) -> float:
        start = time.thread_time()
        result = train(itertools.repeat(batch, num_steps))
        taken = time.thread_time() - start
        jax.block_until_ready(result)
        return taken / num_steps

    contenders = {"loop around the step": around, "loop inside": rx.function(inside)}
    num_rounds, num_steps = (7, 40) if quick else (25, 80)
    rounds = take_turns(contenders, seconds, num_rounds=num_rounds, num_steps=num_steps)
    what = "a step in a loop inside an rx.function, host time"
    return [compare(rounds, what, "loop inside", ["loop around the step"])]


def bench_gradients(quick: bool) -> list[Row]:
    """The gradients of 200 regressions; then, without a target, gradients that cost nothing to compute.

    The hand-written side packs in two ways, and the better one counts. Copying parts into a buffer wins
    where there is nothing to compute; joining them behind a barrier, as Replicax does, wins by much where
    the parts come out of a network.
    """
    packed = ["by hand, packed", "by hand, concatenated"]
    rounds = gradient_rounds(quick, jax.grad(many_regressions))
    what = "200 gradients in one all_reduce"
    rows = [
        compare(rounds, what, "one list", ["one by one"]),
        compare(rounds, what, "one list", packed, "packed by hand"),
    ]
    if not quick:
        rounds = gradient_rounds(quick, scaled)
        what = "the same without computing them"
        rows += [
            compare(rounds, what, "one list", ["one by one"]),
            compare(rounds, what, "one list", packed, "packed by hand"),
        ]
    return rows


def scaled(parameters: Sequence[Any], x: Any) -> list[Any]:
    scale = jnp.mean(x)
    return [scale * parameter for parameter in parameters]


def many_regressions(parameters: Sequence[Any], x: Any) -> Any:
    return sum(jnp.mean((x @ w - i / len(parameters)) ** 2) for i, w in enumerate(parameters))


def gradient_rounds(quick: bool, gradients_of: Callable[..., list[Any]]) -> Rounds:
    random = np.random.default_rng(0)
    state = [random.normal(size=(64, 16)).astype(np.float32) for _ in range(200)]
    batch = [random.normal(size=(64, 64)).astype(np.float32)]
    strategy = replicas(2)
    variables = make_variables(strategy, state)
    shards = [shard(strategy, array) for array in batch]

    def corners(gradients: Sequence[Any]) -> Any:
        return jnp.stack([gradient[0, 0] for gradient in gradients])

    def by_hand_with(reduce: Reduce) -> Step:
        def body(parameters: list[Any], x: Any) -> Any:
            return corners(reduce(gradients_of(parameters, x))), None

        return mapped(body, state, batch, writes=False)

    def with_replicax(reduce: Callable[[Any, list[Any]], list[Any]]) -> Step:
        def replica_fn(x: Any) -> Any:
            gradients = gradients_of([v.value for v in variables], x)
            return corners(reduce(rx.get_replica_context(), gradients))

        def step(x: Any) -> Any:
            return strategy.local_results(strategy.run(replica_fn, args=(x,)))[0]

        return compiled(step, shards)

    contenders = {
        "by hand, packed": by_hand_with(reduce_packed),
        "by hand, concatenated": by_hand_with(reduce_concatenated),
        "one list": with_replicax(lambda context, values: context.all_reduce("MEAN", values)),
        "one by one": with_replicax(
            lambda context, values: [context.all_reduce("MEAN", value) for value in values]
        ),
    }
    check_agreement(contenders)
    num_rounds, num_steps = (7, 10) if quick else (25, 20)
    return take_turns(contenders, step_seconds, num_rounds=num_rounds, num_steps=num_steps)


TRACING_EVENTS = (
    "/jax/core/compile/jaxpr_trace_duration",
    "/jax/core/compile/jaxpr_to_mlir_module_duration",
)


def bench_tracing(quick: bool) -> list[Row]:
    """Tracing and lowering as JAX itself times them, without XLA's compilation and the first run."""
    state, batch = make_network(64, *[64] * 24, 10), make_batch(64, 64, 10)
    tracing = 0.0

    def listen(event: str, seconds: float, **_: Any) -> None:
        nonlocal tracing
        if event in TRACING_EVENTS:
            tracing += seconds

    jax.monitoring.register_event_duration_secs_listener(listen)

    def new_step(count: int) -> Callable[[], Step]:
        strategy = replicas(count)
        return lambda: compiled(*train_with_replicax(strategy, network_loss, state, batch))

    def tracing_seconds(make: Callable[[], Step], num_steps: int) -> float:
        seconds = []
        for _ in range(num_steps):
            step, before = make(), tracing
            jax.block_until_ready(step())
            seconds.append(tracing - before)
        return statistics.median(seconds)

    contenders = {"2 replicas": new_step(2), "8 replicas": new_step(8)}
    rounds = take_turns(contenders, tracing_seconds, num_rounds=5 if quick else 11, num_steps=1)
    what = "tracing for 8 replicas, against 2"
    return [compare(rounds, what, "8 replicas", ["2 replicas"])]


def bench_eager(quick: bool) -> list[Row]:
    state, batch = make_network(784, 128, 10), make_batch(64, 784, 10)
    step, shards = train_with_replicax(replicas(2), network_loss, state, batch)
    eager = functools.partial(step, *shards)
    by_hand = train_by_hand(network_loss, reduce_packed, state, batch)
    check_agreement({"by hand": by_hand, "Replicax": eager})
    contenders: dict[str, Any] = {
        "Replicax": Steps(eager),
        "jax.value_and_grad": Steps(bare_gradients(state, batch)),
    }
    given = {f"state{i}": array for i, array in enumerate(state)}
    with contextlib.ExitStack() as stack:
        if not quick:
            contenders |= start_peers(stack, PEERS, images=batch[0], labels=batch[1], **given)
        rounds = take_turns(
            contenders,
            num_rounds=5 if quick else 15,
            num_steps=20 if quick else 50,
        )
    what = "eager step: 784-128-10, batch 64, 2 replicas"
    others = ["jax.value_and_grad", *(() if quick else PEERS)]
    return [compare_or_dash(rounds, what, "Replicax", other) for other in others]


def bare_gradients(state: Sequence[np.ndarray], batch: tuple[np.ndarray, np.ndarray]) -> Step:
    """What JAX alone takes for the gradients of both replicas, operation by operation."""
    half = len(batch[0]) // 2
    replicas = [
        jax.device_put((list(state), *(a[i * half :][:half] for a in batch)), jax.devices()[i])
        for i in (0, 1)
    ]
    return lambda: [jax.value_and_grad(network_loss)(*arguments) for arguments in replicas]


# The report.

BENCHMARKS: dict[str, Callable[[bool], list[Row]]] = {
    "host": bench_host,
    "tiny": bench_tiny,
    "loop": bench_loop,
    "gradients": bench_gradients,
    "tracing": bench_tracing,
    "eager": bench_eager,
}


if __name__ == "__main__":
    sys.exit(run("What Replicax costs on top of hand-written JAX.", BENCHMARKS, num_devices=8))
