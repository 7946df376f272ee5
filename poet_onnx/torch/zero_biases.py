"""Biases of zeros that torch's dynamo exporter gives to convolutions of volumes without one.

They have the shape [filters, 2], which ONNX Runtime refuses (torch 2.13.0, onnxscript 0.7).
"""

from __future__ import annotations

import onnx_ir as ir

from poet_onnx.gradients.forward.patterns import is_op
from poet_onnx.passes.fused.reading import is_number
from poet_onnx.passes.panel_layers import remove_unread

_REPEATING = ("Expand", "CastLike", "Cast")


def drop_zero_biases(model: ir.Model) -> None:
    """Take biases that are made of a zero out of a forward model; what made them goes if nobody else reads it."""
    for node in list(model.graph):
        if not is_op(node, "Conv") or len(node.inputs) < 3 or not _is_zero(node.inputs[2]):
            continue
        unread = [value for value in node.inputs[2:] if value is not None]
        node.resize_inputs(2)
        remove_unread(model.graph, unread, (*_REPEATING, "Constant"))


def _is_zero(value: ir.Value | None) -> bool:
    """Return whether a value is a constant zero that was expanded; a parameter is none, whatever its number."""
    node = None if value is None else value.producer()
    while node is not None and is_op(node, *_REPEATING):
        value = node.inputs[0]
        node = None if value is None else value.producer()
    return is_op(node, "Constant") and is_number(value, 0.0)
