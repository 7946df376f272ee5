"""Heads that nodes read and write in rows of all heads, as products make them.

Rules:
    H1. [batch, tokens, heads x width] that becomes [batch, tokens, heads, width] in a Reshape alone: Attend and Rotate
        read what is before it, and their attribute says how many heads there are.
    H2. The result of a Rotate that reads so is written so: the Reshape stands behind it, where Attend looks past it.
        Its angles are the same for all heads.
    H3. Where a Reshape back alone reads what Attend writes, Attend writes what is behind it.
"""

from __future__ import annotations

import onnx_ir as ir
from onnx_ir.passes import InPlacePass, PassResult
from onnx_ir.passes.common import RemoveUnusedNodesPass

from poet_onnx.description.names import POET_DOMAIN
from poet_onnx.graph.operators.attention import ATTEND
from poet_onnx.graph.operators.rotary import ROTATE
from poet_onnx.passes.fused.reading import is_float, made_by, only_reader
from poet_onnx.passes.fused.transposed import move_behind
from poet_onnx.passes.node_builder import let_stand_for
from poet_onnx.passes.views import sizes_of

_RANK, _OPERANDS = 4, 3


class ReadHeadsInRows(InPlacePass):
    """Take Reshapes from around Rotate and Attend (H1 to H3). Requires a graph with static shapes."""

    def call(self, model: ir.Model) -> PassResult:
        """Take them."""
        graph = model.graph
        changed = [_read_by_rotate(node) for node in list(graph) if _is(node, ROTATE)]
        changed += [_read_by_attend(node) for node in list(graph) if _is(node, ATTEND)]
        if any(changed):
            RemoveUnusedNodesPass()(model)
        return PassResult(model, modified=any(changed))


def _is(node: ir.Node, operator: str) -> bool:
    return node.domain == POET_DOMAIN and node.op_type == operator


def _rows_of(value: ir.Value | None) -> ir.Value | None:
    """Return [batch, tokens, heads x width] that a Reshape makes [batch, tokens, heads, width] of; None for others."""
    maker = made_by(value, "Reshape")
    return maker.inputs[0] if maker is not None and _splits_rows(maker.inputs[0], value) else None


def _splits_rows(rows: ir.Value | None, heads: ir.Value | None) -> bool:
    if rows is None or heads is None or not (is_float(rows) and is_float(heads)):
        return False
    sizes = sizes_of(heads)
    return len(sizes) == _RANK and sizes_of(rows) == (*sizes[:2], sizes[2] * sizes[3])


def _read_by_rotate(node: ir.Node) -> bool:
    """Let a Rotate read and write rows of all heads, with the Reshape behind it (H2); return whether it does."""
    heads = node.inputs[0]
    if heads is None or _rows_of(heads) is None or node.attributes.get_int("heads", 0) != 0:
        return False
    tables = [sizes_of(table) for table in node.inputs[1:] if table is not None]
    if any(len(sizes) > 1 and sizes[-2] != 1 for sizes in tables):
        return False
    node.attributes["heads"] = ir.AttrInt64("heads", sizes_of(heads)[2])
    move_behind(node, ("rows", "heads"))
    return True


def _read_by_attend(node: ir.Node) -> bool:
    """Let an Attend read and write rows of all heads (H1, H3); return whether it does."""
    first, heads = (list(node.attributes.get_ints(name, ())) for name in ("tokens_first", "heads"))
    before = list(heads)
    for place, value in enumerate(node.inputs[:_OPERANDS]):
        rows = _rows_of(value) if first[place] and not heads[place] else None
        if rows is not None and value is not None:
            heads[place] = sizes_of(value)[2]
            node.replace_input_with(place, rows)
    made = node.outputs[0]
    joins = only_reader(made, "Reshape")
    if first[_OPERANDS] and joins is not None and _splits_rows(joins.outputs[0], made):
        heads[_OPERANDS] = sizes_of(made)[2]
        let_stand_for(made, joins.outputs[0])
    node.attributes["heads"] = ir.AttrInt64s("heads", heads)
    return heads != before
