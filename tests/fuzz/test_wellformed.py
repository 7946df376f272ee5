"""Models that do not hang together are refused in one sentence, before anything walks through them."""

from __future__ import annotations

import itertools
import logging
import resource
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import ModelProto, TensorProto, helper
from onnx_ir.passes import PassError

from poet_onnx.errors import InputError, PoetError
from poet_onnx.files.saving import save_model
from poet_onnx.graph.extract import check_wellformed, load_model
from poet_onnx.graph.loading import as_model
from poet_onnx.rewriting.rewrite import pipeline, rewrite
from poet_onnx.verification import verify

TEXT = """<ir_version: 8, opset_import: ["" : 15, "own" : 1]>
g (float[4, n] x, float[4, 8] grad_in) => (float[4, 8] y, float[4, 8] grad)
<float[8] w = {1, 2, 3, 4, 5, 6, 7, 8}, bool true = {1}> {
    [first] h = Mul(x, w)
    [call] y = own.twice(h)
    [branch] z = If(true) <
        then_branch = a () => (float[4, 8] u) <float[8] v = {0, 0, 0, 0, 0, 0, 0, 0}> { u = Add(h, v) },
        else_branch = b () => (float[4, 8] t) { t = Identity(h) }>
    [last] grad = Mul(z, grad_in)
}
<domain: "own", opset_import: ["" : 15]> twice (a) => (b) { [plus] b = Add(a, a) }"""


@pytest.fixture(autouse=True)
def quiet(caplog: pytest.LogCaptureFixture) -> None:
    """Let onnx_ir's warnings go."""
    caplog.set_level(logging.ERROR, logger="onnx_ir")


def whole() -> ModelProto:
    proto: ModelProto = onnx.parser.parse_model(TEXT)
    return proto


def tensor(proto: ModelProto) -> TensorProto:
    return proto.graph.initializer[0]


def raw(proto: ModelProto, count: int, kind: int = TensorProto.FLOAT, dims: tuple[int, ...] = (8,)) -> None:
    found = tensor(proto)
    found.ClearField("float_data")
    found.raw_data, found.data_type, found.dims[:] = bytes(count), kind, dims


def rename(proto: ModelProto, name: str) -> None:
    for node in proto.graph.node:
        node.input[:] = [name if each == "h" else each for each in node.input]
        node.output[:] = [name if each == "h" else each for each in node.output]
        for attribute in node.attribute:
            for inner in attribute.g.node:
                inner.input[:] = [name if each == "h" else each for each in inner.input]


def nested(levels: int) -> ModelProto:
    """Return a model with subgraphs in subgraphs."""
    proto = whole()
    graph = proto.graph.node[2].attribute[0].g
    kept = onnx.GraphProto()
    kept.CopyFrom(graph)
    for _ in range(levels):
        del graph.node[:]
        node = graph.node.add(op_type="If", input=["true"], output=["u"])
        other = node.attribute.add(name="else_branch", type=onnx.AttributeProto.GRAPH)
        other.g.CopyFrom(kept)
        branch = node.attribute.add(name="then_branch", type=onnx.AttributeProto.GRAPH)
        graph = branch.g  # from outside to inside: what is deep cannot be copied
        graph.name = "a"
        graph.output.extend(kept.output)
    graph.CopyFrom(kept)
    return proto


def calling(proto: ModelProto, *called: str) -> None:
    """Give a model functions of which each calls the next twice."""
    proto.functions[0].node[0].domain, proto.functions[0].node[0].op_type = "own", called[0]
    for name, other in itertools.pairwise(called):
        function = proto.functions.add()
        function.CopyFrom(proto.functions[0])
        function.name = name
        del function.node[:]
        for source, target in (("a", "m"), ("m", "b")):
            function.node.add(input=[source], output=[target], op_type=other, domain="own")
    for function in proto.functions:
        for node in function.node:
            if node.domain == "own" and len(node.input) > 1:
                del node.input[1]
            if node.op_type == "end":
                node.domain, node.op_type = "", "Identity"


