"""Networks that go from torch to a training step, beside torch: those of docs/exporters.md, a few steps and fifty."""

from __future__ import annotations

from pathlib import Path

import pytest
from deep import sampled
from stock_environment import NEEDS_STOCK
from torch_networks.catalogue import NETWORKS, SIX, TRANSFORMERS
from torch_table import COLUMNS, GRADIENT_BOUND, USUAL, outcome, read
from torch_training import compare, prepare, train_on_stock

SHOWN = {**SIX, **TRANSFORMERS}
OFTEN = [(list(SHOWN)[-1], *USUAL[0])]
EVERY = [(name, *column) for name in NETWORKS for column in COLUMNS]
LONG, LONG_BOUND = 50, 5e-3
"""Steps, and how far losses may be apart: torch's own in single and double precision are by 1.3e-3 for the U-Net."""


@pytest.mark.parametrize(("name", "exporter", "opset"), sampled(EVERY, *OFTEN))
def test_the_table_is_what_happens(name: str, exporter: str, opset: int) -> None:
    assert outcome(name, exporter, opset) == read()[name][exporter, opset]


def test_the_table_of_this_torch_has_every_network() -> None:
    assert list(read()) == list(NETWORKS)
    assert {read()[name][column] for name in SHOWN for column in USUAL} == {"trains"}


@NEEDS_STOCK
@pytest.mark.deep
@pytest.mark.parametrize(
    ("name", "exporter", "steps"),
    [(name, exporter, LONG) for name in SHOWN for exporter in ("dynamo", "legacy")],
)
def test_losses_fall_as_torchs_on_the_stock_runtime(name: str, exporter: str, steps: int, tmp_path: Path) -> None:
    network = NETWORKS[name]
    module, inputs, labels = prepare(tmp_path, network, exporter=exporter)
    train_on_stock([tmp_path], steps)
    found = compare(tmp_path, network, module, inputs, labels)
    assert len(found.losses) == steps
    assert found.gradient_error <= GRADIENT_BOUND
    assert found.loss_error <= LONG_BOUND
    assert found.losses[-1] < 0.9 * found.losses[0]
