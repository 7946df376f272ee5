"""Nodes of ours that stand for what exporters write as many."""

from __future__ import annotations

from functools import partial

import numpy as np
import torch
from gradient_case import Case
from torch.nn import functional

from poet_onnx.graph.operators.activations import ACTIVATIONS

SINGLE = "the kernels take floats alone"

COS, SIN = (np.random.default_rng(seed).standard_normal((1, 5, 6)) for seed in (1, 2))


def turned(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """Rotate the first 6 numbers of each row."""
    part, rest = x[..., :6], x[..., 6:]
    swapped = torch.cat([-part[..., 3:], part[..., :3]], -1)
    return torch.cat([part * cos + swapped * sin, rest], -1)


CASES = [
    Case(
        "Rotate",
        "y = poet.Rotate<rotated = 6, interleaved = 0, inverse = 0, heads = 0>(x, cos, sin)",
        {"x": (2, 3, 5, 8)},
        turned,
        constants={"cos": COS, "sin": SIN},
        single=SINGLE,
    ),
    Case(
        "Rotate heads in rows",
        "y = poet.Rotate<rotated = 6, interleaved = 0, inverse = 0, heads = 5>(x, cos, sin)",
        {"x": (2, 3, 40)},
        lambda x, cos, sin: turned(x.unflatten(-1, (5, 8)), cos, sin).flatten(-2),
        constants={"cos": COS, "sin": SIN},
        single=SINGLE,
    ),
    Case(
        "RmsNormalize",
        "y, inverse = poet.RmsNormalize<epsilon = 0.01>(x, scale)",
        {"x": (2, 3, 45), "scale": (45,)},
        lambda x, scale: x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 0.01) * scale,
        single=SINGLE,
    ),
    *(
        Case(
            f"GatedActivate by {ACTIVATIONS[number]}",
            f"y = poet.GatedActivate<activation = {number}>(gate, up)",
            {"gate": (3, 45), "up": (3, 45)},
            lambda gate, up, function=function: function(gate) * up,
            single=SINGLE,
        )
        for number, function in enumerate(
            (functional.silu, functional.gelu, partial(functional.gelu, approximate="tanh"))
        )
    ),
]
