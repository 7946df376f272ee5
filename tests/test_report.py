"""The report adds up, survives JSON, and refuses what is not a report."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pydantic
import pytest

from poet_onnx.errors import InputError
from poet_onnx.plan import Prediction
from poet_onnx.report import Figures, Report, load_report

PREDICTION = Prediction(
    resident_bytes=100,
    transient_peak_bytes=40,
    energy_joules=0.5,
    seconds=0.1,
    compute_seconds=0.08,
    stall_seconds=0.02,
    page_out_bytes=8,
    page_in_bytes=16,
    recomputed_nodes=3,
)


def report(**changes: Any) -> Report:
    figures = Figures.of(PREDICTION, nodes=12)
    values: dict[str, Any] = {
        **figures.model_dump(),
        "model": "model.onnx",
        "output": "model.poet.onnx",
        "fingerprint": "ab" * 32,
        "device": "a72",
        "method": "poet",
        "time_origin": "measured",
        "energy_origin": "modelled",
        "budget_bytes": 50,
        "budget_kind": "activation",
        "deadline_seconds": None,
        "status": "optimal",
        "objective_joules": 0.5,
        "bound_joules": 0.499,
        "gap": 0.002,
        "overhead_gap": 0.1,
        "covers": "plans in this order",
        "solver": "SCIP",
        "seed": 0,
        "solve_seconds": 1.5,
        "original": figures,
        "ordered": figures,
    }
    return Report(**{**values, **changes})


def test_figures_repeat_the_prediction_and_its_sum() -> None:
    figures = Figures.of(PREDICTION, nodes=12)
    assert figures.step_peak_bytes == 140
    assert (figures.nodes, figures.recomputed_nodes, figures.page_in_bytes) == (12, 3, 16)


def test_figures_that_do_not_add_up_are_refused() -> None:
    with pytest.raises(pydantic.ValidationError, match="step_peak_bytes"):
        Figures(**{**Figures.of(PREDICTION, nodes=1).model_dump(), "step_peak_bytes": 139})


def test_json_has_the_promised_keys() -> None:
    promised = [
        "model",
        "device",
        "method",
        "resident_bytes",
        "transient_peak_bytes",
        "step_peak_bytes",
        "budget_bytes",
        "budget_kind",
        "energy_joules",
        "seconds",
        "page_out_bytes",
        "page_in_bytes",
        "recomputed_nodes",
        "status",
        "objective_joules",
        "bound_joules",
        "gap",
        "solve_seconds",
        "original",
        "ordered",
        "schema_version",
    ]
    written = json.loads(report().model_dump_json())
    assert set(promised) <= set(written)
    for version in ("original", "ordered"):
        assert {"step_peak_bytes", "transient_peak_bytes", "energy_joules", "seconds"} <= set(written[version])


def test_json_round_trip(tmp_path: Path) -> None:
    path = tmp_path / "report.json"
    path.write_text(report().model_dump_json())
    assert load_report(path) == report()


@pytest.mark.parametrize("text", ["", "{", "[]", "{}", '{"schema_version": 99}'])
def test_what_is_not_a_report_is_refused_by_name(tmp_path: Path, text: str) -> None:
    path = tmp_path / "report.json"
    path.write_text(text)
    with pytest.raises(InputError, match=r"report\.json is not a report"):
        load_report(path)


def test_a_missing_report_is_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"absent\.json: No such file"):
        load_report(tmp_path / "absent.json")


def test_another_schema_version_is_refused() -> None:
    with pytest.raises(pydantic.ValidationError, match="schema_version"):
        report(schema_version=2)
