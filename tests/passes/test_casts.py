"""Casts that ONNX Runtime drops go from the graph, so that what is planned is what runs; all bits stay."""

from __future__ import annotations

from itertools import permutations
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime
import pytest
from deep import sampled
from forward_models import parse, random

import poet_onnx
from poet_onnx.passes.casts import MergeCasts
from poet_onnx.runtime import session_options

HEAD = '<ir_version: 8, opset_import: ["" : 15]>'
X = np.linspace(-300.7, 300.3, 12, dtype=np.float32)


def cast(name: str, source: str, to: int) -> str:
    return f"{name} = Cast <to = {to}> ({source})"


FLOAT, INT32, INT64, BOOL, HALF, DOUBLE = 1, 6, 7, 9, 10, 11


@pytest.mark.parametrize(
    ("nodes", "left"),
    [
        ((cast("a", "x", FLOAT), "y = Relu(a)"), 0),
        ((cast("a", "x", FLOAT), cast("b", "a", FLOAT), cast("c", "b", FLOAT), "y = Relu(c)"), 0),
        ((cast("y", "x", FLOAT),), 1),  # an output keeps its maker
        ((cast("a", "x", DOUBLE), cast("b", "a", FLOAT), "y = Relu(b)"), 0),
        ((cast("a", "x", HALF), cast("b", "a", FLOAT), "y = Relu(b)"), 2),  # rounds
        ((cast("a", "x", INT32), cast("b", "a", FLOAT), "y = Relu(b)"), 2),
        ((cast("a", "x", DOUBLE), cast("b", "a", HALF), cast("c", "b", FLOAT), "y = Relu(c)"), 2),
        ((cast("a", "x", INT32), cast("b", "a", INT64), cast("c", "b", FLOAT), "y = Relu(c)"), 2),
        ((cast("a", "x", BOOL), cast("b", "a", FLOAT), "y = Relu(b)"), 2),
        ((cast("a", "x", DOUBLE), "d = Neg(a)", cast("b", "a", FLOAT), cast("c", "d", FLOAT), "y = Add(b, c)"), 2),
        ((cast("a", "x", DOUBLE), "d = Neg(a)", cast("b", "a", HALF), cast("c", "d", HALF), "e = Add(b, c)",
          cast("y", "e", FLOAT)), 4),
    ],
)  # fmt: skip
def test_the_runtime_runs_what_is_left_and_computes_the_same_bits(nodes: tuple[str, ...], left: int) -> None:
    text = f"{HEAD} m (float[12] x) => (float[12] y) {{ {' '.join(nodes)} }}"
    model = ir.from_proto(onnx.parser.parse_model(text))
    before = _run(model)
    MergeCasts()(model)
    assert [node.op_type for node in model.graph].count("Cast") == left
    assert _run(model) == before
    assert not MergeCasts()(model).modified


TYPES = {
    9: "bool",
    2: "uint8",
    3: "int8",
    6: "int32",
    7: "int64",
    10: "float16",
    16: "bfloat16",
    1: "float",
    11: "double",
}


@pytest.mark.parametrize("before", sampled(TYPES, 1, 7))
def test_the_runtime_drops_the_same_of_two_casts(before: int, tmp_path: Path) -> None:
    for between, after in permutations(TYPES, 2):
        if between == before or after == BOOL:  # of two casts to truth values each version drops others
            continue
        text = f"""{HEAD} m ({TYPES[before]}[2] x) => ({TYPES[after]}[2] y)
          {{ {cast("a", "x", between)} {cast("b", "a", after)} y = Identity(b) }}"""
        model = onnx.parser.parse_model(text)
        ours = ir.from_proto(model)
        MergeCasts()(ours)
        options = session_options()
        options.optimized_model_filepath = str(tmp_path / "loaded.onnx")
        onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
        theirs = onnx.load(tmp_path / "loaded.onnx")
        counts = [[node.op_type for node in graph].count("Cast") for graph in (ours.graph, theirs.graph.node)]
        assert counts[0] == counts[1], f"{TYPES[before]} to {TYPES[between]} to {TYPES[after]}"


def test_a_network_full_of_idle_casts_is_planned_as_it_runs() -> None:
    text = """g (float[N, 16] x) => (float[N, 4] scores) {
        a = Cast <to = 1> (x)  b = Cast <to = 1> (a)  c = MatMul(b, w)  d = Cast <to = 1> (c)  e = Relu(d)
        f = Cast <to = 1> (e)  g = MatMul(f, v)  h = Cast <to = 11> (g)  i = Cast <to = 1> (h)  j = Tanh(i)
        k = Cast <to = 1> (j)  scores = MatMul(k, u) }"""
    model = parse(text, {"w": random(16, 64), "v": random(64, 64), "u": random(64, 4)})
    made = poet_onnx.train_graph(model, dims={"N": 8})
    rewritten = poet_onnx.rewrite(made.training, device="tx2", activation_budget="100%").model
    assert "Cast" not in {node.op_type for node in rewritten.graph}
    assert poet_onnx.verify(made.training, rewritten).passed  # and nodes run in the file's order


def _run(model: ir.Model) -> bytes:
    session = onnxruntime.InferenceSession(
        ir.to_proto(model).SerializeToString(), session_options(), providers=["CPUExecutionProvider"]
    )
    return session.run(None, {"x": X})[0].tobytes()
