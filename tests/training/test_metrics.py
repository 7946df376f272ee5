"""Metrics of an evaluation: torch's numbers, ignored labels, and what cannot be computed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import poet_onnx
from poet_onnx import TrainingSession
from poet_onnx.errors import InputError
from poet_onnx.gradients.evaluation_graph import MOST_OUTPUT_BYTES
from poet_onnx.graph.input_ranges import Range
from poet_onnx.training.batch import Wanted
from poet_onnx.training.metrics import Means, Outputs

IDS, WORDS = torch.arange(12).reshape(3, 4) % 7, 7
LABELS = torch.tensor([[1, 2, -100, 3], [-100, 0, 0, 5], [6, -100, 1, 1]])


class Tagger(nn.Module):
    """Scores for each token, the classes last."""

    def __init__(self, classes: int = WORDS) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.token, self.head = nn.Embedding(WORDS, 16), nn.Linear(16, classes)

    def forward(self, ids: torch.Tensor) -> dict[str, torch.Tensor]:
        """Return them by name."""
        return {"logits": self.head(self.token(ids))}


def session_of(module: nn.Module, folder: Path, target: str) -> TrainingSession:
    options: dict[str, Any] = {"device": "a72", "target": target, "check": False, "gap": 0.9, "exporter": "legacy"}
    options |= {"ignore_index": -100, "loss": "cross-entropy-last:logits", "optimizer": "sgd"}
    made = poet_onnx.torch.export(module, IDS, folder / "net.onnx", **options)
    return TrainingSession(made.model, made.parameters, eval_model=made.evaluation)


@pytest.mark.parametrize("target", ["training", "stock"])
def test_metrics_are_torchs(tmp_path: Path, target: str) -> None:
    module = Tagger()
    session = session_of(module, tmp_path, target)
    with torch.no_grad():
        scores = module(IDS)["logits"]
    counted = LABELS != -100
    assert not (scores.argmax(-1) == LABELS)[counted].all()
    labels = LABELS.clone()
    labels[0, 0] = scores.argmax(-1)[0, 0]  # one is right at least
    batches = [(IDS, labels), (IDS.flip(0), labels.flip(0))]
    metrics = {"largest": lambda outputs, batch: outputs["logits"].max() + batch["labels"].max()}
    found = session.evaluate(batches, metrics)
    assert list(found) == ["loss", "largest"]
    loss = nn.functional.cross_entropy(scores.transpose(1, 2), labels)
    assert found["loss"] == pytest.approx(loss.item(), rel=1e-5)
    assert found["largest"] == pytest.approx(scores.max().item() + 6, rel=1e-6)
    right = (scores.argmax(-1) == labels)[counted].sum().item()
    assert session.evaluate(batches, ["accuracy"])["accuracy"] == right / counted.sum().item() > 0


def test_metrics_that_cannot_be_are_refused(tmp_path: Path) -> None:
    session = session_of(Tagger(), tmp_path, "training")
    batches = [(IDS, LABELS)]
    for metrics, message in (
        (["f1"], "There is no metric 'f1': give 'accuracy', or a function"),
        ([["accuracy"]], r"^There is no metric \['accuracy'\]: give 'accuracy', or a function"),
        (3, r"^metrics is 3, but must be a list of names, or functions by name: give \['accuracy'\]"),
        (iter(["accuracy"]), "^metrics is <list_iterator .*, but must be a list of names"),  # the next epoch had none
        ({"loss": lambda *_: 1.0}, "There is no metric 'loss'"),
        ({"none": lambda *_: None}, "The metric 'none' gives None: let it return a number"),
        ({"other": lambda outputs, _: outputs["scores"]}, "returns no 'scores' besides its loss, it has 'logits'"),
    ):
        with pytest.raises(InputError, match=message):
            session.evaluate(batches, metrics)


def test_large_outputs_are_not_kept(tmp_path: Path) -> None:
    classes = MOST_OUTPUT_BYTES // (4 * IDS.numel()) + 1
    session = session_of(Tagger(classes), tmp_path, "training")
    assert np.isfinite(session.evaluate([(IDS, LABELS)])["loss"])
    with pytest.raises(InputError, match=r"no accuracy of labels 'labels' \[3, 4\] and no outputs: give a function"):
        session.evaluate([(IDS, LABELS)], "accuracy")


def test_a_batch_of_which_no_label_counts_does_not_count(tmp_path: Path) -> None:
    session = session_of(Tagger(), tmp_path, "stock")
    nothing = (IDS, torch.full_like(LABELS, -100))
    assert session.evaluate([(IDS, LABELS), nothing]) == session.evaluate([(IDS, LABELS)])
    assert session.evaluate([nothing, (IDS, LABELS)], ["accuracy"]) == session.evaluate([(IDS, LABELS)], ["accuracy"])
    assert all(np.isnan(figure) for figure in session.evaluate([nothing], ["accuracy"]).values())


def test_a_label_that_does_not_count_is_known_beside_ranges_without_one() -> None:
    """Labels may also be read as indices, of which another range tells."""
    wanted = [Wanted("labels", np.dtype(np.int64), (2,))]
    for ranges in ((Range(0, 6, -100), Range(-100, 6)), (Range(-100, 6), Range(0, 6, -100))):
        means = Means(["accuracy"], wanted, {"labels": ranges})
        scores = np.eye(2, 7, dtype=np.float32)
        means.add(0.5, Outputs(scores=scores), {"labels": np.array([0, -100])})
        means.add(0.0, Outputs(scores=scores), {"labels": np.array([-100, -100])})
        assert means.figures() == {"loss": 0.5, "accuracy": 1.0}
