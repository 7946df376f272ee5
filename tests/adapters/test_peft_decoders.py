"""Adapters that were trained beside 4-bit weights of transformers' decoders, loaded by PEFT: its scores are the same.

These are deep tests: exporting a decoder takes seconds.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest
import torch
from export_models import quiet
from later import Later
from torch import nn

import poet_onnx
from poet_onnx import SGD, Lora, TrainingSession

peft, transformers = Later("peft"), Later("transformers")
pytestmark = [pytest.mark.filterwarnings("ignore"), pytest.mark.deep]
WORDS, TOKENS, INSIDE = 3000, 16, "net"
ERROR = 1e-5
"""Of all scores, of their norm. Both compute in float32."""

SIZES = {"vocab_size": WORDS, "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2}
SIZES |= {"num_attention_heads": 4, "num_key_value_heads": 2}
DECODERS = {
    "Qwen2, tied": ("Qwen2Config", {"tie_word_embeddings": True}),
    "Llama, untied": ("LlamaConfig", {"tie_word_embeddings": False}),
    "Gemma 2, capped": (
        "Gemma2Config",
        {"head_dim": 16, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2},
    ),
}
IDS = np.random.default_rng(0).integers(0, WORDS, (1, TOKENS))


class Scores(nn.Module):
    """A decoder without a cache."""

    def __init__(self, net: nn.Module) -> None:
        super().__init__()
        self.net = net

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        """Return the scores of the next token at each place."""
        mask = torch.ones_like(ids)
        scores: torch.Tensor = self.net(input_ids=ids, attention_mask=mask, use_cache=False).logits
        return scores


def floats_of(made: poet_onnx.TrainGraph) -> dict[str, torch.Tensor]:
    """Return the numbers of each quantized weight, by its name in the decoder."""
    arrays = {value.name: value.const_value for value in made.training.graph.initializers.values()}
    found = {}
    for node in made.training.graph:
        if node.op_type == "DequantizeLinear":
            codes, scales = (np.asarray(arrays[value.name].numpy()) for value in node.inputs if value is not None)
            repeated = np.repeat(scales, node.attributes["block_size"].as_int(), 1)[:, : codes.shape[1]]
            name = node.inputs[0].name.removeprefix(f"{INSIDE}.")
            found[name] = torch.tensor(codes.astype(np.float32) * repeated)
    return found


@pytest.mark.parametrize("kind", DECODERS)
def test_peft_computes_the_scores_of_what_was_trained(kind: str, tmp_path: Path) -> None:
    torch.manual_seed(0)
    config, own = DECODERS[kind]
    net = (
        transformers.AutoModelForCausalLM.from_config(
            getattr(transformers, config)(**SIZES, **own, use_cache=False, attn_implementation="eager")
        )
        .float()
        .eval()
    )
    options: dict[str, Any] = {"dynamo": False, "opset_version": 17, "do_constant_folding": False}
    names = {"input_names": ["ids"], "output_names": ["scores"]}
    with quiet():
        torch.onnx.export(Scores(net), (torch.tensor(IDS),), str(tmp_path / "net.onnx"), **options, **names)
    result = poet_onnx.rewrite(
        tmp_path / "net.onnx",
        device="a72",
        target="stock",
        loss="causal-lm",
        lora=Lora(("*_proj.weight",), rank=4, alpha=8),
        quantize="4bit",
        optimizer="sgd",
    )
    operators = [node.op_type for node in result.model.graph]
    assert operators.count("VocabularyLossGradient") == 1
    files = result.save(tmp_path / "training.onnx")
    session = TrainingSession(files[0], files[1], eval_model=files[2], optimizer=SGD(0.5))
    losses = [session.step({"ids": IDS, "labels": IDS}) for _ in range(4)]
    assert losses[-1] < losses[0] - 0.1
    session.export_adapter(tmp_path / "adapter", inside=INSIDE)
    session.export_inference_model(tmp_path / "trained.onnx", merge=False)
    assert result.train_graph is not None
    floats = floats_of(result.train_graph)
    net.load_state_dict(floats, strict=False)
    net.tie_weights()
    assert {name for name, parameter in net.named_parameters() if parameter.ndim > 1} <= set(floats)
    loaded = peft.PeftModel.from_pretrained(net, str(tmp_path / "adapter")).eval()
    with torch.no_grad():
        expected = loaded(input_ids=torch.tensor(IDS)).logits.numpy()
    unoptimized = onnxruntime.SessionOptions()  # 1.19.2 moves a Transpose through blocks, and leaves their scales
    unoptimized.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    (found,) = onnxruntime.InferenceSession(tmp_path / "trained.onnx", unoptimized).run(None, {"ids": IDS})
    error = np.linalg.norm(np.asarray(found) - expected) / np.linalg.norm(expected)
    assert error <= ERROR
    with loaded.disable_adapter(), torch.no_grad():
        without = loaded(input_ids=torch.tensor(IDS)).logits.numpy()
    assert np.linalg.norm(without - expected) > 100 * ERROR * np.linalg.norm(expected)
