"""The report adds up, survives JSON, and refuses what is not a report."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import onnx
import pydantic
import pytest

from poet_onnx import rewrite
from poet_onnx.cli.tables import report_lines
from poet_onnx.costing.device import load_device
from poet_onnx.costing.process import ProcessLine, ProcessMemory
from poet_onnx.description.names import POET_DOMAIN
from poet_onnx.plan import ALL_PLANS, PlanClass, Prediction
from poet_onnx.reporting.figures import duration_text
from poet_onnx.reporting.inspection import inspect
from poet_onnx.reporting.report import Figures, Report, process_parts

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
PROCESS = ProcessMemory((ProcessLine("runtime", 60, "Python", True), ProcessLine("region", 140, "the step", True)))


def report(**changes: Any) -> Report:
    figures = Figures.of(PREDICTION, 12, PROCESS)
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
        "certificate_origin": "proven",
        "status": "optimal",
        "objective_joules": 0.5,
        "bound_joules": 0.499,
        "wide_bound_joules": 0.49,
        "gap": 0.002,
        "overhead_gap": 0.1,
        "covers": PlanClass(),
        "solver": "SCIP",
        "seed": 0,
        "solve_seconds": 1.5,
        "process": process_parts(PROCESS),
        "load_peak_bytes": PROCESS.load_peak_bytes,
        "original": figures,
        "ordered": figures,
    }
    return Report(**{**values, **changes})


def test_figures_repeat_the_prediction_and_its_sum() -> None:
    figures = Figures.of(PREDICTION, 12, PROCESS)
    assert figures.step_peak_bytes == 140
    assert figures.process_peak_bytes == 200
    assert (figures.nodes, figures.recomputed_nodes, figures.page_in_bytes) == (12, 3, 16)


def test_figures_that_do_not_add_up_are_refused() -> None:
    with pytest.raises(pydantic.ValidationError, match="step_peak_bytes"):
        Figures(**{**Figures.of(PREDICTION, 1, PROCESS).model_dump(), "step_peak_bytes": 139})


def test_parts_that_are_not_the_process_are_refused() -> None:
    with pytest.raises(pydantic.ValidationError, match="process_peak_bytes"):
        report(process=process_parts(PROCESS)[1:])


def test_nodes_are_those_of_the_graph_that_the_figures_are_of(model_path: Callable[..., Path]) -> None:
    path = model_path("mlp-mse")
    result = rewrite(path, device="tx2")
    made = Report.of_rewrite(result, model="m", output=None)
    planned = [node for node in result.model.graph if node.domain != POET_DOMAIN]
    assert made.original.nodes == len(onnx.load(path).graph.node)
    assert made.ordered.nodes == len(planned) < made.original.nodes
    inspected = inspect(path, device="tx2")
    assert (inspected.original.nodes, inspected.ordered.nodes) == (made.original.nodes, made.ordered.nodes)


def test_json_has_the_promised_keys() -> None:
    promised = [
        "model",
        "device",
        "method",
        "resident_bytes",
        "transient_peak_bytes",
        "step_peak_bytes",
        "process_peak_bytes",
        "load_peak_bytes",
        "process",
        "budget_bytes",
        "budget_kind",
        "energy_joules",
        "seconds",
        "page_out_bytes",
        "page_in_bytes",
        "recomputed_nodes",
        "region_bytes",
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
    assert Report.model_validate_json(path.read_text()) == report()


@pytest.mark.parametrize(
    ("covers", "words"),
    [
        (ALL_PLANS, "no plan of these nodes"),
        (PlanClass(), "no plan with this order of nodes"),
        (PlanClass(paging=False), "no plan with this order of nodes and without paging"),
        (
            PlanClass(recompute=False, hops=2, stays=5),
            "none of the plans considered with this order of nodes and without recompute",
        ),
        (PlanClass(recompute=False, paging=False), "no plan with this order of nodes and without either"),
    ],
)
def test_json_says_which_plans_a_bound_covers_and_people_read_it_in_words(covers: PlanClass, words: str) -> None:
    made = report(covers=covers)
    assert json.loads(made.model_dump_json())["covers"] == asdict(covers)
    assert f"{words} spends less than 499 mJ" in report_lines(made)
    wide = words.replace("none of the plans considered", "no plan")
    assert f"{wide}, considered or not, spends less than 490 mJ" in report_lines(made)


def test_another_schema_version_is_refused() -> None:
    with pytest.raises(pydantic.ValidationError, match="schema_version"):
        report(schema_version=1)


def test_wear_is_reported_where_something_is_paged(model_path: Callable[..., Path], tmp_path: Path) -> None:
    device = load_device("a72")
    result = rewrite(model_path("vgg16"), device=device, activation_budget="90%", recompute=False, split=False)
    made = Report.of_rewrite(result, model="model.onnx", output=None)
    wear = made.wear
    assert wear is not None
    assert device.storage is not None
    assert wear.written_bytes_per_step == made.page_out_bytes > 0
    assert wear.written_bytes_per_hour == pytest.approx(made.page_out_bytes * 3600 / made.seconds)
    assert made.page_out_bytes <= wear.page_file_bytes < made.page_out_bytes + 4096 * 100
    assert wear.endurance_bytes == device.storage.endurance_bytes == 29_250_000_000_000
    assert wear.life_steps == 29_250_000_000_000 // made.page_out_bytes
    assert wear.life_seconds == pytest.approx(29.25e12 / made.page_out_bytes * made.seconds)
    assert wear.capacity_seconds == pytest.approx(32e9 / made.page_out_bytes * made.seconds)
    (text,) = (line for line in report_lines(made) if line.startswith("writes"))
    assert f"{wear.life_steps:,} steps" in text
    path = tmp_path / "report.json"
    path.write_text(made.model_dump_json())
    assert Report.model_validate_json(path.read_text()) == made


def test_wear_is_silent_where_nothing_is_paged_and_modest_where_endurance_is_unknown(
    model_path: Callable[..., Path],
) -> None:
    path = model_path("vgg16")
    alone = rewrite(path, device="a72", activation_budget="95%", paging=False)
    assert Report.of_rewrite(alone, model="m", output=None).wear is None
    paged = Report.of_rewrite(
        rewrite(path, device="tx2", activation_budget="90%", recompute=False, split=False), model="m", output=None
    )
    assert paged.wear is not None
    assert paged.wear.life_seconds is None
    (text,) = (line for line in report_lines(paged) if line.startswith("writes"))
    assert "as much as all of that is written in" in text
    assert "endurance" not in text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(1.5, "1.5 seconds"), (300, "5 minutes"), (36000, "10 hours"), (864000, "10 days"), (1e12, "31,688 years")],
)
def test_durations_are_in_units_that_people_plan_with(seconds: float, text: str) -> None:
    assert duration_text(seconds) == text
