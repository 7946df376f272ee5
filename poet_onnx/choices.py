"""What a rewrite may be asked for by name."""

from __future__ import annotations

OURS = POET, POET_RECOMPUTE, POET_PAGING = ("poet", "poet-recompute", "poet-paging")
"""Methods that are this product's, whole or without one of its means; the others are baselines."""

METHODS = (
    *OURS,
    *("checkpoint-all", "revolve", "chen-sqrt", "chen-greedy", "checkmate", "dtr", "dtr-eq", "dtr-local"),
    *("pofo", "capuchin", "poet-paper"),
)
"""Ways to plan: this product's, that without one of its means, and published ones."""

ORDERS = BEST, MEMORY_AWARE, FILE = ("best", "memory-aware", "file")
"""Orders of nodes in a comparison: memory-aware or better, memory-aware for every method, or the file's."""

AUTO, ALL, NONE = "auto", "all", "none"
"""Which batch normalizations are frozen: those that the model says, all, or none."""

TARGETS = (AUTO, "training", "stock")
"""Runtimes: the one that is installed, onnxruntime-training, and the plain onnxruntime."""

STORES = NEVER, _, FROZEN, ALWAYS = ("never", AUTO, "frozen", "always")
"""Whether parameters live in a store on disk: none, as it is best, those that nobody trains, or all that can."""

NO_OPTIMIZER = "none"
OPTIMIZERS = ("sgd", "momentum", "adam", "adamw", "adamw-ort", NO_OPTIMIZER)
"""What updates the parameters within the step."""

LEAST_STEPS = 2
"""Steps for which a training process is measured: only the second one shows what the first has left behind."""
