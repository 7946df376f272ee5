"""What a checkpoint says about a session, and what does not say it."""

from __future__ import annotations

import dataclasses
import json

import pytest

from poet_onnx import SGD, AdamW
from poet_onnx.errors import InputError
from poet_onnx.training.progress import Progress

PROGRESS = Progress(AdamW(1e-4, weight_decay=0.1), 4, 1.5, {"a": 7, "b": 2**40}, updates=3, batches=2, runs=14)


@pytest.mark.parametrize("progress", [PROGRESS, Progress(SGD(), 1, None, {})], ids=["full", "empty"])
def test_progress_survives_a_file(progress: Progress) -> None:
    assert Progress.from_values(json.loads(json.dumps(progress.to_values())), "file") == progress


@pytest.mark.parametrize("name", [field.name for field in dataclasses.fields(Progress)] + ["format"])
@pytest.mark.parametrize("value", ["x", -1, {"a": "b"}, [1]], ids=str)
def test_damaged_progress_is_refused(name: str, value: object) -> None:
    values = {**PROGRESS.to_values(), name: value}
    with pytest.raises(InputError, match=r"in format|does not say how far|no optimizer|no settings"):
        Progress.from_values(values, "file")
    if name != "clip_norm":  # None is a value of it
        values.pop(name)
        with pytest.raises(InputError, match=r"in format None|does not say how far"):
            Progress.from_values(values, "file")


def test_only_a_session_with_the_same_settings_goes_on() -> None:
    PROGRESS.check_fits(dataclasses.replace(PROGRESS, updates=9, batches=0, runs=1), "file")
    for changed, message in (
        ({"optimizer": SGD()}, r"file was made with SGD\(.*has AdamW\("),
        ({"accumulation_steps": 2}, "accumulation_steps=2 and clip_norm=1.5, but this session has 4 and 1.5"),
        ({"clip_norm": None}, "clip_norm=None"),
        ({"seeds": {"a": 7}}, "other random numbers"),
    ):
        with pytest.raises(InputError, match=message):
            PROGRESS.check_fits(dataclasses.replace(PROGRESS, **changed), "file")
