"""Rotate and Attend read heads in rows, as products make them, and no Reshape is left between them."""

from __future__ import annotations

from collections import Counter

import onnx_ir as ir
import pytest
from adapted_decoders import BATCH, adapted, check_beside_many_nodes, rotating_decoder

import poet_onnx

OPEN = "r{x} = Reshape(m{x}, open)"
FROM_ROWS_OF_ALL = "g{x} = Reshape(m{x}, rows) r{x} = Reshape(g{x}, heads)"
TWICE = "h0 = Reshape(ty, flat) z = Neg(ty) h1 = Reshape(z, flat) h = Add(h0, h1)"


def heads_of(graph: poet_onnx.TrainGraph) -> dict[str, list[list[int]]]:
    """Return the attributes of Attend and Rotate."""
    found: dict[str, list[list[int]]] = {"Attend": [], "Rotate": []}
    for node in graph.training.graph:
        if node.op_type in found:
            value = node.attributes["heads"]
            is_list = value.type == ir.AttributeType.INTS
            found[node.op_type].append(list(value.as_ints()) if is_list else [value.as_int()])
    return found


@pytest.mark.parametrize(
    ("model", "heads", "reshapes"),
    [
        (rotating_decoder(split=OPEN), {"Attend": [[4, 4, 4, 4]], "Rotate": [[4]] * 4}, 1),
        (rotating_decoder(split=FROM_ROWS_OF_ALL), {"Attend": [[0, 0, 0, 4]], "Rotate": [[0]] * 4}, 13),
        (rotating_decoder(split=OPEN, join=TWICE), {"Attend": [[4, 4, 4, 0]], "Rotate": [[4]] * 4}, 5),
    ],
    ids=["all in rows", "rows of all samples", "another reader"],
)
def test_reshapes_go(
    monkeypatch: pytest.MonkeyPatch, model: ir.Model, heads: dict[str, list[list[int]]], reshapes: int
) -> None:
    """Loss and gradients are those of many nodes; one Reshape is of the loss."""
    one = adapted(model.clone())
    assert heads_of(one) == heads
    assert Counter(node.op_type for node in one.training.graph)["Reshape"] == reshapes
    check_beside_many_nodes(monkeypatch, one, model, BATCH)
