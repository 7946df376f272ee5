"""Hooks on gradients of parameters, which torch calls in its backward pass and a training graph does not have."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING

from poet_onnx.errors import PoetWarning, quoted

if TYPE_CHECKING:
    from torch import nn


def warn_of_hooks(module: nn.Module, stacklevel: int) -> None:
    """Warn of hooks on gradients, which changed none where they were compared with torch's; modules' are a Function."""
    hooked = [
        name
        for name, each in module.named_parameters()
        if each.requires_grad and (each._backward_hooks or each._post_accumulate_grad_hooks)
    ]
    if hooked:
        warnings.warn(
            f"The hooks on gradients of {quoted(hooked)} are not in the training graph: one that changes no"
            " gradient of the example batch, such as a clamp of large ones, may change others. clip_norm= bounds their"
            " norm.",
            PoetWarning,
            stacklevel=stacklevel + 1,
        )
