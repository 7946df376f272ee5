"""Models with sizes and attributes that no tensor can have are refused in one sentence that names the node."""

from __future__ import annotations

import numpy as np
import onnx
import pytest

import poet_onnx
from poet_onnx.errors import InputError

HEAD = '<ir_version: 8, opset_import: ["" : 17]>'
MODELS = {
    "perm": ("g (float[2, 3, 4] x) => (float[2, 5] y) { t = Transpose <perm = [1, 0]> (x) y = MatMul(t, w) }", "perm"),
    "batch": (f"g (float[{2**62}, 4] x) => (float[{2**62}, 5] y) {{ y = MatMul(x, w) }}", "more than a process can"),
    "negative": ("g (float[-2, 4] x) => (float[-2, 5] y) { y = MatMul(x, w) }", "(?i)negative|shape"),
    "padding": (
        f"g (float[2, 4] x) => (float[2, 5] y) <int64[4] pads = {{0, {2**31}, 0, {2**61}}}>"
        "{ p = Pad(x, pads) s = ReduceSum <keepdims = 1> (p) h = MatMul(x, w) y = Add(h, s) }",
        "Pad",
    ),
    "type": ('g (float[2, 3] x) => (float[2, 5] y) { t = Transpose <perm = "1"> (x) y = MatMul(t, w) }', "perm"),
}


@pytest.mark.parametrize("name", MODELS)
def test_what_no_tensor_can_be_is_refused_in_one_sentence(name: str) -> None:
    text, says = MODELS[name]
    model = onnx.parser.parse_model(f"{HEAD} {text}")
    model.graph.initializer.append(onnx.numpy_helper.from_array(np.ones((4, 5), np.float32), "w"))
    with pytest.raises(InputError, match=says) as refusal:
        poet_onnx.train_graph(model)
    assert "\n" not in str(refusal.value)


def test_no_classes_are_refused() -> None:
    model = onnx.parser.parse_model(f"{HEAD} g (float[2, 4] x) => (float[2, 0] y) {{ y = MatMul(x, w) }}")
    model.graph.initializer.append(onnx.numpy_helper.from_array(np.ones((4, 0), np.float32), "w"))
    with pytest.raises(InputError, match="no numbers: choose"):
        poet_onnx.train_graph(model)
