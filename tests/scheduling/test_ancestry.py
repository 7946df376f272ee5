"""Rows about what values are recomputed from: true of every schedule, and not of every relaxation."""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest
from deep import sampled
from proofs.admitted import walk
from pyscipopt.scip import PY_SCIP_PARAMSETTING
from tight_models import tight_model

from poet_onnx.scheduling.ancestry import LEAST_VIOLATION, Ancestry
from poet_onnx.scheduling.incumbent import Effort
from poet_onnx.scheduling.memory_rows import MemoryRows, Row
from poet_onnx.scheduling.model import Formulation
from poet_onnx.scheduling.solver import _build

EFFORT = Effort(gap=0.0, overhead_gap=0.0, time_limit_seconds=60.0)


def _sum(row: Row, x: Sequence[float]) -> float:
    return sum(coefficient * x[variable] for variable, coefficient in row.terms.items())


def _relaxation(model: Formulation) -> list[float]:
    """Return the levels of all variables in the cheapest solution whose variables need not be whole."""
    model.binary = [False] * len(model.binary)
    scip, variables = _build(model, model.cost, seed=EFFORT.seed)
    scip.setPresolve(PY_SCIP_PARAMSETTING.OFF)
    scip.optimize()
    assert scip.getStatus() == "optimal"
    return [scip.getVal(variable) for variable in variables]


@pytest.mark.parametrize("seed", sampled(range(30), *range(8)))
def test_every_row_is_true_of_whole_assignments(seed: int) -> None:
    """Found by levels at random, each row is given to the solver as what to minimise over the rows (1) to (3)."""
    _, _, model = tight_model(seed, 4 + seed % 12, (seed % 4) / 4)
    rng = random.Random(seed)
    ancestry = Ancestry(model)
    rows = [row for _ in range(3) for row in ancestry.violated([rng.choice((0.0, 0.1, 0.4)) for _ in model.cost])]
    model.time, model.memory = [], MemoryRows()
    for row in rng.sample(rows, min(8, len(rows))):
        assert row.low == 1.0
        assert row.high is None
        scip, _ = _build(model, [row.terms.get(variable, 0.0) for variable in range(len(model.cost))], seed=EFFORT.seed)
        scip.optimize()
        assert scip.getStatus() == "optimal"
        assert scip.getPrimalbound() >= 1.0 - 1e-6


@pytest.mark.parametrize("seed", range(25))
def test_no_row_is_violated_by_a_schedule(seed: int) -> None:
    _, _, model = tight_model(seed, 4 + seed % 20, (seed % 4) / 4)
    ancestry = Ancestry(model)
    for x in walk(model, random.Random(seed)):
        assert not ancestry.violated(x)


def test_rows_are_violated_as_much_as_they_say_and_lift_the_relaxation() -> None:
    lifted = 0
    for seed in range(12):
        _, _, model = tight_model(seed, 16, 0.2)
        levels = [_relaxation(model)]
        while rows := Ancestry(model).violated(levels[-1]):
            assert all(_sum(row, levels[-1]) < 1.0 - LEAST_VIOLATION for row in rows)
            model.rows.extend(rows)
            levels.append(_relaxation(model))
        assert model.joules(levels[-1]) >= model.joules(levels[0]) - 1e-9
        lifted += model.joules(levels[-1]) > 1.01 * model.joules(levels[0])
    assert lifted >= 3


def test_no_more_rows_come_than_have_a_place_and_those_first_that_are_violated_most(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    _, _, model = tight_model(7, 20, 0.2)
    x = [0.1] * len(model.cost)
    rows = Ancestry(model).violated(x)
    assert len(rows) > 3
    sums = [_sum(row, x) for row in rows]
    assert sums == sorted(sums)
    monkeypatch.setattr("poet_onnx.scheduling.ancestry.MOST_ROWS", 3)
    assert [row.terms for row in Ancestry(model).violated(x)] == [row.terms for row in rows[:3]]
