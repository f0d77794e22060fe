"""Lightning Fabric's part of `training.py`: PyTorch's model, set up by a `Fabric`."""

from __future__ import annotations

from lightning_fabric import Fabric
from torch import nn
from training_torch import Prepared, adam, main


def prepare(model: nn.Module) -> Prepared:
    fabric = Fabric(accelerator="cpu", devices=2, strategy="ddp")
    fabric.launch()
    return Prepared(*fabric.setup(model, adam(model)), fabric.backward)


if __name__ == "__main__":
    main(prepare)
