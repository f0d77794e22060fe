"""How fast networks train on two replicas, beside hand-written JAX and other frameworks.

    python benchmarks/training.py [--quick] [--only tiny,many] [--peers PYTHON] [--json FILE]

    empty          an 8-8-4 network, batch 4: nothing but overhead
    tiny           a 784-128-10 network, batch 64
    medium         a 784-2048-2048-10 network, batch 512
    convolutions   two convolutions and two dense layers on images of 28 by 28, batch 128
    transformer    4 blocks of width 256 with 4 heads, 128 of 1,024 tokens, batch 8
    many           200 regressions with a variable of 64 by 16 each, batch 64

All sides start from the same parameters, see the same batch in every step (`input.py` is about getting
other ones), update with Adam, and must agree about the losses of the first steps.

Replicax is written as in `docs/training.md`. Hand-written JAX (`by_hand.py`) reduces the loss and all
gradients one by one, in one buffer that is filled in one of two ways, or leaves it to XLA's partitioner.
Both also make several steps in a call. The tiny network's step is also shown beside one whose buffer has
the loss at its end, where it moves no gradient off the alignment of the buffer.

The other frameworks run in processes beside. `--quick` leaves them out, and what takes long to compile. On
a machine with GPUs, one or two of those are used, and only JAX is compared.
"""

from __future__ import annotations

import contextlib
import functools
import sys
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import training_work as work
from by_hand import (
    Reduce,
    mapped,
    partitioned,
    reduce_concatenated,
    reduce_loss_last,
    reduce_packed,
    reduce_plainly,
)
from harness import (
    ProgramBeside,
    Step,
    Steps,
    compare,
    compare_or_dash,
    run,
    start_peers,
    take_turns,
    working_peers,
)
from rows import Row

import replicax as rx

# The models, from parameters and a batch to one loss for each example.


def dense(parameters: work.Parameters, name: str, x: Any) -> Any:
    return x @ parameters[f"{name}/kernel"] + parameters[f"{name}/bias"]


def cross_entropy(scores: Any, labels: Any) -> Any:
    return -jnp.take_along_axis(jax.nn.log_softmax(scores), labels[..., None], axis=-1)[..., 0]


def network_losses(parameters: work.Parameters, images: Any, labels: Any) -> Any:
    last = len(parameters) // 2 - 1
    hidden = images
    for i in range(last):
        hidden = jax.nn.relu(dense(parameters, f"dense{i}", hidden))
    return cross_entropy(dense(parameters, f"dense{last}", hidden), labels)


