"""PyTorch's half of `training.py`, in two processes of its own, of one thread each.

Reads a number of steps from each line of standard input and answers with the seconds per step and the
losses of `DistributedDataParallel` over gloo, with PyTorch's own layers. The process that was started is
replica 0; it starts replica 1 and tells it how many steps to make. `sharded_torch.py`,
`training_accelerate.py` and `training_fabric.py` prepare the same model in other ways.
"""

from __future__ import annotations

import multiprocessing
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")

import numpy as np
import torch
import training_work as work
from torch import distributed, nn
from torch.nn import functional

# The models, from a batch to the mean loss.


def parameter(array: np.ndarray) -> nn.Parameter:
    return nn.Parameter(torch.tensor(array))


def dense(parameters: work.Parameters, name: str) -> nn.Linear:
    kernel = parameters[f"{name}/kernel"]
    layer = nn.Linear(*kernel.shape)
    layer.weight, layer.bias = parameter(kernel.T.copy()), parameter(parameters[f"{name}/bias"])
    return layer


class Network(nn.Module):
    def __init__(self, parameters: work.Parameters) -> None:
        super().__init__()
        num_layers = len(parameters) // 2
        layers: list[nn.Module] = [dense(parameters, "dense0")]
        for i in range(1, num_layers):
            layers += [nn.ReLU(), dense(parameters, f"dense{i}")]
        self.layers = nn.Sequential(*layers)

    def forward(self, images: Any, labels: Any) -> Any:
        return functional.cross_entropy(self.layers(images), labels)


class Convolutions(nn.Module):
    """With channels first, as PyTorch likes images."""

    def __init__(self, parameters: work.Parameters) -> None:
        super().__init__()
        first, second = (self._convolution(parameters, f"convolution{i}") for i in (0, 1))
        # The features come with their channels first here, and last in the parameters.
        kernel = parameters["dense0/kernel"].reshape(25, 64, 64).swapaxes(0, 1).reshape(25 * 64, 64)
        self.layers = nn.Sequential(
            *(first, nn.ReLU(), nn.MaxPool2d(2)),
            *(second, nn.ReLU(), nn.MaxPool2d(2)),
            nn.Flatten(),
            *(dense(parameters | {"dense0/kernel": kernel}, "dense0"), nn.ReLU()),
            dense(parameters, "dense1"),
        )

    @staticmethod
    def _convolution(parameters: work.Parameters, name: str) -> nn.Conv2d:
        kernel = parameters[f"{name}/kernel"].transpose(3, 2, 0, 1).copy()
        layer = nn.Conv2d(kernel.shape[1], kernel.shape[0], 3)
        layer.weight, layer.bias = parameter(kernel), parameter(parameters[f"{name}/bias"])
        return layer

    def forward(self, images: Any, labels: Any) -> Any:
        return functional.cross_entropy(self.layers(images), labels)


class Block(nn.Module):
    def __init__(self, parameters: work.Parameters, name: str) -> None:
        super().__init__()
        self.norms = nn.ModuleList(
            nn.LayerNorm(work.WIDTH, eps=work.NORM_EPSILON) for _ in range(2)
        )  # they start as ones and zeros, as the parameters do
        self.attention = dense(parameters, f"{name}/attention")
        self.project = dense(parameters, f"{name}/project")
        self.widen, self.narrow = dense(parameters, f"{name}/widen"), dense(parameters, f"{name}/narrow")

    def forward(self, x: Any) -> Any:
        size, depth = len(x), work.WIDTH // work.NUM_HEADS
        parts = self.attention(self.norms[0](x)).view(size, work.LENGTH, 3, work.NUM_HEADS, depth)
        queries, keys, values = parts.permute(2, 0, 3, 1, 4).unbind()
        mixed = functional.scaled_dot_product_attention(queries, keys, values, is_causal=True)
        x = x + self.project(mixed.transpose(1, 2).reshape(size, work.LENGTH, work.WIDTH))
        wide = functional.gelu(self.widen(self.norms[1](x)), approximate="tanh")
        return x + self.narrow(wide)


class Transformer(nn.Module):
    def __init__(self, parameters: work.Parameters) -> None:
        super().__init__()
        self.tokens, self.positions = parameter(parameters["tokens"]), parameter(parameters["positions"])
        self.blocks = nn.Sequential(*(Block(parameters, f"block{i}") for i in range(work.NUM_BLOCKS)))
        self.norm = nn.LayerNorm(work.WIDTH, eps=work.NORM_EPSILON)
        self.scores = dense(parameters, "scores")

    def forward(self, tokens: Any, following: Any) -> Any:
        x = self.blocks(functional.embedding(tokens, self.tokens) + self.positions)
        return functional.cross_entropy(self.scores(self.norm(x)).flatten(0, 1), following.flatten())


