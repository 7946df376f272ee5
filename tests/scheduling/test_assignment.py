"""Assignments that are changed a restore at a time: at any moment they are what they would be if made anew."""

from __future__ import annotations

import random

import numpy as np
import pytest
from tight_models import tight_model

from poet_onnx.scheduling.assignment import Assignment
from poet_onnx.scheduling.memory_rows import Row
from poet_onnx.scheduling.model import Restores

NOTHING = Restores()


def _is_as_made_anew(assignment: Assignment) -> bool:
    restores = Restores(assignment.recomputed, assignment.paged_in)
    anew = assignment.model.complete(restores)
    return assignment.x == anew and np.allclose(assignment.activity, assignment.ceilings.activity(anew), rtol=1e-12)


@pytest.mark.parametrize("seed", range(30))
def test_a_changed_assignment_is_as_one_made_anew(seed: int) -> None:
    _, _, model = tight_model(seed, 6 + seed % 18, (seed % 4) / 4)
    model.time.append(Row(dict.fromkeys(model.recompute.values(), 1.0), high=1.0))
    rng = random.Random(seed)
    assignment = Assignment(model, model.complete(NOTHING))
    choices = [Restores(recomputed={key}) for key in model.recompute]
    choices += [Restores(paged_in={key}) for key in model.page_in]
    for _ in range(40):
        recomputed, paged_in = assignment.recomputed, assignment.paged_in
        before: dict[int, float] = {}
        levels, activity = list(assignment.x), assignment.activity.copy()
        change = rng.choice(choices)
        is_there = change.recomputed <= assignment.recomputed and change.paged_in <= assignment.paged_in
        assignment.put(*((NOTHING, change) if is_there else (change, NOTHING)), before)
        assert _is_as_made_anew(assignment)
        assert assignment.saved(before) == pytest.approx(model.joules(levels) - model.joules(assignment.x), abs=1e-9)
        if rng.random() < 0.5:
            assignment.take_back(recomputed, paged_in, before)
            assert assignment.x == levels
            assert np.allclose(assignment.activity, activity, rtol=1e-12)
            assert _is_as_made_anew(assignment)
