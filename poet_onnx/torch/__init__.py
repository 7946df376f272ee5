"""From a torch module to a rewritten training step and its parameters, and back; torch is imported when it is used."""

from __future__ import annotations

from poet_onnx.torch.exporting import Exported, export
from poet_onnx.torch.loading import load_trained
from poet_onnx.torch.verifying import TorchReport, verify

__all__ = ["Exported", "TorchReport", "export", "load_trained", "verify"]
