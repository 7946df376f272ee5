"""Gradients of operators, a file for each family; importing this registers them all."""

from __future__ import annotations

from poet_onnx.gradients.rules import (
    activation,
    convolution,
    elementwise,
    linear,
    loss,
    normalization,
    pooling,
    reduction,
    shaping,
)

__all__ = [
    "activation",
    "convolution",
    "elementwise",
    "linear",
    "loss",
    "normalization",
    "pooling",
    "reduction",
    "shaping",
]
