"""A network that draws numbers within a step, as variational autoencoders do, goes on to the same bits."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir
import pytest
from forward_models import parse
from safetensors.numpy import load_file

from poet_onnx import SGD, TrainingSession, rewrite, train_graph, verify
from poet_onnx.errors import PoetWarning

WIDTH, CODE, ROWS = 160, 128, 16
RNG = np.random.default_rng(5)
ARRAYS = {
    name: RNG.standard_normal(shape).astype(np.float32) / 6
    for name, shape in {"into": (WIDTH, CODE), "spread": (WIDTH, CODE), "out": (CODE, WIDTH)}.items()
}
TEXT = f"""g (float[{ROWS}, {WIDTH}] x) => (float[{ROWS}, {WIDTH}] y) {{
    mean = MatMul(x, into) s = MatMul(x, spread) wide = Exp(s) noise = {{}} far = Mul(wide, noise)
    code = Add(mean, far) h = Tanh(code) y = MatMul(h, out) }}"""
DRAWN = {
    "like": "RandomNormalLike <mean = 0.5> (mean)",
    "shaped": f"RandomNormal <shape = [{ROWS}, {CODE}], seed = 3.0> ()",
    "even": "RandomUniformLike <low = -1.0, high = 1.0> (mean)",
}
SETTINGS: dict[str, Any] = {"device": "a72", "target": "stock", "loss": "mse", "optimizer": "adamw", "gap": 0.5}


def noisy(drawn: str = DRAWN["like"]) -> ir.Model:
    return parse(TEXT.replace("{}", drawn), ARRAYS)


def session_of(path: Path, **how: Any) -> TrainingSession:
    return TrainingSession(path, path.with_suffix(".safetensors"), **how)


def train(session: TrainingSession, steps: range) -> list[float]:
    batches = [np.random.default_rng(step).standard_normal((ROWS, WIDTH)).astype(np.float32) for step in steps]
    return [session.step(batch, batch) for batch in batches]


def state(session: TrainingSession, folder: Path) -> dict[str, bytes]:
    session.save_checkpoint(folder / "state.safetensors")
    return {name: array.tobytes() for name, array in load_file(folder / "state.safetensors").items()}


@pytest.mark.parametrize("drawn", DRAWN)
def test_training_is_resumed_to_the_bit_under_any_plan(drawn: str, tmp_path: Path) -> None:
    whole = rewrite(noisy(DRAWN[drawn]), store="never", **SETTINGS)
    whole.save(tmp_path / "whole.onnx")
    budget = whole.ordered.transient_peak_bytes - ROWS * CODE * 4
    tight = rewrite(noisy(DRAWN[drawn]), store="never", activation_budget=budget, paging=False, **SETTINGS)
    tight.save(tmp_path / "tight.onnx")
    assert any(step.copy for step in tight.plan.steps)
    assert verify(train_graph(noisy(DRAWN[drawn]), loss="mse").training, tight.model).passed
    session = session_of(tmp_path / "whole.onnx")
    train(session, range(3))
    session.save_checkpoint(tmp_path / "saved.safetensors")
    expected, end = train(session, range(3, 6)), state(session, tmp_path)
    resumed = session_of(tmp_path / "tight.onnx")
    resumed.load_checkpoint(tmp_path / "saved.safetensors")
    assert train(resumed, range(3, 6)) == expected
    assert state(resumed, tmp_path) == end


def test_noise_is_another_in_each_step(tmp_path: Path) -> None:
    rewrite(noisy(), store="never", **SETTINGS | {"optimizer": "sgd"}).save(tmp_path / "net.onnx")
    session = session_of(tmp_path / "net.onnx", optimizer=SGD(1e-30))
    x = np.ones((ROWS, WIDTH), np.float32)
    losses = [session.step(x, x) for _ in range(4)]
    assert len(set(losses)) == len(losses)


def test_what_cannot_be_resumed_is_said_before_it_trains() -> None:
    """ONNX Runtime's kernel keeps its generator to itself."""
    drawn = "Multinomial <sample_size = 1> (mean) picked = Cast <to = 1> (noise0) noise = Mul(picked, mean)"
    model = parse(TEXT.replace("noise = {}", f"noise0 = {drawn}"), ARRAYS)
    with pytest.warns(PoetWarning, match="Multinomial cannot be resumed"):
        rewrite(model, store="never", **SETTINGS)


def test_a_store_goes_on_with_it(tmp_path: Path) -> None:
    rewrite(noisy(), store="never", **SETTINGS).save(tmp_path / "ram.onnx")
    rewrite(noisy(), store="always", **SETTINGS).save(tmp_path / "disk.onnx")
    session = session_of(tmp_path / "ram.onnx")
    expected = train(session, range(4))
    stored = session_of(tmp_path / "disk.onnx", store=tmp_path / "store")
    found = train(stored, range(2))
    del stored  # which lets go of the store
    found += train(session_of(tmp_path / "disk.onnx", store=tmp_path / "store"), range(2, 4))
    assert found == expected
