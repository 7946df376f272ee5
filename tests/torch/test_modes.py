"""What a module computes in training and in eval mode: masks that are drawn in one alone, and branches between them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from deep import sampled
from torch import Tensor, nn
from torch_options import OPTIONS

import poet_onnx
import poet_onnx.torch
from poet_onnx.errors import InputError, PoetWarning
from poet_onnx.torch import comparing, judging, points

KEPT, ROWS, DRAWN = 0.75, 64, 40


class Residual(nn.Module):
    """x plus what stays of a layer's rows: masks as timm, torchvision and transformers draw them."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.kind, self.layer = kind, nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        """Drop rows in training."""
        y: Tensor = self.layer(x)
        if not self.training:
            return y
        shape = (y.shape[0], 1)
        if self.kind == "floor":  # transformers, and timm once
            return y.div(KEPT) * (KEPT + torch.rand(shape, dtype=y.dtype, device=y.device)).floor_()
        if self.kind == "less":
            return y * (torch.rand(shape) < KEPT) / KEPT
        mask = y.new_empty(shape) if self.kind == "new_empty" else torch.empty(shape, dtype=y.dtype)
        return y * mask.bernoulli_(KEPT).div_(KEPT)


class Labelled(nn.Module):
    """Embeds labels, some of which are dropped in training, as diffusers' DiT does."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.last = nn.Embedding(5, 6), nn.Linear(6, 3)

    def forward(self, labels: Tensor) -> Tensor:
        """Drop labels in training."""
        if self.training:
            labels = torch.where(torch.rand(labels.shape[0]) < KEPT, 4, labels)
        return self.last(self.words(labels))  # type: ignore[no-any-return]


class Branch(nn.Module):
    """Returns scores in training, and probabilities in eval mode."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        """Apply the layer."""
        return self.layer(x) if self.training else torch.softmax(self.layer(x), -1)


def exported(module: nn.Module, inputs: Tensor, folder: Path, **options: Any) -> poet_onnx.torch.Exported:
    torch.manual_seed(0)
    return poet_onnx.torch.export(module, (inputs,), folder / "net.onnx", **OPTIONS | options)


def session_of(made: poet_onnx.torch.Exported, **options: Any) -> poet_onnx.TrainingSession:
    return poet_onnx.TrainingSession(made.model, made.parameters, eval_model=made.evaluation, **options)


@pytest.mark.parametrize(
    ("kind", "exporter"),
    sampled(
        [(kind, exporter) for kind in ("new_empty", "empty", "floor", "less") for exporter in ("dynamo", "legacy")],
        ("new_empty", "dynamo"),
        ("empty", "legacy"),
        ("floor", "legacy"),
        ("less", "legacy"),
    ),
)
def test_rows_that_are_dropped_in_training_are_there_in_evaluation(kind: str, exporter: str, tmp_path: Path) -> None:
    module, x = Residual(kind), torch.randn(8, 4)
    made = exported(module, x, tmp_path, exporter=exporter)
    assert made.check is not None
    assert "evaluation" not in str(made.check)
    session_of(made).export_inference_model(tmp_path / "trained.onnx")
    drawn = [node.op_type for node in onnx.load(tmp_path / "trained.onnx").graph.node if "Random" in node.op_type]
    assert drawn == []
    found = onnxruntime.InferenceSession(tmp_path / "trained.onnx").run(None, {"x": x.numpy()})[0]
    np.testing.assert_allclose(found, module.eval()(x).detach().numpy(), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("target", ["stock", "training"])
@pytest.mark.parametrize("kind", ["new_empty", "floor"])
def test_in_training_each_row_is_kept_with_the_probability(kind: str, target: str, tmp_path: Path) -> None:
    """The loss is the share of rows that stay, over the probability: so torch's masks are distributed."""

    class Share(nn.Module):
        """The mean of what stays of rows of a parameter that is 1."""

        def __init__(self) -> None:
            super().__init__()
            self.net = Residual(kind)
            self.net.layer = nn.Linear(1, 1, bias=False)
            nn.init.ones_(self.net.layer.weight)

        def forward(self, x: Tensor) -> Tensor:
            """Average."""
            return self.net(x).mean()  # type: ignore[no-any-return]

    made = exported(Share(), torch.ones(ROWS, 1), tmp_path, loss="output:output", optimizer="sgd", target=target)
    session = session_of(made, optimizer=poet_onnx.SGD(learning_rate=0.0))
    batch = np.ones((ROWS, 1), np.float32)
    losses = np.array([session.step(batch) for _ in range(DRAWN)])
    kept = losses * KEPT * ROWS
    np.testing.assert_allclose(kept, kept.round(), atol=1e-3)
    spread = np.sqrt(KEPT * (1 - KEPT) / (ROWS * DRAWN)) / KEPT
    assert abs(losses.mean() - 1) < 5 * spread
    assert len(set(kept.round())) > 3
    session.save_checkpoint(tmp_path / "later.ckpt")
    following = [session.step(batch) for _ in range(5)]
    session.load_checkpoint(tmp_path / "later.ckpt")
    assert [session.step(batch) for _ in range(5)] == following


@pytest.mark.parametrize(
    ("module", "inputs"), [(Branch(), torch.randn(8, 4)), (Labelled(), torch.arange(8) % 4)], ids=["branch", "labels"]
)
def test_what_eval_mode_computes_otherwise_is_warned_of(module: nn.Module, inputs: Tensor, tmp_path: Path) -> None:
    with pytest.warns(PoetWarning, match="computes something else in eval mode, which was not exported"):
        made = exported(module, inputs, tmp_path)
    assert made.check is not None
    assert made.check.passed
    assert module.training


