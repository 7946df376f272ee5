"""Energy-optimal training schedules for small machines, as an ONNX graph rewrite.

The words that the code uses are explained in docs/how-it-works.md, "Glossary".
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from poet_onnx import torch as torch
    from poet_onnx.adapters.lora import Lora
    from poet_onnx.comparison.compare import Comparison, compare
    from poet_onnx.description.groups import ParameterGroup
    from poet_onnx.description.optimizers import SGD, Adam, AdamW, AdamWOrt
    from poet_onnx.description.schedules import (
        CosineAnnealingLR,
        ExponentialLR,
        LinearLR,
        MultiStepLR,
        SequentialLR,
        StepLR,
    )
    from poet_onnx.errors import (
        CheckFailedError,
        InfeasibleError,
        InputError,
        LimitReachedError,
        PoetError,
        PoetWarning,
    )
    from poet_onnx.gradients.train_graph import TrainGraph, train_graph
    from poet_onnx.ops import library_path
    from poet_onnx.plan import Plan
    from poet_onnx.reporting.fit import BoardFit, Fit, fit
    from poet_onnx.rewriting.rewrite import RewriteResult, pipeline, rewrite
    from poet_onnx.runtime import count_allocations, session_options, training_module
    from poet_onnx.training.callbacks import (
        BestCheckpoint,
        Checkpoint,
        CsvLog,
        EarlyStopping,
        ProgressBar,
        TensorBoardLog,
    )
    from poet_onnx.training.energy import StepEnergy
    from poet_onnx.training.loader import ArrayLoader
    from poet_onnx.training.loop import Callback, Epoch, Step
    from poet_onnx.training.session import TrainingSession
    from poet_onnx.verification import GradientReport, VerificationReport, verify, verify_gradients

__all__ = [
    "SGD",
    "Adam",
    "AdamW",
    "AdamWOrt",
    "ArrayLoader",
    "BestCheckpoint",
    "BoardFit",
    "Callback",
    "CheckFailedError",
    "Checkpoint",
    "Comparison",
    "CosineAnnealingLR",
    "CsvLog",
    "EarlyStopping",
    "Epoch",
    "ExponentialLR",
    "Fit",
    "GradientReport",
    "InfeasibleError",
    "InputError",
    "LimitReachedError",
    "LinearLR",
    "Lora",
    "MultiStepLR",
    "ParameterGroup",
    "Plan",
    "PoetError",
    "PoetWarning",
    "ProgressBar",
    "RewriteResult",
    "SequentialLR",
    "Step",
    "StepEnergy",
    "StepLR",
    "TensorBoardLog",
    "TrainGraph",
    "TrainingSession",
    "VerificationReport",
    "compare",
    "count_allocations",
    "fit",
    "library_path",
    "pipeline",
    "rewrite",
    "session_options",
    "train_graph",
    "training_module",
    "verify",
    "verify_gradients",
]

_HOMES = {
    "comparison.compare": ("Comparison", "compare"),
    "errors": ("CheckFailedError", "InfeasibleError", "InputError", "LimitReachedError", "PoetError", "PoetWarning"),
    "gradients.train_graph": ("TrainGraph", "train_graph"),
    "ops": ("library_path",),
    "plan": ("Plan",),
    "reporting.fit": ("BoardFit", "Fit", "fit"),
    "rewriting.rewrite": ("RewriteResult", "pipeline", "rewrite"),
    "runtime": ("count_allocations", "session_options", "training_module"),
    "adapters.lora": ("Lora",),
    "description.groups": ("ParameterGroup",),
    "description.optimizers": ("SGD", "Adam", "AdamW", "AdamWOrt"),
    "description.schedules": (
        "CosineAnnealingLR",
        "ExponentialLR",
        "LinearLR",
        "MultiStepLR",
        "SequentialLR",
        "StepLR",
    ),
    "training.callbacks": ("BestCheckpoint", "Checkpoint", "CsvLog", "EarlyStopping", "ProgressBar", "TensorBoardLog"),
    "training.energy": ("StepEnergy",),
    "training.loader": ("ArrayLoader",),
    "training.loop": ("Callback", "Epoch", "Step"),
    "training.session": ("TrainingSession",),
    "verification": ("GradientReport", "VerificationReport", "verify", "verify_gradients"),
}

_HOME_OF = {name: home for home, names in _HOMES.items() for name in names}


def __getattr__(name: str) -> object:
    """Import a public name when it is first asked for."""
    if name == "torch":
        return import_module(f"{__name__}.torch")
    if name not in _HOME_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(f"{__name__}.{_HOME_OF[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    """List the public names too that were not asked for yet."""
    return sorted({*globals(), *__all__})
