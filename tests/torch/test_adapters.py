"""Adapters from torch: `poet_onnx.torch.export` trains them alone, and its check compares their gradients."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from adapter_models import IDS, Tied, exported
from deep import sampled
from later import Later
from safetensors.numpy import load_file
from torch import Tensor, nn
from torch_options import OPTIONS

import poet_onnx.torch
from poet_onnx import Lora, TrainingSession
from poet_onnx.errors import CheckFailedError, InputError
from poet_onnx.torch import comparing

peft = Later("peft")
pytestmark = pytest.mark.filterwarnings("ignore")


@pytest.fixture(autouse=True)
def _seeded() -> None:
    torch.manual_seed(0)


class Mixed(nn.Module):
    """A look-up with a head tied to it, square and other linear layers, a convolution, and a weight used directly."""

    def __init__(self, groups: int = 1) -> None:
        super().__init__()
        self.token = nn.Embedding(11, 8)
        self.square, self.wide = nn.Linear(8, 8), nn.Linear(8, 9)
        self.mix = nn.Conv1d(9, 9, 3, padding=1, groups=groups)
        self.back = nn.Linear(9, 8)
        self.free = nn.Parameter(torch.randn(8, 8) / 3)
        self.head = nn.Linear(8, 11, bias=False)
        self.head.weight = self.token.weight

    def forward(self, ids: Tensor) -> Tensor:
        """Return a score for every word at each token."""
        hidden = self.wide(torch.tanh(self.square(self.token(ids))))
        hidden = self.back(self.mix(hidden.transpose(1, 2)).transpose(1, 2))
        out: Tensor = self.head(torch.tanh(hidden) @ self.free)
        return out


def export(module: nn.Module, folder: Path, **options: Any) -> poet_onnx.torch.Exported:
    options = OPTIONS | {"loss": "mse", "lora": Lora("*", rank=2, alpha=6)} | options
    return poet_onnx.torch.export(module, IDS, folder / "net.onnx", **options)


def test_only_adapters_train_and_what_is_named(tmp_path: Path) -> None:
    made = export(Tied(), tmp_path, lora="rank=2,targets=body.*.weight,token.weight", freeze="body.2.weight")
    session = TrainingSession(made.model, made.parameters)
    adapters = {"body.0.lora_A", "body.0.lora_B", "token.lora_embedding_A", "token.lora_embedding_B"}
    assert set(session.trained) == adapters
    made = export(Tied(), tmp_path, lora=Lora("body.0.weight", rank=2), train="body.2.*")
    session = TrainingSession(made.model, made.parameters)
    with pytest.raises(InputError, match=r"'body\.0\.weight' has an adapter, but is not .*its eval_model"):
        poet_onnx.torch.load_trained(Tied(), session)
    with pytest.raises(InputError, match=r"Tied has no adapter 'body\.0\.lora_A': give the session that trained it"):
        poet_onnx.torch.load_trained(Tied(), dict(session.parameters))
    assert set(session.trained) == {"body.0.lora_A", "body.0.lora_B", "body.2.weight", "body.2.bias"}
    with pytest.raises(InputError, match=r"named 'body\.9'"):
        export(Tied(), tmp_path, freeze="body.9")


@pytest.mark.parametrize(
    "options", sampled([{"exporter": "dynamo"}, {"optimizer": "sgd", "target": "training"}], {"exporter": "dynamo"})
)
def test_gradients_of_adapters_are_compared(options: dict[str, Any], tmp_path: Path) -> None:
    module = Mixed()
    module.requires_grad_(False)
    report = export(module, tmp_path, **options).check
    assert report is not None
    assert (report.passed, report.left_out) == (True, ())
    modules = ("square", "wide", "mix", "back")
    names = {f"{name}.lora_{which}" for name in (*modules, "free") for which in "AB"}
    names |= {"token.lora_embedding_A", "token.lora_embedding_B"}
    assert set(report.gradient_errors) == names
    assert all(0 < error < 1e-4 for error in report.gradient_errors.values()), report.gradient_errors


@pytest.mark.parametrize("exporter", ["legacy", "dynamo"])
def test_a_module_gets_its_weights_with_adapters(tmp_path: Path, exporter: str) -> None:
    """A tied look-up, linear layers and a convolution: torch's loss is then the session's."""
    module = Mixed()
    made = export(module, tmp_path, exporter=exporter, optimizer="sgd", check=False)
    session = TrainingSession(made.model, made.parameters, eval_model=made.evaluation, optimizer=poet_onnx.SGD(0.5))
    target = torch.randn(module(IDS).shape)
    for _ in range(5):
        session.step(IDS, target)
    other = Mixed()
    other.load_state_dict(module.state_dict())
    for _ in range(2):  # again and again
        poet_onnx.torch.load_trained(other, session)
    found = nn.functional.mse_loss(other(IDS), target).item()
    assert found == pytest.approx(session.evaluate([(IDS, target)])["loss"], rel=1e-5)
    assert found < 0.99 * nn.functional.mse_loss(module(IDS), target).item()
    assert other.head.weight is other.token.weight
    assert torch.equal(other.wide.bias, module.wide.bias)


def test_a_wrong_gradient_of_an_adapter_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    name, step = "wide.lora_A", comparing.Trained.step

    def other(*given: Any) -> Any:
        found = step(*given)
        found.gradients[name][...] *= 1.01
        return found

    monkeypatch.setattr(comparing.Trained, "step", other)
    with pytest.raises(CheckFailedError, match=rf"gradient of '{name}\["):
        export(Mixed(), tmp_path)


class Stopped(nn.Module):
    """Cuts one of two ways off from the gradient."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Embedding(11, 4, padding_idx=7), nn.Linear(4, 3)

    def forward(self, ids: Tensor) -> Tensor:
        """Take the product of both ways."""
        found = self.first(ids)
        return self.second(found * found.detach())


