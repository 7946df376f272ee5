"""A plan that was made before: nothing that it says of itself is believed before the simulator says it, too."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from poet_onnx.errors import CheckFailedError, InputError
from poet_onnx.graph import TrainingGraph
from poet_onnx.plan import ALL_PLANS, Certificate, Plan, Prediction, gaps, serialization
from poet_onnx.plan.figures import check_figures, same
from poet_onnx.plan.limits import Limits
from poet_onnx.plan.problem import ScheduleProblem
from poet_onnx.rewriting.variants import VariantOptions
from poet_onnx.simulate import simulate

_FIXED = ("resident_bytes", "page_out_bytes", "page_in_bytes", "recomputed_nodes")
"""Figures that the steps alone decide, whatever they cost."""

_SHOWN_LETTERS = 40

_VISIBLE_OVERHEAD = 1e-6
"""Part of the energy below which the overhead is a difference of rounded numbers."""


def variant_options(given: Plan | str, device: str, target: str, optimizer: str) -> VariantOptions:
    """Return the options of the graph variant that a plan is for.

    Raises:
        InputError: if it is no plan, or one for another device, target or optimizer.
    """
    if isinstance(given, Plan):
        check_figures(given)
    plan = given if isinstance(given, Plan) else serialization.parse(given)
    made_for = (plan.device, plan.target)
    if made_for != (device, target):
        raise InputError(
            f"The plan was made for device {plan.device!r} and target {made_for[1]!r}, not for device {device!r} and "
            f"target {target!r}; give --device {plan.device!r} --target {made_for[1]}, or plan again."
        )
    if plan.optimizer != optimizer:
        said = plan.optimizer[:_SHOWN_LETTERS]
        raise InputError(
            f"The plan was made for optimizer {said!r}, not for {optimizer!r}: give the --optimizer, "
            "--accumulation-steps, --clip-norm and --group that it was made with, or plan again."
        )
    return plan.part_bytes, plan.stored


def read_plan(given: Plan | str, graph: TrainingGraph) -> Plan:
    """Return the plan, if it is one for a graph.

    Raises:
        InputError: if it is not.
    """
    if isinstance(given, str):
        return serialization.from_json(given, graph)
    serialization.check_graph(given.fingerprint, graph)
    return given


def replayed(problem: ScheduleProblem, limits: Limits, plan: Plan, *, aside_bytes: int) -> Plan:
    """Return a plan with the figures that the simulator finds with the problem's costs.

    It must keep its own budget and that of the limits: kernels' workspace aside, bytes do not depend on costs. Its
    energy and time do. Where they are not those that it says, it was planned with other costs, and its certificate
    gives way to what is known of these. Where computing takes another time, too, it may miss its own deadline, but not
    that of the limits.

    Args:
        problem: whose graph and costs the plan runs with.
        limits: that were asked for besides the plan's.
        plan: for the problem's graph.
        aside_bytes: what the budgets keep for what the runtime adds to its blocks.

    Raises:
        InputError: if the steps cannot run or keep no limits, or the plan's figures are not theirs.
    """
    budgets = [budget for budget in (plan.limits.budget_bytes, limits.budget_bytes) if budget is not None]
    try:
        here = simulate(replace(problem, recompute=True, paging=True), plan.steps, limits.within(None))
    except CheckFailedError as error:
        raise InputError(f"The plan cannot be carried out: {str(error).rstrip('.')}; plan again.") from error
    if budgets and here.transient_peak_bytes + aside_bytes > min(budgets):
        aside = f" and {aside_bytes:,} bytes set aside for what onnxruntime adds to its blocks on aarch64"
        raise InputError(
            f"The plan needs {here.transient_peak_bytes:,} bytes{aside if aside_bytes else ''}, but the budget is "
            f"{min(budgets):,} bytes; plan again, or give the --costs that it was made with."
        )
    for false in false_figures(plan, here):
        raise InputError(f"The plan is damaged: it says {false}; make it again with --plan-out.")
    if here.seconds > plan.limits.latest_seconds and same(here.compute_seconds, plan.prediction.compute_seconds):
        late = f"takes {here.seconds:.6g} s, but its deadline is {plan.limits.deadline_seconds:.6g} s"
        raise InputError(f"The plan {late}; plan again, or give the device and the --costs that it was made with.")
    return replace(plan, prediction=here, certificate=_certificate(problem, plan, here))


def false_figures(plan: Plan, here: Prediction) -> Iterator[str]:
    """Yield the figures of a plan that its steps do not make, whatever they cost, with what they do make."""
    for name in _FIXED:
        said, made = getattr(plan.prediction, name), getattr(here, name)
        if said != made:
            yield f"{said:,} {name}, and its steps make {made:,}"


def _certificate(problem: ScheduleProblem, plan: Plan, here: Prediction) -> Certificate:
    """Return what is known of the plan with the problem's costs, and what only the plan says."""
    certificate, energy, base = plan.certificate, here.energy_joules, problem.base_joules
    if same(energy, certificate.objective_joules) and same(here.seconds, plan.prediction.seconds):
        wrong = _wrong_bound(certificate, energy, base)
        if wrong is not None:
            raise InputError(f"The plan is damaged: {wrong}; make it again with --plan-out.")
        return certificate
    bound = min(energy, base)
    gap, overhead_gap = gaps(energy, bound, base)
    return replace(
        certificate,
        status="other_costs",
        objective_joules=energy,
        bound_joules=bound,
        gap=gap,
        overhead_gap=overhead_gap,
        covers=ALL_PLANS,
        wide_bound_joules=bound,
    )


def _wrong_bound(certificate: Certificate, energy: float, base: float) -> str | None:
    """Return what of a certificate's bound is wrong for a step that takes some energy, if anything is."""
    bound, least = certificate.bound_joules, min(energy, base)
    near = _VISIBLE_OVERHEAD * energy
    if certificate.wide_bound_joules < least - near or (certificate.covers == ALL_PLANS and bound > least + near):
        return f"its bound is {bound:.6g} J where computing once alone takes {base:.6g} J"
    overhead = max(0.0, energy - base)
    expected = (energy - bound) / overhead if overhead > near else None
    if expected is not None and abs(certificate.overhead_gap - expected) > _VISIBLE_OVERHEAD * (1 + expected):
        return (
            f"its gap over the overhead is {certificate.overhead_gap:.6g} where its energy and bound make it "
            f"{expected:.6g}"
        )
    return None
