"""What inputs may hold as labels and indices: by operator, and through moves."""

from __future__ import annotations

import ast
import re

import numpy as np
import onnx
import onnx.reference
import onnx_ir as ir
import pytest

from poet_onnx.graph.extract import infer_types
from poet_onnx.graph.extract.parts import JOINS, MOVES
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
    "{ j = Slice(i, a, b, a) k = Reshape(j, e) l = SoftmaxCrossEntropyLoss(s, k) }": Range(
        0, 4, part=((1, range(1, 3)),)
    ),
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


COMPUTED = {
    "j = Sub(i, {1})": (Range(-6, 7),),
    "j = Sub({1}, i)": (Range(-5, 8),),
    "j = Neg(i)": (Range(-6, 7),),
    "j = Mul(i, {3})": (Range(-2, 2),),
    "k = Mul({2}, i) j = Add(k, {1})": (Range(-4, 2),),
    "k = Sub(i, {1}) l = Cast<to: int = 6>(k) m = Reshape(l, {-1}) j = Add(m, {-2})": (Range(-4, 9),),
    "k = Slice(i, {1}, {3}, {1}) j = Sub(k, {1})": (Range(-6, 7, part=((1, range(1, 3)),)),),
    "j = Add(i, {{1, 10, 2}})": tuple(
        Range(-7 - number, 6 - number, part=((1, range(place, place + 1)),)) for place, number in enumerate((1, 10, 2))
    ),
    "k = Add(i, {0, 1, 2}) j = Gather<axis: int = 1>(k, {2})": (Range(-9, 4, part=((1, range(2, 3)),)),),
    "j = Add(i, {{1}, {1}})": (Range(-8, 5),),
    "j = Mul(i, {0})": (),
    "k = Mul(i, {100}) j = Mul(k, {100000000})": (),
    "j = Mul(i, i)": (),
    "k = Cast<to: int = 2>(i) j = Sub(k, {1})": (),
    "j = Add(i, {{0, 1, 2}, {3, 4, 5}})": (),
    "j = Max(i, {0})": (),
    "k = Less(i, {0}) l = Add(i, {7}) j = Where(k, l, i)": (),
}
"""What an input may hold of which rows of a table of 7 are computed, where negative ones count from the end."""


@pytest.mark.parametrize("moves", COMPUTED)
def test_what_is_computed_with_constants_is_bound_by_them(moves: str) -> None:
    model = reading(moves)
    model.graph.input[0].type.tensor_type.shape.dim[0].dim_value = 7
    model.graph.input[1].type.tensor_type.shape.dim[0].dim_value = 2
    model.graph.input[1].type.tensor_type.shape.dim[1].dim_value = 3
    assert set(ranges_of(model)) == set(COMPUTED[moves])


SHIFTED = {
    "(float[2,5] s, int64[2] i) => (float l) { l = SoftmaxCrossEntropyLoss<ignore_index: int = -100>(s, j) }": Range(
        1, 5, -99
    ),
    "(float[2,5] x, int64[2,1] i) => (float[2,1] y) { y = GatherElements<axis: int = 1>(x, j) }": Range(1, 5),
    "(float[2,5] x, int64[2,1] i) => (float[2,5] y) { y = ScatterElements<axis: int = 1>(x, j, x) }": Range(-4, 5),
    "(float[2,5] x, int64[3,2] i) => (float[3] y) { y = GatherND(x, j) }": Range(-4, 5),
    "(int64[3] i) => (float[3,6] y) <int64 d = {6}, float[2] v = {0, 1}> { y = OneHot(j, d, v) }": None,
    "(float[1,2] s, int64[2] i) => (float l) { l = SoftmaxCrossEntropyLoss<ignore_index: int = 9>(s, j) }": Range(
        1, 2, 10
    ),
}


SAYS_FROM_0 = {
    "pkg.torch.onnx.fx_node": "%e : call_function[target=torch.ops.aten.embedding.default](args = (%w, %i))",
    "poet.embedding": "1",
}


@pytest.mark.parametrize("key", SAYS_FROM_0)
@pytest.mark.parametrize(("moves", "allowed"), [("j = Sub(i, {1})", Range(1, 99)), ("j = Identity(i)", Range(0, 98))])
def test_where_an_exporter_says_that_it_is_an_embedding_rows_count_from_0(moves: str, allowed: Range, key: str) -> None:
    model = reading(f"u = Neg(t) {moves}")
    model.graph.node[-1].input[0] = "u"
    assert ranges_of(model)[0].lowest == allowed.lowest - 99
    model.graph.node[-1].metadata_props.add(key=key, value=SAYS_FROM_0[key])
    assert ranges_of(model) == (allowed,)


