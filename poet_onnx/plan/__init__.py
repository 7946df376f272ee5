"""Plans: what a step does in which order, what that is predicted to take, and the certificate that comes with it."""

from __future__ import annotations

from poet_onnx.plan.plan import (
    ALL_PLANS,
    STATUSES,
    Action,
    Certificate,
    Plan,
    PlanClass,
    Prediction,
    Step,
    gaps,
)

__all__ = ["ALL_PLANS", "STATUSES", "Action", "Certificate", "Plan", "PlanClass", "Prediction", "Step", "gaps"]