def pool(x: Any) -> Any:
    """The largest of each 2 by 2, with slices: XLA's own pooling has a slow gradient on CPU."""
    x = x[:, : x.shape[1] // 2 * 2, : x.shape[2] // 2 * 2]
    rows = jnp.maximum(x[:, ::2], x[:, 1::2])
    return jnp.maximum(rows[:, :, ::2], rows[:, :, 1::2])


def convolutions_losses(parameters: work.Parameters, images: Any, labels: Any) -> Any:
    hidden = images
    for i in (0, 1):
        hidden = jax.lax.conv_general_dilated(
            hidden,
            parameters[f"convolution{i}/kernel"],
            window_strides=(1, 1),
            padding="VALID",
            dimension_numbers=("NHWC", "HWIO", "NHWC"),
        )
        hidden = pool(jax.nn.relu(hidden + parameters[f"convolution{i}/bias"]))
    hidden = jax.nn.relu(dense(parameters, "dense0", hidden.reshape(len(images), -1)))
    return cross_entropy(dense(parameters, "dense1", hidden), labels)


def norm(parameters: work.Parameters, name: str, x: Any) -> Any:
    x = jax.nn.standardize(x, epsilon=work.NORM_EPSILON)
    return x * parameters[f"{name}/scale"] + parameters[f"{name}/bias"]


def transformer_losses(parameters: work.Parameters, tokens: Any, following: Any) -> Any:
    size, depth = len(tokens), work.WIDTH // work.NUM_HEADS
    causal = jnp.tril(jnp.ones((work.LENGTH, work.LENGTH), bool))

    def attention(x: Any) -> Any:
        x = x.reshape(size, work.LENGTH, 3, work.NUM_HEADS, depth)
        queries, keys, values = x[:, :, 0], x[:, :, 1], x[:, :, 2]
        scores = jnp.einsum("bthd,bshd->bhts", queries, keys) / depth**0.5
        weights = jax.nn.softmax(jnp.where(causal, scores, -1e30))
        return jnp.einsum("bhts,bshd->bthd", weights, values).reshape(-1, work.WIDTH)

    # Two axes, not three, in the dense layers: XLA on CPU is faster so.
    x = (parameters["tokens"][tokens] + parameters["positions"]).reshape(-1, work.WIDTH)
    for i in range(work.NUM_BLOCKS):
        block = f"block{i}"
        mixed = attention(dense(parameters, f"{block}/attention", norm(parameters, f"{block}/norm0", x)))
        x += dense(parameters, f"{block}/project", mixed)
        wide = dense(parameters, f"{block}/widen", norm(parameters, f"{block}/norm1", x))
        x += dense(parameters, f"{block}/narrow", jax.nn.gelu(wide))
    scores = dense(parameters, "scores", norm(parameters, "norm", x))
    losses = cross_entropy(scores, following.reshape(-1))
    return jnp.mean(losses.reshape(size, work.LENGTH), axis=-1)


def regressions_losses(parameters: work.Parameters, x: Any, y: Any) -> Any:
    return sum(jnp.mean((x @ kernel - y) ** 2, axis=-1) for kernel in parameters.values())


LOSSES: dict[str, Callable[[work.Parameters, Any, Any], Any]] = {
    "network": network_losses,
    "convolutions": convolutions_losses,
    "transformer": transformer_losses,
    "regressions": regressions_losses,
}


def adam() -> optax.GradientTransformation:
    return optax.adam(work.LEARNING_RATE, work.BETA_1, work.BETA_2, work.EPSILON)


# Hand-written JAX.


def train_by_hand(workload: work.Workload, reduce: Reduce | None, *, steps_per_call: int = 1) -> Step:
    """A step that reduces gradients itself; without `reduce`, one that XLA partitions."""
    names, arrays = zip(*workload.parameters().items(), strict=True)
    losses_of, optimizer = LOSSES[workload.model], adam()
    slots, structure = jax.tree.flatten(optimizer.init(list(arrays)))

    def loss_fn(arrays: list[Any], *batch: Any) -> Any:
        return jnp.mean(losses_of(dict(zip(names, arrays, strict=True)), *batch))

    def body(state: list[Any], *batch: Any) -> Any:
        arrays, slots = state[: len(names)], state[len(names) :]
        loss, gradients = jax.value_and_grad(loss_fn)(arrays, *batch)
        if reduce is not None:
            loss, *gradients = reduce([loss, *gradients])
        updates, slots = optimizer.update(gradients, structure.unflatten(slots), arrays)
        return loss, [*optax.apply_updates(arrays, updates), *jax.tree.leaves(slots)]

    state = [*arrays, *map(np.asarray, slots)]
    if reduce is None:
        return partitioned(body, state, workload.batch())
    return mapped(body, state, workload.batch(), steps_per_call=steps_per_call)


# Replicax.


def replicas(count: int) -> rx.MirroredStrategy:
    """Replicas on the devices that `by_hand` takes: of a machine with one GPU, on that."""
    return rx.MirroredStrategy(jax.devices()[:count])


def train_with_replicax(
    workload: work.Workload, strategy: rx.Strategy | None = None, options: rx.InputOptions | None = None
) -> functools.partial[Any]:
    strategy = strategy or replicas(work.NUM_REPLICAS)
    losses_of = LOSSES[workload.model]
    with strategy.scope():
        parameters = rx.create_variables(workload.parameters())
        optimizer = rx.Optimizer(adam())

    def loss_fn(inputs: Any, targets: Any) -> Any:
        return rx.compute_average_loss(losses_of(rx.read_values(parameters), inputs, targets))

    def replica_step(inputs: Any, targets: Any) -> Any:
        loss, gradients = rx.value_and_grad(loss_fn, parameters)(inputs, targets)
        optimizer.apply_gradients(zip(gradients.values(), parameters.values(), strict=True))
        return loss

    @rx.function
    def train_step(inputs: Any, targets: Any) -> Any:
        losses = strategy.run(replica_step, args=(inputs, targets))
        return strategy.reduce("SUM", losses, axis=None)

    return functools.partial(train_step, *distributed_batch(workload, strategy, options))


def distributed_batch(
    workload: work.Workload, strategy: rx.Strategy, options: rx.InputOptions | None = None
) -> Any:
    dataset = rx.from_arrays(workload.batch()).batch(workload.batch_size)
    (batch,) = strategy.distribute_dataset(dataset, options)
    return batch


def many_steps(step: functools.partial[Any], count: int) -> Step:
    """The same step, several times in a call."""
    return functools.partial(step.func.many, *([argument] * count for argument in step.args))


# What is measured.

OURS, OURS_MANY, BY_HAND_MANY = (
    "Replicax",
    "Replicax, many steps in a call",
    "by hand, many steps in a call",
)
BY_HAND: dict[str, Reduce | None] = {
    "by hand": reduce_plainly,
    "by hand, packed": reduce_packed,
    "by hand, concatenated": reduce_concatenated,
    "by hand, partitioned by XLA": None,
}
QUICK = ("by hand", "by hand, concatenated")
LOSS_LAST = "by hand, loss last"
FASTEST = "fastest by hand"
PEERS = {
    "TensorFlow Mirrored": ("tensorflow", "training_tensorflow.py"),
    "PyTorch DDP": ("torch", "training_torch.py"),
    "Accelerate": ("accelerate", "training_accelerate.py"),
    "Fabric": ("lightning_fabric", "training_fabric.py"),
    "Keras on JAX": ("keras", "training_keras.py"),
    "NNX": ("flax", "training_nnx.py"),
}


def contenders_of(workload: work.Workload, quick: bool) -> dict[str, Steps]:
    by_hand = QUICK if quick else BY_HAND
    found = {title: Steps(train_by_hand(workload, BY_HAND[title])) for title in by_hand}
    ours = train_with_replicax(workload)
    found[OURS] = Steps(ours)
    if quick:
        return found
    if workload is work.WORKLOADS["tiny"]:
        found[LOSS_LAST] = Steps(train_by_hand(workload, reduce_loss_last))
    count = workload.steps_per_call
    scanned = train_by_hand(workload, reduce_packed, steps_per_call=count)
    found[BY_HAND_MANY] = Steps(scanned, count)
    found[OURS_MANY] = Steps(many_steps(train_with_replicax(workload), count), count)
    return found


def bench(name: str, quick: bool) -> list[Row]:
    workload = work.WORKLOADS[name]
    compares_peers = not quick and jax.default_backend() == "cpu"
    with contextlib.ExitStack() as stack:
        peers = start_peers(stack, PEERS, workload=np.array(name)) if compares_peers else {}
        steps = contenders_of(workload, quick)
        check_losses(steps, peers)
        num_steps = workload.steps_per_round
        rounds = take_turns(
            {**steps, **peers},
            num_rounds=5 if quick else 21,
            num_steps=max(1, num_steps // 3) if quick else num_steps,
        )
    title, variants = workload.title, [variant for variant in BY_HAND if variant in steps]
    rows = [compare(rounds, title, OURS, variants, FASTEST)]
    beside = [*variants, *(name for name in (LOSS_LAST, BY_HAND_MANY) if name in steps)]
    rows += [compare(rounds, title, OURS, [other]) for other in beside]
    if OURS_MANY in steps:
        rows.append(compare(rounds, title, OURS_MANY, [BY_HAND_MANY]))
        rows.append(compare(rounds, title, OURS, [OURS_MANY]))
    shown = PEERS if compares_peers else ()
    return rows + [compare_or_dash(rounds, title, OURS, peer) for peer in shown]


def check_losses(steps: dict[str, Any], peers: dict[str, ProgramBeside]) -> None:
    """All sides must compute the same losses, up to a small part of how much they fall in these steps.

    Keras adds Adam's epsilon before it corrects the bias, so small gradients move a little less there.
    """
    num_steps = 3
    losses = {title: step.results(num_steps) for title, step in steps.items()}
    losses |= working_peers(peers, num_steps)
    first = losses["by hand"]
    fall = first[0] - first[-1]
    assert fall > 1e-4 * first[0], f"the loss does not fall: {first}"
    for title, others in losses.items():
        tolerance = (0.02 if title in peers else 0.002) * fall + 1e-6 * first[0]
        np.testing.assert_allclose(others, first, rtol=0, atol=tolerance, err_msg=title)


BENCHMARKS = {name: functools.partial(bench, name) for name in work.WORKLOADS}

if __name__ == "__main__":
    sys.exit(run("How fast networks train on two replicas.", BENCHMARKS, num_devices=2))
