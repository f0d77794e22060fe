"""The models of `parameter_server.py`, as arrays: what both sides train, and on what."""

from __future__ import annotations

import dataclasses
import itertools

import numpy as np

LEARNING_RATE = 0.01
BATCH_SIZE = 64
NUM_LAYERS, LAYER_WIDTH = 100, 32
NUM_ROWS, ROW_WIDTH, ROWS_PER_STEP = 1_000_000, 64, 1000
DIVIDE_BYTES = 16 << 20
"""Only variables with parts of this size are divided over the servers: the embedding."""


@dataclasses.dataclass(frozen=True)
class Workload:
    title: str
    steps_per_round: int


WORKLOADS = {
    "mlp": Workload("MLP 784-512-512-10", 200),
    "many": Workload("200 variables", 200),
    "embedding": Workload("1M x 64 embedding, 1,000 rows", 200),
}


def parameters(name: str) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)

    def normal(*shape: int) -> np.ndarray:
        return rng.normal(size=shape, scale=1 / np.sqrt(shape[0])).astype(np.float32)

    if name == "mlp":
        sizes = [784, 512, 512, 10]
    elif name == "many":
        sizes = [LAYER_WIDTH] * (NUM_LAYERS + 1)
    else:
        return {"table": np.zeros((NUM_ROWS, ROW_WIDTH), np.float32), "w": normal(ROW_WIDTH)}
    found = {}
    for i, (rows, columns) in enumerate(itertools.pairwise(sizes)):
        found[f"w{i}"], found[f"b{i}"] = normal(rows, columns), np.zeros(columns, np.float32)
    return found


def examples(name: str, worker: int) -> tuple[np.ndarray, np.ndarray]:
    """The inputs and targets of a worker: as many as make up 16 batches."""
    rng = np.random.default_rng(worker)
    if name == "embedding":
        count = 16 * ROWS_PER_STEP
        return rng.integers(0, NUM_ROWS, count).astype(np.int32), rng.normal(size=count).astype(np.float32)
    width = 784 if name == "mlp" else LAYER_WIDTH
    outputs = 10 if name == "mlp" else LAYER_WIDTH
    count = 16 * BATCH_SIZE
    return rng.normal(size=(count, width)).astype(np.float32), rng.normal(size=(count, outputs)).astype(
        np.float32
    )


def batch_size(name: str) -> int:
    return ROWS_PER_STEP if name == "embedding" else BATCH_SIZE
