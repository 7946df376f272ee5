"""Dropout that draws from the number of the run: the numbers are those of Philox, and nothing is kept."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper
from ops_models import make_model, poet_node
from philox_numbers import philox
from training_batches import digest, session_of, train

import poet_onnx
from poet_onnx.description.metadata import FORMAT
from poet_onnx.errors import InputError
from poet_onnx.runtime import session_options

RuntimeFailure = Exception  # ONNX Runtime's exceptions have no common base but this one
FLOAT, DOUBLE, INT64, BOOL = TensorProto.FLOAT, TensorProto.DOUBLE, TensorProto.INT64, TensorProto.BOOL
SHAPE = (3, 5, 41)


def counted(seed: int, dtype: int = FLOAT, types: tuple[int, ...] = (FLOAT, INT64)) -> onnxruntime.InferenceSession:
    inputs = [("x", dtype, list(SHAPE)), ("ratio", types[0], [1]), ("runs", types[1], [1])]
    node = poet_node("CountedDropout", ["x", "ratio", "runs"], ["y", "mask"], seed=seed)
    outputs = [("y", dtype, list(SHAPE)), ("mask", BOOL, list(SHAPE))]
    return onnxruntime.InferenceSession(make_model([node], inputs, outputs), session_options())


def dropped(x: np.ndarray, ratio: float, runs: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Return what a dropout makes, from the numbers of Philox."""
    drawn = [philox(block, runs, seed) for block in range(-(-x.size // 4))]
    mask = (np.ravel(drawn)[: x.size] >> 8).astype(np.float32).reshape(x.shape) / np.float32(2**24) >= np.float32(ratio)
    return mask.astype(x.dtype) * x / x.dtype.type(np.float32(1) - np.float32(ratio)), mask


@pytest.mark.parametrize("dtype", [FLOAT, DOUBLE])
@pytest.mark.parametrize("seed", [0, 7, 2**31 - 1, 2**40 + 3, -5])
def test_the_numbers_of_a_run_are_those_of_philox(seed: int, dtype: int) -> None:
    x = np.random.default_rng(0).standard_normal(SHAPE).astype(np.float32 if dtype == FLOAT else np.float64)
    x.flat[:3] = [np.inf, 3.5, -0.0]
    ours = counted(seed, dtype)
    for ratio, run in ((0.1, 0), (0.5, 1), (0.5, 2), (0.93, 2**40)):
        with np.errstate(invalid="ignore"):  # infinity times zero
            expected = dropped(x, ratio, run, seed)
        for _ in range(2):  # nothing is kept: the same run again gives the same
            found = ours.run(None, {"x": x, "ratio": np.float32([ratio]), "runs": np.int64([run])})
            assert np.array_equal(found[1], expected[1])
            assert np.array_equal(found[0], expected[0], equal_nan=True)


def test_masks_of_runs_are_independent() -> None:
    """Each element is kept as often as any other, whatever was dropped in the runs before."""
    runs, ours, x = 1000, counted(3), np.ones(SHAPE, np.float32)
    feeds = {"x": x, "ratio": np.float32([0.5])}
    masks = np.stack([ours.run(None, {**feeds, "runs": np.int64([run])})[1].reshape(-1) for run in range(runs)])
    width = np.sqrt(runs) / 2
    assert np.abs(masks.sum(0) - runs / 2).max() < 5 * width
    for apart in range(1, 10):
        assert np.abs((masks[apart:] == masks[:-apart]).sum(0) - (runs - apart) / 2).max() < 5 * width


@pytest.mark.parametrize(
    ("dtype", "types", "ratio", "message"),
    [
        (INT64, (FLOAT, INT64), 0.5, "element type 7"),
        (FLOAT, (DOUBLE, INT64), 0.5, "must be 1 floats"),
        (FLOAT, (FLOAT, FLOAT), 0.5, "input 2"),
        (FLOAT, (FLOAT, INT64), 1.0, "at least 0 and below 1"),
        (FLOAT, (FLOAT, INT64), -0.1, "at least 0 and below 1"),
        (FLOAT, (FLOAT, INT64), np.nan, "at least 0 and below 1"),
    ],
)
def test_unfit_inputs_are_refused(dtype: int, types: tuple[int, int], ratio: float, message: str) -> None:
    kinds: dict[int, Any] = {FLOAT: np.float32, DOUBLE: np.float64, INT64: np.int64}
    feeds = {"x": np.ones(SHAPE, kinds[dtype]), "ratio": kinds[types[0]]([ratio]), "runs": kinds[types[1]]([0])}
    with pytest.raises(RuntimeFailure, match=message):
        counted(1, dtype, types).run(None, feeds)


def test_a_checkpoint_is_loaded_without_another_session(
    model_path: Callable[..., Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With dropout, in a graph that the session runs from its file."""
    path, saved, model = model_path("transformer"), tmp_path / "saved.safetensors", tmp_path / "model.onnx"
    poet_onnx.rewrite(path, device="a72", method="dtr", activation_budget="90%", optimizer="adamw").save(model)
    session = poet_onnx.TrainingSession(model, path.with_name("checkpoint"))
    train(session, 2)
    session.save_checkpoint(saved)
    expected = train(session, 3, first=2)
    through = digest(session)
    monkeypatch.setattr(onnxruntime, "InferenceSession", None)
    session.load_checkpoint(saved)
    assert (train(session, 3, first=2), digest(session)) == (expected, through)


@pytest.mark.parametrize("given", ["training", "ratio"])
def test_a_dropout_that_is_switched_from_outside_cannot_be_resumed(
    model_path: Callable[..., Path], tmp_path: Path, given: str
) -> None:
    """Its generator grows by the runs in which it drops, and nobody counts those."""
    path = model_path("transformer")
    model = onnx.load(path)
    node = next(node for node in model.graph.node if node.op_type == "Dropout")
    name = node.input[2 if given == "training" else 1]
    constant = next(each for each in model.graph.initializer if each.name == name)
    model.graph.initializer.remove(constant)
    model.graph.input.insert(0, helper.make_tensor_value_info(name, constant.data_type, constant.dims))
    session = poet_onnx.TrainingSession(model, path.with_name("checkpoint"))
    with pytest.raises(InputError, match=r"Training with Dropout cannot be resumed exactly"):
        session.save_checkpoint(tmp_path / "saved")


def test_old_files_are_refused(model_path: Callable[..., Path], tmp_path: Path) -> None:
    path, model = model_path("transformer"), tmp_path / "model.onnx"
    poet_onnx.rewrite(path, device="a72", method="dtr", activation_budget="90%", optimizer="sgd").save(model)
    old = onnx.load(model)
    (entry,) = (entry for entry in old.metadata_props if entry.key == "poet.training")
    entry.value = entry.value.replace(f'"format":{FORMAT}', '"format":2')
    onnx.save(old, model)
    with pytest.raises(InputError, match="is of another version: rewrite the original again"):
        poet_onnx.TrainingSession(model, path.with_name("checkpoint"))
    assert session_of(path).updates == 0
