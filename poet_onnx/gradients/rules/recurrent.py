"""Recurrent layers that are not expanded before differentiation have no gradient; the rule says why."""

from __future__ import annotations

from poet_onnx.gradients.forward.recurrent import refusal
from poet_onnx.gradients.registry import gradient_of
from poet_onnx.gradients.site import NoGradientError, Site


@gradient_of("GRU", "LSTM", "RNN", stops=(4,))
def recurrent(site: Site) -> None:
    """Refuse the layer."""
    raise NoGradientError(refusal(site.node) or "it was not expanded")
