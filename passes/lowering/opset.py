"""The newest opset that onnxruntime-training loads: a model of a later one whose operators it has declares that one."""

from __future__ import annotations

import onnx
import onnx_ir as ir
from onnx_ir.passes import InPlacePass, PassResult

from poet_onnx.errors import InputError
from poet_onnx.graph.operators import ONNX_DOMAINS
from poet_onnx.passes.expand import ExpandFunctions
from poet_onnx.passes.lowering.site import list_nodes

NEWEST_OPSET, NEWEST_IR_VERSION = 21, 10
"""What onnxruntime-training 1.19.2 loads; it is the last release."""


class DeclareKnownOpset(InPlacePass):
    """Declare the newest opset that onnxruntime-training loads, in a model of a later one.

    Later opsets let most operators take more types, and change nothing else. Those that are new, or use an attribute or
    an input that is, become the nodes of their function body. Requires fixed dimensions where there are such.
    """

    def call(self, model: ir.Model) -> PassResult:
        """Declare it.

        Raises:
            InputError: naming every operator that is not in it, and its nodes.
        """
        version, ir_version = model.opset_imports.get("", NEWEST_OPSET), model.ir_version
        model.ir_version = min(ir_version, NEWEST_IR_VERSION)
        if version <= NEWEST_OPSET:
            return PassResult(model, modified=model.ir_version != ir_version)
        ExpandFunctions(lambda node: _is_newer(node, version))(model)
        newer: dict[str, list[str]] = {}
        for node in model.graph:
            if _is_newer(node, version):
                newer.setdefault(node.op_type, []).append(node.name or "")
        if newer:
            raise InputError(
                f"onnxruntime-training 1.19.2 knows operators up to opset {NEWEST_OPSET}, and not {list_nodes(newer)}"
                f" as in opset {version}: give `--target stock`, or export the model with opset {NEWEST_OPSET}."
            )
        model.opset_imports[""] = NEWEST_OPSET
        return PassResult(model, modified=True)


def _is_newer(node: ir.Node, version: int) -> bool:
    """Return whether a node of some opset says what it could not in the newest known one."""
    if node.domain not in ONNX_DOMAINS or not onnx.defs.has(node.op_type, version, ""):
        return False
    if not onnx.defs.has(node.op_type, NEWEST_OPSET, ""):
        return True
    known = onnx.defs.get_schema(node.op_type, NEWEST_OPSET, "")
    return len(node.inputs) > known.max_input or not node.attributes.keys() <= known.attributes.keys()
