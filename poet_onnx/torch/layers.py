"""Layers with options that no exporter writes, and that a step beside torch does not always show."""

from __future__ import annotations

from typing import TYPE_CHECKING

from poet_onnx.errors import InputError

if TYPE_CHECKING:
    from torch import nn


def check_layers(module: nn.Module) -> None:
    """Refuse layers that would train as if an option were not there.

    An embedding with `max_norm` shortens rows of its weight in the forward pass; with `scale_grad_by_freq` a gradient
    depends on how often a batch has a row.

    Raises:
        InputError: if there is one.
    """
    from torch.nn import Embedding, EmbeddingBag

    for name, layer in module.named_modules():
        if not isinstance(layer, (Embedding, EmbeddingBag)):
            continue
        given = [option for option in ("max_norm", "scale_grad_by_freq") if getattr(layer, option)]
        if given:
            raise InputError(
                f"'{name or type(layer).__name__}' is an embedding with {given[0]}, which ONNX cannot say: set it to"
                " None or False before the export."
            )
