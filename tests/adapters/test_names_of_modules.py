"""Adapters go by the names of modules as the peft package gives them: wrapped, with one weight, ends of others."""

from __future__ import annotations

import copy
import warnings
from pathlib import Path

import numpy as np
import pytest
import torch
from adapter_models import Tied, exported
from later import Later
from peft_nets import (
    BATCH,
    IDS,
    NET,
    TENSORS,
    change,
    loaded,
    lora_config,
    saved,
    theirs,
)
from safetensors.torch import load_file
from torch import Tensor, nn
from torch.nn import functional

import poet_onnx
from poet_onnx import SGD, Lora, TrainingSession
from poet_onnx.errors import InputError

peft = Later("peft")
pytestmark = pytest.mark.filterwarnings("ignore")


def test_weights_that_the_exporter_named_itself_go_by_the_names_of_their_modules(tmp_path: Path) -> None:
    folder = saved(tmp_path / "theirs", lora_config(target_modules=["query", "value", "mix"]))
    made = poet_onnx.train_graph(exported(NET, IDS, input_names=["ids"]), lora=f"peft={folder}")
    session = TrainingSession(made.training, made.values)
    session.load_adapter(folder)
    session.export_adapter(tmp_path / "ours")
    expected = loaded(folder)(IDS).detach().numpy()
    assert loaded(tmp_path / "ours")(IDS).detach().numpy() == pytest.approx(expected, abs=1e-5)


class Wrapped(nn.Module):
    """A module around the one that peft wraps."""

    def __init__(self) -> None:
        super().__init__()
        self.model = copy.deepcopy(NET)

    def forward(self, ids: Tensor) -> Tensor:
        """Call it."""
        out: Tensor = self.model(ids)
        return out


def test_adapters_of_a_submodule_are_read_by_its_name(tmp_path: Path) -> None:
    folder = saved(tmp_path, lora_config(rank_pattern={"^query": 3}, alpha_pattern={"layers.0": 1, "dense": 5}))
    asked = f"peft={folder},inside=model"
    made = poet_onnx.train_graph(exported(Wrapped(), IDS, input_names=["ids"], do_constant_folding=False), lora=asked)
    session = TrainingSession(made.training, made.values)
    session.load_adapter(folder, inside="model")
    assert session.step(BATCH) == pytest.approx(theirs(folder)[0], rel=1e-5)
    change(folder, "r", 4)
    with pytest.raises(InputError, match=f"--lora '{asked}'"):
        session.load_adapter(folder, inside="model")


def test_an_adapter_of_one_of_two_modules_with_one_weight_is_refused(tmp_path: Path) -> None:
    net = Tied()
    peft.get_peft_model(copy.deepcopy(net), lora_config(target_modules=["token"])).save_pretrained(str(tmp_path))
    made = poet_onnx.train_graph(exported(net, do_constant_folding=False), loss="mse", lora=f"peft={tmp_path}")
    with pytest.raises(InputError, match=r"lacks .*head.lora_A.* one adapter serves 'token', 'head', whose weight is"):
        TrainingSession(made.training, made.values).load_adapter(tmp_path)


class Shared(nn.Module):
    """Two layers with one weight, of which one is called twice."""

    def __init__(self, *, called_by_parent: bool = False) -> None:
        super().__init__()
        self.a, self.b, self.called_by_parent = nn.Linear(4, 4), nn.Linear(4, 4), called_by_parent
        self.b.weight = self.a.weight

    def forward(self, x: Tensor) -> Tensor:
        """Apply all."""
        if self.called_by_parent:
            x = functional.linear(x, self.a.weight)
        return self.a(torch.tanh(self.b(torch.tanh(self.a(x)))))


@pytest.mark.parametrize("folding", [False, True])
def test_modules_with_one_weight_are_all_written(folding: bool, tmp_path: Path) -> None:
    torch.manual_seed(0)
    net, x = Shared(), torch.randn(3, 4)
    forward = exported(net, x, input_names=["x"], do_constant_folding=folding)
    made = poet_onnx.train_graph(forward, loss="mse", lora=Lora("b.weight", rank=2))
    session = TrainingSession(made.training, made.values, optimizer=SGD(0.5))
    batch = {"x": x.numpy(), "target": np.ones((3, 4), np.float32)}
    first = session.step(batch)
    session.step(batch)
    session.export_adapter(tmp_path)
    model = peft.PeftModel.from_pretrained(net, str(tmp_path))
    loss = functional.mse_loss(model(x), torch.ones(3, 4)).item()
    assert session.step(batch) == pytest.approx(loss, rel=1e-5)
    assert loss != pytest.approx(first, rel=1e-2)
    session.load_adapter(tmp_path)


def test_a_weight_that_is_read_outside_of_its_module_is_not_written(tmp_path: Path) -> None:
    forward = exported(Shared(called_by_parent=True), torch.randn(3, 4), do_constant_folding=False)
    made = poet_onnx.train_graph(forward, loss="mse", lora=Lora("a.weight", rank=2))
    with pytest.raises(InputError, match=r"'a\.weight' does not tell the torch module"):
        TrainingSession(made.training, made.values).export_adapter(tmp_path)


class Ends(nn.Module):
    """Names that are ends of others."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(4, 5), nn.Sequential(nn.ReLU(), nn.Linear(5, 4)), nn.Linear(4, 4))
        self.add_module("0", nn.Linear(4, 4))
        self.add_module("2", nn.Linear(4, 4))

    def forward(self, x: Tensor) -> Tensor:
        """Apply all."""
        out: Tensor = self.get_submodule("2")(torch.tanh(self.get_submodule("0")(self.body(x))))
        return out


def test_names_that_are_ends_of_others_stay_apart_in_peft(tmp_path: Path) -> None:
    torch.manual_seed(0)
    net, x = Ends(), torch.randn(3, 4)
    forward = exported(net, x, input_names=["x"], do_constant_folding=False)
    lora = Lora(["2.weight", "body.2.weight"], rank=2, rank_pattern={"^2": 1}, alpha_pattern={"2": 32})
    made = poet_onnx.train_graph(forward, loss="mse", lora=lora, train="0.*")
    session = TrainingSession(made.training, made.values, eval_model=made.evaluation, optimizer=SGD(0.5))
    batch = {"x": x.numpy(), "target": np.ones((3, 4), np.float32)}
    for _ in range(3):
        session.step(batch)
    session.export_adapter(tmp_path)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model = peft.PeftModel.from_pretrained(net, str(tmp_path))
    assert set(peft.get_peft_model_state_dict(model)) == set(load_file(tmp_path / TENSORS))
    loss = functional.mse_loss(model(x), torch.ones(3, 4)).item()
    assert session.step(batch) == pytest.approx(loss, rel=1e-5)
    made = poet_onnx.train_graph(forward, loss="mse", lora=Lora("body.2.weight", rank=2), train="2.*")
    session = TrainingSession(made.training, made.values, eval_model=made.evaluation)
    with pytest.raises(InputError, match=r"would save 'body\.2', which has an adapter, for what was trained besides"):
        session.export_adapter(tmp_path)
