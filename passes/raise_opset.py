"""A model's opset raised to one that has blocks of quantized weights, without any node meaning something else."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
import onnx
import onnx_ir as ir
from onnx_ir.passes import InPlacePass, PassResult

from poet_onnx.errors import InputError
from poet_onnx.graph.operators import ONNX_DOMAINS
from poet_onnx.passes.lowering.builder import list_nodes
from poet_onnx.passes.node_builder import initializer

BLOCKS_OPSET = 21
"""The first version of ONNX's operators with blocks and integers of 4 bits, and the last that both runtimes load."""

_AXES = (18, "ReduceL1 ReduceL2 ReduceLogSum ReduceLogSumExp ReduceMax ReduceMean ReduceMin ReduceProd ReduceSumSquare")
_PARTS = 18
_CHANGED = {
    "RoiAlign": 16,
    "Resize": 19,  # sizes and linear interpolation beyond the edge
    "AveragePool": 19,  # windows that reach beyond the padding
    "GridSample": 20,
    "DFT": 20,
    "GroupNormalization": 21,
}
"""Operators that came to mean something else, and the version in which they did."""


class RaiseOpset(InPlacePass):
    """Declare opset 21 in a model of an older one; attributes that became inputs are written so.

    From opset 13 on most operators only take more types. Those that changed are refused, where a model has them.
    """

    def call(self, model: ir.Model) -> PassResult:
        """Declare it.

        Raises:
            InputError: naming every operator that means something else in opset 21, and its nodes.
        """
        version = model.opset_imports.get("", 1)
        if version >= BLOCKS_OPSET:
            return PassResult(model, modified=False)
        nodes = [node for node in model.graph if node.domain in ONNX_DOMAINS]
        changed: dict[str, list[str]] = {}
        for node in nodes:
            if version < _CHANGED.get(node.op_type, 0):
                changed.setdefault(node.op_type, []).append(node.name or "")
        if changed:
            raise InputError(
                f"Weights of a few bits need ONNX opset {BLOCKS_OPSET}, in which {list_nodes(changed)} means something "
                f"else than in opset {version}: export the model with opset {BLOCKS_OPSET}."
            )
        for node in nodes:
            rule = _RULES.get(node.op_type)
            if rule is not None:
                rule(model.graph, node, version)
        model.opset_imports[""] = BLOCKS_OPSET
        model.ir_version = max(model.ir_version, onnx.helper.OP_SET_ID_VERSION_MAP[("ai.onnx", BLOCKS_OPSET)])
        return PassResult(model, modified=True)


def _axes_as_input(graph: ir.Graph, node: ir.Node, version: int) -> None:
    axes = node.attributes.get_ints("axes", None)
    if version >= _AXES[0] or axes is None:
        return
    del node.attributes["axes"]
    value = initializer(graph, f"{node.name}/axes", np.array(axes, np.int64))
    node.resize_inputs(2)
    node.replace_input_with(1, value)


def _count_of_parts(_: ir.Graph, node: ir.Node, version: int) -> None:
    has_sizes = len(node.inputs) > 1 and node.inputs[1] is not None
    if version < _PARTS and not has_sizes and "num_outputs" not in node.attributes:
        node.attributes["num_outputs"] = ir.AttrInt64("num_outputs", len(node.outputs))


_RULES: Mapping[str, Callable[[ir.Graph, ir.Node, int], None]] = {
    **dict.fromkeys(_AXES[1].split(), _axes_as_input),
    "Split": _count_of_parts,
}
