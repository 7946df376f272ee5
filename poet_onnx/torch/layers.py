"""Layers with options that no exporter writes, and that a step beside torch does not always show."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from poet_onnx.errors import InputError

if TYPE_CHECKING:
    from torch import nn


def check_layers(module: nn.Module) -> None:
    """Refuse layers that would train as if an option were not there.

    Raises:
        InputError: if there is one.
    """
    for _, sentence in lost_options(module):
        raise InputError(f"{sentence} Set it to None or False before the export.")


def lost_options(module: nn.Module) -> Iterator[tuple[str, str]]:
    """Yield the name of each layer with an option that ONNX does not have, and a sentence about it.

    An embedding with `max_norm` shortens rows of its weight in the forward pass; with `scale_grad_by_freq` a gradient
    depends on how often a batch has a row.
    """
    from torch.nn import Embedding, EmbeddingBag

    for name, layer in module.named_modules():
        for option in ("max_norm", "scale_grad_by_freq") if isinstance(layer, (Embedding, EmbeddingBag)) else ():
            if getattr(layer, option):
                named = name or type(layer).__name__
                yield named, f"'{named}' is an embedding with {option}, which ONNX cannot say."