def test_a_module_that_cannot_be_evaluated_is_told(tmp_path: Path) -> None:
    class Training(nn.Linear):
        """Runs in training mode alone."""

        def forward(self, x: Tensor) -> Tensor:
            """Apply the layer."""
            if not self.training:
                raise NotImplementedError("no evaluation here")
            return super().forward(x)

    made = exported(Training(4, 3), torch.randn(8, 4), tmp_path)
    assert "does not run in eval mode (NotImplementedError: no evaluation here)" in str(made.check)


def test_hooks_that_a_first_call_registers_go_again(tmp_path: Path) -> None:
    """The models of transformers 5 do so, and note it in an attribute: registered twice, hooks raise."""

    class Hooked(nn.Module):
        """Registers a hook in its first call."""

        def __init__(self) -> None:
            super().__init__()
            self.layer, self.is_hooked = nn.Linear(4, 3), False

        def forward(self, x: Tensor) -> Tensor:
            """Apply the layer."""
            if not self.is_hooked:
                self.layer.register_forward_hook(lambda *_: None)
                self.is_hooked = True
            return self.layer(x)  # type: ignore[no-any-return]

    module = Hooked()
    exported(module, torch.randn(8, 4), tmp_path)
    assert not module.is_hooked
    assert not module.layer._forward_hooks


def test_where_double_precision_has_no_number_single_is_the_judge(tmp_path: Path) -> None:
    class Masked(nn.Linear):
        """Adds a mask in single precision, which cannot hold the lowest number of double precision."""

        def forward(self, x: Tensor) -> Tensor:
            """Apply the layer."""
            return super().forward(x) + torch.zeros(3, dtype=torch.float32) * torch.finfo(x.dtype).min

    made = exported(Masked(4, 3), torch.randn(8, 4), tmp_path)
    assert made.check is not None
    assert made.check.passed


def test_each_parameter_and_buffer_is_looked_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """All of them for each of them took a minute for a net of some hundred layers."""
    calls = 0

    def counted(tensors: Any) -> float:
        nonlocal calls
        calls += 1
        return judging.largest_of(tensors)

    monkeypatch.setattr(points, "largest_of", counted)
    layers = [nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4)) for _ in range(6)]
    exported(nn.Sequential(*layers, nn.Linear(4, 3)), torch.randn(8, 4), tmp_path)
    assert 0 < calls <= 2 * comparing._MOST_POINTS


class Siamese(nn.Module):
    """Compares two batches by one encoder."""

    def __init__(self, **options: bool) -> None:
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4, **options), nn.ReLU(), nn.Linear(4, 3))

    def forward(self, a: Tensor, b: Tensor) -> Tensor:
        """Return the distance."""
        return (self.encoder(a) - self.encoder(b)).square().mean()


@pytest.mark.parametrize("check", [True, False])
@pytest.mark.parametrize("exporter", ["dynamo", "legacy"])
def test_a_batch_normalization_that_would_move_twice_is_refused_by_name(
    exporter: str, check: bool, tmp_path: Path
) -> None:
    batch, options = (torch.randn(8, 4), torch.randn(8, 4)), {**OPTIONS, "exporter": exporter, "check": check}
    with pytest.raises(InputError, match=r"normalization 'encoder\.1' is called several times in a step, .*torch\.cat"):
        poet_onnx.torch.export(Siamese(), batch, tmp_path / "net.onnx", loss="output:output", **options)


@pytest.mark.parametrize("module", [Siamese().eval(), Siamese(track_running_stats=False)], ids=["eval", "untracked"])
@pytest.mark.parametrize("exporter", ["dynamo", "legacy"])
def test_a_batch_normalization_whose_statistics_do_not_move_is_called_twice(
    exporter: str, module: nn.Module, tmp_path: Path
) -> None:
    batch, options = (torch.randn(8, 4), torch.randn(8, 4)), {**OPTIONS, "exporter": exporter}
    made = poet_onnx.torch.export(module, batch, tmp_path / "net.onnx", loss="output:output", **options)
    assert made.check is not None
    assert made.check.passed


class Beside(nn.Module):
    """Returns what it makes of its scores beside them, with a batch normalization on the way."""

    def __init__(self) -> None:
        super().__init__()
        self.scores, self.norm = nn.Linear(4, 3), nn.BatchNorm1d(3, affine=False)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return scores and probabilities."""
        scores = self.scores(x)
        return scores, self.norm(scores).softmax(1)


@pytest.mark.parametrize("exporter", ["dynamo", "legacy"])
def test_statistics_move_as_in_torch_where_the_loss_reads_nothing_of_the_normalization(
    exporter: str, tmp_path: Path
) -> None:
    torch.manual_seed(0)
    net, x = Beside(), torch.randn(8, 4)
    options = {**OPTIONS, "exporter": exporter, "target": "stock", "optimizer": "sgd"}
    made = poet_onnx.torch.export(net, x, tmp_path / "net.onnx", loss="mse", **options)
    session = poet_onnx.TrainingSession(made.model, made.parameters, optimizer=poet_onnx.SGD(0.0))
    for _ in range(3):
        session.step(x.numpy(), torch.zeros(8, 3).numpy())
        net(x)
    poet_onnx.torch.load_trained(trained := Beside(), session)
    for name in ("norm.running_mean", "norm.running_var"):
        torch.testing.assert_close(trained.state_dict()[name], net.state_dict()[name], rtol=1e-6, atol=1e-7)