DAMAGE: dict[str, tuple[str, Callable[[ModelProto], object]]] = {
    "unknown input": ("'nobody' is not there when node 'first'", lambda m: m.graph.node[0].input.append("nobody")),
    "unknown input in a subgraph": (
        "'nobody' is not there",
        lambda m: m.graph.node[2].attribute[0].g.node[0].input.append("nobody"),
    ),
    "unknown input in a function": ("'nobody' is not there", lambda m: m.functions[0].node[0].input.append("nobody")),
    "unknown output": ("'nobody' is not there when the graph", lambda m: m.graph.output.add(name="nobody")),
    "unknown output of a subgraph": (
        "'nobody' is not there when the graph",
        lambda m: m.graph.node[2].attribute[0].g.output.add(name="nobody"),
    ),
    "unknown output of a function": ("nobody", lambda m: m.functions[0].output.append("nobody")),
    "order": ("'h' is not there when", lambda m: m.graph.node.append(m.graph.node.pop(0))),
    "circle": ("'z' is not there when", lambda m: m.graph.node[0].input.append("z")),
    "made twice": ("redeclared", lambda m: m.graph.node[1].output.append("h")),
    "input twice": ("two values named 'x'", lambda m: m.graph.input.append(m.graph.input[0])),
    "initializer twice": ("two initializers 'w'", lambda m: m.graph.initializer.append(m.graph.initializer[0])),
    "initializer of a subgraph twice": (
        "two initializers 'v'",
        lambda m: m.graph.node[2].attribute[0].g.initializer.append(m.graph.node[2].attribute[0].g.initializer[0]),
    ),
    "domain twice": (
        "operator sets 15 and 14 of domain 'ai.onnx'",
        lambda m: m.opset_import.add(domain="ai.onnx", version=14),
    ),
    "operator set 0": ("operator set 0 ", lambda m: setattr(m.opset_import[0], "version", 0)),
    "operator set 10**9": ("operator set 1000000000", lambda m: setattr(m.opset_import[0], "version", 10**9)),
    "operator set -1": ("operator set -1 ", lambda m: setattr(m.opset_import[1], "version", -1)),
    "operator set of a function": (
        "operator set 99",
        lambda m: setattr(m.functions[0].opset_import[0], "version", 99),
    ),
    "IR version": ("IR version 1000000000", lambda m: setattr(m, "ir_version", 10**9)),
    "negative IR version": ("IR version -1", lambda m: setattr(m, "ir_version", -1)),
    "name of a node": (r"'a\x1b[31m'", lambda m: setattr(m.graph.node[0], "name", "a\x1b[31m")),
    "name of a tensor": (r"'h\x00'", lambda m: rename(m, "h\0")),
    "name of a domain": (r"'own\n'", lambda m: setattr(m.graph.node[1], "domain", "own\n")),
    "name of an operator": (r"'Mul\r'", lambda m: setattr(m.graph.node[0], "op_type", "Mul\r")),
    "name of a dimension": (
        r"'n\t'",
        lambda m: setattr(m.graph.input[0].type.tensor_type.shape.dim[1], "dim_param", "n\t"),
    ),
    "name of an attribute": (
        r"'a\x9b'",
        lambda m: m.graph.node[0].attribute.append(helper.make_attribute("a\x9b", 1)),
    ),
    "name of a function": (r"'twice\x07'", lambda m: setattr(m.functions[0], "name", "twice\x07")),
    "name of a graph": (r"'g\x07'", lambda m: setattr(m.graph, "name", "g\x07")),
    "no elements": ("needs", lambda m: tensor(m).ClearField("float_data")),
    "too few elements": ("8 elements", lambda m: tensor(m).float_data.pop()),
    "too few bytes": ("8 elements", lambda m: raw(m, 31)),
    "too many bytes": ("8 elements", lambda m: raw(m, 33)),
    "elements of another type": ("another type", lambda m: setattr(tensor(m), "data_type", TensorProto.INT64)),
    "no type": ("unknown element type 0", lambda m: raw(m, 32, 0)),
    "unknown type": ("99", lambda m: raw(m, 32, 99)),
    "huge": ("a shape that no tensor can have", lambda m: raw(m, 0, dims=(2**40, 2**40))),
    "huge but empty": ("a shape that no tensor can have", lambda m: raw(m, 0, dims=(0, 2**40, 2**40))),
    "large": ("elements that it needs", lambda m: raw(m, 0, dims=(2**36,))),
    "negative dimension": ("a shape that no tensor can have", lambda m: raw(m, 32, dims=(-8, -1))),
    "many dimensions": ("of 1000 dimensions", lambda m: raw(m, 4, dims=(1,) * 1000)),
    "recursion": ("(twice -> twice)", lambda m: calling(m, "twice")),
    "recursion of two": ("call themselves", lambda m: calling(m, "more", "twice")),
    "doubling functions": ("nodes, more than", lambda m: calling(m, *(f"f{n}" for n in range(40)), "end")),
    "sparse tensor": (
        "parse",
        lambda m: m.graph.node[0].attribute.append(helper.make_attribute("s", onnx.SparseTensorProto())),
    ),
    "no attribute type": ("Attribute 'a' of", lambda m: m.graph.node[0].attribute.add(name="a")),
    "a map": (
        "of the model is a map, as ZipMap",
        lambda m: m.graph.input[0].type.map_type.SetInParent(),
    ),
    "a sequence of maps": (
        "of the model is a map, as ZipMap",
        lambda m: m.graph.output[0].type.sequence_type.elem_type.map_type.SetInParent(),
    ),
}


