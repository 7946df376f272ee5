"""What a session that checks a model gives to ONNX Runtime."""

from __future__ import annotations

from pathlib import Path

import onnx
from generation_models import DIMS, decoder

import poet_onnx
from poet_onnx import Lora
from poet_onnx.verification import verify


def test_codes_of_4_bits_are_checked_in_files_beside_the_model(tmp_path: Path) -> None:
    """Numpy knows no such type, so that ONNX Runtime takes no arrays of them."""
    path = tmp_path / "model.onnx"
    onnx.save(decoder(), path, save_as_external_data=True, size_threshold=0)
    asked = {"loss": "causal-lm", "lora": Lora("*o_proj*", rank=2), "dims": DIMS, "optimizer": "sgd"}
    result = poet_onnx.rewrite(path, device="a72", target="stock", **asked)
    assert result.train_graph is not None
    assert verify(result.train_graph.training, result.model, feeds=1).passed
