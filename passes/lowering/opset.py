"""Opsets that the runtimes load: a model of a later one whose operators they have declares one that they do."""

from __future__ import annotations

from typing import NamedTuple

import onnx
import onnx_ir as ir
from onnx_ir.passes import InPlacePass, PassResult

from poet_onnx.errors import InputError
from poet_onnx.graph.operators import ONNX_DOMAINS
from poet_onnx.passes.expand import ExpandFunctions
from poet_onnx.passes.lowering.builder import list_nodes


class _Known(NamedTuple):
    """What the runtimes of a target load.

    Attributes:
        opset: the newest that all of them load.
        newest: the newest that one of them loads.
        runtime: that one.
        way_out: what else to do with a model of a later one.
    """

    opset: int
    newest: int
    runtime: str
    way_out: str = ""


_KNOWN = {
    "training": _Known(21, 21, "onnxruntime-training 1.19.2", "give `--target stock`, or "),  # it is the last release
    "stock": _Known(23, 26, "onnxruntime 1.31"),  # 23: of onnxruntime 1.23
}
"""Measured, by target."""


class DeclareKnownOpset(InPlacePass):
    """Declare an opset that the runtimes of a target load, in a model of a later one.

    Later opsets let most operators take more types, and change nothing else. Those that are new, or use an attribute or
    an input that is, become the nodes of their function body. Requires fixed dimensions where there are such.
    """

    def __init__(self, target: str) -> None:
        """Set the target, "training" or "stock"."""
        super().__init__()
        self._known = _KNOWN[target]

    def call(self, model: ir.Model) -> PassResult:
        """Declare it; a model that only some of the runtimes load, because of its operators, stays as it is.

        Raises:
            InputError: naming every operator that no runtime of the target has, and its nodes.
        """
        known, version = self._known, model.opset_imports.get("", 1)
        if version <= known.opset:
            return PassResult(model, modified=False)
        declared = known.opset
        if any(_is_newer(node, version, known.opset) for node in model.graph):
            if version <= known.newest:
                return PassResult(model, modified=False)
            declared = known.newest
        ExpandFunctions(lambda node: _is_newer(node, version, declared))(model)
        newer: dict[str, list[str]] = {}
        for node in model.graph:
            if _is_newer(node, version, declared):
                newer.setdefault(node.op_type, []).append(node.name or "")
        if newer:
            raise InputError(
                f"{known.runtime} knows operators up to opset {declared}, and not {list_nodes(newer)} as in opset "
                f"{version}: {known.way_out}export the model with opset {declared}."
            )
        model.opset_imports[""] = declared
        return PassResult(model, modified=True)


def _is_newer(node: ir.Node, version: int, known: int) -> bool:
    """Return whether a node of some opset says what it could not in an older one."""
    if node.domain not in ONNX_DOMAINS or not onnx.defs.has(node.op_type, version, ""):
        return False
    if not onnx.defs.has(node.op_type, known, ""):
        return True
    older = onnx.defs.get_schema(node.op_type, known, "")
    return len(node.inputs) > older.max_input or not node.attributes.keys() <= older.attributes.keys()
