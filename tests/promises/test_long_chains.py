"""Models of thousands of nodes in a row: whoever follows them does so without recursion."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import pytest
from deep import sampled
from forward_models import parse, random

import poet_onnx

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


def test_a_long_chain_of_slices_keeps_its_bits() -> None:
    made = poet_onnx.train_graph(chain("Slice", 600), loss="mse")
    result = poet_onnx.rewrite(made.training, target="stock", device="a72", activation_budget="100%")
    report = poet_onnx.verify(made.training, result.model)
    assert report.passed, report.problems
