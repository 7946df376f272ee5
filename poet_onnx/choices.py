"""What a rewrite may be asked for by name."""

from __future__ import annotations

METHODS = ("poet",)
"""Ways to plan."""

TARGETS = ("training", "stock")
"""Runtimes: onnxruntime-training, and the plain onnxruntime."""

AUTO, ALL, NONE = "auto", "all", "none"
"""Batch normalizations that are frozen: those of which the model tells, each, or no one."""

NO_OPTIMIZER = "none"
OPTIMIZERS = ("sgd", "momentum", "adam", "adamw", NO_OPTIMIZER)
"""What updates the parameters within the step."""

LEAST_STEPS = 2
"""Of a training process that is looked at: the second one lies beside what the first has left behind."""
