"""The training graph: its nodes, tensors and sizes, what its operators do, and how it is extracted from a model."""

from __future__ import annotations

from poet_onnx.graph.training_graph import (
    OUTPUT,
    RESIDENT,
    TRANSIENT,
    AttributeValue,
    Node,
    Phase,
    Place,
    Residency,
    Tensor,
    TrainingGraph,
)

__all__ = [
    "OUTPUT",
    "RESIDENT",
    "TRANSIENT",
    "AttributeValue",
    "Node",
    "Phase",
    "Place",
    "Residency",
    "Tensor",
    "TrainingGraph",
]
