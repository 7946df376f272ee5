"""What a plan says of itself, held against itself: a file that was changed after it was made is told by that."""

from __future__ import annotations

import dataclasses
import math
import re
from typing import TYPE_CHECKING

from poet_onnx.choices import METHODS
from poet_onnx.errors import InputError
from poet_onnx.plan import ALL_PLANS, STATUSES, Certificate, Plan, Prediction, gaps
from poet_onnx.plan.limits import Limits

if TYPE_CHECKING:
    from poet_onnx.plan.serialization import PlanFile

_MOST = 2**63 - 1
"""No figure is larger, whatever its unit. The comparison refuses infinity, and NaN as well."""

_SAME = 1e-9
"""Figures that differ by no more than this part of them are the same: they were added up in another order."""

_DIFFERENCES = ("stall_seconds",)
"""Figures that rounding may bring below zero."""


def same(one: float, other: float) -> bool:
    """Return whether two figures differ by rounding alone."""
    return math.isclose(one, other, rel_tol=_SAME, abs_tol=1e-15)


_SOLVER = re.compile(r"SCIP [0-9.]{1,20} \(PySCIPOpt [0-9a-z.]{1,30}\)", re.ASCII)
"""What a certificate may name beside "none" and methods; whatever else is shown with it, this release words itself."""


def check_figures(plan: Plan | PlanFile) -> None:
    """Refuse figures and names that cannot be right, whatever graph and device they are of.

    Raises:
        InputError: naming the first one.
    """
    wrong = (
        _out_of_range(plan)
        or _broken_limit(plan)
        or _contradiction(plan.prediction, plan.certificate)
        or _false_claim(plan.prediction, plan.certificate)
    )
    if wrong is not None:
        raise InputError(f"The plan is damaged: {wrong}; make it again with --plan-out.")


def _out_of_range(plan: Plan | PlanFile) -> str | None:
    numbers: list[tuple[str, object, float]] = [
        ("deadline_seconds", plan.limits.deadline_seconds, math.nextafter(0.0, 1.0)),
        ("part_bytes", plan.part_bytes, 1),
    ]
    parts: dict[str, Limits | Prediction | Certificate] = {
        "limits": plan.limits,
        "prediction": plan.prediction,
        "certificate": plan.certificate,
    }
    for part, value in parts.items():
        for field in dataclasses.fields(value):
            lowest = -_MOST if field.name in _DIFFERENCES else 0
            numbers.append((f"{part}.{field.name}", getattr(value, field.name), lowest))
    for name, number, least in numbers:
        if isinstance(number, (int, float)) and not least <= number <= _MOST:
            return f"{name} is out of range"
    if plan.certificate.status not in STATUSES:
        return f"certificate.status is none of {', '.join(STATUSES)}"
    return None


def _broken_limit(plan: Plan | PlanFile) -> str | None:
    limits = plan.limits
    # With other costs than it was planned with a plan may be late; its report says so.
    if plan.certificate.status == "other_costs":
        limits = limits.without_deadline()
    return next((f"it {broken}" for broken in limits.broken_by(plan.prediction)), None)


def _contradiction(prediction: Prediction, certificate: Certificate) -> str | None:
    energy, bound = certificate.objective_joules, certificate.bound_joules
    if not same(energy, prediction.energy_joules):
        return f"its energy is {prediction.energy_joules:.6g} J in one place and {energy:.6g} J in another"
    if bound > energy * (1 + _SAME):
        return f"its bound of {bound:.6g} J is above its energy of {energy:.6g} J"
    gap, _ = gaps(energy, bound, 0.0)
    if abs(certificate.gap - gap) > _SAME or certificate.overhead_gap < certificate.gap - _SAME:
        return f"its gaps {certificate.gap:.6g} and {certificate.overhead_gap:.6g} are not those of energy and bound"
    wide = certificate.wide_bound_joules
    if wide > bound * (1 + _SAME):
        return f"its bound of {wide:.6g} J for more plans is above that of {bound:.6g} J for fewer"
    stalled = prediction.seconds - prediction.compute_seconds
    if abs(prediction.stall_seconds - stalled) > _SAME * prediction.seconds:
        return f"its step of {prediction.seconds:.6g} s is not what computing and waiting take"
    return None


def _false_claim(prediction: Prediction, certificate: Certificate) -> str | None:
    """Return what of a certificate no release writes, if there is any."""
    covers, is_base = certificate.covers, certificate.status in ("not_needed", "other_costs")
    if not covers.is_proper() or (is_base and covers != ALL_PLANS):
        return "certificate.covers is no class of plans that a bound is proven for"
    is_none = certificate.solver == "none" if is_base else covers == ALL_PLANS and certificate.solver in METHODS
    if _SOLVER.fullmatch(certificate.solver) is None and not is_none:
        return "certificate.solver is no solver of this release"
    if certificate.threads != 1:
        return f"it was solved with {certificate.threads} threads, which is always 1"
    spends = prediction.recomputed_nodes or prediction.page_out_bytes or prediction.page_in_bytes
    if certificate.status == "not_needed" and (spends or not same(certificate.gap, 0.0)):
        return "it says that nothing was needed, and recomputes, pages or leaves a gap"
    if not covers.permits(prediction):
        return f"it does what {covers} do not"
    return None
