"""Nodes that draw, or would, and may not be meant so."""

from __future__ import annotations

import numpy as np
import pytest
from forward_models import parse, random, step

import poet_onnx
from poet_onnx.errors import PoetWarning


def test_a_draw_that_the_runtime_inverts_is_warned_of() -> None:
    """The mean of many draws shows that it does: the warning must go when a runtime has mended it."""
    text = """g (float[1, 10000] x) => (float[1, 10000] y) {
        kept = Bernoulli <seed = 1.0> (often)
        y = Mul(kept, w)
    }"""
    often = np.full((1, 10000), 0.9, np.float32)
    with pytest.warns(PoetWarning, match="1 with probability 1 - p"):
        made = poet_onnx.train_graph(
            parse(text, {"w": np.ones((1, 10000), np.float32), "often": often}), loss="l1", train="w"
        )
    loss, _ = step(made, target=np.zeros((1, 10000), np.float32), x=often)
    assert loss == pytest.approx(0.1, abs=0.02)


@pytest.mark.parametrize("inputs", ["x", "x, half", "x, half, off"])
def test_a_dropout_that_was_exported_for_inference_is_warned_of(inputs: str) -> None:
    text = f"g (float[4, 3] x) => (float[4, 5] y) {{ d = Dropout({inputs})\n y = MatMul(d, w) }}"
    arrays = {"w": random(3, 5), "half": np.float32(0.5), "off": np.array(False)}
    used = {name: array for name, array in arrays.items() if name == "w" or name in inputs}
    with pytest.warns(PoetWarning, match=r"Dropout 'Dropout:d' was exported for inference and drops nothing"):
        poet_onnx.train_graph(parse(text, used))


@pytest.mark.parametrize(("ratio", "trains"), [(0.5, True), (0.0, False)])
def test_one_that_drops_or_has_nothing_to_drop_is_not(ratio: float, trains: bool) -> None:
    text = "g (float[4, 3] x) => (float[4, 5] y) { d = Dropout(x, ratio, on)\n y = MatMul(d, w) }"
    arrays = {"w": random(3, 5), "ratio": np.float32(ratio), "on": np.array(trains)}
    poet_onnx.train_graph(parse(text, arrays))
