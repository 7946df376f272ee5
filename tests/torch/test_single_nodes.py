"""Attention of exported decoders is a single node, however they compute it, and whichever exporter writes it."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest
import torch
from deep import sampled
from torch_networks.hugging_face import VOCABULARY, Scores
from torch_options import OPTIONS

import poet_onnx.torch

pytestmark = pytest.mark.filterwarnings("ignore")
LAYERS = 2
SIZES = {"vocab_size": VOCABULARY, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": LAYERS}
SIZES |= {"num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8}
SIZES |= {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
BOTH = ("eager", "sdpa")
CASES = [
    *(
        (kind, exporter, how)
        for kind in ("Llama", "Qwen2", "Mistral")
        for exporter in ("dynamo", "legacy")
        for how in BOTH
    ),
    *(("Gemma2", exporter, "eager") for exporter in ("dynamo", "legacy")),
    *((kind, "dynamo", how) for kind in ("Cohere", "Glm") for how in BOTH),
]
"""Those that transformers computes so, and that the exporter writes."""


@pytest.mark.parametrize(
    ("kind", "exporter", "attention"), sampled(CASES, ("Llama", "dynamo", "sdpa"), ("Llama", "legacy", "sdpa"))
)
def test_attention_is_one_node_with_the_gradients_of_torch(
    kind: str, exporter: str, attention: str, tmp_path: Path
) -> None:
    import transformers  # takes seconds

    torch.manual_seed(0)
    config = getattr(transformers, f"{kind}Config")(**SIZES, use_cache=False, attn_implementation=attention)
    net = transformers.AutoModelForCausalLM.from_config(config).float().eval()
    made = poet_onnx.torch.export(
        Scores(net).eval(),
        torch.randint(3, VOCABULARY, (2, 6)),
        tmp_path / "net.onnx",
        **OPTIONS | {"exporter": exporter, "loss": "causal-lm", "lora": "rank=2,targets=*_proj.weight"},
    )
    assert made.check is not None
    assert made.check.passed
    found = Counter(node.op_type for node in made.result.model.graph)
    assert [found[name] for name in ("Attend", "AttendGradient", "Softmax")] == [LAYERS, LAYERS, 0]
