"""Shapes and element types of every tensor, and the values of small constants that shapes depend on."""

from __future__ import annotations

from poet_onnx.graph.operators.shape_context import Array, TensorType
from poet_onnx.graph.shapes.declared import dim_name, fixed_dims
from poet_onnx.graph.shapes.inference import infer
from poet_onnx.graph.shapes.inferred import Inferred

__all__ = ["Array", "Inferred", "TensorType", "dim_name", "fixed_dims", "infer"]
