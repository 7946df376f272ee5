"""What is trained is no constant to the passes that write single nodes."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from forward_models import parse

from poet_onnx.passes.fused.fuse import fuse_layers
from poet_onnx.passes.normalize import WriteShapes

ONE, TWO = np.array(1, np.float32), np.array([1, 2], np.float32)
CASES = {
    "a factor": ("b = Mul(beta, x) s = Sigmoid(b) a = Mul(x, s) y = Mul(a, u)", {"beta": ONE}, "GatedActivate"),
    "an epsilon": (
        "p = Mul(x, x) m = ReduceMean<axes = [-1]>(p) a = Add(m, beta) s = Sqrt(a) n = Div(x, s) y = Add(n, u)",
        {"beta": ONE},
        "RmsNormalize",
    ),
    "a view": (
        "r = Reshape(beta, shape) s = Mul(x, r) y = Add(s, u)",
        {"beta": TWO, "shape": np.array([2, 1])},
        "",
    ),
}


@pytest.mark.parametrize("trained", [[], ["beta"]])
@pytest.mark.parametrize(("body", "arrays", "node"), CASES.values(), ids=CASES)
def test_numbers_that_are_trained_stay(
    body: str, arrays: dict[str, np.ndarray], node: str, trained: Sequence[str]
) -> None:
    model = parse(f"g (float[2, 8] x, float[2, 8] u) => (float[2, 8] y) {{ {body} }}", arrays)
    WriteShapes()(model)
    before = [each.op_type for each in model.graph]
    fuse_layers(model, trained)
    after = [each.op_type for each in model.graph]
    assert (after == before) == bool(trained)
    assert (node in after) == (bool(node) and not trained)
    kept = model.graph.initializers.get("beta")
    assert not trained or (kept is not None and kept.const_value is not None)
