"""Operators of ours that a training graph has: a graph with them is one to be rewritten."""

from __future__ import annotations

import onnx_ir as ir

from poet_onnx.description.names import POET_DOMAIN
from poet_onnx.gradients import rules
from poet_onnx.gradients.registry import gradient
from poet_onnx.graph.operators import SPECS


def test_what_is_differentiated_and_its_gradient_are_of_training_graphs() -> None:
    assert rules.__doc__  # they are registered when they are imported
    own = {name: spec for (domain, name), spec in SPECS.items() if domain == POET_DOMAIN}
    forward = {name for name in own if gradient(ir.Node(POET_DOMAIN, name, []))}
    backward = {
        name for name in own if name.endswith("Gradient") and any(name.startswith(of) and name != of for of in forward)
    }
    assert {"AddLowRankGradient", "AddLowRankWeightGradient"} <= backward
    assert {name for name, spec in own.items() if spec.of_graphs} == forward | backward
