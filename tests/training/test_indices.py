"""Labels and indices that a graph cannot take are refused before the step, on both runtimes, and training goes on."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import numpy as np
import pytest
import torch
from folders import SUPPORT
from onnxruntime.training import onnxblock
from stock_environment import NEEDS_STOCK, STOCK_PYTHON
from stock_refusals import CLASSES, IDS, IGNORED, check_refusals
from torch_artifacts import make_artifacts

import poet_onnx
from poet_onnx import TrainingSession
from poet_onnx.errors import CheckFailedError, InputError
from poet_onnx.graph.input_ranges import Range
from poet_onnx.training.indices import check_indices


class Tagger(torch.nn.Module):
    """Scores for every word of a sentence."""

    def __init__(self) -> None:
        super().__init__()
        self.words = torch.nn.Embedding(IDS, 4)
        self.scores = torch.nn.Linear(4, CLASSES)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        """Return scores, one row for each word."""
        return self.scores(self.words(ids)).flatten(0, 1)


@pytest.fixture(scope="module")
def tagger(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the training graph of a tagger that ignores a label; the number of sentences is open."""
    torch.manual_seed(0)
    return make_artifacts(
        tmp_path_factory.mktemp("tagger"),
        Tagger(),
        {"ids": torch.zeros(2, 4, dtype=torch.int64)},
        ["scores"],
        loss=onnxblock.loss.CrossEntropyLoss(ignore_index=IGNORED),
    )


def test_labels_and_ids_out_of_range_are_refused_and_training_goes_on(tagger: Path, tmp_path: Path) -> None:
    losses = check_refusals(str(tagger), str(tagger.parent))
    assert losses[1] < losses[0]
    poet_onnx.rewrite(tagger, device="a72").save(tmp_path / "rewritten.onnx")
    assert check_refusals(str(tmp_path / "rewritten.onnx"), str(tagger.parent)) == losses


@NEEDS_STOCK
def test_a_lowered_graph_knows_what_its_labels_may_be(tagger: Path, tmp_path: Path) -> None:
    path = tmp_path / "stock.onnx"
    poet_onnx.rewrite(tagger, device="a72", target="stock", optimizer="sgd").save(path)
    command = [STOCK_PYTHON, str(SUPPORT / "stock_refusals.py"), path, tagger.parent]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    np.testing.assert_allclose(json.loads(done.stdout), check_refusals(str(tagger), str(tagger.parent)), rtol=1e-6)


class Shifted(Tagger):
    """A tagger whose ids begin at one."""

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        """Return scores, one row for each word."""
        return super().forward(ids - 1)


def test_what_was_not_checked_is_named_when_the_runtime_fails(tmp_path: Path) -> None:
    ids = torch.ones(2, 4, dtype=torch.int64)
    path = make_artifacts(tmp_path, Shifted(), {"ids": ids}, ["scores"], loss=onnxblock.loss.CrossEntropyLoss())
    session = TrainingSession(path, path.with_name("checkpoint"))
    labels = np.zeros(8, np.int64)
    session.step(np.ones((2, 4), np.int64), labels)
    with pytest.raises(CheckFailedError, match="the graph does not tell what numbers 'ids' may hold"):
        session.step(np.full((2, 4), IDS + 1), labels)


@pytest.mark.parametrize(
    ("array", "allowed", "message"),
    [
        (np.array([0, 300]), Range(0, 255), r"holds 300 at \[1\], but the graph takes 0 to 255:"),
        (np.array(-1), Range(0, 2), "holds -1, but"),
        (np.array([[0, 255]], np.uint8), Range(0, 2), r"holds 255 at \[0, 1\]"),
        (np.array([False, True]), Range(0, 0), r"holds True at \[1\]"),
        (np.array([0.0, 2.9, 3.0], np.float32), Range(0, 2), r"holds 3.0 at \[2\]"),
        (np.array([np.nan], np.float16), Range(0, 100_000), "holds nan"),
        (np.array([0]), Range(0, -1), r"holds 0 at \[0\]"),
    ],
)
def test_the_first_number_that_does_not_fit_is_named(array: np.ndarray, allowed: Range, message: str) -> None:
    with pytest.raises(InputError, match=message):
        check_indices("x", array, allowed)


def test_numbers_that_fit_pass() -> None:
    for array, allowed in (
        (np.array([0, 9, -5]), Range(0, 9, -5)),
        (np.array([-3, 2]), Range(-3, 2)),
        (np.array([-0.9, 2.9]), Range(0, 2)),
        (np.array([True]), Range(0, 1)),
        (np.array([0, 255], np.uint8), Range(0, 1000)),
        (np.zeros((0, 3), np.int64), Range(0, -1)),
    ):
        check_indices("x", array, allowed)
