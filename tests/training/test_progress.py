"""What a checkpoint says about a session, and what does not say it."""

from __future__ import annotations

import dataclasses
import json
import math
from typing import Any

import numpy as np
import pytest

from poet_onnx import SGD, AdamW, AdamWOrt, ParameterGroup
from poet_onnx.errors import InputError
from poet_onnx.training.progress import Progress

PROGRESS = Progress(AdamW(1e-4, weight_decay=0.1), 4, 1.5, {"a": 7, "b": 2**40}, updates=3, batches=2, runs=14)
AMID = dataclasses.replace(PROGRESS, epoch=1, position=2, losses=2.5)
GROUPED = dataclasses.replace(
    PROGRESS, groups=(ParameterGroup("vectors", weight_decay=0.0), ParameterGroup("a", None, 2))
)


@pytest.mark.parametrize(
    "progress",
    [
        PROGRESS,
        GROUPED,
        Progress(SGD(), 1, None, {}, network="0123456789abcdef" * 2),
        AMID,
        AMID.after_batch(1, math.inf),
    ],
    ids=["full", "grouped", "empty", "amid an epoch", "a loss that is no number"],
)
def test_progress_survives_a_file(progress: Progress) -> None:
    assert Progress.from_values(json.loads(json.dumps(progress.to_values())), "file") == progress


@pytest.mark.parametrize("name", [field.name for field in dataclasses.fields(Progress)] + ["format"])
@pytest.mark.parametrize("value", ["x", -1, {"a": "b"}, [1]], ids=str)
def test_damaged_progress_is_refused(name: str, value: object) -> None:
    values = {**PROGRESS.to_values(), name: value}
    with pytest.raises(InputError, match=r"in format|does not say how far|no such optimizer|no settings"):
        Progress.from_values(values, "file")
    # None is a value of the others, or what does not name one has none.
    if name not in ("clip_norm", "groups", "losses", "network"):
        values.pop(name)
        with pytest.raises(InputError, match=r"in format None|does not say how far"):
            Progress.from_values(values, "file")


def test_the_mean_loss_of_an_epoch_counts_all_its_batches() -> None:
    assert PROGRESS.after_batch(0, 1.0).after_batch(0, 4.0).mean_loss == 2.5
    assert AMID.after_batch(1, 0.5).mean_loss == 1.0
    assert math.isnan(AMID.after_batch(1, -math.inf).after_batch(1, math.inf).mean_loss)
    assert AMID.after_epoch().after_batch(2, 0.5).mean_loss == 0.5


def test_a_file_of_before_leaves_the_mean_loss_of_its_epoch_open() -> None:
    for progress in (PROGRESS, AMID):
        values = progress.to_values()
        del values["losses"]
        read = Progress.from_values(values, "file")
        assert math.isnan(read.after_batch(progress.epoch, 1.0).mean_loss) == bool(progress.position)


DAMAGE = [
    {"batches": 4},
    {"batches": 3},
    {"updates": 10**400},
    {"updates": 2**53, "runs": 2**55 + 2},
    {"runs": 13},
    {"runs": 14.0},
    {"accumulation_steps": 0},
    {"accumulation_steps": True},
    {"updates": False, "runs": 2},
    {"format": True},
    {"format": 2.0},
    {"format": 1},
    {"format": 2},
    {"clip_norm": True},
    {"clip_norm": math.nan},
    {"clip_norm": math.inf},
    {"clip_norm": 0.0},
    {"clip_norm": 10**400},
    {"seeds": {"a": 7, "b": 2**63}},
    {"seeds": {"a": 7, "b": 2**63 - 3}},
    {"seeds": {"a": True}},
    {"seeds": {"a": 7.0}},
    {"more": 1},
    {"epoch": -1},
    {"position": "2"},
    {"losses": math.nan},
    {"losses": 1},
]
SETTINGS = [
    {"kind": "Adamw"},
    {"kind": ["AdamW"]},
    {"learning_rate": True},
    {"learning_rate": math.nan},
    {"learning_rate": 10**400},
    {"learning_rate": 1e39},
    {"beta1": 1.0},
    {"beta2": "0.9"},
    {"epsilon": 0},
    {"weight_decay": None},
    {"more": 1},
]


@pytest.mark.parametrize(
    "damage", [*DAMAGE, *({"optimizer": each} for each in SETTINGS)], ids=lambda each: str(each)[:50]
)
def test_progress_that_cannot_be_is_refused(damage: dict[str, Any]) -> None:
    values: dict[str, Any] = PROGRESS.to_values()
    assert Progress.from_values(values, "file") == PROGRESS
    if "optimizer" in damage:
        damage = {"optimizer": {**values["optimizer"], **damage["optimizer"]}}
    with pytest.raises(InputError) as refused:
        Progress.from_values({**values, **damage}, "file")
    sentence = str(refused.value)
    assert sentence.endswith(".")
    assert len(sentence) < 300


def test_a_flag_of_an_optimizer_is_no_number() -> None:
    progress = Progress(SGD(momentum=0.9), 1, None, {})
    values: dict[str, Any] = progress.to_values()
    values["optimizer"]["nesterov"] = 0
    with pytest.raises(InputError, match="no settings of SGD"):
        Progress.from_values(values, "file")


def test_settings_in_types_of_numpy_survive_a_file() -> None:
    given = Progress(AdamW(np.float32(0.5)), np.int64(2), np.float32(1.5), {})  # type: ignore[arg-type]
    text = json.dumps(given.to_values(), default=float)
    assert Progress.from_values(json.loads(text), "file") == given


def test_only_a_session_with_the_same_settings_goes_on() -> None:
    PROGRESS.check_fits(dataclasses.replace(PROGRESS, updates=9, batches=0, runs=1), "file")
    for changed, message in (
        ({"optimizer": SGD()}, r"file was made with SGD\(.*has AdamW\("),
        ({"optimizer": AdamWOrt()}, r"file was made with AdamWOrt\(.*has AdamW\("),
        ({"accumulation_steps": 2}, "accumulation_steps=2 and clip_norm=1.5, but this session has 4 and 1.5"),
        ({"clip_norm": None}, "clip_norm=None"),
        ({"seeds": {"a": 7}}, "other random numbers"),
    ):
        with pytest.raises(InputError, match=message):
            PROGRESS.check_fits(dataclasses.replace(PROGRESS, **changed), "file")
