"""Models of transformers with small configurations and random weights; nothing is downloaded."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

VOCABULARY = 50
IGNORED = -100
"""The label of a token that does not count."""


def encoder() -> nn.Module:
    """Return a classifier of sentences; without dropout, which draws other numbers in torch."""
    from transformers import DistilBertConfig, DistilBertForSequenceClassification  # takes seconds

    calm = {"dropout": 0.0, "attention_dropout": 0.0, "seq_classif_dropout": 0.0}
    sizes = {"dim": 16, "n_layers": 2, "n_heads": 2, "hidden_dim": 32, "max_position_embeddings": 8}
    config = DistilBertConfig(vocab_size=VOCABULARY, num_labels=3, **sizes, **calm)
    return DistilBertForSequenceClassification(config).train()


def decoder(**settings: Any) -> nn.Module:
    """Return a language model with fewer heads of keys than of queries."""
    from transformers import Qwen2Config, Qwen2ForCausalLM

    sizes = {"hidden_size": 32, "num_hidden_layers": 2, "intermediate_size": 48, "max_position_embeddings": 16}
    heads = {"num_attention_heads": 4, "num_key_value_heads": 2}
    return Qwen2ForCausalLM(Qwen2Config(vocab_size=VOCABULARY, **sizes, **heads, **settings)).train()


class Scores(nn.Module):
    """A language model without a cache: tokens in, scores of the next token at each place out."""

    def __init__(self, net: nn.Module) -> None:
        super().__init__()
        self.net = net

    def forward(self, ids: Tensor) -> Tensor:
        """Return the scores."""
        scores: Tensor = self.net(input_ids=ids, attention_mask=torch.ones_like(ids), use_cache=False).logits
        return scores


def disentangled() -> nn.Module:
    """Return a classifier of sentences whose attention looks at positions apart from words."""
    from transformers import DebertaV2Config, DebertaV2ForSequenceClassification

    sizes = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 24}
    positions = {"relative_attention": True, "pos_att_type": ["p2c", "c2p"], "max_position_embeddings": 16}
    calm = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
    config = DebertaV2Config(vocab_size=VOCABULARY, type_vocab_size=0, num_labels=3, **sizes, **positions, **calm)
    return DebertaV2ForSequenceClassification(config).train()


def padded_tokens(*, labelled: bool = False) -> dict[str, Tensor]:
    """Return two sentences, the second one shorter, with the labels of a language model if wanted."""
    ids, mask = torch.randint(1, VOCABULARY, (2, 8)), torch.tensor([[1] * 8, [1] * 5 + [0] * 3])
    labels = {"labels": ids.masked_fill(mask == 0, IGNORED)} if labelled else {}
    return {"input_ids": ids, "attention_mask": mask, **labels}
