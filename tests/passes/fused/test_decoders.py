"""Decoders of transformers, as both exporters write them: single nodes, and the gradients of torch in float64.

These are deep tests: exporting a decoder takes seconds.
"""

from __future__ import annotations

import warnings
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from export_models import quiet
from forward_models import step
from single_nodes import distance
from torch import nn
from torch_networks.hugging_face import Scores

import poet_onnx
from poet_onnx import Lora
from poet_onnx.description.names import POET_DOMAIN

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    import transformers

pytestmark = [pytest.mark.filterwarnings("ignore"), pytest.mark.deep]
WORDS, TOKENS, ERROR = 300, 12, 1e-5
SIZES = {"vocab_size": WORDS, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2}
SIZES |= {"num_attention_heads": 4, "num_key_value_heads": 2, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
HEADS: dict[str, Any] = {"head_dim": 16}
DECODERS: dict[str, tuple[type[transformers.PretrainedConfig], dict[str, Any], Counter[str]]] = {
    "Qwen2": (transformers.Qwen2Config, {}, Counter(Attend=2, GatedActivate=2, RmsNormalize=5, Rotate=8)),
    "Qwen3": (transformers.Qwen3Config, HEADS, Counter(Attend=2, GatedActivate=2, RmsNormalize=9, Rotate=8)),
    "Llama": (transformers.LlamaConfig, {}, Counter(Attend=2, GatedActivate=2, RmsNormalize=5, Rotate=8)),
    "Gemma": (transformers.GemmaConfig, HEADS, Counter(Attend=2, GatedActivate=2, RmsNormalize=5, Rotate=8)),
    "Gemma 2": (transformers.Gemma2Config, HEADS, Counter(Attend=2, GatedActivate=2, RmsNormalize=9, Rotate=8)),
    "Gemma 3": (
        transformers.Gemma3TextConfig,
        {**HEADS, "sliding_window": 8},
        Counter(Attend=2, GatedActivate=2, RmsNormalize=13, Rotate=8),
    ),
    "Phi": (transformers.PhiConfig, {"partial_rotary_factor": 0.5}, Counter(Attend=2, Rotate=8)),
    "Phi-3": (transformers.Phi3Config, {}, Counter(Attend=2, GatedActivate=2, RmsNormalize=5, Rotate=8)),
    "GPT-NeoX": (transformers.GPTNeoXConfig, {}, Counter(Attend=2, Rotate=8)),
}
"""Configurations, and single nodes of two layers and behind them; the gradient of Rotate is a Rotate."""

NODES = ("Attend", "GatedActivate", "RmsNormalize", "Rotate")
EXPORTS: dict[str, tuple[str, dict[str, Any]]] = {
    "older": ("eager", {"dynamo": False, "opset_version": 17, "do_constant_folding": False}),
    "older, sdpa": ("sdpa", {"dynamo": False, "opset_version": 17}),
    "dynamo": ("eager", {"dynamo": True, "opset_version": 18}),
    "dynamo, sdpa": ("sdpa", {"dynamo": True, "opset_version": 18}),
}
"""How attention is computed, and how it is exported; Gemma 2 has no sdpa."""


def made(config: type[transformers.PretrainedConfig], own: dict[str, Any], attention: str) -> Scores:
    torch.manual_seed(0)
    settings = config(**SIZES, **own, use_cache=False, attn_implementation=attention)
    net = transformers.AutoModelForCausalLM.from_config(settings).float().eval()
    for parameter in net.parameters():
        if parameter.ndim == 1:
            nn.init.normal_(parameter, float(parameter.detach().mean()), 0.1)
    return Scores(net)


def with_adapters(net: Scores, values: dict[str, np.ndarray[Any, Any]]) -> dict[str, torch.Tensor]:
    """Put adapters beside a net's layers in float64; return their matrices."""
    leaves = {name: torch.tensor(array.astype(np.float64), requires_grad=True) for name, array in values.items()}
    for name, leaf in leaves.items():
        if name.endswith(".lora_A"):
            layer, other = net.get_submodule(name.removesuffix(".lora_A")), leaves[f"{name[:-1]}B"]
            layer.register_forward_hook(lambda _, given, y, a=leaf, b=other: y + 2 * (given[0] @ a @ b))
    return leaves


@pytest.mark.parametrize(
    ("kind", "export"),
    [(kind, export) for kind in DECODERS for export in EXPORTS if kind != "Gemma 2" or "sdpa" not in export],
)
def test_adapters_get_the_gradients_of_torch(kind: str, export: str, tmp_path: Path) -> None:
    config, own, expected = DECODERS[kind]
    attention, how = EXPORTS[export]
    net, ids = made(config, own, attention), np.random.default_rng(0).integers(3, WORDS, (1, TOKENS))
    how = {"external_data": False, "input_names": ["ids"], "output_names": ["scores"], **how}
    with quiet():
        torch.onnx.export(net, (torch.tensor(ids),), str(tmp_path / "net.onnx"), **how)
    lora = Lora("*query_key_value.weight" if kind == "GPT-NeoX" else "*_proj.weight", rank=4, alpha=8)
    graph = poet_onnx.train_graph(tmp_path / "net.onnx", loss="causal-lm", lora=lora)
    found = Counter(node.op_type for node in graph.training.graph if node.domain == POET_DOMAIN)
    assert Counter({name: found[name] for name in NODES}) == expected
    assert graph.adapters is not None
    adapters = len(graph.adapters.each)
    assert found["AddLowRank"] == found["AddLowRankGradient"] + found["AddLowRankWeightGradient"] == adapters
    random = np.random.default_rng(1)
    values = {
        name: (random.standard_normal(array.shape) / 4).astype(np.float32) for name, array in graph.values.items()
    }
    loss, gradients = step(replace(graph, values=values), ids=ids, labels=ids)
    leaves = with_adapters(net.double(), values)
    scores = net(torch.tensor(ids))[:, :-1].flatten(0, 1)
    exact = nn.functional.cross_entropy(scores, torch.tensor(ids[:, 1:]).flatten())
    exact.backward()
    assert abs(loss - exact.item()) <= 1e-6 * exact.item()
    for name, leaf in leaves.items():
        assert leaf.grad is not None
        assert distance(gradients[name], leaf.grad.numpy()) <= ERROR, name
