"""Nodes of ours that stand for what exporters write as many."""

from __future__ import annotations

from functools import partial

import torch
from gradient_case import Case
from torch.nn import functional

from poet_onnx.graph.operators.activations import ACTIVATIONS

SINGLE = "the kernels take floats alone"

CASES = [
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
