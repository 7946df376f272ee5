"""Public architectures with random weights: torchvision's and transformers' own classes, small enough to try often.

Needs the extra [architectures]. Nothing is downloaded. Depth, width and pictures are small, dropout and stochastic
depth are 0, since random streams differ between torch and ONNX Runtime, and initial values that would hide most
gradients (heads of zero, layer scales of 1e-6) are ordinary ones.
"""

from __future__ import annotations

import functools
import importlib
import importlib.util
from collections.abc import Callable
from typing import Any

import torch
from models import Recipe, images
from torch import Tensor, nn

CLASSES = 10
VOCABULARY = 200
LENGTH = 16
PADDING = 0


_OPERATORS = torch.library.Library("torchvision", "FRAGMENT")


def _import_torchvision() -> None:
    """Import torchvision, beside a CPU build of torch, too.

    The package on PyPI is compiled for the CUDA build: beside a CPU build its library does not load, and its import
    fails for want of the operators that it describes to torch. Models need none of them, but the import their names.
    """
    try:
        importlib.import_module("torchvision")
    except RuntimeError:
        for operator in ("nms", "qnms"):
            _OPERATORS.define(f"{operator}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
        importlib.import_module("torchvision")


def _from_torchvision(name: str) -> Any:
    """Return a part of torchvision.models by its name."""
    _import_torchvision()
    place, _, attribute = f"torchvision.models.{name}".rpartition(".")
    return getattr(importlib.import_module(place), attribute)


class Logits(nn.Module):
    """A transformers model that takes its inputs in order and returns one row of logits for each label."""

    def __init__(self, model: nn.Module, inputs: tuple[str, ...]) -> None:
        super().__init__()
        self.model, self.inputs = model, inputs

    def forward(self, *values: Tensor) -> Tensor:
        """Return the logits."""
        logits: Tensor = self.model(**dict(zip(self.inputs, values, strict=True))).logits
        return logits.flatten(0, -2)


class Pooled(nn.Module):
    """A transformers encoder without a head of its own, with a linear one on its mean state."""

    def __init__(self, model: nn.Module, width: int, inputs: tuple[str, ...]) -> None:
        super().__init__()
        self.model, self.inputs = model, inputs
        self.head = nn.Linear(width, CLASSES)

    def forward(self, *values: Tensor) -> Tensor:
        """Return the logits."""
        states = self.model(**dict(zip(self.inputs, values, strict=True))).last_hidden_state
        logits: Tensor = self.head(states.mean(1))
        return logits


def _ready(module: nn.Module) -> nn.Module:
    """Take dropout out of a module, and draw the weights of linear layers that are all zero."""
    for part in module.modules():
        if isinstance(part, nn.Dropout):
            part.p = 0.0
        if isinstance(part, nn.Linear) and not part.weight.any():
            nn.init.trunc_normal_(part.weight, std=0.02)
    return module


def vision(name: str, size: int, *arguments: Any, **options: Any) -> Recipe:
    """Return a model of torchvision.

    Args:
        name: of a class or function in torchvision.models, with its module where it is not there.
        size: of the pictures, in pixels.
        arguments: of the class or function; what can be called is called for one.
        options: of the class or function, besides `num_classes`.
    """

    def build() -> nn.Module:
        make: Callable[..., nn.Module] = _from_torchvision(name)
        found = [argument() if callable(argument) else argument for argument in arguments]
        return _ready(make(*found, num_classes=CLASSES, **options))

    return Recipe(build, functools.partial(images, size))


def _words(masked: bool, batch: int) -> dict[str, Tensor]:
    """Return a batch of token sequences without padding: torch trains no embedding of it, an exported model does."""
    mask = {"attention_mask": torch.ones(batch, LENGTH, dtype=torch.int64)} if masked else {}
    return {"input_ids": torch.randint(PADDING + 1, VOCABULARY, (batch, LENGTH))} | mask


def _hugging_face(name: str, settings: dict[str, Any]) -> nn.Module:
    """Return a model of transformers by its class and the settings of its configuration."""
    if importlib.util.find_spec("torchvision") is not None:
        _import_torchvision()  # transformers would, and fail
    import transformers

    make = getattr(transformers, name)
    configuration = make.config_class(attn_implementation="eager", num_labels=CLASSES, use_cache=False, **settings)
    model: nn.Module = make(configuration)
    return _ready(model.train())


def text(name: str, *, masked: bool = True, pooled: int | None = None, **settings: Any) -> Recipe:
    """Return a language model of transformers.

    Args:
        name: of its class.
        masked: whether the attention mask is an input.
        pooled: the width of its states, if it is an encoder without a head.
        settings: of its configuration, besides the vocabulary.
    """
    inputs = ("input_ids", "attention_mask") if masked else ("input_ids",)

    def build() -> nn.Module:
        model = _hugging_face(name, {"vocab_size": VOCABULARY, "pad_token_id": PADDING, **settings})
        return Logits(model, inputs) if pooled is None else Pooled(model, pooled, inputs)

    return Recipe(build, functools.partial(_words, masked))


def pictures(name: str, size: int, **settings: Any) -> Recipe:
    """Return a vision model of transformers for pictures of `size` pixels."""
    return Recipe(
        lambda: Logits(_hugging_face(name, settings), ("pixel_values",)),
        functools.partial(images, size),
    )


BOTTLENECK = functools.partial(_from_torchvision, "resnet.Bottleneck")
SMALL = {"hidden_size": 48, "num_hidden_layers": 3, "num_attention_heads": 4, "intermediate_size": 96}
CALM = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
BERT = {**SMALL, **CALM, "max_position_embeddings": 64}
DECODER = {**SMALL, "max_position_embeddings": 64}
DISTILLED = {"max_position_embeddings": 64, "dim": 48, "n_layers": 3, "n_heads": 4, "hidden_dim": 96}
GPT2 = {"n_embd": 48, "n_layer": 3, "n_head": 4, "n_positions": 64}
T5 = {"d_model": 48, "d_kv": 12, "d_ff": 96, "num_layers": 3, "num_heads": 4}
PYRAMID = {"hidden_sizes": [16, 32, 48, 64], "depths": [1, 1, 2, 1]}
PATCHES = {**SMALL, **CALM, "image_size": 32, "patch_size": 8}
WINDOWS = {"image_size": 64, "embed_dim": 24, "depths": [2, 2], "num_heads": [2, 4], "window_size": 4}

ARCHITECTURES: dict[str, Recipe] = {
    "torchvision VGG-11": vision("vgg11", 224, init_weights=False),
    "torchvision ResNet-18": vision("resnet18", 64),
    "torchvision ResNet-50": vision("resnet50", 64),
    "torchvision ResNeXt": vision("ResNet", 64, BOTTLENECK, [1, 1, 1, 1], groups=32, width_per_group=4),
    "torchvision Wide ResNet": vision("ResNet", 64, BOTTLENECK, [1, 1, 1, 1], width_per_group=128),
    "torchvision DenseNet": vision("DenseNet", 64, 12, (3, 4, 6, 3), 24),
    "torchvision GoogLeNet": vision("googlenet", 64, aux_logits=False, init_weights=False),
    "torchvision SqueezeNet 1.1": vision("squeezenet1_1", 64),
    "torchvision MobileNetV2": vision("mobilenet_v2", 64),
    "torchvision MobileNetV3 small": vision("mobilenet_v3_small", 64),
    "torchvision ShuffleNet V2": vision("shufflenet_v2_x0_5", 64),
    "torchvision MNASNet": vision("mnasnet0_5", 64),
    "torchvision EfficientNet-B0": vision("efficientnet_b0", 64, stochastic_depth_prob=0.0),
    "torchvision RegNet Y": vision("regnet_y_400mf", 64),
    "torchvision ViT": vision("VisionTransformer", 32, 32, 8, 3, 4, 48, 96),
    "torchvision Swin": vision("SwinTransformer", 64, [4, 4], 24, [2, 2], [2, 4], [4, 4], stochastic_depth_prob=0.0),
    "transformers BERT": text("BertForSequenceClassification", **BERT),
    "transformers RoBERTa": text("RobertaForSequenceClassification", **BERT),
    "transformers ELECTRA": text("ElectraForSequenceClassification", **BERT, embedding_size=32),
    "transformers ALBERT": text("AlbertForSequenceClassification", **BERT, embedding_size=32),
    "transformers DistilBERT": text(
        "DistilBertForSequenceClassification",
        **DISTILLED,
        dropout=0.0,
        attention_dropout=0.0,
        seq_classif_dropout=0.0,
    ),
    "transformers DeBERTa V2": text(
        "DebertaV2ForSequenceClassification", **BERT, relative_attention=True, pos_att_type=["p2c", "c2p"]
    ),
    "transformers GPT-2": text(
        "GPT2LMHeadModel",
        **GPT2,
        resid_pdrop=0.0,
        embd_pdrop=0.0,
        attn_pdrop=0.0,
    ),
    "transformers OPT": text("OPTForCausalLM", **DECODER, ffn_dim=96, word_embed_proj_dim=48, dropout=0.0),
    "transformers GPT-NeoX": text("GPTNeoXForCausalLM", **DECODER),
    "transformers Llama": text("LlamaForCausalLM", **DECODER, num_key_value_heads=2),
    "transformers Qwen2": text("Qwen2ForCausalLM", **DECODER, num_key_value_heads=2),
    "transformers T5 encoder": text("T5EncoderModel", pooled=48, **T5, dropout_rate=0.0),
    "transformers Mamba": text("MambaForCausalLM", masked=False, hidden_size=32, num_hidden_layers=2, state_size=4),
    "transformers ViT": pictures("ViTForImageClassification", 32, **PATCHES),
    "transformers BEiT": pictures(
        "BeitForImageClassification", 32, **PATCHES, drop_path_rate=0.0, layer_scale_init_value=0.1
    ),
    "transformers Swin": pictures("SwinForImageClassification", 64, **WINDOWS, **CALM, drop_path_rate=0.0),
    "transformers ConvNeXt": pictures("ConvNextForImageClassification", 64, **PYRAMID, layer_scale_init_value=0.1),
    "transformers ConvNeXt V2": pictures("ConvNextV2ForImageClassification", 64, **PYRAMID),
    "transformers PoolFormer": pictures("PoolFormerForImageClassification", 64, **PYRAMID, drop_path_rate=0.0),
    "transformers SegFormer": pictures(
        "SegformerForImageClassification",
        64,
        **{**PYRAMID, **CALM, "depths": [1, 1, 1, 1], "num_attention_heads": [1, 2, 3, 4]},
        drop_path_rate=0.0,
        classifier_dropout_prob=0.0,
    ),
}
