"""Arguments of a wrong kind or out of range: each is refused in one sentence, and numbers of numpy are numbers."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

import poet_onnx
from poet_onnx import Lora, TrainingSession
from poet_onnx.errors import InputError

NAN = math.nan
NO_FLAGS = ("yes", 1, None, 1.0)
NO_COUNTS = ("1", True, 1.5, NAN, 0, -1, [1], 2**80)


def model_of(parameter: str = "w", *, batch: int = 2, classes: int = 2) -> onnx.ModelProto:
    numbers = ", ".join("1" for _ in range(3 * classes))
    return onnx.parser.parse_model(
        f'<ir_version: 8, opset_import: ["" : 15]> forward (float[{batch}, 3] x) => (float[{batch}, {classes}] y)'
        f"<float[3, {classes}] {parameter} = {{{numbers}}}> {{ y = MatMul(x, {parameter}) }}"
    )


def rewrite(model: onnx.ModelProto | None = None, **options: Any) -> poet_onnx.RewriteResult:
    asked = {"device": "a72", "loss": "cross-entropy", "target": "stock", "optimizer": "sgd", **options}
    return poet_onnx.rewrite(model or model_of(), **asked)


WRONG: dict[str, tuple[object, ...]] = {
    "accumulation_steps": NO_COUNTS,
    "clip_norm": NO_FLAGS,
    "label_smoothing": ("0.1", True, NAN, -0.1, 1.0, None),
    "ignore_index": ("0", True, 1.5, NAN, 2**70),
    "class_weights": (True, 1.5, [NAN, 1], ["1", 2], [True, False], [], [1], [1, 2, 3], [[1, 2]], [None, 1], b"1,2"),
    "gap": ("0.1", True, NAN, -1),
    "time_limit_seconds": ("1", True, NAN, -1),
    "seed": ("1", True, 1.5, -1),
    "threads": NO_COUNTS,
    "dims": ({"x": "2"}, {"x": True}, {"x": 1.5}, {"x": 0}),
    "ram_budget": (True, 1.5, NAN, -1, "much"),
    "deadline": (True, NAN, -1, "soon", [1]),
}


@pytest.mark.parametrize("name", WRONG)
def test_rewrite_refuses_wrong_arguments(name: str) -> None:
    for value in WRONG[name]:
        with pytest.raises(InputError) as refused:
            rewrite(**{name: value})
        assert "\n" not in str(refused.value)
        assert str(refused.value).endswith(".")


@pytest.mark.parametrize(
    "options",
    [
        {"accumulation_steps": np.int64(2), "clip_norm": np.True_},
        {"label_smoothing": np.float32(0.1), "ignore_index": np.int64(1), "class_weights": np.ones(2)},
        {"gap": np.float32(0.5), "seed": np.int32(1), "threads": np.int64(1), "deadline": np.float32(2)},
    ],
    ids=lambda options: next(iter(options)),
)
def test_numbers_of_numpy_are_numbers(options: dict[str, Any], tmp_path: Path) -> None:
    rewrite(**options).save(tmp_path / "out.onnx")
    TrainingSession(tmp_path / "out.onnx", tmp_path / "out.safetensors")


def test_a_session_refuses_wrong_arguments(tmp_path: Path) -> None:
    rewrite(clip_norm=True).save(tmp_path / "out.onnx")
    files = tmp_path / "out.onnx", tmp_path / "out.safetensors"
    for value in ("1", True, NAN, math.inf, 0, -1, 1e300, 1e-300, 10**400, [1]):
        with pytest.raises(InputError, match="Gradients cannot be clipped to a norm of"):
            TrainingSession(*files, clip_norm=value)  # type: ignore[arg-type]
    for value in NO_COUNTS:
        with pytest.raises(InputError, match="batches make no update: give a whole number of 1 or more"):
            TrainingSession(*files, accumulation_steps=value)  # type: ignore[arg-type]
    for value in NO_FLAGS:
        with pytest.raises(InputError, match=r"keep_gradients is .*, but must be True or False"):
            TrainingSession(*files, keep_gradients=value)  # type: ignore[arg-type]
    for value in (np.float32(1), np.int64(2), 0.5):
        session = TrainingSession(*files, clip_norm=value, accumulation_steps=np.int64(1))
        session.step(np.ones((2, 3), np.float32), np.zeros(2, np.int64))
        session.save_checkpoint(tmp_path / "saved.safetensors")
        session.load_checkpoint(tmp_path / "saved.safetensors")


def test_adapters_refuse_wrong_numbers() -> None:
    for name, values in {
        "rank": NO_COUNTS,
        "alpha": ("1", True, NAN, 0, -1, math.inf),
        "dropout": ("0", True, NAN, -0.1, 1, 1 - 1e-12),
        "seed": ("1", True, 1.5, -1, 2**32),
    }.items():
        for value in values:
            with pytest.raises(InputError, match=f"The {name} of adapters cannot be"):
                Lora("w", **{name: value})
    Lora("w", np.int64(2), np.float32(4), dropout=np.float32(0.5), seed=np.int64(3))


def test_verifications_refuse_wrong_numbers() -> None:
    for value in ("1", True, 1.5, -1):
        with pytest.raises(InputError, match="A number of feeds cannot be"):
            poet_onnx.verify(model_of(), model_of(), feeds=value)  # type: ignore[arg-type]
        with pytest.raises(InputError, match="A seed cannot be"):
            poet_onnx.verify(model_of(), model_of(), seed=value)  # type: ignore[arg-type]
        with pytest.raises(InputError, match="A number of directions cannot be"):
            poet_onnx.verify_gradients(model_of(), directions=value)  # type: ignore[arg-type]
        with pytest.raises(InputError, match="time_limit_seconds cannot be"):
            poet_onnx.compare(model_of(), device="a72", time_limit_seconds=-1 if value == 1.5 else value)  # type: ignore[arg-type]


@pytest.mark.parametrize("name", ["__metadata__", "poet/first_moment"])
def test_a_parameter_has_no_name_that_checkpoints_use(name: str, tmp_path: Path) -> None:
    """`__metadata__` is a key that safetensors reserve; such a checkpoint could not be read."""
    model = model_of()
    model.graph.initializer[0].name = model.graph.node[0].input[1] = name
    with pytest.raises(InputError, match=f"'{name}' in the model has a name that checkpoints use otherwise: rename"):
        rewrite(model)
    if name == "__metadata__":
        with pytest.raises(InputError, match="cannot hold a tensor of the name '__metadata__'"):
            poet_onnx.train_graph(model).save(tmp_path / "folder")
        assert not list((tmp_path / "folder").iterdir())


@pytest.mark.parametrize("loss", ["cross-entropy", "cross-entropy-last", "mse", "l1", "bce-logits"])
@pytest.mark.parametrize("sizes", [{"batch": 0}, {"classes": 0}], ids=str)
def test_no_samples_or_no_classes_are_refused(loss: str, sizes: dict[str, int]) -> None:
    with pytest.raises(InputError, match=r"no numbers: choose a batch and classes of at least 1\."):
        rewrite(model_of(**sizes), loss=loss)
