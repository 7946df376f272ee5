"""Heads that are rotated stay behind their tokens, as products make them."""

from __future__ import annotations

from collections import Counter

import pytest
from adapted_decoders import BATCH, JOIN, adapted, check_beside_many_nodes, rotating_decoder


@pytest.mark.parametrize(
    ("tables", "join", "transpositions"),
    [
        ("", JOIN, 0),
        ("_of_heads", JOIN, 2),  # of q, there and back
        ("", "h0 = Reshape(ty, flat) h1 = Reshape(q, flat) h = Add(h0, h1)", 2),
    ],
    ids=["both", "tables of heads", "another reader"],
)
def test_transpositions_go(monkeypatch: pytest.MonkeyPatch, tables: str, join: str, transpositions: int) -> None:
    """Loss and gradients are those of many nodes."""
    model = rotating_decoder(tables=tables, join=join)
    one = adapted(model.clone())
    found = Counter(node.op_type for node in one.training.graph)
    assert (found["Attend"], found["Rotate"], found["Transpose"]) == (1, 4, transpositions)
    check_beside_many_nodes(monkeypatch, one, model, BATCH)
