"""Each index of an Einsum gets a letter, and what the kernel takes besides is in the plan."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx_ir as ir
import pytest
from forward_models import parse, random

import poet_onnx
from poet_onnx.passes.einsum import indices_of
from poet_onnx.runtime import count_arena


@pytest.mark.parametrize(
    ("equation", "ranks", "expected"),
    [
        ("...j,jk", (3, 2), (["abj", "jk"], "abk")),
        ("i...,j...->ij...", (3, 2), (["iab", "jb"], "ijab")),
        ("ba,ac", (2, 2), (["ba", "ac"], "bc")),
        ("ii->i", (2,), (["ii"], "i")),
        ("a b , b c -> a c", (2, 2), (["ab", "bc"], "ac")),
    ],
)
def test_what_dots_stand_for(equation: str, ranks: tuple[int, ...], expected: tuple[list[str], str]) -> None:
    assert indices_of(equation, ranks) == expected
    operands = [random(*(3,) * rank) for rank in ranks]
    terms, result = expected
    named = np.einsum(f"{','.join(terms)}->{result}", *operands)
    np.testing.assert_allclose(np.einsum(equation, *operands), named, rtol=1e-5)


def network() -> ir.Model:
    text = """g (float[8, 32, 64] x) => (float[8, 32, 48] y) {
        h = Einsum <equation = "...j,jk"> (x, first) t = Tanh(h)
        y = Einsum <equation = "...k,kl -> ...l"> (t, second) }"""
    return parse(text, {"first": random(64, 32), "second": random(32, 48)})


def test_nothing_is_taken_outside_of_the_plan(tmp_path: Path) -> None:
    path = tmp_path / "net.onnx"
    poet_onnx.rewrite(network(), loss="mse", device="a72", target="stock", optimizer="sgd").save(path)
    session = poet_onnx.TrainingSession(path, path.with_suffix(".safetensors"))
    with count_arena() as counter:
        session.step(random(8, 32, 64), random(8, 32, 48))
        assert counter.statistics.unplanned == 0 < counter.statistics.planned
