"""Lowering: training-only operators of ONNX Runtime become nodes that the stock runtime has kernels for."""

from __future__ import annotations

from poet_onnx.passes.lowering.lower import LowerTraining, lower, normalize_for, prepare

__all__ = ["LowerTraining", "lower", "normalize_for", "prepare"]
