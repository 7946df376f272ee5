"""What was given stands in a message in few letters, however long it is."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import poet_onnx
from poet_onnx.description.metadata import as_batches
from poet_onnx.description.optimizers import as_norm
from poet_onnx.errors import InputError, shown
from poet_onnx.quantities import parse_budget, parse_deadline, parse_lifetime
from poet_onnx.training.metrics import Means, Outputs
from poet_onnx.training.stored import as_commits

CALLS: dict[str, Callable[[Any], object]] = {
    "a rate": lambda number: poet_onnx.SGD(learning_rate=number),
    "a decay of a group": lambda number: poet_onnx.ParameterGroup("*", weight_decay=number),
    "a norm": as_norm,
    "batches of an update": as_batches,
    "a rate of a schedule": lambda number: poet_onnx.StepLR(number, 1),
    "updates of a schedule": lambda number: poet_onnx.StepLR(0.1, -number),
    "milestones": lambda number: poet_onnx.MultiStepLR(0.1, [-number]),
    "patience": lambda number: poet_onnx.EarlyStopping(patience=-number),
    "a difference": lambda number: poet_onnx.EarlyStopping(minimum_delta=number),
    "steps of a checkpoint": lambda number: poet_onnx.Checkpoint("a", every_steps=-number),
    "updates of a commit": as_commits,
    "samples of a batch": lambda number: poet_onnx.ArrayLoader(np.zeros(4), batch_size=-number),
    "a seed": lambda number: poet_onnx.ArrayLoader(np.zeros(4), batch_size=2, seed=-number),
    "a metric": lambda number: Means({"m": lambda *_: number}, WANTED, {}).add(1.0, Outputs(), {}),
    "a budget": lambda number: parse_budget(number, name="RAM budget"),
    "a deadline": lambda number: parse_deadline(number, name="deadline"),
    "a lifetime": lambda number: parse_lifetime(number, name="lifetime"),
    "threads": lambda number: poet_onnx.rewrite("a.onnx", threads=number),
    "a rank": lambda number: poet_onnx.Lora(rank=number, targets="*"),
    "an alpha": lambda number: poet_onnx.Lora(alpha=number, targets="*"),
}
WANTED = [poet_onnx.training.batch.Wanted("x", np.dtype(np.float32), (4,))]


@pytest.mark.parametrize("digits", [400, 5000])
@pytest.mark.parametrize("what", CALLS)
def test_a_huge_number_is_refused_in_a_short_sentence(what: str, digits: int) -> None:
    with pytest.raises(InputError) as refused:
        CALLS[what](10**digits)
    assert len(str(refused.value)) < 200


def test_what_is_short_is_shown_whole() -> None:
    assert shown(3) == "3"
    assert shown("a\nb") == r"'a\nb'"
    assert shown(poet_onnx.SGD) == "<class 'poet_onnx.description.optimizers.SGD'>"
    assert shown("/a/path/of/more/than/thirty/letters") == "'/a/path/of/more/than/thirty/letters'"


def test_of_a_long_number_the_ends_are_shown() -> None:
    assert shown(10**50) == "100000000000000000...0000000000000000000"
    assert shown(10**5000) == "a whole number of too many digits"
