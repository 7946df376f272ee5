"""Maximum pooling: a node of ours where only its gradient asks for the places, else ONNX Runtime's."""

from __future__ import annotations

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime
import pytest
import torch
from torch.nn import functional

from poet_onnx.passes.lowering import lower
from poet_onnx.passes.normalize import normalize
from poet_onnx.runtime import session_options

HEADER = '<ir_version: 8, opset_import: ["" : 15, "com.microsoft" : 1]>'
WINDOW = "<kernel_shape = [2, 2], strides = [2, 2]>"


def pooled(pool: str = WINDOW, gradient: str = WINDOW, *, more: str = "", outputs: str = "") -> ir.Model:
    """Return a lowered model of a MaxPool and its gradient."""
    text = f"""{HEADER} g (float[1, 2, 5, 5] x, float[1, 2, 2, 2] d) => (float[1, 2, 5, 5] dx{outputs}) {{
        y, i = MaxPool {pool} (x)
        dx = com.microsoft.MaxPoolGrad {gradient} (d, i)
        {more}
    }}"""
    model = ir.from_proto(onnx.parser.parse_model(text))
    normalize()(model)
    lower(model, "stock")
    return model


@pytest.mark.parametrize(
    ("model", "is_ours"),
    [
        (pooled(), True),
        (pooled(outputs=", int64[1, 2, 2, 2] i"), False),
        (pooled(more="z = Neg (i)", outputs=", int64[1, 2, 2, 2] z"), False),
        (pooled(gradient="<kernel_shape = [2, 2], strides = [1, 1]>"), False),
    ],
    ids=["the gradient alone", "an output", "another reader", "another window"],
)
def test_places_stay_for_others(model: ir.Model, *, is_ours: bool) -> None:
    operators = {node.op_type for node in model.graph}
    assert operators >= ({"MaxPoolTaps", "MaxPoolGradient"} if is_ours else {"MaxPool", "ScatterElements"})
    random = np.random.default_rng(1)
    feeds = {
        "x": random.standard_normal((1, 2, 5, 5), np.float32),
        "d": random.standard_normal((1, 2, 2, 2), np.float32),
    }
    session = onnxruntime.InferenceSession(ir.to_proto(model).SerializeToString(), session_options())
    found = session.run(["dx"], feeds)[0]
    leaf = torch.tensor(feeds["x"], requires_grad=True)
    functional.max_pool2d(leaf, 2, 2).backward(torch.tensor(feeds["d"]))
    assert leaf.grad is not None
    np.testing.assert_array_equal(found, leaf.grad.numpy())
