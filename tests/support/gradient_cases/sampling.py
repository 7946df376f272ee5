"""Images that are read at places of a grid."""

from __future__ import annotations

import torch
from gradient_case import Case
from torch.nn import functional


def _case(mode: str, padding: str, *, aligned: bool, opset: int = 20) -> Case:
    """Return a sampling of two images at places of which many are outside."""
    listed = f'mode = "{mode}", padding_mode = "{padding}", align_corners = {int(aligned)}'
    named = "nearest" if mode == "nearest" else "bilinear"

    def sampled(x: torch.Tensor, g: torch.Tensor, *_: torch.Tensor) -> torch.Tensor:
        return functional.grid_sample(x, g, named, padding, aligned)

    return Case(
        f"GridSample {mode}, {padding}, aligned {aligned}, opset {opset}",
        f"y = GridSample <{listed}> (x, g)",
        {"x": (2, 3, 4, 5), "g": (2, 3, 6, 2)},
        sampled,
        opset=opset,
        single="" if opset >= 20 else "ONNX Runtime's kernel of opset 16 takes no double",
    )


CASES = [
    *(
        _case(mode, padding, aligned=aligned)
        for mode in ("linear", "nearest")
        for padding in ("zeros", "border")
        for aligned in (False, True)
    ),
    _case("bilinear", "zeros", aligned=True, opset=16),
]
