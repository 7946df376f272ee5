"""On a PC: make the step by which a board trains a small language model from nothing, byte by byte."""

from __future__ import annotations

import argparse
import math
from pathlib import Path
from pydoc_data.topics import topics

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

import poet_onnx

LENGTH, WIDTH, HEADS, LAYERS, BATCH = 64, 64, 4, 2, 8


class Block(nn.Module):
    """Attention to what was before, and a network of two layers, each beside a shortcut."""

    def __init__(self) -> None:
        super().__init__()
        self.norms = nn.ModuleList(nn.LayerNorm(WIDTH) for _ in range(2))
        self.of_all = nn.Linear(WIDTH, 3 * WIDTH)
        self.out = nn.Linear(WIDTH, WIDTH)
        self.wide = nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH))

    def forward(self, x: Tensor) -> Tensor:
        """Return numbers of the same shape [N, LENGTH, WIDTH]."""
        parts = self.of_all(self.norms[0](x)).unflatten(2, (3, HEADS, WIDTH // HEADS)).permute(2, 0, 3, 1, 4)
        seen = functional.scaled_dot_product_attention(parts[0], parts[1], parts[2], is_causal=True)
        x = x + self.out(seen.transpose(1, 2).flatten(2))
        return x + self.wide(self.norms[1](x))


class Decoder(nn.Module):
    """Scores of the next byte at each place."""

    def __init__(self) -> None:
        super().__init__()
        self.bytes = nn.Embedding(256, WIDTH)
        self.places = nn.Parameter(torch.randn(LENGTH, WIDTH) / 50)
        self.blocks = nn.Sequential(*(Block() for _ in range(LAYERS)))
        self.norm = nn.LayerNorm(WIDTH)
        self.head = nn.Linear(WIDTH, 256)
        nn.init.normal_(self.bytes.weight, std=1 / math.sqrt(WIDTH))

    def forward(self, text: Tensor) -> Tensor:
        """Return scores [N, LENGTH, 256]."""
        return self.head(self.norm(self.blocks(self.bytes(text) + self.places)))


parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--data", type=Path, help="a text file (default: the manual of the language that Python brings)")
path = parser.parse_args().data
text = path.read_bytes() if path else "\n".join(topics[name] for name in sorted(topics)).encode()
rows = np.frombuffer(text[: len(text) // (LENGTH + 1) * (LENGTH + 1)], np.uint8).reshape(-1, LENGTH + 1)
rows = np.random.default_rng(0).permutation(rows)[:2048]
np.save("train.npy", rows[128:])
np.save("test.npy", rows[:128])

torch.manual_seed(0)
made = poet_onnx.torch.export(
    Decoder(),
    torch.from_numpy(rows[:BATCH, :-1].astype(np.int64)),
    "decoder.onnx",
    loss="cross-entropy-last",
    groups=["vectors,weight_decay=0"],  # biases and norms do not decay
    device="a72",
    target="stock",
    ram_budget="49MiB",
)
print(made.check)
