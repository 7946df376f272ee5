"""The reader of onnxruntime-training's checkpoints against onnxruntime-training itself."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from poet_onnx.errors import InputError
from poet_onnx.files.checkpoint import write_checkpoint
from poet_onnx.training.ort_checkpoint import is_ort_checkpoint, read_ort_checkpoint
from poet_onnx.training.parameters import read_parameters


@pytest.mark.parametrize("name", ["mobilenet", "transformer"])
def test_parameters_are_those_that_onnxruntime_reads(model_path: Callable[..., Path], name: str) -> None:
    from onnxruntime.training.api import CheckpointState

    path = model_path(name).with_name("checkpoint")
    assert is_ort_checkpoint(path)
    ours = read_ort_checkpoint(path)
    state = CheckpointState.load_checkpoint(str(path))
    theirs = {key: parameter.data for key, parameter in state.parameters}
    assert ours.keys() == theirs.keys()
    for key, array in ours.items():
        assert array.dtype == theirs[key].dtype
        assert array.shape == theirs[key].shape
        assert array.tobytes() == theirs[key].tobytes()


def test_checkpoints_after_training_are_read(model_path: Callable[..., Path], tmp_path: Path) -> None:
    """They hold the optimizer's state too."""
    from onnxruntime.training import api

    training_model = model_path("mlp-mse")
    state = api.CheckpointState.load_checkpoint(str(training_model.with_name("checkpoint")))
    module = api.Module(str(training_model), state, device="cpu")
    optimizer = api.Optimizer(str(training_model.with_name("optimizer_model.onnx")), module)
    module.train()
    module(np.ones((1, 32), np.float32), np.ones((1, 8), np.float32))
    optimizer.step()
    api.CheckpointState.save_checkpoint(state, str(tmp_path / "trained"), include_optimizer_state=True)
    first = read_ort_checkpoint(training_model.with_name("checkpoint"))
    trained = read_ort_checkpoint(tmp_path / "trained")
    for key, parameter in state.parameters:
        assert trained[key].tobytes() == parameter.data.tobytes()
        assert trained[key].tobytes() != first[key].tobytes()


def test_damaged_checkpoints_are_refused(model_path: Callable[..., Path], tmp_path: Path) -> None:
    """Cut anywhere, or with any byte of its tables changed, a checkpoint is refused or read, and nothing worse."""
    whole = model_path("mlp-mse").with_name("checkpoint").read_bytes()
    damaged = tmp_path / "checkpoint"
    random = np.random.default_rng(0)
    for cut in (8, 9, 20, 100, len(whole) // 2, len(whole) - 1000):
        damaged.write_bytes(whole[:cut])
        with pytest.raises(InputError, match=r"damaged|no parameters"):
            read_ort_checkpoint(damaged)
    refused = 0
    for _ in range(300):
        place, value = int(random.integers(0, min(1000, len(whole)))), int(random.integers(0, 256))
        damaged.write_bytes(whole[:place] + bytes([value]) + whole[place + 1 :])
        try:
            dict(read_ort_checkpoint(damaged))
        except InputError:
            refused += 1
    assert refused > 0


def test_sources_are_told_apart(model_path: Callable[..., Path], tmp_path: Path) -> None:
    given = {"a": np.ones(3, np.float32)}
    assert read_parameters(given) == given
    with pytest.raises(InputError, match="must be a numpy array"):
        read_parameters({"a": [1.0]})  # type: ignore[dict-item]
    with pytest.raises(InputError, match="cannot be read"):
        read_parameters(tmp_path / "nothing")
    with pytest.raises(InputError, match="cannot be read"):
        read_parameters(tmp_path / "nothing.safetensors")
    write_checkpoint(tmp_path / "last.ckpt", given, {})
    assert read_parameters(tmp_path / "last.ckpt")["a"].tolist() == [1.0, 1.0, 1.0]
    checkpoint = model_path("mlp-mse").with_name("checkpoint")
    shutil.copy(checkpoint, tmp_path / "renamed.safetensors")
    assert set(read_parameters(tmp_path / "renamed.safetensors")) == set(read_ort_checkpoint(checkpoint))
    (tmp_path / "text").write_text("hello")
    with pytest.raises(InputError, match="not an ONNX model"):
        read_parameters(tmp_path / "text")
