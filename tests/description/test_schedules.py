"""Learning rates by the number of updates: those of torch.optim.lr_scheduler, and what is refused."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch.optim import lr_scheduler

import poet_onnx
from poet_onnx.errors import InputError

RATE = 0.3
Make = Callable[[torch.optim.Optimizer], lr_scheduler.LRScheduler]


@pytest.mark.parametrize(
    ("ours", "make"),
    [
        (poet_onnx.StepLR(RATE, 3), lambda o: lr_scheduler.StepLR(o, 3)),
        (poet_onnx.StepLR(RATE, 4, gamma=0.7), lambda o: lr_scheduler.StepLR(o, 4, gamma=0.7)),
        (poet_onnx.MultiStepLR(RATE, [2, 5, 5, 20]), lambda o: lr_scheduler.MultiStepLR(o, [2, 5, 5, 20])),
        (poet_onnx.ExponentialLR(RATE, 0.9), lambda o: lr_scheduler.ExponentialLR(o, 0.9)),
        (poet_onnx.LinearLR(RATE), lr_scheduler.LinearLR),
        (poet_onnx.LinearLR(RATE, 1.0, 0.1, 9), lambda o: lr_scheduler.LinearLR(o, 1.0, 0.1, 9)),
        (poet_onnx.CosineAnnealingLR(RATE, 10, 0.01), lambda o: lr_scheduler.CosineAnnealingLR(o, 10, 0.01)),
        (poet_onnx.CosineAnnealingLR(RATE, 100), lambda o: lr_scheduler.CosineAnnealingLR(o, 100)),
        (
            poet_onnx.SequentialLR([poet_onnx.LinearLR(RATE, 0.1), poet_onnx.CosineAnnealingLR(RATE, 20)], [5]),
            lambda o: lr_scheduler.SequentialLR(
                o, [lr_scheduler.LinearLR(o, 0.1), lr_scheduler.CosineAnnealingLR(o, 20)], [5]
            ),
        ),
        (
            poet_onnx.SequentialLR(
                [poet_onnx.LinearLR(RATE), poet_onnx.StepLR(RATE, 2), poet_onnx.ExponentialLR(RATE, 0.5)], [4, 9]
            ),
            lambda o: lr_scheduler.SequentialLR(
                o, [lr_scheduler.LinearLR(o), lr_scheduler.StepLR(o, 2), lr_scheduler.ExponentialLR(o, 0.5)], [4, 9]
            ),
        ),
    ],
    ids=lambda each: type(each).__name__,
)
def test_rates_are_those_of_torch(ours: Callable[[int], float], make: Make) -> None:
    optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=RATE)
    theirs, rates = make(optimizer), []
    for _ in range(32):
        rates.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        theirs.step()
    assert [ours(updates) for updates in range(32)] == pytest.approx(rates, rel=1e-12, abs=1e-15)
    assert len(set(rates)) > 3


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: poet_onnx.StepLR(-1, 3), "StepLR's learning_rate is -1, but must be a number of 0 or more"),
        (lambda: poet_onnx.StepLR(0.1, 0), "StepLR's step_size is 0, but must be a whole number of 1 or more"),
        (lambda: poet_onnx.CosineAnnealingLR(0.1, 2.5), "CosineAnnealingLR's T_max is 2.5"),
        (lambda: poet_onnx.ExponentialLR(0.1, "0.9"), "ExponentialLR's gamma is '0.9'"),
        (lambda: poet_onnx.LinearLR(0.1, end_factor=float("nan")), "LinearLR's end_factor is nan"),
        (lambda: poet_onnx.MultiStepLR(0.1, [5, 2]), r"MultiStepLR's milestones are \[5, 2\]"),
        (lambda: poet_onnx.SequentialLR([poet_onnx.LinearLR(0.1)], [2]), "has 1 schedules and 1 milestones"),
        (lambda: poet_onnx.SequentialLR([0.1, 0.2], [2]), "give functions of the number of updates"),
    ],
)
def test_what_is_no_schedule_is_refused(make: Callable[[], object], message: str) -> None:
    with pytest.raises(InputError, match=message):
        make()
