"""Every node that is written is one of the opset that its model declares, whatever opset the model is exported with."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest
import torch
from deep import sampled
from gradient_case import Array, Case, forward
from gradient_cases import CASES
from lowering_runs import run_on_stock, run_step
from stock_environment import NEEDS_STOCK
from torch.nn import functional

import poet_onnx
from poet_onnx.errors import InputError
from poet_onnx.gradients.differentiate import differentiate
from poet_onnx.graph.operators import ONNX_DOMAINS
from poet_onnx.passes.lowering import prepare

OPSETS = (13, 18, 24)
"""The oldest, one after the last change of attributes to inputs, and one that onnxruntime-training must not see."""

RUNTIMES_OWN = frozenset(("ConvGrad", "MaxPoolGrad", "AveragePoolGrad", "SinGrad", "LayerNormalization"))
"""What ONNX Runtime adds to ONNX's domain: its LayerNormalization is there in opsets 1 to 16, too."""


def misfits(model: ir.Model) -> Iterator[str]:
    """Yield the nodes that are not of the declared opset, by attributes or numbers of inputs and outputs."""
    opset = model.opset_imports[""]
    for node in model.graph:
        if node.domain not in ONNX_DOMAINS or node.op_type in RUNTIMES_OWN:
            continue
        if not onnx.defs.has(node.op_type, opset, ""):
            yield f"{node.op_type}: not in opset {opset}"
            continue
        schema = onnx.defs.get_schema(node.op_type, opset, "")
        fits = schema.min_input <= len(node.inputs) <= schema.max_input and len(node.outputs) <= schema.max_output
        unknown = node.attributes.keys() - schema.attributes.keys()
        if unknown or not fits:
            yield f"{node.op_type} of opset {opset}: {sorted(unknown)}, {len(node.inputs)} inputs"


def misfits_of(cases: Sequence[Case], opset: int, target: str) -> Iterator[str]:
    """Yield the misfits of a training graph for each case, and "" for one that has none."""
    for each in cases:
        case = replace(each, opset=opset, single="as most models are")
        model = ir.from_proto(forward(case, case.arrays(), np.ones((), np.float32)))
        if list(misfits(model)):
            continue  # the case itself says what this opset has not
        try:
            made = differentiate(model, "loss", list(case.inputs))
            prepare(target=target)(made)
        except InputError:  # a constant is double, or the target has no kernel
            continue
        yield ", ".join(f"{case.name}: {misfit}" for misfit in misfits(made))


@pytest.mark.parametrize(("opset", "target"), sampled([(13, "training"), (18, "stock")], (18, "stock")))
def test_what_is_written_for_an_operator_is_of_the_models_opset(opset: int, target: str) -> None:
    found = list(misfits_of(CASES[::4], opset, target))
    assert not any(found), list(filter(None, found))
    assert len(found) > len(CASES) / 8


@pytest.mark.deep
@pytest.mark.parametrize("target", ["training", "stock"])
@pytest.mark.parametrize("opset", OPSETS)
def test_what_is_written_for_every_operator_is_of_the_models_opset(opset: int, target: str) -> None:
    found = list(misfits_of(CASES, opset, target))
    assert not any(found), list(filter(None, found))
    assert len(found) > len(CASES) / 2


WEIGHTS = (0.5, 2.0, 1.0, 0.25, 3.0)
LOSSES: tuple[dict[str, Any], ...] = (
    {},
    {"label_smoothing": 0.1},
    {"label_smoothing": 0.2, "ignore_index": 2, "class_weights": WEIGHTS},
)


def losses_for(target: str) -> Iterator[tuple[str, bytes, dict[str, Array], float]]:
    """Yield training graphs of every opset and form of cross-entropy: a name, the model, feeds, and torch's loss."""
    text = "g (float[4, 3, 6] x) => (float[4, 5, 6] y) { y = Conv(x, w) }"
    draw = np.random.default_rng(0)
    x, w = (draw.standard_normal(shape).astype(np.float32) for shape in ((4, 3, 6), (5, 3, 1)))
    labels = draw.integers(0, 5, (4, 6))
    scores = functional.conv1d(torch.tensor(x), torch.tensor(w))
    feeds = {"x": x, "labels": labels, "w": w, "w_grad.accumulation.buffer": np.zeros_like(w)}
    for opset in (13, 17, 18, 21, 22, 24):
        model = onnx.parser.parse_model(f'<ir_version: 10, opset_import: ["" : {opset}]> {text}')
        model.graph.initializer.append(onnx.numpy_helper.from_array(w, "w"))
        for number, options in enumerate(LOSSES):
            training = poet_onnx.train_graph(model, **options).training
            prepare(target=target)(training)
            assert not list(misfits(training))
            asked = {"weight" if key == "class_weights" else key: value for key, value in options.items()}
            if "weight" in asked:
                asked["weight"] = torch.tensor(asked["weight"])
            expected = functional.cross_entropy(scores, torch.tensor(labels), **asked).item()
            payload = ir.to_proto(training).SerializeToString()
            yield f"{opset}-{number}", payload, {**feeds, "lazy_reset_grad": np.ones(1, bool)}, expected


def test_smoothed_cross_entropy_is_torchs_in_every_opset() -> None:
    for name, model, feeds, expected in losses_for("training"):
        assert run_step(model, feeds)["loss"] == pytest.approx(expected, rel=1e-6), name


@NEEDS_STOCK
def test_smoothed_cross_entropy_is_torchs_in_every_opset_on_the_stock_runtime(tmp_path: Path) -> None:
    cases = list(losses_for("stock"))
    found = run_on_stock(tmp_path, [case[:3] for case in cases])
    for name, _, _, expected in cases:
        assert found[name]["loss"] == pytest.approx(expected, rel=1e-6), name
