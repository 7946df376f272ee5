"""One mask for all layers that hide the same: an exporter may write its nodes for each, and each keeps a mask.

A mask has as many numbers as tokens squared, and is kept for the gradient.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import TypeAlias

import onnx_ir as ir
from onnx_ir.passes import InPlacePass, PassResult
from onnx_ir.passes.common import RemoveUnusedNodesPass

from poet_onnx.description.names import POET_DOMAIN
from poet_onnx.graph.extract import plain_attributes
from poet_onnx.graph.operators import spec_of
from poet_onnx.graph.operators.attention import ATTEND, MASK
from poet_onnx.graph.operators.shape_context import LARGEST_VALUE

_Numbers: TypeAlias = dict[Hashable, int]


class ShareMasks(InPlacePass):
    """Let each Attend read the first mask that the same nodes make of the same values."""

    def call(self, model: ir.Model) -> PassResult:
        """Let them."""
        known: dict[ir.Value | None, int] = {}
        numbers: _Numbers = {}
        first: dict[int, ir.Value] = {}
        modified = False
        for node in model.graph:
            _count_outputs(node, known, numbers)
            mask = node.inputs[MASK] if _is_masked(node) else None
            if mask is None:
                continue
            shared = first.setdefault(_number(mask, known, numbers), mask)
            if shared is not mask:
                node.replace_input_with(MASK, shared)
                modified = True
        if modified:
            RemoveUnusedNodesPass()(model)
        return PassResult(model, modified=modified)


def _is_masked(node: ir.Node) -> bool:
    return node.domain == POET_DOMAIN and node.op_type == ATTEND and len(node.inputs) > MASK


def _count_outputs(node: ir.Node, known: dict[ir.Value | None, int], numbers: _Numbers) -> None:
    """Give each output of a node a number, that of another one if it is the same."""
    attributes = plain_attributes(node)
    is_own = len(attributes) != len(node.attributes) or spec_of(node.domain, node.op_type, attributes).random
    inputs = tuple(_number(value, known, numbers) for value in node.inputs)
    look = (node.domain, node.op_type, tuple(sorted(attributes.items())), inputs, id(node) if is_own else None)
    for index, value in enumerate(node.outputs):
        known[value] = numbers.setdefault((look, index), len(numbers))


def _number(value: ir.Value | None, known: dict[ir.Value | None, int], numbers: _Numbers) -> int:
    """Return the number of a value; what no node makes gets one here."""
    if value not in known:
        look: Hashable = value
        if value is not None and value.const_value is not None and not value.is_graph_input():
            tensor = value.const_value
            if tensor.size <= LARGEST_VALUE and tensor.dtype != ir.DataType.STRING:
                look = (tensor.dtype, tuple(tensor.shape.numpy()), tensor.tobytes())
        known[value] = numbers.setdefault(look, len(numbers))
    return known[value]
