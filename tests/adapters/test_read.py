"""Adapters that the peft package saved: loss and gradients are those of what it loads, or one sentence says why not."""

from __future__ import annotations

import copy
import re
import warnings
from pathlib import Path
from typing import Any

import onnxruntime
import pytest
import torch
from adapter_models import exported, relative_error
from deep import sampled
from later import Later
from peft_nets import (
    BATCH,
    CONFIG,
    FORWARD,
    IDS,
    NET,
    TENSORS,
    loaded,
    lora_config,
    saved,
    session_of,
    theirs,
)
from safetensors.torch import load_file, save_file
from torch import nn

import poet_onnx
from poet_onnx import Lora, TrainingSession
from poet_onnx.errors import InputError, PoetWarning

peft = Later("peft")
pytestmark = pytest.mark.filterwarnings("ignore")
ERROR = 1e-5


READ: dict[str, tuple[dict[str, Any], Any]] = {
    "alpha": ({"alpha_pattern": {"layers.1.dense": 32, "query": 1}}, None),
    "rank": ({"rank_pattern": {"^query": 3, r"layers\.\d+\.dense": 1}, "alpha_pattern": {r".*\.query": 2}}, None),
    "rank and rslora": ({"rank_pattern": {"dense": 4}, "use_rslora": True}, None),
    "orthogonal": ({"init_lora_weights": "orthogonal"}, None),
    "fan in fan out": ({"target_modules": ["dense"], "fan_in_fan_out": True}, None),
    "expression": ({"target_modules": r".*\.(query|value)"}, None),
    "linear": ({"target_modules": "all-linear"}, None),
    "exclude": ({"exclude_modules": ["layers.0.dense", "attention.query"]}, None),
    "layers": ({"layers_to_transform": [1]}, None),
    "layer": ({"layers_to_transform": 0, "layers_pattern": "layers"}, None),
    "bias": ({"bias": "all", "modules_to_save": ["norm"]}, ("*bias", "norm.weight")),
    "lora bias": ({"bias": "lora_only"}, ("*query.bias", "*dense.bias")),
    "modules": ({"modules_to_save": ["score", "norm"]}, ("score.*", "norm.*")),
    "convolution": ({"target_modules": ["mix", "token", "query"], "r": 3}, None),
}


@pytest.mark.parametrize("name", sampled(READ, *list(READ)[::2]))
def test_what_peft_saved_is_read_and_written(name: str, tmp_path: Path) -> None:
    options, train = READ[name]
    folder = saved(tmp_path / "theirs", lora_config(**options))
    session = session_of(f"peft={folder}", train)
    session.load_adapter(folder)
    session.export_adapter(tmp_path / "ours")
    session.export_inference_model(tmp_path / "merged.onnx")
    expected, gradients = theirs(folder)
    scores = loaded(folder)(IDS).detach().numpy()
    assert loaded(tmp_path / "ours")(IDS).detach().numpy() == pytest.approx(scores, abs=1e-5)
    (merged,) = onnxruntime.InferenceSession(tmp_path / "merged.onnx").run(None, {"ids": IDS.numpy()})
    assert merged == pytest.approx(scores, rel=1e-4, abs=1e-4)
    assert session.step(BATCH) == pytest.approx(expected, rel=1e-5)
    assert set(session.gradients) == set(gradients)
    errors = {key: relative_error(array, gradients[key]) for key, array in session.gradients.items()}
    assert max(errors.values()) < ERROR, errors


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_other_precisions_are_read(dtype: torch.dtype, tmp_path: Path) -> None:
    folder = saved(tmp_path, lora_config(target_modules=["query", "token"]), dtype=dtype)
    session = session_of(f"peft={folder}")
    session.load_adapter(folder)
    expected, gradients = theirs(folder)
    assert session.step(BATCH) == pytest.approx(expected, rel=1e-5)
    assert all(relative_error(array, gradients[name]) < ERROR for name, array in session.gradients.items())


