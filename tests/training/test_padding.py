"""A last batch of fewer samples: torch's numbers for it, and what cannot be filled up."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset
from training_batches import digest

import poet_onnx
from poet_onnx import SGD, TrainingSession
from poet_onnx.errors import InputError
from poet_onnx.graph.input_ranges import Range
from poet_onnx.training.padding import Filling

SIZE, SAMPLES, RATE = 4, 11, 0.002


def net(*middle: nn.Module) -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(3, 8, 3), nn.GELU(), *middle, nn.Flatten(), nn.LayerNorm(288), nn.Linear(288, 5))


def exported(module: nn.Module, folder: Path, **options: Any) -> poet_onnx.torch.Exported:
    given: dict[str, Any] = {"device": "a72", "optimizer": "momentum", "gap": 0.9, "check": False, "exporter": "legacy"}
    given |= {"loss": "cross-entropy", "ignore_index": -100} | options
    return poet_onnx.torch.export(module, torch.zeros(SIZE, 3, 8, 8), folder / "net.onnx", **given)


def session_of(made: poet_onnx.torch.Exported) -> TrainingSession:
    return TrainingSession(made.model, made.parameters, optimizer=SGD(RATE, momentum=0.9), eval_model=made.evaluation)


@pytest.fixture
def data() -> TensorDataset:
    generator = torch.Generator().manual_seed(1)
    labels = torch.randint(0, 5, (SAMPLES,), generator=generator)
    labels[9] = -100
    return TensorDataset(torch.randn(SAMPLES, 3, 8, 8, generator=generator), labels)


@pytest.mark.parametrize("target", ["training", "stock"])
def test_gradients_are_torchs_of_the_smaller_batch(data: TensorDataset, tmp_path: Path, target: str) -> None:
    """Batches of 4, 4 and 3 samples, one of which has a label that is ignored; then one alone."""
    module = net()
    session = session_of(exported(module, tmp_path, target=target))
    loader = DataLoader(data, batch_size=SIZE)
    optimizer, criterion = torch.optim.SGD(module.parameters(), RATE, momentum=0.9), nn.CrossEntropyLoss()
    found = session.fit(loader, epochs=2, evaluate=loader, metrics=["accuracy"])
    for epoch in found:
        losses = []
        for images, labels in loader:
            optimizer.zero_grad()
            loss = criterion(module(images), labels)
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        assert epoch.figures["loss"] == pytest.approx(np.mean(losses), rel=1e-5)
        with torch.no_grad():
            after = [criterion(module(images), labels).item() for images, labels in loader]
            right = sum((module(images).argmax(1) == labels).sum().item() for images, labels in loader)
        assert epoch.figures["evaluation_loss"] == pytest.approx(np.mean(after), rel=1e-5)
        assert epoch.figures["evaluation_accuracy"] == right / (SAMPLES - 1)
    images, labels = data[:1]
    optimizer.zero_grad()
    loss = criterion(module(images), labels)
    loss.backward()
    optimizer.step()
    assert session.step(images, labels.tolist()) == pytest.approx(loss.item(), rel=1e-5)
    for name, parameter in module.named_parameters():
        np.testing.assert_allclose(session.parameters[name], parameter.detach(), rtol=1e-3, atol=2e-5)


class Centred(nn.Module):
    """Lets each sample see the others."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Subtract the mean of the batch."""
        return x - x.mean(0, keepdim=True)


@pytest.mark.parametrize(
    ("middle", "options", "message"),
    [
        (
            nn.BatchNorm2d(8),
            {},
            r"cannot be filled up, for '2\.running_mean' is of all samples: .*drop_last=True",
        ),
        (
            Centred(),
            {},
            r"for its loss depends on what with \([\d.]+ or [\d.]+\): .*drop_last=True",
        ),
        (
            nn.Identity(),
            {"ignore_index": None},
            "takes 4. .* its loss ignores no label: .*drop_last=True",
        ),
        (nn.Identity(), {"loss": "mse", "ignore_index": None}, "has 3 samples, .* weight for each sample"),
    ],
    ids=["norm", "mean", "cross-entropy", "mse"],
)
def test_what_cannot_be_filled_up_is_refused(
    tmp_path: Path, middle: nn.Module, options: dict[str, Any], message: str
) -> None:
    session = session_of(exported(net(middle), tmp_path, **options))
    before, images = digest(session), np.random.default_rng(0).random((3, 3, 8, 8), np.float32)
    labels = np.zeros((3, 5), np.float32) if "loss" in options else np.array([1, 2, 3])
    with pytest.raises(InputError, match=message):
        session.step(images, labels)
    assert digest(session) == before


