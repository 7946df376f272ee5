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
from poet_onnx.graph.input_ranges import END, Range
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


class Table(torch.nn.Module):
    """Columns of categories, each with a table of its own, and two heads."""

    def __init__(self) -> None:
        super().__init__()
        self.words = torch.nn.ModuleList([torch.nn.Embedding(5, 4), torch.nn.Embedding(11, 4)])
        self.heads = torch.nn.ModuleList([torch.nn.Linear(8, 3), torch.nn.Linear(8, 7)])

    def forward(self, ids: torch.Tensor, labels: torch.Tensor) -> dict[str, torch.Tensor]:
        """Return the loss."""
        x = torch.cat([words(ids[:, column]) for column, words in enumerate(self.words)], 1)
        loss = torch.nn.functional.cross_entropy
        return {"loss": sum(loss(head(x), labels[:, column]) for column, head in enumerate(self.heads))}  # type: ignore[dict-item]


@pytest.mark.parametrize("exporter", ["dynamo", "legacy"])
def test_each_column_of_a_table_has_bounds_of_its_own(exporter: str, tmp_path: Path) -> None:
    torch.manual_seed(0)
    net, batch = Table(), {"ids": torch.tensor([[4, 10], [0, 9]]), "labels": torch.tensor([[2, 6], [0, 3]])}
    made = poet_onnx.torch.export(
        net, batch, tmp_path / "net.onnx", loss="output:loss", device="a72", target="stock", exporter=exporter
    )
    assert made.check is not None
    session = TrainingSession(made.model, made.parameters, eval_model=made.evaluation)
    assert session.step(batch) == pytest.approx(net(**batch)["loss"].item(), rel=1e-5)
    for step in (session.train, session.eval):
        step()
        with pytest.raises(InputError, match=r"'ids' holds 5 at \[1, 0\], but the graph takes 0 to 4 in \[:, 0\]:"):
            session.step({**batch, "ids": np.array([[4, 10], [5, 9]])})
        with pytest.raises(InputError, match=r"'ids' holds 11 at \[0, 1\], but the graph takes 0 to 10 in \[:, 1\]:"):
            session.step({**batch, "ids": np.array([[4, 11], [0, 9]])})
        with pytest.raises(
            InputError, match=r"'labels' holds 3 at \[1, 0\], but the graph takes 0 to 2 in \[:, 0\], or"
        ):
            session.step({**batch, "labels": np.array([[2, 6], [3, 3]])})


class FromOne(torch.nn.Module):
    """An embedding, a gather and rows of a parameter, all by indices that begin at one."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.scores = torch.nn.Embedding(10, 4), torch.nn.Linear(4, 3)
        self.rows = torch.nn.Parameter(torch.ones(10, 4))

    def forward(self, ids: torch.Tensor, places: torch.Tensor, own: torch.Tensor) -> torch.Tensor:
        """Return scores, one row for each sample."""
        x = self.words(ids - 1) + self.rows[own - 1]
        return self.scores(x + x.gather(1, (places - 1)[:, None]))


@pytest.mark.parametrize("exporter", ["dynamo", "legacy"])
def test_a_computed_index_is_refused_where_torch_refuses_it(exporter: str, tmp_path: Path) -> None:
    torch.manual_seed(0)
    net = FromOne()
    batch = {"ids": torch.tensor([1, 10]), "places": torch.tensor([1, 4]), "own": torch.tensor([0, -8])}
    made = poet_onnx.torch.export(
        net, batch, tmp_path / "net.onnx", device="a72", target="stock", exporter=exporter, optimizer="sgd"
    )
    session = TrainingSession(made.model, made.parameters, eval_model=made.evaluation)
    labels = np.array([0, 2])
    expected = torch.nn.functional.cross_entropy(net(**batch), torch.from_numpy(labels)).item()
    assert session.step(batch, labels) == pytest.approx(expected, rel=1e-5)  # rows[-1] and rows[-9] are torch's, too
    for step in (session.train, session.eval):
        step()
        for name, wrong, takes in (
            ("ids", 0, "1 to 10"),
            ("ids", 11, "1 to 10"),
            ("places", 0, "1 to 4"),
            ("own", 11, "-9 to 10"),
        ):
            given = {**batch, name: torch.tensor([1, wrong])}
            with pytest.raises(InputError, match=rf"'{name}' holds {wrong} at \[1\], but the graph takes {takes}:"):
                session.step(given, labels)
            with pytest.raises((IndexError, RuntimeError)):
                net(**given)


class Squared(Tagger):
    """A tagger whose ids are squares, less one."""

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        """Return scores, one row for each word."""
        return super().forward(ids * ids - 1)


def test_what_was_not_checked_is_named_when_the_runtime_fails(tmp_path: Path) -> None:
    ids = torch.ones(2, 4, dtype=torch.int64)
    path = make_artifacts(tmp_path, Squared(), {"ids": ids}, ["scores"], loss=onnxblock.loss.CrossEntropyLoss())
    session = TrainingSession(path, path.with_name("checkpoint"))
    labels = np.zeros(8, np.int64)
    session.step(np.ones((2, 4), np.int64), labels)
    with pytest.raises(CheckFailedError, match="the graph does not tell what numbers 'ids' may hold"):
        session.step(np.full((2, 4), IDS + 1), labels)


TABLE, COLUMN = np.array([[0, 1, 3, 4], [1, 0, 5, 9]]), ((1, range(2, 3)),)


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
        (TABLE, Range(0, 4, part=COLUMN), r"holds 5 at \[1, 2\], but the graph takes 0 to 4 in \[:, 2\]:"),
        (TABLE, Range(0, 3, -9, ((0, range(1)), (1, range(1, END)))), r"4 at \[0, 3\], .* 0 to 3 in \[0, 1:\], or -9"),
        (TABLE.T, Range(3, 9, part=((0, range(0, 4, 3)),)), r"holds 0 at \[0, 0\], .* 3 to 9 in \[0:4:3\]:"),
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
        (TABLE, Range(3, 5, part=COLUMN)),
        (TABLE, Range(9, 9, part=((1, range(4, 6)),))),
    ):
        check_indices("x", array, allowed)
