"""Recurrent layers that are not expanded before differentiation have no gradient; the rule says why."""

from __future__ import annotations

from poet_onnx.gradients.builder import GradientBuilder, NoGradientError
from poet_onnx.gradients.forward.recurrent import refusal
from poet_onnx.gradients.registry import gradient_of


@gradient_of("GRU", "LSTM", "RNN", stops=(4,))
def recurrent(builder: GradientBuilder) -> None:
    """Refuse the layer."""
    raise NoGradientError(refusal(builder.node) or "it was not expanded")
