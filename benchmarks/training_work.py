"""What every side of `training.py` trains: initial parameters, one batch, Adam's settings.

Only NumPy is imported here, since the peers' processes read it too. A parameter is known by its name. The
kernel of a dense layer is laid out as (inputs, outputs), that of a convolution as (height, width, inputs,
outputs), and images as (batch, height, width, channels).
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable
from typing import Any, Literal

import numpy as np

LEARNING_RATE, BETA_1, BETA_2, EPSILON = 1e-4, 0.9, 0.999, 1e-8

NUM_REPLICAS = 2

Parameters = dict[str, Any]
Batch = tuple[np.ndarray, np.ndarray]
Model = Literal["network", "convolutions", "transformer", "regressions"]


@dataclasses.dataclass(frozen=True)
class Workload:
    """A model, where it starts, and the batch (of all replicas together) that every step sees."""

    title: str
    model: Model
    batch_size: int
    make_parameters: Callable[[np.random.Generator], Parameters]
    make_batch: Callable[[np.random.Generator, int], Batch]
    steps_per_round: int
    steps_per_call: int = 10
    """How many steps those sides make in a call that can make many."""

    def parameters(self) -> Parameters:
        return self.make_parameters(np.random.default_rng(0))

    def batch(self) -> Batch:
        return self.make_batch(np.random.default_rng(1), self.batch_size)


def dense(
    random: np.random.Generator, name: str, inputs: int, outputs: int, scale: float | None = None
) -> Parameters:
    kernel = random.normal(0, scale or np.sqrt(2 / inputs), (inputs, outputs))
    return {f"{name}/kernel": kernel.astype(np.float32), f"{name}/bias": np.zeros(outputs, np.float32)}


# Fully connected networks.


def network_of(*sizes: int) -> Callable[[np.random.Generator], Parameters]:
    def make(random: np.random.Generator) -> Parameters:
        parameters: Parameters = {}
        for i, (inputs, outputs) in enumerate(itertools.pairwise(sizes)):
            parameters |= dense(random, f"dense{i}", inputs, outputs)
        return parameters

    return make


def flat_images(
    num_features: int = 784, num_classes: int = 10
) -> Callable[[np.random.Generator, int], Batch]:
    def make(random: np.random.Generator, size: int) -> Batch:
        images = random.normal(size=(size, num_features)).astype(np.float32)
        return images, random.integers(0, num_classes, size).astype(np.int32)

    return make


# Two convolutions of 3 by 3, each pooled by 2, and two dense layers.


def convolutions(random: np.random.Generator) -> Parameters:
    parameters: Parameters = {}
    for i, (inputs, outputs) in enumerate(((1, 32), (32, 64))):
        kernel = random.normal(0, np.sqrt(2 / (9 * inputs)), (3, 3, inputs, outputs))
        parameters[f"convolution{i}/kernel"] = kernel.astype(np.float32)
        parameters[f"convolution{i}/bias"] = np.zeros(outputs, np.float32)
    return parameters | dense(random, "dense0", 5 * 5 * 64, 64) | dense(random, "dense1", 64, 10)


def images(random: np.random.Generator, size: int) -> Batch:
    return random.random((size, 28, 28, 1), np.float32), random.integers(0, 10, size).astype(np.int32)


# A decoder that predicts the next of the tokens.

NUM_BLOCKS, WIDTH, NUM_HEADS, LENGTH, NUM_TOKENS = 4, 256, 4, 128, 1024
NORM_EPSILON = 1e-5


def transformer(random: np.random.Generator) -> Parameters:
    def norm(name: str) -> Parameters:
        return {f"{name}/scale": np.ones(WIDTH, np.float32), f"{name}/bias": np.zeros(WIDTH, np.float32)}

    parameters: Parameters = {
        "tokens": random.normal(0, 0.02, (NUM_TOKENS, WIDTH)).astype(np.float32),
        "positions": random.normal(0, 0.02, (LENGTH, WIDTH)).astype(np.float32),
    }
    for i in range(NUM_BLOCKS):
        parameters |= norm(f"block{i}/norm0") | norm(f"block{i}/norm1")
        parameters |= dense(random, f"block{i}/attention", WIDTH, 3 * WIDTH, 0.02)
        parameters |= dense(random, f"block{i}/project", WIDTH, WIDTH, 0.02)
        parameters |= dense(random, f"block{i}/widen", WIDTH, 4 * WIDTH, 0.02)
        parameters |= dense(random, f"block{i}/narrow", 4 * WIDTH, WIDTH, 0.02)
    return parameters | norm("norm") | dense(random, "scores", WIDTH, NUM_TOKENS, 0.02)


def texts(random: np.random.Generator, size: int) -> Batch:
    tokens = random.integers(0, NUM_TOKENS, (size, LENGTH + 1)).astype(np.int32)
    return tokens[:, :-1].copy(), tokens[:, 1:].copy()


# Many small variables: linear regressions of the same features.

NUM_REGRESSIONS = 200


def regressions(random: np.random.Generator, count: int = NUM_REGRESSIONS) -> Parameters:
    arrays = random.normal(0, 0.1, (count, 64, 16)).astype(np.float32)
    return {f"kernel{i:03}": array for i, array in enumerate(arrays)}


def features(random: np.random.Generator, size: int) -> Batch:
    """Features, and targets of the outputs, which are the same in all regressions."""
    shapes = (size, 64), (size, 16)
    x, y = (random.normal(size=shape).astype(np.float32) for shape in shapes)
    return x, y


WORKLOADS: dict[str, Workload] = {
    "empty": Workload(
        "8-8-4, batch 4", "network", 4, network_of(8, 8, 4), flat_images(8, 4), steps_per_round=400
    ),
    "tiny": Workload(
        "784-128-10, batch 64", "network", 64, network_of(784, 128, 10), flat_images(), steps_per_round=150
    ),
    "medium": Workload(
        "784-2048-2048-10, batch 512",
        "network",
        512,
        network_of(784, 2048, 2048, 10),
        flat_images(),
        steps_per_round=5,
        steps_per_call=5,
    ),
    "convolutions": Workload(
        "small CNN, batch 128", "convolutions", 128, convolutions, images, steps_per_round=10
    ),
    "transformer": Workload(
        "small transformer, batch 8",
        "transformer",
        8,
        transformer,
        texts,
        steps_per_round=3,
        steps_per_call=3,
    ),
    "many": Workload(
        "200 variables, batch 64", "regressions", 64, regressions, features, steps_per_round=40
    ),
}
