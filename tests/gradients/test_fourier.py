"""One-sided inverse transforms, which onnxruntime-training does not have, beside torch's on the stock runtime."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import onnx_ir as ir
import pytest
import torch
from lowering_runs import AFTER, run_on_stock
from stock_environment import NEEDS_STOCK

import poet_onnx
from poet_onnx.errors import InputError
from poet_onnx.passes.lowering import prepare

Array = npt.NDArray[Any]


def transformed(length: int, w: Array) -> onnx.ModelProto:
    """Return five weighed frequencies as a signal of so many numbers."""
    model = onnx.parser.parse_model(
        f"""<ir_version: 10, opset_import: ["" : 20]>
        g (float[2, 5, 3, 2] x) => (float[2, {length}, 3, 1] y) <int64 n = {{{length}}}, int64 a = {{1}}> {{
            s = Mul(x, w)  y = DFT <inverse = 1, onesided = 1> (s, n, a) }}"""
    )
    model.graph.initializer.append(onnx.numpy_helper.from_array(w, "w"))
    return model


def test_a_signal_of_another_length_is_refused() -> None:
    """ONNX Runtime 1.32 makes another one than torch, which cuts the frequencies off or fills them up."""
    with pytest.raises(InputError, match="its length of 12 is not that of 5 frequencies"):
        poet_onnx.train_graph(transformed(12, np.ones((2, 5, 3, 2), np.float32)), loss="mse", train=["w"])


@NEEDS_STOCK
@pytest.mark.parametrize("length", [8, 9])
def test_a_real_signal_of_half_its_frequencies_has_torchs_gradient(length: int, tmp_path: Path) -> None:
    draw = np.random.default_rng(0)
    x, w = (draw.standard_normal((2, 5, 3, 2)).astype(np.float32) for _ in range(2))
    target = draw.standard_normal((2, length, 3, 1)).astype(np.float32)
    model = transformed(length, w)
    training = poet_onnx.train_graph(model, loss="mse", train=["w"]).training
    prepare(target="stock")(training)
    feeds = {"x": x, "target": target, "w": w, "w_grad.accumulation.buffer": np.zeros_like(w)}
    feeds["lazy_reset_grad"] = np.ones(1, bool)
    found = run_on_stock(tmp_path, [("step", ir.to_proto(training).SerializeToString(), feeds)])["step"]
    weight = torch.tensor(w, requires_grad=True)
    signal = torch.fft.irfft(torch.view_as_complex(torch.tensor(x) * weight), n=length, dim=1)
    loss = torch.nn.functional.mse_loss(signal[..., None], torch.tensor(target))
    loss.backward()
    assert weight.grad is not None
    assert found["loss"] == pytest.approx(loss.item(), rel=1e-6)
    np.testing.assert_allclose(found[f"{AFTER}w_grad.accumulation.buffer"], weight.grad, rtol=1e-5, atol=1e-7)
