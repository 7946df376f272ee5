"""What inputs may hold as labels and indices: by operator, and through moves."""

from __future__ import annotations

import onnx
import onnx_ir as ir
import pytest

from poet_onnx.graph.extract.ranges import find_ranges
from poet_onnx.graph.input_ranges import Range

HEADER = '<ir_version: 8, opset_import: ["" : 15, "com.microsoft" : 1]> g'
CASES = {
    "(float[2,5] s, int64[2] i) => (float l) { l = SoftmaxCrossEntropyLoss(s, i) }": Range(0, 4),
    "(float[2,5,3] s, int64[2,3] i) => (float l) "
    "{ l = SoftmaxCrossEntropyLoss<ignore_index: int = -100>(s, i) }": Range(0, 4, -100),
    "(float[2,5] s, int64[2] i) => (float l) { l = NegativeLogLikelihoodLoss<ignore_index: int = 0>(s, i) }": Range(
        0, 4, 0
    ),
    "(float[2,5] s, int64[2] i) => (float l, float[2,5] p) <int64 n = {-1}> "
    "{ l, p = com.microsoft.SoftmaxCrossEntropyLossInternal(s, i, , n) }": Range(0, 4, -1),
    "(float[2,5] s, int64[2] i) => (float l, float[2,5] p) "
    "{ n = Constant<value_int: int = -1>() l, p = com.microsoft.SoftmaxCrossEntropyLossInternal(s, i, , n) }": Range(
        0, 4, -1
    ),
    "(float[7,2] t, int64[3] i) => (float[3,2] y) { y = Gather(t, i) }": Range(0, 6),
    "(float[7,2] t, int64[3] i) => (float[7,3] y) { y = Gather<axis: int = -1>(t, i) }": Range(0, 1),
    "(float[7,2] t, int64[3] i) => (float[2,7] y) { u = Transpose(t) y = Gather<axis: int = 1>(u, i) }": None,
    "(float[7,2] t, int64[3] i) => (float[3,2] y) <float[7,2] u> { u = Neg(t) y = Gather(u, i) }": Range(-7, 6),
    "(float[2,5] x, int64[2,1] i) => (float[2,1] y) { y = GatherElements<axis: int = 1>(x, i) }": Range(0, 4),
    "(float[2,5] x, int64[2,1] i) => (float[2,5] y) { y = ScatterElements<axis: int = 1>(x, i, i) }": Range(0, 4),
    "(float[2,5] x, int64[3,2] i) => (float[3] y) { y = GatherND(x, i) }": Range(-5, 4),
    "(float[2,5,4] x, int64[2,1] i) => (float[2,4] y) { y = GatherND<batch_dims: int = 1>(x, i) }": Range(-5, 4),
    "(float[2,5] x, int64[3,1] i) => (float[2,5] y) { y = ScatterND(x, i, x) }": Range(-2, 1),
    "(int64[3] i) => (float[3,6] y) <int64 d = {6}, float[2] v = {0, 1}> { y = OneHot(i, d, v) }": Range(0, 5),
    "(float[9,2,3] x, float[1,4,3] w, int32[2] i) => (float[9,1,2,1] y) { y = LSTM(x, w, w, , i) }": Range(0, 9),
    "(float[2,9] x, int64[2] i) => (float[2,9] y) { y = ReverseSequence<time_axis: int = 1>(x, i) }": Range(0, 9),
    "(float[n,5] s, int64[n] i) => (float l) { l = SoftmaxCrossEntropyLoss(s, i) }": Range(0, 4),
    "(float[7,2] t, float[3] i) => (float[3,2] y) { j = Cast<to: int = 7>(i) y = Gather(t, j) }": Range(0, 6),
    "(float[4,5] s, int64[2,3] i) => (float l) <int64[1] a = {1}, int64[1] b = {3}, int64[1] e = {4}> "
    "{ j = Slice(i, a, b, a) k = Reshape(j, e) l = SoftmaxCrossEntropyLoss(s, k) }": Range(0, 4),
    "(float[7,2] t, int64[2] i) => (float[4,2] y) <int64[2] a = {1, 2}> "
    "{ j = Concat<axis: int = 0>(a, i) y = Gather(t, j) }": Range(0, 6),
    "(float[2,n] s, int64[2] i) => (float l) { l = SoftmaxCrossEntropyLoss(s, i) }": None,
    "(float[7,2] t, int64[3] i) => (float[3,2] y) { j = Add(i, i) y = Gather(t, j) }": None,
    "(float[7,2] t, int64[3] i) => (float[3,2] y) { y = Gather<axis: int = 2>(t, i) }": None,
    "(float[2,5] s, int64[2] i, int64 n) => (float l, float[2,5] p) "
    "{ l, p = com.microsoft.SoftmaxCrossEntropyLossInternal(s, i, , n) }": None,
    "(float[2,5] x, int64[3,k] i) => (float[3] y) { y = GatherND(x, i) }": None,
    "(float[2,5] x, int64[3,9] i) => (float[3] y) { y = GatherND(x, i) }": None,
    "(int64[3] i, int64 d) => (float[3,6] y) <float[2] v = {0, 1}> { y = OneHot(i, d, v) }": None,
    "(float[7] x, int64[3] i) => (float[7] y) { y = Unheard(x, i) }": None,
}


@pytest.mark.parametrize("text", CASES)
def test_readers_say_what_an_input_may_hold(text: str) -> None:
    model = ir.from_proto(onnx.parser.parse_model(f"{HEADER} {text}"))
    allowed = CASES[text]
    assert find_ranges(model.graph) == ({} if allowed is None else {"i": (allowed,)})


def test_every_reader_counts_once() -> None:
    text = """(float[7,2] t, float[4,3] u, int64[3] i) => (float[3,2] a, float[3,3] b, float[3,2] c)
        { a = Gather(t, i) b = Gather(u, i) c = Gather(t, i) }"""
    graph = ir.from_proto(onnx.parser.parse_model(f"{HEADER} {text}")).graph
    assert find_ranges(graph) == {"i": (Range(0, 6), Range(0, 3))}


def test_strange_nodes_say_nothing() -> None:
    strange = [
        ir.Node("", "Gather", []),
        ir.Node("", "Gather", [None, ir.val("i")]),
        ir.Node("", "SoftmaxCrossEntropyLoss", [ir.val("s"), ir.val("i")], [ir.AttrFloat32("ignore_index", 1.5)]),
        ir.Node("", "OneHot", [ir.val("i")]),
    ]
    for node in strange:
        inputs = [value for value in node.inputs if value is not None]
        assert find_ranges(ir.Graph(inputs, node.outputs, nodes=[node], opset_imports={"": 15})) == {}
