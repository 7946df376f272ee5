"""The training graph: its nodes, tensors and sizes, what its operators do, and how it is extracted from a model."""

from __future__ import annotations

from poet_onnx.graph.training_graph import (
    AttributeValue,
    Node,
    Phase,
    Residency,
    Role,
    Tensor,
    TrainingGraph,
)

__all__ = [
    "AttributeValue",
    "Node",
    "Phase",
    "Residency",
    "Role",
    "Tensor",
    "TrainingGraph",
]
