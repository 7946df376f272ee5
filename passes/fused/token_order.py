"""Attention reads rotated heads as products make them: tokens before heads.

Rules:
    T1. Where an Attend alone reads what a Rotate makes, and the Rotate alone what a transposition of heads and tokens
        makes, the transposition goes: the Rotate reads what was transposed, and the Attend tokens before heads.
    T2. Its tables have a row for each token, the same for all heads, and are seen with another order of sizes.
"""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
from onnx_ir.passes import InPlacePass, PassResult

from poet_onnx.description.metadata import POET_DOMAIN
from poet_onnx.graph.operators.attention import ATTEND
from poet_onnx.graph.operators.rotary import ROTATE
from poet_onnx.passes.fused.reading import made_alone
from poet_onnx.passes.node_builder import initializer
from poet_onnx.passes.views import only_maker, sizes_of

_OPERANDS, _HEADS_AND_TOKENS = 3, (0, 2, 1, 3)


class ReadTokensFirst(InPlacePass):
    """Remove the transpositions (T1 and T2)."""

    def call(self, model: ir.Model) -> PassResult:
        """Remove them."""
        modified = False
        for node in list(model.graph):
            if node.domain == POET_DOMAIN and node.op_type == ATTEND:
                for index in range(_OPERANDS):
                    modified |= _untranspose(model.graph, node, index)
        return PassResult(model, modified=modified)


def _untranspose(graph: ir.Graph, attend: ir.Node, index: int) -> bool:
    """Let an operand of attention have tokens before heads, where T1 and T2 hold."""
    rotated = attend.inputs[index]
    rotate = only_maker(rotated)
    flags = list(attend.attributes["tokens_first"].as_ints())
    if flags[index] or rotated is None or rotate is None or (rotate.domain, rotate.op_type) != (POET_DOMAIN, ROTATE):
        return False
    transposed, cos, sin = rotate.inputs
    turn = made_alone(transposed, "Transpose")
    assert cos is not None  # a Rotate has both
    assert sin is not None
    if turn is None or tuple(turn.attributes.get_ints("perm", ())) != _HEADS_AND_TOKENS:
        return False
    sizes = (1, 1, *sizes_of(cos))[-4:]
    if sizes[1] != 1:
        return False
    rotate.replace_input_with(0, turn.inputs[0])
    for place, table in ((1, cos), (2, sin)):
        rotate.replace_input_with(place, _seen_as(graph, table, (sizes[0], sizes[2], 1, sizes[3])))
    assert turn.inputs[0] is not None  # a Transpose has one
    rotated.shape = turn.inputs[0].shape
    flags[index] = 1
    attend.attributes["tokens_first"] = ir.AttrInt64s("tokens_first", flags)
    graph.remove(turn, safe=True)
    return True


def _seen_as(graph: ir.Graph, table: ir.Value, sizes: tuple[int, ...]) -> ir.Value:
    """Return a table of other sizes, made once for all who ask."""
    name = f"{table.name}/tokens_first"
    known = next((use.node for use in table.uses() if use.node.name == name), None)
    if known is not None:
        return known.outputs[0]
    shape = initializer(graph, f"{name}/shape", np.array(sizes, np.int64))
    made = ir.Value(name=name, type=table.type, shape=ir.Shape(sizes))
    node = ir.Node("", "Reshape", [table, shape], outputs=[made], name=name)
    maker = table.producer()
    if maker is None:
        graph.insert_before(graph[0], node)
    else:
        graph.insert_after(maker, node)
    return made
