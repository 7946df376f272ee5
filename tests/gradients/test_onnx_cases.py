"""Gradients of the cases with which ONNX tests its operators: right on both runtimes, or refused in a sentence."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from typing import Any

import onnx_ir as ir
import pytest
from folders import SUPPORT
from stock_environment import NEEDS_STOCK, STOCK_PYTHON

from poet_onnx.gradients import rules
from poet_onnx.gradients.registry import gradient

SCRIPT = SUPPORT / "onnx_cases.py"

REFUSALS = (
    r"The gradient of these operators is not known",
    r"Control flow and quantized operators cannot be differentiated",
    r"holds a subgraph: only graphs without control flow",
    r"No gradient of '.*' leads to",
    r"Nothing is left to train",
    r"is a sequence: only tensors of numbers",
    r"is not known before the step runs",
    r"The size of tensor .* is not known",
    r"imports no version of domain",
    r"which inference does not compute",
    r"is unknown in ONNX opset",
    r"has shape .*, no numbers: choose",
    r"is declared as .*: export the model again",
)
"""How the reasons begin for which a case may have no gradient."""

UNCHECKED = (
    r"of random numbers is (nan|inf)",  # logarithms, arcs
    r"ratio must be in the range",  # of a Dropout whose ratio is drawn
    r"NOT_IMPLEMENTED",
    r"^\w+_empty_set(_expanded)?: No parameter of the model has an element",  # no number to compare
)
"""Why a gradient may not be compared with differences, behind the case's name."""

EVALUATED_OTHERWISE = (
    "test_resize_downsample_scales_cubic_align_corners",
    "test_resize_downsample_scales_linear_align_corners",
)
"""Cases in which ONNX Runtime and ONNX's reference evaluator, which stands for double precision, do not agree."""

UNDECIDED = ("Acos", "Asin", "Atanh", "ReduceLogSumExp")
"""Operators that do not take any number, or of which all cases but one are in double precision."""


def has_rule(operator: str) -> bool:
    """Return whether the operator, alone and by name, is one whose gradient is known."""
    assert rules.__doc__  # they are registered when they are imported
    known = gradient(ir.node(operator, []))
    return known is not None and known.rule is not None


def named(found: dict[str, Any]) -> str:
    """Return what is said of a case, behind its name."""
    return f"{found['case']}: {found['message']}"


def verdicts(python: str) -> list[dict[str, Any]]:
    """Return what the runtime of an interpreter makes of the cases."""
    done = subprocess.run([python, str(SCRIPT)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    found: list[dict[str, Any]] = json.loads(done.stdout)
    return found


@pytest.mark.deep
def test_no_gradient_is_wrong_on_the_training_runtime() -> None:
    """But it does not write what a sequence without a step has in a ReverseSequence: that is as the memory was."""
    found = verdicts(sys.executable)
    wrong = [each["case"] for each in found if each["verdict"] == "wrong"]
    assert set(wrong) <= {"test_reversesequence_batch"}
    assert sum(each["verdict"] == "right" for each in found) > len(found) // 2


@pytest.mark.deep
@NEEDS_STOCK
def test_gradients_of_onnx_s_own_cases() -> None:
    found = verdicts(STOCK_PYTHON)
    assert [each for each in found if each["verdict"] == "wrong"] == []
    refused = [each for each in found if each["verdict"] == "refused"]
    assert [each for each in refused if not any(re.search(reason, each["message"]) for reason in REFUSALS)] == []
    unchecked = [each for each in found if each["verdict"] == "unchecked" and each["case"] not in EVALUATED_OTHERWISE]
    assert [each for each in unchecked if not any(re.search(reason, named(each)) for reason in UNCHECKED)] == []
    right = {operator for each in found if each["verdict"] == "right" for operator in each["operators"]}
    tried = {operator for each in found for operator in each["operators"]}
    assert len(right) > len(tried) // 3
    assert sorted(name for name in tried - right if has_rule(name)) == sorted(UNDECIDED)
