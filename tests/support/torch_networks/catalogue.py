"""All networks by name, with a batch, labels and the loss in torch's words."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn
from torch.nn import functional

from torch_networks import images, others, sequences
from torch_networks.hugging_face import VOCABULARY, decoder, encoder, padded_tokens

Inputs: TypeAlias = Sequence[Tensor] | Mapping[str, Tensor]


@dataclass(frozen=True)
class Network:
    """A module and one batch for it.

    Attributes:
        build: makes the module.
        inputs: makes the example inputs, by name where the module is to be called so.
        loss: as `poet_onnx.torch.export` takes it.
        labels: makes the labels; None where the module takes them itself.
    """

    build: Callable[[], nn.Module]
    inputs: Callable[[], Inputs]
    loss: str = "cross-entropy"
    labels: Callable[[], Tensor] | None = None

    def value(self, module: nn.Module, inputs: Inputs, labels: Tensor | None) -> Tensor:
        """Return the loss in torch."""
        found: Any = module(**inputs) if isinstance(inputs, Mapping) else module(*inputs)
        if isinstance(found, dict):
            found = found["loss" if "loss" in found else "logits"]
        if labels is None:
            return found
        if labels.is_floating_point():
            return functional.mse_loss(found, labels)
        if self.loss.startswith("cross-entropy-last"):
            return functional.cross_entropy(found.flatten(0, -2), labels.flatten())
        return functional.cross_entropy(found, labels)


def normal(*shape: int) -> Callable[[], list[Tensor]]:
    """Return a function that makes one random input."""
    return lambda: [torch.randn(shape)]


def classes(count: int, *shape: int) -> Callable[[], Tensor]:
    """Return a function that makes random labels."""
    return lambda: torch.randint(count, shape)


def tokens(count: int, *shape: int) -> Callable[[], list[Tensor]]:
    """Return a function that makes one input of tokens."""
    return lambda: [torch.randint(count, shape)]


FIVE = classes(5, 4)
PADDED = torch.tensor([[False] * 5, [False] * 3 + [True] * 2])

SIX = {
    "U-Net (GroupNorm, SiLU)": Network(images.UNet, normal(2, 3, 16, 16), labels=classes(3, 2, 16, 16)),
    "MobileNetV3": Network(images.MobileNetV3, normal(4, 3, 32, 32), labels=FIVE),
    "decoder (RMSNorm, rotary, grouped heads, Einsum)": Network(
        sequences.Decoder, tokens(30, 2, 8), loss="cross-entropy-last", labels=classes(30, 2, 8)
    ),
    "ConvNeXt": Network(images.ConvNeXt, normal(4, 3, 32, 32), labels=FIVE),
    "GRU": Network(sequences.Recurrent, normal(4, 3, 6), labels=FIVE),
    "sound (InstanceNorm1d, PReLU)": Network(sequences.Sound, normal(4, 1, 128), labels=FIVE),
}
"""What onnxruntime-training cannot differentiate."""

OTHERS = {
    "EfficientNet": Network(images.EfficientNet, normal(4, 3, 32, 32), labels=FIVE),
    "encoder as DistilBERT's (fused attention, padding)": Network(
        sequences.Encoder,
        lambda: [torch.randint(1, 30, (2, 8)), torch.tensor([[1] * 8, [1] * 5 + [0] * 3])],
        loss="cross-entropy:logits",
        labels=classes(3, 2),
    ),
    "decoder with tied weights": Network(
        partial(sequences.Decoder, tied=True),
        tokens(30, 2, 8),
        loss="cross-entropy-last",
        labels=classes(30, 2, 8),
    ),
    "LSTM": Network(partial(sequences.Recurrent, "LSTM"), normal(4, 3, 6), labels=FIVE),
    "ViT (fused attention)": Network(others.VisionTransformer, normal(4, 3, 16, 16), labels=FIVE),
    "nn.MultiheadAttention": Network(
        others.CrossAttention, lambda: [torch.randn(4, 5, 16), torch.randn(4, 4, 6)], labels=FIVE
    ),
    "nn.TransformerEncoder": Network(
        others.TransformerClassifier, lambda: [torch.randn(2, 5, 16), PADDED], labels=classes(5, 2)
    ),
    "nn.TransformerEncoder, norm_first": Network(
        partial(others.TransformerClassifier, norm_first=True),
        lambda: [torch.randn(2, 5, 16), PADDED],
        labels=classes(5, 2),
    ),
    "nn.Transformer": Network(
        others.Translator,
        lambda: [torch.randint(11, (2, 5)), torch.randint(7, (2, 4))],
        loss="cross-entropy-last",
        labels=classes(7, 2, 4),
    ),
    "DenseNet": Network(others.DenseNet, normal(4, 3, 8, 8), labels=FIVE),
    "ShuffleNet": Network(others.ShuffleNet, normal(4, 3, 16, 16), labels=FIVE),
    "LSTM tagger (Embedding)": Network(
        others.Tagger, tokens(20, 2, 4), loss="cross-entropy-last", labels=classes(4, 2, 4)
    ),
    "super-resolution (PixelShuffle, bilinear)": Network(
        others.SuperResolution, normal(2, 1, 8, 8), loss="mse", labels=partial(torch.randn, 2, 1, 16, 16)
    ),
    "generator (ConvTranspose2d)": Network(
        others.Generator, normal(3, 6, 1, 1), loss="mse", labels=partial(torch.randn, 3, 3, 16, 16)
    ),
    "detector with a loss of its own": Network(
        others.Detector,
        lambda: [torch.randn(2, 3, 8, 8), torch.rand(2, 4, 4), torch.randint(3, (2, 4))],
        loss="output:loss",
    ),
    "WaveNet (dilated Conv1d)": Network(
        others.WaveNet, tokens(6, 2, 12), loss="cross-entropy-last", labels=classes(6, 2, 12)
    ),
    "mixture (topk, scatter, gather, where)": Network(others.Mixture, normal(4, 6), labels=FIVE),
    "volumes (Conv3d, ConvTranspose3d)": Network(
        others.Volumes, normal(2, 1, 4, 4, 4), loss="mse", labels=partial(torch.randn, 2, 1, 4, 4, 4)
    ),
    "weight_norm, GLU, Bilinear": Network(others.Normed, normal(4, 6), labels=FIVE),
    "detach and no_grad": Network(
        others.Detached, lambda: [torch.randn(3, 6), torch.randn(3, 6)], loss="output:output"
    ),
}  # fmt: skip

TRANSFORMERS = {
    "transformers DistilBertForSequenceClassification": Network(
        encoder, padded_tokens, loss="cross-entropy:logits", labels=classes(3, 2)
    ),
    "transformers Qwen2ForCausalLM": Network(
        decoder, padded_tokens, loss="cross-entropy-last:logits", labels=classes(VOCABULARY, 2, 8)
    ),
    "transformers Qwen2ForCausalLM, tied, with its own loss": Network(
        partial(decoder, tie_word_embeddings=True), partial(padded_tokens, labelled=True), loss="output:loss"
    ),
}
"""Classes of the package transformers."""

NETWORKS = SIX | OTHERS | TRANSFORMERS