class Regressions(nn.Module):
    def __init__(self, parameters: work.Parameters) -> None:
        super().__init__()
        self.kernels = nn.ParameterList(map(parameter, parameters.values()))

    def forward(self, x: Any, y: Any) -> Any:
        return sum(functional.mse_loss(x @ kernel, y) for kernel in self.kernels)


MODELS: dict[str, type[nn.Module]] = {
    "network": Network,
    "convolutions": Convolutions,
    "transformer": Transformer,
    "regressions": Regressions,
}


# The loop.


class Prepared(NamedTuple):
    """A model and its optimizer, ready for several processes."""

    model: nn.Module
    optimizer: Any
    backward: Callable[[torch.Tensor], None] = torch.Tensor.backward


Prepare = Callable[[nn.Module], Prepared]


def adam(model: nn.Module) -> torch.optim.Optimizer:
    betas = (work.BETA_1, work.BETA_2)
    return torch.optim.Adam(model.parameters(), work.LEARNING_RATE, betas, work.EPSILON)


def with_copies(model: nn.Module) -> Prepared:
    model = nn.parallel.DistributedDataParallel(model, gradient_as_bucket_view=True)
    return Prepared(model, adam(model))


def make_step(
    rank: int, folder: Path, workload: work.Workload, prepare: Prepare
) -> Callable[[], torch.Tensor]:
    """A step of this replica, which gives its loss."""
    torch.set_num_threads(1)
    torch.set_flush_denormal(True)
    describe_process(rank)
    rendezvous = f"file://{folder / 'rendezvous'}"
    distributed.init_process_group("gloo", rendezvous, rank=rank, world_size=work.NUM_REPLICAS)
    model, optimizer, backward = prepare(MODELS[workload.model](workload.parameters()))
    torch.set_num_threads(1)
    inputs, targets = (shard(array, rank) for array in workload.batch())

    def step() -> torch.Tensor:
        loss = model(inputs, targets)
        optimizer.zero_grad()
        backward(loss)
        optimizer.step()
        return loss.detach()

    return step


def describe_process(rank: int) -> None:
    """Tell Accelerate and Fabric that there are two processes, and which of them this is."""
    count = str(work.NUM_REPLICAS)
    os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank), "NODE_RANK": "0", "GROUP_RANK": "0"}
    os.environ |= {"WORLD_SIZE": count, "LOCAL_WORLD_SIZE": count}
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "1"}  # unused: the group exists


def shard(array: np.ndarray, rank: int) -> torch.Tensor:
    rows = len(array) // work.NUM_REPLICAS
    part = torch.tensor(array[rank * rows :][:rows])
    if part.ndim == 4:  # images
        part = part.permute(0, 3, 1, 2).contiguous()
    return part if part.is_floating_point() else part.long()


def measure(step: Callable[[], torch.Tensor], num_steps: int) -> tuple[float, list[float]]:
    """The seconds of a step, and the mean of both replicas' losses."""
    start = time.perf_counter()
    losses = torch.stack([step() for _ in range(num_steps)])
    seconds = (time.perf_counter() - start) / num_steps
    distributed.all_reduce(losses)
    return seconds, (losses / work.NUM_REPLICAS).tolist()


def read_workload(file: str) -> work.Workload:
    return work.WORKLOADS[str(np.load(file)["workload"])]


def follow(file: str, prepare: Prepare) -> None:
    """Replica 1: make as many steps as replica 0 says, until it is gone."""
    step = make_step(1, Path(file).parent, read_workload(file), prepare)
    while True:
        num_steps = torch.zeros((), dtype=torch.int64)
        distributed.broadcast(num_steps, 0)
        measure(step, int(num_steps))


def main(prepare: Prepare) -> None:
    file = sys.argv[1]
    multiprocessing.get_context("spawn").Process(target=follow, args=(file, prepare), daemon=True).start()
    step = make_step(0, Path(file).parent, read_workload(file), prepare)
    for line in sys.stdin:
        num_steps = int(line)
        distributed.broadcast(torch.tensor(num_steps), 0)
        seconds, losses = measure(step, num_steps)
        print("seconds", seconds, *losses, flush=True)


if __name__ == "__main__":
    main(with_copies)
