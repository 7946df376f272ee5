"""Verify: run the original and the rewritten model in ONNX Runtime and compare what they do with what was promised."""

from __future__ import annotations

from poet_onnx.verification.process import verify_process
from poet_onnx.verification.report import Difference, OptimizedRun, ProcessRun, VerificationReport
from poet_onnx.verification.verification import verify

__all__ = ["Difference", "OptimizedRun", "ProcessRun", "VerificationReport", "verify", "verify_process"]
