"""The picture of a rewritten model says what the report says, and adds up."""

from __future__ import annotations

import json
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from poet_onnx import InputError, rewrite
from poet_onnx.plan import Action
from poet_onnx.reporting.depicting import picture_of
from poet_onnx.reporting.layers import ACTIONS, FATES, Fate
from poet_onnx.reporting.measured import Measured
from poet_onnx.reporting.picture import StepPicture
from poet_onnx.reporting.report import Report
from poet_onnx.reporting.trace import trace_of
from poet_onnx.rewriting.rewrite import RewriteResult


@pytest.fixture(scope="module")
def result(model_path: Callable[..., Path]) -> RewriteResult:
    """Return a step that recomputes and pages."""
    return rewrite(model_path("transformer"), device="tx2", activation_budget="55%", gap=0.3, time_limit_seconds=1)


@pytest.fixture(scope="module")
def picture(result: RewriteResult) -> StepPicture:
    return picture_of(result.model)


def test_its_figures_are_the_reports(result: RewriteResult, picture: StepPicture) -> None:
    report = Report.of_rewrite(result, model="model", output=None)
    shared = (Report.model_fields.keys() & StepPicture.model_fields.keys()) - {
        "schema_version",
        "model",
        "nodes",
        "process",
    }
    assert {"transient_peak_bytes", "energy_joules", "process_peak_bytes", "budget_bytes"} <= shared
    for name in shared - {"original", "ordered"}:
        assert getattr(picture, name) == getattr(report, name), name
    for name in ("original", "ordered"):
        for figure in ("resident_bytes", "transient_peak_bytes", "energy_joules", "seconds"):
            assert getattr(getattr(picture, name), figure) == getattr(getattr(report, name), figure)
    assert [(part.name, part.size) for part in picture.process] == [
        (part.name, part.size_bytes) for part in report.process
    ]
    assert picture.proof.gap == report.gap
    assert picture.layers[-1].region_bytes == report.region_bytes


def test_its_parts_add_up(picture: StepPicture) -> None:
    assert sum(part.size for part in picture.energy) == pytest.approx(picture.energy_joules, rel=1e-9)
    assert sum(part.size for part in picture.residents) == picture.resident_bytes
    assert picture.compute_seconds + picture.stall_seconds == pytest.approx(picture.seconds)


def test_it_survives_json(picture: StepPicture) -> None:
    assert StepPicture.model_validate_json(picture.model_dump_json()) == picture


@pytest.mark.parametrize("number", [0, 1, 2])
def test_the_blocks_of_each_layer_are_what_its_steps_hold_and_never_overlap(picture: StepPicture, number: int) -> None:
    layer = picture.layers[number]
    blocks = layer.blocks
    rows = np.array([blocks.born, blocks.dies, blocks.offsets, blocks.sizes]).T
    for step, live_bytes in enumerate(layer.steps.live_bytes):
        alive = rows[(rows[:, 0] <= step) & (rows[:, 1] >= step)]
        assert alive[:, 3].sum() == live_bytes
        placed = sorted((offset, offset + size) for _, _, offset, size in alive.tolist() if offset >= 0)
        assert all(end <= start for (_, end), (start, _) in pairwise(placed))
        assert not placed or placed[-1][1] <= layer.region_bytes
    assert max(layer.steps.live_bytes) == layer.transient_peak_bytes == layer.steps.live_bytes[layer.peak_step]


def test_fates_are_those_of_the_plan(result: RewriteResult, picture: StepPicture) -> None:
    found = [FATES[fate] for fate in picture.layers[-1].blocks.fates]
    page_ins = sum(step.action is Action.PAGE_IN_START for step in result.plan.steps)
    assert found.count(Fate.PAGED_IN) == page_ins
    assert page_ins + found.count(Fate.RECOMPUTED) > 0, "the test shows nothing otherwise"
    for layer in picture.layers[:2]:
        plain = {FATES[fate] for fate in layer.blocks.fates}
        assert plain.isdisjoint((Fate.RECOMPUTED, Fate.DROPPED, Fate.PAGED_IN, Fate.PAGED_OUT))
        assert Fate.KEPT in plain


def test_what_does_not_fit_as_measured_is_said(result: RewriteResult, picture: StepPicture) -> None:
    assert picture.fits
    assert picture.verdict[0].startswith("It fits. ")
    assert picture.budget_bytes is not None
    measured = Measured(passed=False, runtime="onnxruntime 0", transient_peak_bytes=picture.budget_bytes + 1)
    over = picture_of(result.model, measured=measured)
    assert not over.fits
    assert over.verdict[0].startswith("It does not fit: ")
    assert any("found something wrong" in sentence for sentence in over.verdict)


def test_files_that_no_check_has_printed_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "found.json"
    for text in ("", "{}", "[]", '{"passed": true}'):
        path.write_text(text)
        with pytest.raises(InputError, match="verify --json"):
            Measured.read(path)
    path.write_bytes(b"\xff")
    with pytest.raises(InputError, match="cannot be read"):
        Measured.read(path)
    with pytest.raises(InputError, match="cannot be read"):
        Measured.read(tmp_path / "absent.json")


def test_the_trace_keeps_to_its_format_and_to_the_plan(picture: StepPicture) -> None:
    """What Perfetto's own trace processor finds in it: test_trace_processor.py."""
    events = json.loads(trace_of(picture))["traceEvents"]
    kinds = {"M": {"name", "ph", "pid", "tid", "args"}, "C": {"name", "ph", "pid", "tid", "ts", "args"}}
    kinds["X"] = kinds["C"] | {"cat", "dur"}
    for event in events:
        assert event.keys() == kinds[event["ph"]], event
        assert event.get("ts", 0) >= 0
    times = [event["ts"] for event in events if "ts" in event]
    assert times == sorted(times)
    for lane in (1, 2):
        spans = [event for event in events if event["ph"] == "X" and event["tid"] == lane]
        for span, following in pairwise(spans):
            assert span["ts"] + span["dur"] <= following["ts"] + 1e-6, "spans of a lane must not overlap"
        assert all(span["dur"] >= 0 for span in spans)
    layer = picture.layers[-1]
    computed = [event for event in events if event["ph"] == "X" and event["tid"] == 1]
    assert len(computed) == sum(ACTIONS[action] is Action.COMPUTE for action in layer.steps.actions)
    busy = sum(event["dur"] for event in computed)
    assert busy == pytest.approx(1e6 * picture.compute_seconds, rel=1e-2)
    counted = [event["args"]["bytes"] for event in events if event["ph"] == "C"]
    assert max(counted) == picture.transient_peak_bytes
    assert max(times) == pytest.approx(1e6 * picture.seconds)
