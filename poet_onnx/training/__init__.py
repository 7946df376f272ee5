"""Training on a device: sessions, optimizers, checkpoints."""

from poet_onnx.training.optimizers import SGD, Adam, AdamW, Optimizer
from poet_onnx.training.session import TrainingSession

__all__ = ["SGD", "Adam", "AdamW", "Optimizer", "TrainingSession"]
