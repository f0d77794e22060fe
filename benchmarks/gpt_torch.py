"""PyTorch's side of `gpt.py`: the same model, compiled, in bfloat16 by autocast, with a fused AdamW."""

from __future__ import annotations

import sys
import time

import numpy as np
import torch
from torch import nn
from torch.nn import functional


class Block(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.mix = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        rows, length, width = x.shape
        qkv = self.qkv(self.norm1(x)).view(rows, length, 3, self.heads, width // self.heads)
        query, key, value = qkv.permute(2, 0, 3, 1, 4)
        mixed = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + self.mix(mixed.transpose(1, 2).reshape(rows, length, width))
        return x + self.down(functional.gelu(self.up(self.norm2(x)), approximate="tanh"))


class Model(nn.Module):
    def __init__(self, layers: int, heads: int, width: int, context: int, words: int) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(words, width), nn.Embedding(context, width)
        self.blocks = nn.ModuleList(Block(width, heads) for _ in range(layers))
        self.norm = nn.LayerNorm(width)
        for parameter in self.parameters():
            if parameter.ndim == 2:
                nn.init.normal_(parameter, std=0.02)

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        tokens, following = rows[:, :-1], rows[:, 1:]
        x = self.words(tokens) + self.places.weight[: tokens.shape[1]]
        for block in self.blocks:
            x = block(x)
        scores = self.norm(x) @ self.words.weight.T
        return functional.cross_entropy(scores.flatten(0, 1), following.flatten().long())


def main() -> None:
    work = np.load(sys.argv[1])
    torch.set_float32_matmul_precision("high")
    rows = torch.tensor(work["rows"], device="cuda")
    model = Model(*map(int, work["sizes"])).cuda()
    groups = [
        {"params": [p for p in model.parameters() if p.ndim == 2], "weight_decay": 0.1},
        {"params": [p for p in model.parameters() if p.ndim != 2], "weight_decay": 0.0},
    ]
    optimizer = torch.optim.AdamW(groups, lr=6e-4, betas=(0.9, 0.95), fused=True)
    compiled = torch.compile(model)

    def step() -> torch.Tensor:
        with torch.autocast("cuda", dtype=torch.bfloat16):
            loss = compiled(rows)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return loss

    for line in sys.stdin:
        torch.cuda.synchronize()
        start = time.perf_counter()
        losses = [step() for _ in range(int(line))]
        torch.cuda.synchronize()
        seconds = (time.perf_counter() - start) / int(line)
        print("seconds", seconds, *(float(loss) for loss in losses), flush=True)


if __name__ == "__main__":
    main()
