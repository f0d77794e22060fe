"""Accelerate's part of `training.py`: PyTorch's model, prepared by an `Accelerator`."""

from __future__ import annotations

from accelerate import Accelerator
from torch import nn
from training_torch import Prepared, adam, main


def prepare(model: nn.Module) -> Prepared:
    accelerator = Accelerator(cpu=True)
    return Prepared(*accelerator.prepare(model, adam(model)), accelerator.backward)


if __name__ == "__main__":
    main(prepare)