def test_a_frozen_norm_is_no_reason(tmp_path: Path, data: TensorDataset) -> None:
    module = net(nn.BatchNorm2d(8))
    module[2].eval()
    session = session_of(exported(module, tmp_path))
    images, labels = data[:2]
    assert session.step(images, labels) == pytest.approx(nn.functional.cross_entropy(module(images), labels).item())


def test_without_an_evaluation_graph_it_cannot_be_tried(tmp_path: Path, data: TensorDataset) -> None:
    made = exported(net(), tmp_path)
    session = TrainingSession(made.model, made.parameters)
    with pytest.raises(InputError, match=r"which is tried with the eval_model: leave it out, .*drop_last=True"):
        session.step(*data[:3])
    with pytest.raises(InputError, match=r"'input' has shape \[3, 3, 8, 8\], but must have \[4, 3, 8, 8\]"):
        session.step(data[:3][0], data[:4][1])


class Weighed(nn.Module):
    """A network with a loss in which each sample has its weight."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module

    def forward(self, x: Tensor, target: Tensor, weight: Tensor) -> dict[str, Tensor]:
        """Return the loss and the scores."""
        scores = self.module(x)
        each = nn.functional.mse_loss(scores, target, reduction="none").mean(1)
        return {"loss": (each * weight).sum() / weight.sum(), "scores": scores}


@pytest.mark.deep
def test_samples_of_weight_0_fill_up_a_batch_of_another_loss(tmp_path: Path) -> None:
    module = net()
    batch = {"x": torch.randn(SIZE, 3, 8, 8), "target": torch.randn(SIZE, 5), "weight": torch.ones(SIZE)}
    options: dict[str, Any] = {"device": "a72", "optimizer": "momentum", "gap": 0.9, "check": False}
    made = poet_onnx.torch.export(Weighed(module), batch, tmp_path / "net.onnx", loss="output:loss", **options)
    session = session_of(made)
    assert [each.name for each in session.data_inputs] == ["x", "target", "weight"]
    optimizer = torch.optim.SGD(module.parameters(), RATE, momentum=0.9)
    loss = nn.functional.mse_loss(module(batch["x"][:3]), batch["target"][:3])
    loss.backward()
    optimizer.step()
    batch["weight"][3] = 0.0
    assert session.step(batch) == pytest.approx(loss.item(), rel=1e-6)
    for name, parameter in module.named_parameters():
        found = torch.from_numpy(session.parameters[f"module.{name}"])
        torch.testing.assert_close(found, parameter.detach(), rtol=1e-5, atol=1e-7)


class Columns(nn.Module):
    """A table of two categories and a label."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.scores = nn.Embedding(3, 4), nn.Embedding(9, 4), nn.Linear(8, 5)

    def forward(self, table: Tensor) -> dict[str, Tensor]:
        """Return the loss of the labels in the last column."""
        words = torch.cat([self.first(table[:, 0]), self.second(table[:, 1])], 1)
        return {"loss": nn.functional.cross_entropy(self.scores(words), table[:, 2])}


def test_columns_are_filled_up_with_what_each_of_them_takes(tmp_path: Path) -> None:
    """Only the labels may be -100; the other columns would be out of range."""
    torch.manual_seed(0)
    module, table = Columns(), torch.tensor([[2, 8, 4], [0, 7, 1], [1, 3, 2], [2, 0, 0]])
    made = poet_onnx.torch.export(
        module, table, tmp_path / "net.onnx", loss="output:loss", device="a72", optimizer="sgd"
    )
    session = TrainingSession(made.model, made.parameters, optimizer=SGD(0.1), eval_model=made.evaluation)
    assert session.step(table[:3].numpy()) == pytest.approx(module(table[:3])["loss"].item(), rel=1e-5)
    known = (Range(0, 2, part=((1, range(1)),)), Range(0, 8, part=((1, range(1, 2)),)))
    filling = Filling(3, 4, {"table": (*known, Range(0, 4, -100, ((1, range(2, 3)),)))})
    place = np.zeros((4, 3), np.int64)
    filling.fill("table", table[:3].numpy(), place, for_trial=True)
    assert place.tolist() == [*table[:3].tolist(), [0, 0, -100]]
    filling.fill("table", table[1:].numpy(), place, for_trial=False)
    assert place.tolist() == [*table[1:].tolist(), [0, 7, -100]]
