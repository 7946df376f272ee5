"""Models of thousands of nodes in a row: whoever follows them does so without recursion."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import pytest
from deep import sampled
from forward_models import parse, random

import poet_onnx
from poet_onnx.gradients.forward.random_masks import masks_as_dropout
from poet_onnx.passes.generation.branches import choose_branches
from poet_onnx.passes.generation.expansion import columns_of
from poet_onnx.torch.zero_biases import drop_zero_biases

CONSTANTS = {
    "rows": np.array([64, 4], np.int64),
    "begin": np.array([0], np.int64),
    "end": np.array([64], np.int64),
}
LINKS = {
    "Reshape": "Reshape(LAST, rows)",
    "Slice": "Slice(LAST, begin, end)",
    "Identity": "Identity(LAST)",
    "Relu": "Relu(LAST)",
    "Add": "Add(LAST, h)",
    "Neg": "Neg(LAST)",
}


def chain(link: str, count: int, tail: str = "y = Relu(LAST)") -> ir.Model:
    """Return a linear layer, a link of so many nodes in a row behind it, and what follows."""
    lines, last = [], "h"
    for number in range(count):
        lines.append(f"c{number} = {LINKS[link].replace('LAST', last)}")
        last = f"c{number}"
    nodes = "\n".join(["h = MatMul(x, w)", *lines, tail.replace("LAST", last)])
    arrays = {"w": random(4, 4), **{name: each for name, each in CONSTANTS.items() if name in nodes}}
    return parse(f"g (float[64, 4] x) => (float[64, 4] y) {{ {nodes} }}", arrays)


@pytest.mark.parametrize(("link", "count"), sampled([(link, 2000) for link in LINKS], ("Reshape", 2000)))
def test_a_long_chain_is_rewritten(link: str, count: int) -> None:
    result = poet_onnx.rewrite(chain(link, count), loss="mse", target="stock", device="a72", ram_budget="100MiB")
    assert len(result.graph.nodes) > count


@pytest.mark.deep
def test_a_long_chain_of_slices_keeps_its_bits() -> None:
    made = poet_onnx.train_graph(chain("Slice", 600), loss="mse")
    result = poet_onnx.rewrite(made.training, target="stock", device="a72", activation_budget="100%")
    report = poet_onnx.verify(made.training, result.model)
    assert report.passed, report.problems


def repeated(node: str, first: str, count: int = 2000) -> tuple[str, str]:
    """Return nodes in a row, each of which reads the one before (OLD), and what the last one makes."""
    lines = [f"r{number} = {node.replace('OLD', f'r{number - 1}' if number else first)}" for number in range(count)]
    return "\n".join(lines), f"r{count - 1}"


def test_a_root_of_a_sum_that_is_scaled_many_times_has_its_gradient() -> None:
    nodes, last = repeated("Mul(OLD, factor)", "sum")
    text = f"""h = MatMul(x, w) square = Mul(h, h) sum = ReduceSum(square) factor = Constant <value_float = 1.001> ()
        {nodes} root = Sqrt({last}) y = Mul(x, root)"""
    model = parse(f"g (float[64, 4] x) => (float[64, 4] y) {{ {text} }}", {"w": random(4, 4)})
    made = poet_onnx.train_graph(model, loss="mse").training
    assert "Equal" in {node.op_type for node in made.graph}  # the gradient is 0 where the sum is


def test_a_mask_whose_probability_is_cast_many_times_is_a_dropout() -> None:
    nodes, last = repeated("Cast <to = 1> (OLD)", "kept")
    text = f"""kept = Constant <value_float = 0.9> () {nodes} drawn = RandomUniform <shape = [4]> ()
        is_less = Less(drawn, {last}) mask = Cast <to = 1> (is_less) y = Mul(x, mask)"""
    model = parse(f"g (float[4] x) => (float[4] y) {{ {text} }}", {})
    assert masks_as_dropout(model)


def test_a_mask_of_the_type_of_what_was_copied_many_times_is_a_dropout() -> None:
    nodes, last = repeated("Identity(OLD)", "x")
    text = f"""kept = Constant <value_float = 0.9> () {nodes} drawn = RandomUniform <shape = [4]> ()
        is_less = Less(drawn, kept) mask = CastLike(is_less, {last}) y = Mul(x, mask)"""
    model = parse(f"g (float[4] x) => (float[4] y) {{ {text} }}", {})
    assert masks_as_dropout(model)


def test_a_length_that_is_copied_many_times_chooses_a_branch() -> None:
    nodes, last = repeated("Identity(OLD)", "length")
    text = f"""sizes = Shape(mask) one = Constant <value_int = 1> () length = Gather(sizes, one) {nodes}
        limit = Constant <value_int = 100> () is_long = Greater({last}, limit)
        y = If (is_long) <then_branch = t () => (float[1] a) {{ a = Constant <value_floats = [1.0]> () }},
            else_branch = e () => (float[1] b) {{ b = Constant <value_floats = [2.0]> () }}>"""
    model = parse(f"g (int64[1, T] mask) => (float[1] y) {{ {text} }}", {})
    choose_branches(model.graph, "mask", 64)
    assert "If" not in {node.op_type for node in model.graph}


def test_rows_behind_many_sums_have_a_width() -> None:
    nodes, last = repeated("Add(OLD, OLD)", "h")
    model = parse(
        f"g (float[A, B] x) => (float[A, B] y) {{ h = MatMul(x, w) {nodes} y = Relu({last}) }}", {"w": random(4, 6)}
    )
    found = next(value for node in model.graph for value in node.outputs if value.name == last)
    assert columns_of(found) == 6


def test_a_bias_of_a_zero_that_is_cast_many_times_is_dropped() -> None:
    nodes, last = repeated("Cast <to = 1> (OLD)", "zero")
    text = f"zero = Constant <value_float = 0.0> () {nodes} y = Conv(x, w, {last})"
    model = parse(f"g (float[1, 1, 4, 4] x) => (float[1, 1, 4, 4] y) {{ {text} }}", {"w": random(1, 1, 1, 1)})
    drop_zero_biases(model)
    assert [node.op_type for node in model.graph] == ["Conv"]
