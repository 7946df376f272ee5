"""Gradients of our own: from a forward model and a loss to a training model, without onnxruntime-training."""

from __future__ import annotations
