"""Each index of an Einsum gets a letter, and what the kernel takes besides is in the plan."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx_ir as ir
import onnxruntime
import pytest
from forward_models import parse, random

import poet_onnx
from poet_onnx.graph.operators.einsum import indices_of
from poet_onnx.passes.einsum import PairOperands
from poet_onnx.passes.normalize import WriteShapes
from poet_onnx.runtime import count_arena


@pytest.mark.parametrize(
    ("equation", "ranks", "expected"),
    [
        ("...j,jk", (3, 2), (["abj", "jk"], "abk")),
        ("i...,j...->ij...", (3, 2), (["iab", "jb"], "ijab")),
        ("ba,ac", (2, 2), (["ba", "ac"], "bc")),
        ("ii->i", (2,), (["ii"], "i")),
        ("a b , b c -> a c", (2, 2), (["ab", "bc"], "ac")),
    ],
)
def test_what_dots_stand_for(equation: str, ranks: tuple[int, ...], expected: tuple[list[str], str]) -> None:
    assert indices_of(equation, ranks) == expected
    operands = [random(*(3,) * rank) for rank in ranks]
    terms, result = expected
    named = np.einsum(f"{','.join(terms)}->{result}", *operands)
    np.testing.assert_allclose(np.einsum(equation, *operands), named, rtol=1e-5)


def network() -> ir.Model:
    text = """g (float[8, 32, 64] x) => (float[8, 32, 48] y) {
        h = Einsum <equation = "...j,jk"> (x, first) t = Tanh(h)
        y = Einsum <equation = "...k,kl -> ...l"> (t, second) }"""
    return parse(text, {"first": random(64, 32), "second": random(32, 48)})


def test_nothing_is_taken_outside_of_the_plan(tmp_path: Path) -> None:
    path = tmp_path / "net.onnx"
    poet_onnx.rewrite(network(), loss="mse", device="a72", target="stock", optimizer="sgd").save(path)
    session = poet_onnx.TrainingSession(path, path.with_suffix(".safetensors"))
    with count_arena() as counter:
        session.step(random(8, 32, 64), random(8, 32, 48))
        assert counter.statistics.unplanned == 0 < counter.statistics.planned


def test_an_operand_that_is_repeated_has_its_result_in_the_plan(tmp_path: Path) -> None:
    """ONNX infers the sizes of the first operand."""
    text = """g (float[1, 64] x) => (float[32, 64] y) {
        h = Mul(x, s) p = Einsum <equation = "ij,ij->ij"> (h, w) y = Tanh(p) }"""
    path, model = tmp_path / "net.onnx", parse(text, {"s": random(1, 64), "w": random(32, 64)})
    poet_onnx.rewrite(model, loss="mse", device="a72", target="stock", optimizer="sgd", train="*").save(path)
    session = poet_onnx.TrainingSession(path, path.with_suffix(".safetensors"))
    x, target, w = random(1, 64), random(32, 64), random(32, 64)
    with count_arena() as counter:
        loss = session.step(x, target)
        assert counter.statistics.unplanned == 0 < counter.statistics.planned
    assert loss == pytest.approx(np.mean(np.square(np.tanh(x * random(1, 64) * w) - target)), rel=1e-5)


@pytest.mark.parametrize("opset", [12, 20])
@pytest.mark.parametrize(
    ("equation", "shapes"),
    [
        ("ijk->", [(3, 4, 5)]),
        ("kij -> ji", [(3, 4, 5)]),
        ("i,j->", [(3,), (4,)]),
        ("ij,k->ik", [(3, 4), (5,)]),
        ("ijk,jl->kl", [(3, 4, 5), (4, 2)]),
        ("ai,a...,b->...", [(3, 6), (3, 4), (2,)]),
    ],
)
def test_what_an_operand_sums_alone_is_in_the_plan(
    equation: str, shapes: list[tuple[int, ...]], opset: int, tmp_path: Path
) -> None:
    values = {name: random(*shape) for name, shape in zip("abc", shapes, strict=False)}
    rest = "".join(f", {name}" for name in values if name != "a")
    product = np.einsum(equation, *values.values())
    text = f"""g (float{list(shapes[0])} x) => (float{list(product.shape)} y) {{
        h = Mul(x, a) p = Einsum <equation = "{equation}"> (h{rest}) y = Tanh(p) }}"""
    path, model = tmp_path / "net.onnx", parse(text, values)
    model.opset_imports[""] = opset
    poet_onnx.rewrite(model, loss="mse", device="a72", target="stock", optimizer="sgd", train="*").save(path)
    session = poet_onnx.TrainingSession(path, path.with_suffix(".safetensors"))
    with count_arena() as counter:
        loss = session.step(np.ones(shapes[0], np.float32), np.zeros(product.shape, np.float32))
        assert counter.statistics.unplanned == 0 < counter.statistics.planned
    assert loss == pytest.approx(np.mean(np.square(np.tanh(product))), rel=1e-5)


CHAINS = [
    ("bij,bjk,bkl->bil", [(2, 3, 4), (2, 4, 5), (2, 5, 2)]),
    ("...ij,jk,...kl", [(2, 3, 4), (4, 5), (2, 5, 2)]),
    ("i j, jK ,Kl -> l", [(2, 3), (3, 4), (4, 2)]),
    ("ii,ij,jk->ik", [(3, 3), (3, 4), (4, 2)]),
    ("ij,j,k,kl->il", [(2, 3), (3,), (4,), (4, 5)]),
    ("i,j,k->", [(2,), (3,), (4,)]),
    ("ab,ab,ab->ab", [(2, 3), (2, 3), (2, 3)]),
    ("ab,bc,cd,de,ef,fg->ag", [(2, 3), (3, 4), (4, 2), (2, 5), (5, 3), (3, 2)]),
]


def chained(equation: str, shapes: list[tuple[int, ...]]) -> ir.Model:
    """Return a model of one Einsum, as double numbers, with two operands at a time."""
    names = "abcdefg"[: len(shapes)]
    inputs = ", ".join(f"double{list(shape)} {name}" for name, shape in zip(names, shapes, strict=True))
    result = list(np.einsum(equation, *map(np.zeros, shapes)).shape)
    text = f'g ({inputs}) => (double{result} y) {{ y = Einsum <equation = "{equation}"> ({", ".join(names)}) }}'
    model = parse(text, {})
    assert PairOperands()(model).modified
    assert not PairOperands()(model).modified
    WriteShapes()(model)
    return model


@pytest.mark.parametrize(("equation", "shapes"), CHAINS)
def test_a_chain_of_pairs_computes_what_the_whole_does(equation: str, shapes: list[tuple[int, ...]]) -> None:
    model = chained(equation, shapes)
    assert [len(node.inputs) for node in model.graph] == [2] * (len(shapes) - 1)
    operands = [random(*shape).astype(np.float64) for shape in shapes]
    session = onnxruntime.InferenceSession(ir.to_proto(model).SerializeToString(), providers=["CPUExecutionProvider"])
    (found,) = session.run(None, dict(zip("abcdefg", operands, strict=False)))
    np.testing.assert_allclose(found, np.einsum(equation, *operands), rtol=1e-12, atol=1e-12)


def test_no_product_on_the_way_is_larger_than_it_must_be() -> None:
    """From left to right the first product has 16 times 8 rows of 16 times 4, of indices that are not common."""
    model = chained("bil,bjk,bkl->bij", [(2, 16, 8), (2, 16, 4), (2, 4, 8)])
    first, last = model.graph
    assert (first.outputs[0].shape, last.outputs[0].shape) == ((2, 16, 4), (2, 16, 16))


def test_training_and_evaluation_multiply_pairs_alone() -> None:
    text = """g (float[2, 6, 5] x) => (float[2, 6, 3] y) {
        h = Mul(x, s) y = Einsum <equation = "bij,bjk,bkl->bil"> (h, u, v) }"""
    model = parse(text, {"s": random(2, 6, 5), "u": random(2, 5, 4), "v": random(2, 4, 3)})
    made = poet_onnx.train_graph(model, loss="mse", train=["*"])
    for graph in (made.training.graph, made.evaluation.graph):
        assert {len(node.inputs) for node in graph if node.op_type == "Einsum"} == {2}