@pytest.mark.parametrize("name", ["pissa"])
def test_what_was_made_plain_is_read_and_what_was_not_is_refused(name: str, tmp_path: Path) -> None:
    torch.manual_seed(1)
    model = peft.get_peft_model(copy.deepcopy(NET), lora_config(target_modules=["query"], init_lora_weights=name))
    begun, changed, plain = (tmp_path / each for each in ("begun", "changed", "plain"))
    model.peft_config["default"].init_lora_weights = True
    model.save_pretrained(str(begun))
    model.peft_config["default"].init_lora_weights = name
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) / 2 if parameter.requires_grad else 0)
    model.save_pretrained(str(changed))
    session = session_of(Lora("*query.weight", rank=2, alpha=6))
    with pytest.raises(InputError, match=rf'{CONFIG} says init_lora_weights="{name}".*path_initial_model_for_weight'):
        session.load_adapter(changed)
    model.save_pretrained(str(plain), path_initial_model_for_weight_conversion=str(begun))
    session = session_of(f"peft={plain}")
    session.load_adapter(plain)
    assert session.step(BATCH) == pytest.approx(theirs(plain)[0], rel=1e-5)
    assert session.step(BATCH) != theirs(begun)[0]


@pytest.mark.parametrize(
    ("options", "named"),
    [({"bias": "lora_only"}, 'bias="lora_only"'), ({"modules_to_save": ["score"]}, 'modules_to_save=["score"]')],
)
def test_what_peft_trains_besides_is_said(options: dict[str, Any], named: str, tmp_path: Path) -> None:
    folder = saved(tmp_path, lora_config(**options))
    with pytest.warns(PoetWarning, match=rf"trains more than adapters there \({re.escape(named)}\).* stays as it is"):
        session_of(f"peft={folder}")
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always", PoetWarning)
        session_of(f"peft={folder}", train=["score.*", "*.bias"])
        session_of(f"peft={saved(tmp_path / 'plain', lora_config())}")
    assert not any("more than adapters" in str(each.message) for each in said)


@pytest.mark.parametrize("train", [None, "score.*", ["score.bias", "*.value.bias"], ["score.*", "*.value.*"], "*.bias"])
@pytest.mark.parametrize("options", [{"modules_to_save": ["0.attention.value", "core"]}, {"bias": "lora_only"}])
def test_what_peft_trains_besides_is_named_whatever_is_trained(
    options: dict[str, Any], train: Any, tmp_path: Path
) -> None:
    folder = saved(tmp_path, lora_config(target_modules=["query"], **options))
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always", PoetWarning)
        session = session_of(f"peft={folder}", train)
    said = [str(each.message) for each in warned if "more than adapters" in str(each.message)]
    left = set(theirs(folder)[1]) - set(session.trained)
    assert [set(re.findall("'([^']*)'", each)) for each in said] == ([left] if left else [])


def test_a_forward_model_stays_as_it_is() -> None:
    before = FORWARD.SerializeToString()
    session_of(Lora("*query.weight", rank=2))
    assert FORWARD.SerializeToString() == before


def test_a_weight_of_few_bits_cannot_have_the_numbers_of_a_file(tmp_path: Path) -> None:
    """PEFT saves the whole weight of an output layer that has an adapter, unless it is told not to."""
    wide = nn.Sequential(nn.Embedding(9, 64), nn.Linear(64, 64), nn.Linear(64, 3), nn.Flatten(0, 1))
    forward = exported(wide, IDS, input_names=["ids"], do_constant_folding=False)
    options = {"device": "a72", "target": "stock", "loss": "cross-entropy", "optimizer": "sgd", "quantize": "4bit"}
    result = poet_onnx.rewrite(forward, lora=Lora("1.weight", rank=2), **options)
    files = result.save(tmp_path / "net.onnx")
    session = TrainingSession(files[0], files[1], eval_model=files[2])
    session.export_adapter(tmp_path / "adapter")
    session.load_adapter(tmp_path / "adapter")
    file = tmp_path / "adapter" / TENSORS
    save_file(load_file(file) | {"base_model.model.1.base_layer.weight": wide[1].weight.detach()}, file)
    with pytest.raises(InputError, match=r"'1\.weight' is quantized here.*save_embedding_layers=False"):
        session.load_adapter(tmp_path / "adapter")
