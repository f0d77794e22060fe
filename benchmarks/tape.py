"""What `rx.GradientTape` costs beside `rx.value_and_grad`.

Both sides train the same network with the same loss, in turns (see `harness.py`), and are checked to agree
first.

    python benchmarks/tape.py [--quick] [--only compiled,host,eager,tracing] [--json FILE] [--no-check]

    compiled   a compiled step of a 784-2048-2048-10 network
    host       the calling thread's time until the call of a compiled step with 200 variables returns
    eager      an eager step of a 784-128-10 network: the calling thread's time
    tracing    tracing and lowering a step with 200 variables
"""

from __future__ import annotations

import itertools
import sys
import time
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from harness import Step, compare, host_seconds, run, step_seconds, take_turns
from rows import Row

import replicax as rx

TAPE, FUNCTION = "rx.GradientTape", "rx.value_and_grad"


class Network:
    """A network, its optimizer and a batch; one replica."""

    def __init__(self, *sizes: int) -> None:
        random = np.random.default_rng(0)
        self.variables: list[Any] = []
        for rows, columns in itertools.pairwise(sizes):
            weights = random.normal(size=(rows, columns)) * np.sqrt(2 / rows)
            self.variables += [rx.Variable(weights.astype(np.float32)), rx.Variable(np.zeros(columns, "f"))]
        self.optimizer = rx.Optimizer(optax.sgd(1e-3))
        self.images = jnp.asarray(random.normal(size=(64, sizes[0])).astype(np.float32))
        self.labels = jnp.asarray(random.integers(0, sizes[-1], 64))

    def loss(self, images: Any, labels: Any) -> Any:
        x = images
        for i in range(0, len(self.variables), 2):
            x = (jax.nn.relu(x) if i else x) @ self.variables[i] + self.variables[i + 1]
        return jnp.mean(optax.softmax_cross_entropy_with_integer_labels(x, labels))

    def step_with_tape(self, images: Any, labels: Any) -> Any:
        with rx.GradientTape() as tape:
            loss = self.loss(images, labels)
        gradients = tape.gradient(loss, self.variables)
        self.optimizer.apply_gradients(zip(gradients, self.variables, strict=True))
        return loss

    def step_with_function(self, images: Any, labels: Any) -> Any:
        loss, gradients = rx.value_and_grad(self.loss, self.variables)(images, labels)
        self.optimizer.apply_gradients(zip(gradients, self.variables, strict=True))
        return loss


def contenders(wrap: Callable[[Any], Any], *sizes: int) -> dict[str, Step]:
    """A step of each kind, with a network of its own."""
    steps: dict[str, Step] = {}
    losses = []
    for name, way in ((TAPE, Network.step_with_tape), (FUNCTION, Network.step_with_function)):
        network = Network(*sizes)
        step = wrap(way.__get__(network))
        losses.append([float(step(network.images, network.labels)) for _ in range(3)])
        steps[name] = lambda step=step, network=network: step(network.images, network.labels)
    np.testing.assert_allclose(*losses, rtol=1e-5)
    return steps


def compiled(quick: bool) -> list[Row]:
    steps = contenders(rx.function, 784, 2048, 2048, 10)
    rounds = take_turns(steps, step_seconds, num_rounds=5 if quick else 15, num_steps=5)
    return [compare(rounds, "compiled step: 784-2048-2048-10, batch 64", TAPE, [FUNCTION])]


def host(quick: bool) -> list[Row]:
    steps = contenders(rx.function, *[8] * 101)
    rounds = take_turns(steps, host_seconds, num_rounds=5 if quick else 15, num_steps=20)
    return [compare(rounds, "host time of a compiled step with 200 variables", TAPE, [FUNCTION])]


def eager(quick: bool) -> list[Row]:
    steps = contenders(lambda step: step, 784, 128, 10)
    rounds = take_turns(steps, host_seconds, num_rounds=5 if quick else 15, num_steps=10)
    return [compare(rounds, "eager step: 784-128-10, batch 64", TAPE, [FUNCTION])]


def tracing(quick: bool) -> list[Row]:
    networks = Network(*[8] * 101), Network(*[8] * 101)
    for network in networks:
        network.optimizer.build(network.variables)

    def lowering(network: Network, way: Any) -> Step:
        return lambda: rx.function(way.__get__(network)).lower(network.images, network.labels)

    steps = {
        TAPE: lowering(networks[0], Network.step_with_tape),
        FUNCTION: lowering(networks[1], Network.step_with_function),
    }

    def seconds(step: Step, num_steps: int) -> float:
        start = time.thread_time()
        for _ in range(num_steps):
            step()
        return (time.thread_time() - start) / num_steps

    rounds = take_turns(steps, seconds, num_rounds=3 if quick else 7, num_steps=1)
    return [compare(rounds, "tracing a step with 200 variables", TAPE, [FUNCTION])]


BENCHMARKS = {"compiled": compiled, "host": host, "eager": eager, "tracing": tracing}

if __name__ == "__main__":
    sys.exit(run(__doc__ or "", BENCHMARKS, num_devices=2))
