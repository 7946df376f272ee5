"""Verify: run a rewritten model in ONNX Runtime beside its original, or check a training graph's gradients."""

from __future__ import annotations

from poet_onnx.verification.gradients import verify_gradients
from poet_onnx.verification.process import verify_process
from poet_onnx.verification.report import (
    Difference,
    EnergyRun,
    GradientCheck,
    GradientReport,
    OptimizedRun,
    ProcessRun,
    VerificationReport,
)
from poet_onnx.verification.verification import verify

__all__ = [
    "Difference",
    "EnergyRun",
    "GradientCheck",
    "GradientReport",
    "OptimizedRun",
    "ProcessRun",
    "VerificationReport",
    "verify",
    "verify_gradients",
    "verify_process",
]
