"""Nodes of ours that stand for what exporters write as many."""

from __future__ import annotations

import torch
from gradient_case import Case

SINGLE = "the kernels take floats alone"

CASES = [
    Case(
        "RmsNormalize",
        "y, inverse = poet.RmsNormalize<epsilon = 0.01>(x, scale)",
        {"x": (2, 3, 45), "scale": (45,)},
        lambda x, scale: x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 0.01) * scale,
        single=SINGLE,
    ),
]
