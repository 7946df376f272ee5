"""A Sum of many gradients, and its like, become chains with the same bits, so that parts of a gradient die early."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import onnx
import onnx_ir as ir
import pytest
from deep import sampled
from folders import SUPPORT
from forward_models import parse, random
from onnx import helper
from small_models import export_small
from stock_environment import EACH_PYTHON, STOCK_PYTHON

from poet_onnx import rewrite
from poet_onnx.graph.extract import load_model
from poet_onnx.passes import ChainOperands
from poet_onnx.verification import verify

STEPS, WIDTH = 12, 32


@pytest.mark.deep
@pytest.mark.parametrize("python", EACH_PYTHON)
def test_a_chain_has_the_bits_of_the_kernel(python: str) -> None:
    command = [python, str(SUPPORT / "sum_bits.py"), "400"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert json.loads(done.stdout) == {"cases": 400, "different": []}


EACH_TARGET = sampled([("training", sys.executable), ("stock", STOCK_PYTHON)], ("stock", STOCK_PYTHON))
OPERANDS = (1, 64), (128, 1), (128, 64), (1, 1), (128, 64), (1, 64)


@pytest.mark.parametrize(("target", "python"), EACH_TARGET)
def test_nothing_of_many_operands_comes_from_malloc(target: str, python: str | None, tmp_path: Path) -> None:
    """The kernel of more than three operands keeps results in two buffers of its own, beside its output."""
    if python is None:
        pytest.skip("needs the stock runtime")
    text, arrays, last = "", {}, "x"
    for op in ("Max", "Min", "Mean", "Sum"):
        names = [f"{op}{number}" for number in range(len(OPERANDS))]
        arrays |= {name: random(*shape) for name, shape in zip(names, OPERANDS, strict=True)}
        text += f"{op}_y = {op}({', '.join([last, *names])})\n"
        last = f"{op}_y"
    net = parse(f"g (float[128, 64] x) => (float[128, 64] {last}) {{ {text} }}", arrays)
    plain = {"device": "a72", "loss": "mse", "target": target, "train": "*", "gap": 0.5}
    ordered = rewrite(net, **plain)
    result = rewrite(net, **plain, activation_budget=ordered.rewritten.transient_peak_bytes)
    result.save(tmp_path / "out.onnx")
    planned = ("out.onnx", "out.eval.onnx") if target == "stock" else ("out.onnx",)
    command = [python, str(SUPPORT / "arena_runs.py"), "1", *(str(tmp_path / name) for name in planned)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert (done.returncode, done.stdout) == (0, ""), done.stderr


@pytest.fixture(scope="module")
def recurrence(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the training graph of a recurrent net that is unrolled: every step reads the same weights."""
    nodes = [helper.make_node("Split", ["x"], [f"x{step}" for step in range(STEPS)], axis=1)]
    state = "start"
    for step in range(STEPS):
        nodes += [
            helper.make_node("Gemm", [f"x{step}", "w_in", "b"], [f"in{step}"]),
            helper.make_node("Gemm", [state, "w_state"], [f"carried{step}"]),
            helper.make_node("Add", [f"in{step}", f"carried{step}"], [f"sum{step}"]),
            helper.make_node("Tanh", [f"sum{step}"], [f"state{step}"]),
        ]
        state = f"state{step}"
    nodes.append(helper.make_node("Gemm", [state, "w_out"], ["scores"]))
    shapes = {"start": (2, WIDTH), "w_in": (WIDTH, WIDTH), "b": (WIDTH,), "w_state": (WIDTH, WIDTH)}
    return export_small(
        tmp_path_factory.mktemp("recurrence"),
        nodes,
        {**shapes, "w_out": (WIDTH, 5)},
        x=(2, STEPS * WIDTH),
        classes=5,
        frozen=["start"],
    )


@pytest.mark.parametrize("target", sampled(["training", "stock"], "training"))
def test_parts_of_a_weight_gradient_do_not_wait_for_each_other(recurrence: Path, target: str, tmp_path: Path) -> None:
    operands = [len(node.inputs) for node in load_model(recurrence).graph if node.op_type == "Sum"]
    assert sorted(operands)[-2:] == [STEPS, STEPS]
    result = rewrite(recurrence, device="a72", target=target, time_limit_seconds=10)
    weight_bytes = 4 * WIDTH * WIDTH
    assert result.ordered.transient_peak_bytes < STEPS * weight_bytes / 2
    if target == "training":
        result.save(tmp_path / "out.onnx")
        assert verify(recurrence, tmp_path / "out.onnx", feeds=2).problems == ()


def test_other_sums_stay() -> None:
    text = """<ir_version: 8, opset_import: ["" : 15]>
    g (float16[4] h, float[4] x) => (float16[4] y, float[4] z, float[4] o, float16[4] m)
    { y = Sum(h, h, h)  z = Sum(x, x)  o = Sum(x)  m = Mean(h, h, h) }"""
    model = ir.from_proto(onnx.parser.parse_model(text))
    assert not ChainOperands()(model).modified
    assert [node.op_type for node in model.graph] == ["Sum"] * 3 + ["Mean"]
