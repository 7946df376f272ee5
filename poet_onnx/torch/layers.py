"""Layers with options that no exporter writes, told by name before the export."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from poet_onnx.errors import InputError

if TYPE_CHECKING:
    from torch import nn


def check_layers(module: nn.Module) -> None:
    """Refuse layers that would train as if an option were not there, or that exporters write wrongly.

    Raises:
        InputError: if there is one.
    """
    for _, sentence in lost_options(module):
        raise InputError(f"{sentence} Set it to None or False before the export.")
    for sentence in _unwritten(module):
        raise InputError(sentence)


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


def _unwritten(module: nn.Module) -> Iterator[str]:
    """Yield a sentence about each layer that a step beside torch, or the exporter itself, would refuse less clearly."""
    from torch.nn import LSTM
    from torch.nn.modules.instancenorm import _InstanceNorm

    for name, layer in module.named_modules():
        named = name or type(layer).__name__
        if isinstance(layer, LSTM) and layer.proj_size:
            yield (
                f"'{named}' is an LSTM with proj_size={layer.proj_size}, which ONNX does not have: make it with"
                " proj_size=0, or write its steps as a loop in `forward`."
            )
        if isinstance(layer, _InstanceNorm) and layer.training and layer.running_mean is not None:
            yield (
                f"'{named}' is an instance normalization that moves running statistics, which would stand still in"
                " the training graph: make it with track_running_stats=False, or call its eval() before the export."
            )
