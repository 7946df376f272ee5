"""Adapters beside those of the peft package: it loads what we write, and computes the same loss and gradients.

tests/adapters/test_adapters.py compares with the formula.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from adapter_models import Tied, exported, relative_error
from attention_nets import Gpt
from deep import sampled
from later import Later
from safetensors.numpy import load_file
from torch import Tensor, nn
from torch.nn import functional

import poet_onnx
from poet_onnx import SGD, Lora, TrainGraph, TrainingSession

peft = Later("peft")

pytestmark = pytest.mark.filterwarnings("ignore")
ERROR = 1e-5
STEPS = 3
VOCABULARY, LENGTH, CLASSES = 50, 16, 5


class Classifier(nn.Module):
    """A decoder with a head of its own at each token."""

    def __init__(self) -> None:
        super().__init__()
        self.gpt = Gpt(2, 32, 2, vocabulary=VOCABULARY, length=LENGTH)
        self.score = nn.Linear(VOCABULARY, CLASSES)

    def forward(self, ids: Tensor) -> Tensor:
        """Return scores of the classes for each token."""
        out: Tensor = self.score(self.gpt(ids))
        return out


def trained(made: TrainGraph, batch: dict[str, Any]) -> TrainingSession:
    """Return a session whose adapters have moved."""
    session = TrainingSession(
        made.training, made.values, eval_model=made.evaluation, optimizer=SGD(0.05), keep_gradients=True
    )
    for _ in range(STEPS):
        session.step(batch)
    return session


def in_peft(session: TrainingSession, module: nn.Module, folder: Path) -> Any:
    """Write a session's adapters, and return a module with what peft reads of them."""
    session.export_adapter(folder)
    model = peft.PeftModel.from_pretrained(module, str(folder), is_trainable=True)
    names = set(peft.get_peft_model_state_dict(model))
    assert names == set(load_file(folder / "adapter_model.safetensors"))
    return model.eval()


@pytest.mark.parametrize("folding", [False, True])
@pytest.mark.parametrize("rslora", sampled([False, True], True))
def test_a_decoder_has_pefts_gradients(tmp_path: Path, folding: bool, rslora: bool) -> None:
    torch.manual_seed(0)
    net, ids = Classifier(), torch.randint(0, VOCABULARY, (2, LENGTH))
    labels = torch.randint(0, CLASSES, (2 * LENGTH,))
    forward = exported(net, ids, input_names=["ids"], do_constant_folding=folding)
    targets = ("*.query.weight", "*.value.weight", "*expand.weight", "gpt.token.weight", "gpt.head.weight")
    lora = Lora(targets, rank=4, alpha=8, rslora=rslora)
    made = poet_onnx.train_graph(forward, lora=lora, train="score.*")
    batch = {"ids": ids.numpy(), "labels": labels.numpy()}
    session = trained(made, batch)
    model = in_peft(session, net, tmp_path)
    loss = functional.cross_entropy(model(ids), labels)
    loss.backward()  # type: ignore[no-untyped-call]
    assert session.step(batch) == pytest.approx(loss.item(), rel=1e-5)

    expected = {
        name.removeprefix("base_model.model.")
        .replace("modules_to_save.default.", "")
        .replace(".default", "")
        .removesuffix(".weight" if "lora" in name else ""): parameter.grad.numpy()
        for name, parameter in model.named_parameters()
        if parameter.grad is not None
    }
    assert set(expected) == set(session.gradients)
    errors = {
        name: relative_error(array.T if "lora" in name else array, expected[name])
        for name, array in session.gradients.items()
    }
    assert max(errors.values()) < ERROR, errors


def test_convolutions_and_tied_embeddings_compute_what_peft_computes(tmp_path: Path) -> None:
    torch.manual_seed(0)
    net = Tied()
    made = poet_onnx.train_graph(exported(net, input_names=["ids"]), loss="mse", lora=Lora("*", rank=2, alpha=6))
    ids = torch.arange(10).reshape(2, 5)
    target = np.random.default_rng(0).standard_normal((2, 5, 11), dtype=np.float32)
    batch = {"ids": ids.numpy(), "target": target}
    session = trained(made, batch)
    before = session.step(batch)
    session.eval()
    model = in_peft(session, net, tmp_path)
    loss = functional.mse_loss(model(ids), torch.tensor(target)).item()
    assert session.step(batch) == pytest.approx(loss, rel=1e-5)
    assert loss != before


def test_what_peft_trained_goes_on_here(tmp_path: Path) -> None:
    torch.manual_seed(0)
    net, ids = Classifier(), torch.randint(0, VOCABULARY, (2, LENGTH))
    labels = torch.randint(0, CLASSES, (2 * LENGTH,))
    made = poet_onnx.train_graph(exported(net, ids, input_names=["ids"]), lora=Lora("*.expand.weight", rank=4))
    config = peft.LoraConfig(r=4, lora_alpha=8, target_modules=["expand"])
    model = peft.get_peft_model(net, config)
    for name, parameter in model.named_parameters():
        if "lora_B" in name:
            nn.init.normal_(parameter)
    model.save_pretrained(str(tmp_path))
    session = TrainingSession(made.training, made.values)
    session.load_adapter(tmp_path)
    expected = functional.cross_entropy(model(ids), labels).item()
    assert session.step({"ids": ids.numpy(), "labels": labels.numpy()}) == pytest.approx(expected, rel=1e-5)
