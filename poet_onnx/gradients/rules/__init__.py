"""Gradients of operators, a file for each family; importing this registers them all."""

from __future__ import annotations

from poet_onnx.gradients.rules import (
    activation,
    choosing,
    convolution,
    einsum,
    elementwise,
    indexing,
    instances,
    linear,
    loss,
    normalization,
    pooling,
    recurrent,
    reducing,
    reduction,
    shaping,
    spreading,
    trigonometry,
    windows,
)

__all__ = [
    "activation",
    "choosing",
    "convolution",
    "einsum",
    "elementwise",
    "indexing",
    "instances",
    "linear",
    "loss",
    "normalization",
    "pooling",
    "recurrent",
    "reducing",
    "reduction",
    "shaping",
    "spreading",
    "trigonometry",
    "windows",
]