def test_what_torch_cuts_off_has_no_gradient_of_frozen_weights_either(tmp_path: Path) -> None:
    module = Stopped().requires_grad_(False)
    report = export(module, tmp_path).check
    assert report is not None
    assert max(report.gradient_errors.values()) < 1e-4
    assert not any(each.requires_grad for each in module.parameters())


class Padded(nn.Module):
    """Looks words up, one of which is the padding."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.head = nn.Embedding(11, 8, padding_idx=2), nn.Linear(8, 11)
        with torch.no_grad():
            self.words.weight[2] = torch.randn(8)  # as trained models may have it

    def forward(self, ids: Tensor) -> Tensor:
        """Return a score for every word at each token."""
        out: Tensor = self.head(torch.tanh(self.words(ids)))
        return out


@pytest.mark.parametrize("exporter", sampled(["dynamo", "legacy"], "dynamo"))
def test_beside_an_embedding_with_padding_adapters_learn_as_in_peft(exporter: str, tmp_path: Path) -> None:
    """The row of A stands still, and B learns from the padding, too."""
    module, ids = Padded(), torch.tensor([[2, 2, 3, 4], [2, 5, 6, 2]])
    lora, rate = Lora("words.weight", rank=2, alpha=6), 0.5
    options = OPTIONS | {"loss": "cross-entropy-last", "lora": lora, "optimizer": "sgd", "exporter": exporter}
    made = poet_onnx.torch.export(module, ids, tmp_path / "net.onnx", **options)
    session = TrainingSession(made.model, made.parameters, optimizer=poet_onnx.SGD(rate))
    session.parameters["words.lora_embedding_A"][...] = np.random.default_rng(0).standard_normal((11, 2))
    session.export_adapter(tmp_path / "peft")
    model = peft.PeftModel.from_pretrained(Padded(), str(tmp_path / "peft"), is_trainable=True)
    model.base_model.model.load_state_dict(module.state_dict(), strict=False)
    with torch.no_grad():
        model.base_model.model.words.base_layer.weight.copy_(module.words.weight)
        model.base_model.model.head.load_state_dict(module.head.state_dict())
    nn.functional.cross_entropy(model(ids).flatten(0, 1), ids.flatten()).backward()
    expected = {name: each - rate * each.grad for name, each in model.named_parameters() if each.requires_grad}
    session.step(ids, ids)
    session.export_adapter(tmp_path / "trained")
    found = load_file(tmp_path / "trained" / "adapter_model.safetensors")
    assert len(expected) == len(found) == 2
    for name, each in expected.items():
        np.testing.assert_allclose(found[name.replace(".default", "")], each.detach(), rtol=1e-5, atol=1e-6)


def test_a_tied_weight_has_the_names_of_its_modules(tmp_path: Path) -> None:
    made = export(Mixed(), tmp_path, lora=Lora("token.weight", rank=2), check=False)
    TrainingSession(made.model, made.parameters).export_adapter(tmp_path / "peft")
    model = peft.PeftModel.from_pretrained(Mixed(), str(tmp_path / "peft"))
    names = {name for name in peft.get_peft_model_state_dict(model) if "base_layer" not in name}
    assert names == set(load_file(tmp_path / "peft" / "adapter_model.safetensors"))


def test_what_is_not_compared_is_said(tmp_path: Path) -> None:
    report = export(Tied(), tmp_path, lora=Lora("*", rank=2, dropout=0.5)).check
    assert report is not None
    assert report.passed
    assert report.left_out == (
        "Random numbers (dropout of adapters) were taken out on both sides.",
        "The adapter beside 'mix.weight' was not compared: the convolution has 2 groups.",
    )
    assert "mix.lora_A" not in report.gradient_errors


def test_files_with_adapters_are_verified(tmp_path: Path) -> None:
    module = Mixed()
    made = export(module, tmp_path, optimizer="adamw", check=False, train="back.bias")
    report = poet_onnx.torch.verify(module, made.model, IDS, loss="mse", train="back.bias")
    assert report.passed, str(report)
    assert len(report.gradient_errors) == 13
    with torch.no_grad():
        module.square.weight.add_(1.0)
    assert "The loss is" in str(poet_onnx.torch.verify(module, made.model, IDS, loss="mse"))


def test_files_of_torchs_own_export_are_verified(tmp_path: Path) -> None:
    module = Mixed()
    forward = exported(module, input_names=["ids"], do_constant_folding=True)
    made = poet_onnx.train_graph(forward, loss="mse", lora=Lora("*", rank=2, alpha=6))
    made.save(tmp_path)
    report = poet_onnx.torch.verify(module, tmp_path / "training_model.onnx", IDS, loss="mse")
    assert (report.passed, report.left_out) == (True, ()), str(report)
    assert len(report.gradient_errors) == 12
    assert np.isfinite(list(report.gradient_errors.values())).all()
    poet_onnx.train_graph(forward, loss="mse", lora=Lora("*", rank=2, dropout=0.5)).save(tmp_path)
    with pytest.raises(InputError, match="draws random numbers"):
        poet_onnx.torch.verify(module, tmp_path / "training_model.onnx", IDS, loss="mse")
