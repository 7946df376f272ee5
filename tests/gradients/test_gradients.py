"""Differentiation as a whole: what it writes, what it leaves out, and what it refuses."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import pytest
from forward_models import parse, random
from lowering_runs import run_step

from poet_onnx.errors import InputError
from poet_onnx.gradients.differentiate import differentiate
from poet_onnx.gradients.order import depth_first


def operators(model: ir.Model) -> list[str]:
    return [node.op_type for node in model.graph]


TWO_LAYERS = """g (float[2, 3] x) => (float loss) {
    h = MatMul(x, first)
    r = Relu(h)
    y = MatMul(r, second)
    loss = ReduceSum <keepdims = 0> (y)
}"""


def test_inputs_and_outputs_are_those_of_the_artifact_generator() -> None:
    model = differentiate(
        parse(TWO_LAYERS, {"first": random(3, 4), "second": random(4, 5)}), "loss", ["first", "second"]
    )
    assert [value.name for value in model.graph.inputs] == [
        "x",
        "first",
        "second",
        "first_grad.accumulation.buffer",
        "second_grad.accumulation.buffer",
        "lazy_reset_grad",
    ]
    assert [value.name for value in model.graph.outputs] == [
        "loss",
        "first_grad.accumulation.out",
        "second_grad.accumulation.out",
    ]
    assert "first" not in model.graph.initializers


def test_only_what_leads_to_a_parameter_is_differentiated() -> None:
    arrays = {"first": random(3, 4), "second": random(4, 5)}
    both = operators(differentiate(parse(TWO_LAYERS, arrays), "loss", ["first", "second"]))
    last = operators(differentiate(parse(TWO_LAYERS, arrays), "loss", ["second"]))
    assert (both.count("Gemm"), both.count("ReluGrad"), both.count("InPlaceAccumulatorV2")) == (3, 1, 2)
    assert (last.count("Gemm"), last.count("ReluGrad"), last.count("InPlaceAccumulatorV2")) == (1, 0, 1)


def test_a_parameter_that_two_nodes_read_has_one_gradient() -> None:
    text = """g (float[2, 3] x) => (float loss) {
        h = MatMul(x, w)
        t = Transpose <perm = [1, 0]> (w)
        y = MatMul(h, t)
        loss = ReduceSum <keepdims = 0> (y)
    }"""
    w, x = random(3, 3), random(2, 3)
    model = differentiate(parse(text, {"w": w}), "loss", ["w"])
    assert operators(model).count("InPlaceAccumulatorV2") == 1
    feeds = {"x": x, "w": w, "w_grad.accumulation.buffer": np.ones_like(w), "lazy_reset_grad": np.array([False])}
    after = run_step(ir.to_proto(model).SerializeToString(), feeds)
    ones = np.ones((2, 3), np.float32)
    expected = x.T @ (ones @ w) + ones.T @ (x @ w)  # of sum(x w w')
    np.testing.assert_allclose(after["after:w_grad.accumulation.buffer"] - 1, expected, rtol=1e-5)


def test_a_parameter_s_gradient_is_added_as_soon_as_it_is_there() -> None:
    model = differentiate(
        parse(TWO_LAYERS, {"first": random(3, 4), "second": random(4, 5)}), "loss", ["first", "second"]
    )
    nodes = list(model.graph)
    for node in nodes:
        if node.op_type == "InPlaceAccumulatorV2":
            gradient = node.inputs[1]
            assert gradient is not None
            assert nodes[nodes.index(node) - 1] is gradient.producer()


def test_operators_that_are_functions_are_differentiated_by_their_bodies() -> None:
    text = """g (float[2, 4, 3] x) => (float loss) {
        n = MeanVarianceNormalization <axes = [0, 2]> (x)
        y = Mul(n, w)
        m = MeanVarianceNormalization <axes = [0, 2]> (y)
        p = Mul(m, m)
        q = Mul(p, m)
        loss = ReduceSum <keepdims = 0> (q)
    }"""
    import torch

    w, x = random(2, 4, 3), random(2, 4, 1) * np.array([1.0, -2.0, 3.0], np.float32)
    model = differentiate(parse(text, {"w": w}), "loss", ["w"])
    feeds = {"x": x, "w": w, "w_grad.accumulation.buffer": np.zeros_like(w), "lazy_reset_grad": np.array([True])}
    after = run_step(ir.to_proto(model).SerializeToString(), feeds)

    def normalized(value: torch.Tensor) -> torch.Tensor:
        centred = value - value.mean((0, 2), keepdim=True)
        return centred / ((centred**2).mean((0, 2), keepdim=True).sqrt() + 1e-9)

    leaf = torch.tensor(w, dtype=torch.float64, requires_grad=True)
    (normalized(normalized(torch.tensor(x, dtype=torch.float64)) * leaf) ** 3).sum().backward()
    assert leaf.grad is not None
    np.testing.assert_allclose(after["after:w_grad.accumulation.buffer"], leaf.grad.numpy(), rtol=1e-3, atol=1e-4)


def test_all_operators_without_a_gradient_are_named_at_once() -> None:
    text = """g (float[3, 3] x, float[1, 5] grid) => (float loss) {
        h = Mul(x, w)
        d = Det(h)
        s = Reshape(h, shape)
        r = Reshape(d, one)
        u = MaxRoiPool <pooled_shape = [2, 2]> (s, grid)
        v = ReduceSum <keepdims = 0> (u)
        loss = Add(d, v)
    }"""
    arrays = {"w": random(3, 3), "shape": np.array([1, 1, 3, 3]), "one": np.array([1])}
    proto = parse(text, arrays)
    proto.opset_imports[""] = 16
    with pytest.raises(InputError, match=r"(?s)Det in .*MaxRoiPool in .*Freeze"):
        differentiate(proto, "loss", ["w"])


@pytest.mark.parametrize(
    ("nodes", "message"),
    [
        (
            "n, m = LayerNormalization(h, s)\ny = Add(n, m)",
            r"LayerNormalization \(its output 1, 'm', leads to the loss",
        ),
        ("n, , v = LayerNormalization(h, s)\ny = Mul(n, v)", r"LayerNormalization \(its output 2, 'v', leads to the"),
        ("l, p = SoftmaxCrossEntropyLoss(h, t)\ny = Add(p, l)", r"SoftmaxCrossEntropyLoss \(its output 1, 'p', leads"),
    ],
)
def test_what_a_rule_does_not_know_of_a_second_output_is_refused(nodes: str, message: str) -> None:
    """Its gradient would be left out without a word."""
    text = f"""g (float[4, 3] x) => (float loss) {{
        h = MatMul(x, w)
        {nodes}
        loss = ReduceSum <keepdims = 0> (y)
    }}"""
    proto = parse(text, {"w": random(3, 5), "s": random(5), "t": np.array([0, 1, 4, 2])})
    proto.opset_imports[""] = 17
    with pytest.raises(InputError, match=message):
        differentiate(proto, "loss", ["w"])


def test_what_a_rule_cannot_do_is_named_with_its_reason() -> None:
    text = """g (float[3] x, float[2, 3, 3] a) => (float loss) {
        p = Pow(x, e)
        y = MatMul(p, a)
        s = ReduceSum <keepdims = 0> (y)
        t = MatMul(x, w)
        loss = Add(s, t)
    }"""
    with pytest.raises(
        InputError,
        match=r"(?s)MatMul \(a vector times a stack.*Pow \(its trained exponent has another type",
    ):
        differentiate(parse(text, {"e": random(3).astype(np.float64), "w": random(3)}), "loss", ["e", "w"])


@pytest.mark.parametrize(
    ("loss", "parameters", "message"),
    [
        ("loss", ["third"], "no parameter 'third'"),
        ("nothing", ["first"], "computes no tensor 'nothing'"),
        ("y", ["first"], "no single real number"),
        ("loss", ["first", "aside"], "leads to 'aside'"),
    ],
)
def test_refusals_say_what_is_wrong(loss: str, parameters: list[str], message: str) -> None:
    model = parse(TWO_LAYERS, {"first": random(3, 4), "second": random(4, 5), "aside": random(3)})
    with pytest.raises(InputError, match=message):
        differentiate(model, loss, parameters)


def test_nodes_are_numbered_as_onnx_runtime_writes_them() -> None:
    """Leaves from the last to the first, of a node's sources the one with the largest number first."""
    model = parse(
        """g (float[3] x) => (float[3] y, float[3] z) {
            a = Neg(x)
            b = Abs(x)
            c = Add(a, b)
            y = Sub(c, a)
            z = Exp(b)
        }""",
        {},
    )
    nodes = list(model.graph)
    ordered = depth_first(nodes, {node: number for number, node in enumerate(nodes)})
    assert [node.op_type for node in ordered] == ["Abs", "Exp", "Neg", "Add", "Sub"]
