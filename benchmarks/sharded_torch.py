"""PyTorch's part of `sharded.py`, in two processes of its own: FSDP2 (`fully_shard`) over gloo.

As `training_torch.py`, with each block, and each dense layer of 64 KiB or more outside of them, as a unit.
"""

from __future__ import annotations

from torch import nn
from torch.distributed.fsdp import fully_shard
from training_torch import Block, Prepared, adam, main

MIN_BYTES = 64 * 1024


def divided(model: nn.Module) -> Prepared:
    """Divide every parameter among the processes; units are gathered one after the other."""
    blocks = [module for module in model.modules() if isinstance(module, Block)]
    inside = {id(module) for block in blocks for module in block.modules()}
    for module in model.modules():
        large = isinstance(module, nn.Linear) and module.weight.nbytes >= MIN_BYTES
        if module in blocks or (large and id(module) not in inside):
            fully_shard(module)
    model = fully_shard(model)
    return Prepared(model, adam(model))


if __name__ == "__main__":
    main(divided)
