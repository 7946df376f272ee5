"""A Sum of many gradients becomes a chain of additions with the same bits, so that parts of a gradient die early."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import onnx
import onnx_ir as ir
import pytest
from folders import SUPPORT
from onnx import helper
from small_models import export_small
from stock_environment import EACH_PYTHON

from poet_onnx import rewrite
from poet_onnx.graph.extract import load_model
from poet_onnx.passes import ChainSums
from poet_onnx.verification import verify

STEPS, WIDTH = 12, 32


@pytest.mark.parametrize("python", EACH_PYTHON)
def test_a_chain_has_the_bits_of_the_kernel(python: str) -> None:
    command = [python, str(SUPPORT / "sum_bits.py"), "200"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert json.loads(done.stdout) == {"cases": 200, "different": []}


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


@pytest.mark.parametrize("target", ["training", "stock"])
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
    g (float16[4] h, float[4] x) => (float16[4] y, float[4] z, float[4] o)
    { y = Sum(h, h, h)  z = Sum(x, x)  o = Sum(x) }"""
    model = ir.from_proto(onnx.parser.parse_model(text))
    assert not ChainSums()(model).modified
    assert [node.op_type for node in model.graph] == ["Sum"] * 3