@pytest.mark.parametrize("text", SHIFTED)
def test_what_a_reader_takes_of_computed_numbers(text: str) -> None:
    allowed, shifted = SHIFTED[text], "{ c = Constant<value_int: int = 1>() j = Sub(i, c)"
    head, _, body = text.rpartition("{")
    model = ir.from_proto(onnx.parser.parse_model(f"{HEADER} {head}{shifted}{body}"))
    infer_types(model)
    assert find_ranges(model.graph) == ({} if allowed is None else {"i": (allowed,)})


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


COLUMNS = """(float[5,2] t, float[9,2] u, int64[n,2] i) => (float[n,2] a, float[n,2] b)
    <int64 zero = {0}, int64 one = {-1}> {
        j = Gather<axis: int = 1>(i, zero) a = Gather(t, j)
        k = Gather<axis: int = 1>(i, one) b = Gather(u, k)
    }"""


def test_each_column_has_its_own_bounds() -> None:
    graph = ir.from_proto(onnx.parser.parse_model(f"{HEADER} {COLUMNS}")).graph
    assert find_ranges(graph) == {
        "i": (Range(0, 4, part=((1, range(1)),)), Range(0, 8, part=((1, range(1, 2)),))),
    }


TOLD = {
    "a column": "j = Gather<axis: int = 1>(i, {1})",
    "columns apart": "j = Gather<axis: int = -1>(i, {0, 1, 3})",
    "columns backwards": "j = Gather<axis: int = -1>(i, {4, 2, 0})",
    "one of columns": "k = Gather<axis: int = 1>(i, {0, 1, 5}) j = Gather<axis: int = 1>(k, {2})",
    "rows of columns": "k = Gather<axis: int = 1>(i, {0, 1, 5}) j = Slice(k, {1}, {3}, {0})",
    "steps": "j = Slice(i, {1}, {6}, {1}, {2})",
    "from behind": "j = Slice(i, {-1}, {-9}, {1}, {-2})",
    "steps of steps": "k = Slice(i, {1}, {99}, {1}, {2}) j = Slice(k, {0}, {3}, {1}, {2})",
    "two axes": "j = Slice(i, {0, 1}, {2, 3})",
    "split": "k, l, m = Split<axis: int = 1>(i, {1, 3, 2}) j = Identity(l)",
    "split in equal parts": "k, l, m = Split<axis: int = 1>(i) j = Squeeze(m)",
    "squeezed": "k = Slice(i, {2}, {3}, {1}) j = Squeeze(k, {-1})",
    "through a new axis": "k = Unsqueeze(i, {0, 2}) j = Gather<axis: int = 3>(k, {4})",
    "put together and apart": "k = Reshape(i, {2, 2, 6, 1}) l = Slice(k, {1}, {3}, {2}) j = Cast<to: int = 6>(l)",
    "turned": "k = Transpose(i) j = Slice(k, {2}, {4}, {0})",
    "turned by an order": "k = Transpose<perm: ints = [1, 0]>(i) j = Gather(k, {3})",
    "two columns side by side": "k = Slice(i, {0}, {1}, {1}) l = Slice(i, {4}, {6}, {1}) "
    "j = Concat<axis: int = 1>(k, l)",
    "one of two side by side": "k = Slice(i, {0}, {1}, {1}) l = Slice(i, {3}, {6}, {1}) "
    "m = Concat<axis: int = -1>(k, l) j = Slice(m, {1}, {4}, {1}, {2})",
    "repeated": "k = Unsqueeze(i, {0}) l = Expand(k, {3, 4, 6}) j = Slice(l, {1, 5}, {3, 6}, {0, 2})",
    "tiled": "k = Tile(i, {2, 1}) j = Gather<axis: int = 1>(k, {5})",
    "padded": "j = Pad(i, {0, 1, 0, 0})",
    "all of it in another shape": "k = Reshape(i, {-1}) l = Unsqueeze(k, {0}) j = Transpose(l)",
}
UNTOLD = {
    "part of a row of all": "k = Reshape(i, {24}) j = Slice(k, {3}, {5})",
    "computed columns": "k = Abs({1}) j = Gather<axis: int = 1>(i, k)",
    "computed ends": "k = Abs({1}) j = Slice(i, {0}, k)",
    "elements": "j = GatherElements<axis: int = 1>(i, {{0}, {2}, {4}, {1}})",
    "cut": "j = Pad(i, {0, -1, 0, 0})",
    "part of a tile": "k = Tile(i, {2, 1}) j = Slice(k, {3}, {5}, {0})",
}