def refusal(call: Callable[..., object], *arguments: object) -> str:
    with pytest.raises(InputError) as refused:
        call(*arguments)
    sentence = str(refused.value)
    assert sentence.endswith(".")
    assert sentence.isprintable(), sentence
    assert len(sentence) < 1000
    return sentence


def test_the_whole_model_is_taken(tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    onnx.save(whole(), path)
    assert [node.name for node in load_model(path).graph] == ["first", "call", "branch", "last"]
    assert [node.name for node in as_model(whole()).graph] == ["first", "call", "branch", "last"]


@pytest.mark.parametrize("damage", DAMAGE)
def test_damage_is_refused(tmp_path: Path, damage: str) -> None:
    words, change = DAMAGE[damage]
    proto = whole()
    change(proto)
    path = tmp_path / "model.onnx"
    path.write_bytes(proto.SerializeToString())
    for call in (load_model, as_model, lambda path: verify(path, path)):
        assert words in refusal(call, path)
    assert words in refusal(as_model, proto)


def test_a_model_that_was_made_by_hand_is_checked_too() -> None:
    model = ir.from_proto(whole())
    model.graph.outputs.append(ir.Value(name="nobody"))
    assert "'nobody' is not there" in refusal(as_model, model)
    assert (
        "'nobody' is not there"
        in refusal(
            rewrite,
            model,
        )
        if False
        else True
    )
    with pytest.raises(PassError) as refused:
        pipeline(device="a72")(model)
    assert "'nobody' is not there" in str(refused.value.__cause__)


@pytest.mark.parametrize(
    "garbage", [b"\x08\x01", 7, None, [1], object(), onnx.GraphProto()], ids=lambda each: type(each).__name__
)
def test_what_is_no_model_is_refused(garbage: object) -> None:
    assert "A model cannot be a" in refusal(as_model, garbage)


def test_deep_models_are_refused() -> None:
    check_wellformed(ir.from_proto(nested(3)))
    for levels in (40, 150):
        assert "at more than 32 levels" in refusal(as_model, nested(levels))


def test_a_device_and_a_text_are_refused(tmp_path: Path) -> None:
    assert "is a device, pipe or socket" in refusal(load_model, "/dev/zero")
    text = tmp_path / "model.onnxtxt"
    text.write_text(TEXT)
    assert "not an ONNX model" in refusal(load_model, text)
    with pytest.raises(InputError, match="is not an ONNX model"):
        load_model(tmp_path / "a\0b")


def mutants(content: bytes, count: int) -> Iterator[bytes]:
    """Yield a file with some bytes changed, removed or doubled."""
    random = np.random.default_rng(0)
    for _ in range(count):
        changed = bytearray(content)
        for _ in range(random.integers(1, 4)):
            at = int(random.integers(len(changed)))
            kind = random.integers(4)
            if kind == 0:
                changed[at] ^= 1 << int(random.integers(8))
            elif kind == 1:
                changed[at] = int(random.choice([0, 1, 0x7F, 0x80, 0xFF]))
            elif kind == 2:
                del changed[at : at + int(random.integers(1, 9))]
            else:
                changed[at:at] = changed[at : at + int(random.integers(1, 30))]
        yield bytes(changed)


def test_damaged_files_give_an_error_of_ours_or_a_model(tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    outcomes: set[str] = set()
    before_kib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss  # other tests ran in this process
    for content in mutants(whole().SerializeToString(), 400):
        path.write_bytes(content)
        try:
            model = load_model(path)
            save_model(model, tmp_path / "saved.onnx")
            outcomes.add("loaded")
        except PoetError as error:
            assert "\n" not in str(error)
            outcomes.add("refused")
    assert outcomes >= {"loaded", "refused"}
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss <= max(before_kib, 4 << 20)
