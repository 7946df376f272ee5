"""Which function of torch a node was written for, where that decides its gradient at bounds and ties.

torch's functions differ there though ONNX has one operator for them: what lies on a bound of `clamp` has the whole
gradient, on one of `hardtanh` none; equal operands of `maximum` share it, and `max` of a dimension gives it to the
first. The dynamo exporter says of each node which call it belongs to; `poet_onnx.torch` says so for the legacy one.
"""

from __future__ import annotations

import re

import onnx_ir as ir

from poet_onnx.description.names import TORCH_CALL

_TARGET = re.compile(r"call_function\[target=(?:torch\.ops\.)?aten\.(\w+(?:\.\w+)?)\]")

_CLAMPS = ("clamp", "clamp_min", "clamp_max", "clip")
_OPEN = ("hardtanh", "relu6")
_EVEN = ("maximum.default", "minimum.default", "max.other", "min.other")
_FIRST = ("max.dim", "min.dim")


def is_clamp(node: ir.Node) -> bool:
    """Return whether what lies on a bound, the second operand, has the whole gradient, and the bound none."""
    return _called(node).partition(".")[0] in _CLAMPS


def is_open(node: ir.Node) -> bool:
    """Return whether what lies on a bound has no gradient."""
    return _called(node).partition(".")[0] in _OPEN


def is_even(node: ir.Node) -> bool:
    """Return whether equal operands share the gradient, even where one is a constant."""
    return _called(node) in _EVEN


def is_of_first(node: ir.Node) -> bool:
    """Return whether the first of equal elements has the whole gradient."""
    return _called(node) in _FIRST


def is_detach(node: ir.Node) -> bool:
    """Return whether nothing that a node makes has a gradient; the exporter's optimizer drops such nodes."""
    return _called(node) == "detach.default"


def _called(node: ir.Node) -> str:
    """Return the operator of torch and its overload; an empty string where no exporter says so."""
    own = node.metadata_props.get(TORCH_CALL)
    if own is not None:
        return own
    found = _TARGET.search(node.metadata_props.get("pkg.torch.onnx.fx_node", ""))
    return found[1] if found else ""