def reading(moves: str) -> onnx.ModelProto:
    """Return a model that reads rows of a table by what moves make of `i`; numbers in braces are constants."""
    constants: list[np.ndarray] = []

    def name(found: re.Match[str]) -> str:
        constants.append(np.array(ast.literal_eval(found[0].replace("{", "[").replace("}", "]"))))
        return f"c{len(constants)}"

    text = re.sub(r"\{(?:[-\d, ]|\{[^}]*\})+\}", name, moves)
    model = onnx.parser.parse_model(f"{HEADER} (float[99,2] t, int64[4,6] i) => (y) {{ {text} y = Gather(t, j) }}")
    model.graph.initializer.extend(onnx.numpy_helper.from_array(each, f"c{n}") for n, each in enumerate(constants, 1))
    return model


def ranges_of(model: onnx.ModelProto) -> tuple[Range, ...]:
    """Return what is known of `i` once shapes are."""
    read = ir.from_proto(model)
    infer_types(read)
    return find_ranges(read.graph).get("i", ())


ELEMENTS = np.arange(1, 25).reshape(4, 6)


@pytest.mark.parametrize("moves", TOLD.values(), ids=TOLD)
def test_a_bound_holds_for_what_is_read_and_nothing_else(moves: str) -> None:
    model = reading(moves)
    ranges = ranges_of(model)
    model.graph.output[0].name = "j"
    model.graph.node.pop()
    table = np.zeros((99, 2), np.float32)
    read = onnx.reference.ReferenceEvaluator(model).run(None, {"t": table, "i": ELEMENTS})[0]
    bound = {element for each in ranges for element in ELEMENTS[each.index(2)].flat}
    assert bound == set(read.flat) - {0}
    assert all((each.lowest, each.highest) == (0, 98) for each in ranges)


@pytest.mark.parametrize("moves", UNTOLD.values(), ids=UNTOLD)
def test_what_part_is_read_may_not_be_told(moves: str) -> None:
    assert ranges_of(reading(moves)) == ()


def test_a_graph_of_too_many_parts_is_given_up() -> None:
    parts = (
        "a{n} = Slice({of}, {{1}}, {{99999}}, {{0}}) b{n} = Slice({of}, {{0}}, {{99999}}, {{0}}, {{2}})"
        " d{n} = Slice({of}, {{0}}, {{99999}}, {{0}}, {{3}}) x{n} = Concat<axis: int = 0>(a{n}, b{n}, d{n})"
    )
    levels = [parts.format(n=n, of=f"x{n - 1}" if n else "i") for n in range(20)]
    assert ranges_of(reading(f"{' '.join(levels)} j = Identity(x19)")) == ()
    assert len(ranges_of(reading(f"{' '.join(levels[:2])} j = Identity(x1)"))) > 1


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


@pytest.mark.parametrize("op_type", sorted(MOVES | JOINS))
@pytest.mark.parametrize("inputs", [[], [None]], ids=["none", "empty"])
def test_strange_moves_say_nothing(op_type: str, inputs: list[None]) -> None:
    table = ir.Value(name="t", type=ir.TensorType(ir.DataType.FLOAT), shape=ir.Shape([9, 2]))
    index = ir.Value(name="c", const_value=ir.tensor(np.array(0)))
    strange = ir.Node("", op_type, inputs, [ir.AttrFloat32("perm", 1.0), ir.AttrString("axes", "x")])
    strange.outputs[0].shape = ir.Shape([4, 6])
    column = ir.Node("", "Gather", [strange.outputs[0], index], [ir.AttrInt64("axis", 1)])
    reader = ir.Node("", "Gather", [table, column.outputs[0]])
    graph = ir.Graph([table], reader.outputs, nodes=[strange, column, reader], opset_imports={"": 15})
    assert find_ranges(graph) == {}


@pytest.mark.parametrize("moves", ["k = Transpose<perm: float = 1.0>(i)", 'k = Slice<axes: string = "x">(i, {0}, {2})'])
def test_attributes_of_other_kinds_do_no_harm(moves: str) -> None:
    read = ir.from_proto(reading(f"{moves} j = Gather<axis: int = 1>(k, {{1}})"))
    read.graph.node(0).outputs[0].shape = ir.Shape([4, 6])
    assert all(each.part for each in find_ranges(read.graph).get("i", ()))
