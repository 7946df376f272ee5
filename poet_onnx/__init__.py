"""Energy-optimal training schedules for small machines, as an ONNX graph rewrite."""

from poet_onnx.errors import CheckFailedError, InfeasibleError, InputError, LimitReachedError, PoetError, PoetWarning
from poet_onnx.ops import library_path
from poet_onnx.plan import Plan
from poet_onnx.rewrite import RewriteResult, pipeline, rewrite
from poet_onnx.runtime import count_allocations, session_options, training_module
from poet_onnx.training import SGD, Adam, AdamW, TrainingSession
from poet_onnx.verify import VerificationReport, verify

__all__ = [
    "SGD",
    "Adam",
    "AdamW",
    "CheckFailedError",
    "InfeasibleError",
    "InputError",
    "LimitReachedError",
    "Plan",
    "PoetError",
    "PoetWarning",
    "RewriteResult",
    "TrainingSession",
    "VerificationReport",
    "count_allocations",
    "library_path",
    "pipeline",
    "rewrite",
    "session_options",
    "training_module",
    "verify",
]
