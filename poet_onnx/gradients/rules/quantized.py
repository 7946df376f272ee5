"""Weights of a few bits: they are frozen, and what is multiplied with them has the gradient of any product."""

from __future__ import annotations

from poet_onnx.gradients.registry import without_gradient

without_gradient("DequantizeLinear")
