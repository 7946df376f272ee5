"""Gradients of operators, a file for each family; importing this registers them all."""

from __future__ import annotations

from poet_onnx.gradients.rules import (
    activation,
    choosing,
    convolution,
    elementwise,
    instances,
    linear,
    loss,
    normalization,
    pooling,
    reducing,
    reduction,
    shaping,
    trigonometry,
    windows,
)

__all__ = [
    "activation",
    "choosing",
    "convolution",
    "elementwise",
    "instances",
    "linear",
    "loss",
    "normalization",
    "pooling",
    "reducing",
    "reduction",
    "shaping",
    "trigonometry",
    "windows",
]
