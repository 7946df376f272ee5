"""A net of several kinds of layers, adapters of it that the peft package saved, and what it computes with them."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import torch
from adapter_models import exported
from later import Later
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from torch.nn import functional

import poet_onnx
from poet_onnx import SGD, Lora, TrainingSession

peft = Later("peft")
WORDS, WIDTH = 9, 6
IDS = torch.arange(8).reshape(2, 4)
CONFIG, TENSORS = "adapter_config.json", "adapter_model.safetensors"


class Layer(nn.Module):
    """Linear layers of both kinds, the second one of GPT-2's."""

    def __init__(self) -> None:
        super().__init__()
        from transformers.pytorch_utils import Conv1D  # here, for the import takes seconds

        self.attention = nn.ModuleDict({"query": nn.Linear(WIDTH, WIDTH), "value": nn.Linear(WIDTH, WIDTH)})
        self.dense = Conv1D(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        """Apply them."""
        mixed = torch.tanh(self.attention["query"](x)) * self.attention["value"](x)
        out: Tensor = x + self.dense(mixed)
        return out


class Net(nn.Module):
    """Names that end alike, an embedding, a convolution, a normalization, a head."""

    def __init__(self) -> None:
        super().__init__()
        self.token = nn.Embedding(WORDS, WIDTH)
        self.layers = nn.Sequential(Layer(), Layer())
        self.mix = nn.Conv2d(WIDTH, WIDTH, (1, 3), padding=(0, 1))
        self.query = nn.Linear(WIDTH, WIDTH)
        self.norm = nn.LayerNorm(WIDTH)
        self.score = nn.Linear(WIDTH, 3)

    def forward(self, ids: Tensor) -> Tensor:
        """Return scores of each token."""
        hidden = self.layers(self.token(ids))
        hidden = self.mix(hidden.transpose(1, 2).unsqueeze(2)).squeeze(2).transpose(1, 2)
        out: Tensor = self.score(self.norm(self.query(hidden)))
        return out.flatten(0, 1)


torch.manual_seed(0)
NET = Net()
FORWARD = exported(NET, IDS, input_names=["ids"], do_constant_folding=False)
LABELS = torch.tensor([0, 1, 2, 0, 1, 2, 0, 1])
BATCH = {"ids": IDS.numpy(), "labels": LABELS.numpy()}


def saved(folder: Path, config: Any, *, dtype: torch.dtype = torch.float32) -> Path:
    """Save an adapter whose numbers are all random."""
    torch.manual_seed(1)
    model = peft.get_peft_model(copy.deepcopy(NET), config)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.requires_grad:
                parameter.add_(torch.randn_like(parameter) / 2)
    model.save_pretrained(str(folder))
    tensors = {name: each.to(dtype) for name, each in load_file(folder / TENSORS).items()}
    save_file(tensors, folder / TENSORS)
    return folder


def change(folder: Path, key: str, value: Any) -> None:
    """Change the configuration of an adapter."""
    path = folder / CONFIG
    path.write_text(json.dumps(json.loads(path.read_text()) | {key: value}))


def loaded(folder: Path) -> Any:
    """Return what peft makes of a folder, in evaluation mode."""
    return peft.PeftModel.from_pretrained(copy.deepcopy(NET), str(folder), is_trainable=True).eval()


def theirs(folder: Path) -> tuple[float, dict[str, Any]]:
    """Return peft's loss and gradients, by the names in a graph."""
    model = loaded(folder)
    loss = functional.cross_entropy(model(IDS), LABELS)
    loss.backward()  # type: ignore[no-untyped-call]
    gradients = {}
    for name, parameter in model.named_parameters():
        if parameter.grad is not None:
            own = name.removeprefix("base_model.model.").replace("modules_to_save.default.", "")
            own = own.replace(".default", "").replace("base_layer.", "")
            is_linear = "lora" in own and parameter.ndim == 2
            own = own.removesuffix(".weight") if "lora" in own else own
            gradients[own] = parameter.grad.numpy().T if is_linear else parameter.grad.numpy()
    return loss.item(), gradients


def session_of(lora: Lora | str, train: Any = None) -> TrainingSession:
    """Return a session that trains such adapters."""
    made = poet_onnx.train_graph(FORWARD, lora=lora, train=train)
    return TrainingSession(
        made.training, made.values, eval_model=made.evaluation, optimizer=SGD(0.1), keep_gradients=True
    )


def lora_config(**options: Any) -> Any:
    return peft.LoraConfig(**{"r": 2, "lora_alpha": 6, "target_modules": ["query", "dense"]} | options)
