"""Rows of memory that are written slot by slot say what each slot has by itself."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from deep import sampled
from real_problems import real_problem

from poet_onnx.plan.limits import Limits
from poet_onnx.scheduling import memory_aware_order
from poet_onnx.scheduling.liveness import Liveness, build_instance
from poet_onnx.scheduling.memory_rows import _present, _slot_terms
from poet_onnx.scheduling.model import formulate


@pytest.mark.parametrize("name", sampled(["mobilenet", "resnet18", "gpt", "transformer"], "transformer"))
def test_what_changes_from_slot_to_slot_adds_up_to_what_is_there(model_path: Callable[..., Path], name: str) -> None:
    problem = real_problem(model_path(name), "a72")
    order = memory_aware_order(problem)
    limits = Limits(int(0.7 * Liveness(problem).in_order(order).peak_bytes))
    model = formulate(build_instance(problem, order), limits)
    candidates, slots = model.candidates, 0
    for stage in range(len(candidates.slots)):
        here = [(value, index) for (value, at), index in candidates.at.items() if at == stage]
        for slot, terms in enumerate(_slot_terms(model, stage, here)):
            expected: dict[int, float] = {}
            for value, index in here:
                for variable, share in _present(model, value, index, slot):
                    expected[variable] = expected.get(variable, 0.0) + share * candidates.instance.sizes[value]
            own = model.recompute[stage, candidates.slots[stage][slot]]
            assert {**terms, own: 0.0} == {**expected, own: 0.0}
            assert terms.get(own, 0.0) >= expected.get(own, 0.0)
            slots += 1
    assert slots > 100
