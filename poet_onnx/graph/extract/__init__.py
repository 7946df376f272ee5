"""From an ONNX file to a TrainingGraph: loading, what is refused, phases, views, state and order of access."""

from __future__ import annotations

from poet_onnx.graph.extract.build import extract, plain_attributes, reads_shape_alone
from poet_onnx.graph.extract.contents import constant_array, constant_view, infer_types
from poet_onnx.graph.extract.load import check_structure, declare_known_ir, load_model, read_proto
from poet_onnx.graph.extract.makers import check_derivative, check_training, is_step
from poet_onnx.graph.extract.number_types import TO_FLOAT, check_number_types
from poet_onnx.graph.extract.wellformed import check_wellformed

__all__ = [
    "TO_FLOAT",
    "check_derivative",
    "check_number_types",
    "check_structure",
    "check_training",
    "check_wellformed",
    "constant_array",
    "constant_view",
    "declare_known_ir",
    "extract",
    "infer_types",
    "is_step",
    "load_model",
    "plain_attributes",
    "read_proto",
    "reads_shape_alone",
]
