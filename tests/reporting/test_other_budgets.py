"""Plans of a rewritten model for other budgets: each is one that planning anew does not beat by more than its gap."""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from cli_runs import Cli

from poet_onnx.plan.limits import Limits
from poet_onnx.reporting.figures import bytes_text, percent_text, scaled_text
from poet_onnx.reporting.other_budgets import SHARES, other_budgets
from poet_onnx.reporting.rewritten import RewrittenStep, read_rewritten
from poet_onnx.rewriting.rewrite import rewrite
from poet_onnx.scheduling import Progress, SimulatedPlan, memory_aware_order, schedule


def rewritten(path: Path, **options: object) -> RewrittenStep:
    """Return the step of a model that was rewritten for less than it takes."""
    asked = {"device": "tx2", "activation_budget": "70%", "split": False, "gap": 0.1, **options}
    return read_rewritten(rewrite(path, **asked).model)


@pytest.mark.deep
def test_more_memory_takes_less_energy_and_planning_anew_saves_no_more_than_the_gap(
    model_path: Callable[..., Path],
) -> None:
    step, told = rewritten(model_path("unet")), list[Progress]()
    points = other_budgets(step, 10**8, told.append)
    assert len(points) >= 3
    assert 2 <= len(told) <= len(SHARES)
    for before, after in itertools.pairwise(points):
        assert before.transient_peak_bytes < after.transient_peak_bytes
        assert before.energy_joules > after.energy_joules
        assert after.process_bytes - before.process_bytes == after.transient_peak_bytes - before.transient_peak_bytes
    (own,) = (point for point in points if point.is_own)
    assert own.energy_joules == pytest.approx(step.plan.prediction.energy_joules)
    assert own.gap == pytest.approx(step.plan.certificate.gap, abs=1e-9)
    assert own.process_bytes == 10**8
    assert (points[-1].recomputed_nodes, points[-1].gap) == (0, pytest.approx(0, abs=1e-9))
    assert points == other_budgets(step, 10**8), "the same model always gets the same plans"
    problem = step.problem
    orders = (SimulatedPlan(step.plan.steps, step.replayed.prediction).order, memory_aware_order(problem))
    for point in points:
        limits, least_joules = Limits(budget_bytes=point.transient_peak_bytes), point.energy_joules * (1 - point.gap)
        anew = [schedule(problem, limits, gap=0.01, order=order).prediction.energy_joules for order in orders]
        assert max(anew) >= least_joules * (1 - 1e-9), "a point's bound is one of its own order"


@pytest.mark.deep
def test_other_limits_and_means_are_those_of_the_plan(model_path: Callable[..., Path]) -> None:
    step = rewritten(model_path("transformer"), recompute=False)
    assert step.plan.certificate.covers.in_order
    points = other_budgets(step, 0)
    assert len(points) >= 3
    assert not any(point.recomputed_nodes for point in points)
    assert any(point.page_out_bytes for point in points)
    strict = replace(step.plan.limits, max_written_bytes=min(p.page_out_bytes for p in points if p.page_out_bytes))
    limited = other_budgets(replace(step, plan=replace(step.plan, limits=strict)), 0)
    assert max(point.page_out_bytes for point in limited) <= strict.max_written_bytes
    assert len(limited) < len(points)


@pytest.mark.deep
def test_a_page_has_them_as_a_slider_and_a_table_with_the_figures_of_the_json(
    cli: Cli, model_path: Callable[..., Path], tmp_path: Path
) -> None:
    out, page, again = (tmp_path / name for name in ("net.onnx", "plan.html", "again.html"))
    budget = ("--device", "tx2", "--activation-budget", "70%", "--no-split", "--gap", "0.1")
    done = cli("rewrite", model_path("unet"), out, *budget, "--html", page)
    assert done.code == 0, done
    told = cli("report", out, "-o", again, "--json")
    points = json.loads(told.out)["budgets"]
    assert len(points) >= 3
    for text in (page.read_text(), again.read_text()):
        (data,) = re.findall(r'<script type="application/json" id="picture">(.*?)</script>', text, re.DOTALL)
        assert json.loads(data)["budgets"] == points
        here = next(place for place, point in enumerate(points) if point["is_own"])
        assert f'id="what-if" min="0" max="{len(points) - 1}" step="1" value="{here}"' in text
        rows = text[text.index('<table id="what-if-table">') :].partition("</table>")[0].split("<tr")[2:]
        for row, point in zip(rows, points, strict=True):
            assert f">{bytes_text(point['transient_peak_bytes'])}" in row
            for figure in (
                bytes_text(point["process_bytes"]),
                scaled_text(point["energy_joules"], "J"),
                scaled_text(point["seconds"], "s"),
                f"at most {percent_text(point['gap'])}",
            ):
                assert f">{figure}</td>" in row
