"""Frozen floats become weights of few bits."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import pytest

from poet_onnx.passes.quantized import blocks
from poet_onnx.passes.quantized.quantize import Quantizable, QuantizeWeights


@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("turns", [False, True])
def test_some_rows_at_a_time_give_the_codes_of_all_at_once(
    monkeypatch: pytest.MonkeyPatch, bits: int, *, turns: bool
) -> None:
    array = np.random.default_rng(0).standard_normal((46, 70), np.float32)

    def made(most: int) -> list[bytes]:
        monkeypatch.setattr(blocks, "_FLOATS_AT_ONCE", most)
        value = ir.Value(name="w", const_value=ir.tensor(array, name="w"))
        graph = ir.Graph([], [], nodes=[], initializers=[value], opset_imports={"": 21})
        QuantizeWeights((Quantizable(value, turns),), bits, 32)(ir.Model(graph, ir_version=10))
        return [each.const_value.tobytes() for each in graph.initializers.values() if each.const_value is not None]

    rows, columns = array.T.shape if turns else array.shape
    whole = made(1 << 18)
    assert [len(each) for each in whole] == [rows * columns * bits // 8, rows * 3 * 4 if columns > 64 else rows * 2 * 4]
    assert made(7 * columns) == made(1) == whole
