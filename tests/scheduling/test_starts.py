"""Starts are schedules, and SCIP ends its search where it is told to."""

from __future__ import annotations

import signal
from dataclasses import replace

import pytest
from deep import sampled
from pyscipopt.scip import PY_SCIP_PARAMSETTING
from tight_models import tight_model

from poet_onnx.scheduling.attempt import paged_start
from poet_onnx.scheduling.incumbent import Effort, Incumbent
from poet_onnx.scheduling.solver import Watcher, _build, solve
from poet_onnx.scheduling.steps import steps_of_assignment
from poet_onnx.simulate import simulate


@pytest.mark.parametrize("options", sampled([{}, {"paging": False}, {"recompute": False}], {}), ids=str)
def test_a_start_is_a_schedule_and_mostly_there_is_one(options: dict[str, bool]) -> None:
    found = 0
    for seed in range(25):
        share = max(0.05, (seed % 4) / 4)  # the smallest budget itself leaves hardly any choice
        problem, limits, model = tight_model(seed, 4 + seed % 20, share, **options)
        x = paged_start(model)
        if x is None:
            continue
        found += 1
        assert model.ceilings().excess_bytes(x) <= 0
        for row in model.rows:
            total = sum(coefficient * x[variable] for variable, coefficient in row.terms.items())
            assert row.low is None or total >= row.low - 1e-9
            assert row.high is None or total <= row.high + 1e-9
        simulate(problem, steps_of_assignment(model, x), limits)
    assert found >= 20


def test_an_interrupt_while_looking_for_rows_ends_the_search(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: object) -> tuple[()]:
        signal.raise_signal(signal.SIGINT)
        return ()

    problem, limits, model = tight_model(3, 14, 0.2)
    monkeypatch.setattr("poet_onnx.scheduling.ancestry.Ancestry.violated", interrupted)
    effort = Effort(gap=0.0, overhead_gap=0.0, time_limit_seconds=20.0)
    outcome = solve(model, Incumbent(problem, limits), effort)
    assert outcome.status == "interrupted"


@pytest.mark.deep
def test_patience_with_assignments_that_make_no_plan_in_time_ends() -> None:
    problem, limits, model = tight_model(6, 20, 0.2)
    start = paged_start(model)
    assert start is not None
    hasty = Effort(gap=0.0, overhead_gap=0.0, time_limit_seconds=20.0, patience_iterations=0)
    late = replace(limits, deadline_seconds=1e-9)
    for limited, effort, status in (
        (late, hasty, "time_limit"),
        (late, replace(hasty, patience_iterations=float("inf")), "optimal"),
        (limits, hasty, "optimal"),
    ):
        incumbent = Incumbent(problem, limited)
        incumbent.offer(model, start)
        outcome = solve(model, incumbent, effort, start=start)
        assert outcome.status == status
        assert outcome.x is not None


class _Hasty(Watcher):
    def eventinitsol(self) -> None:
        """Stop while SCIP is about to start the search, as a start that it takes only then may."""
        self.stop("timelimit")


def test_scip_can_be_stopped_before_its_search() -> None:
    problem, limits, model = tight_model(17, 14, 0.3)
    effort = Effort(gap=0.0, overhead_gap=0.0, time_limit_seconds=20.0)
    scip, variables = _build(model, [cost * 1e4 / problem.base_joules for cost in model.cost], seed=effort.seed)
    scip.setPresolve(PY_SCIP_PARAMSETTING.OFF)
    base = problem.base_joules
    incumbent = Incumbent(problem, limits)
    watcher = _Hasty(model, variables, 1e4 / base, incumbent, effort)
    scip.includeEventhdlr(watcher, "watcher", "")
    scip.optimize()
    assert (scip.getStatus(), watcher.ending) == ("userinterrupt", "timelimit")
