"""What a rewrite came to, in sentences for those who have not read the glossary."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from poet_onnx.plan import Certificate, Plan, PlanClass, Prediction
from poet_onnx.reporting.figures import LEAST_SHARE, bytes_text, percent_text, scaled_text
from poet_onnx.reporting.measured import Measured


@dataclass(frozen=True)
class Asked:
    """What the budget bounds.

    Attributes:
        process_peak_bytes: predicted; 0 where it is not.
        budget_bytes: None for none.
        is_ram: it bounds the process, not the step's transient peak.
    """

    process_peak_bytes: int
    budget_bytes: int | None
    is_ram: bool

    @property
    def what(self) -> str:
        """Return what is bounded, in words."""
        return "The training process" if self.is_ram else "What the step holds besides parameters and batch"

    def used(self, prediction: Prediction) -> int:
        """Return what of that is used, as predicted."""
        return self.process_peak_bytes if self.is_ram else prediction.transient_peak_bytes

    def measured(self, found: Measured | None) -> int | None:
        """Return what of that was used, as measured."""
        if found is None:
            return None
        return found.process_peak_bytes if self.is_ram else found.transient_peak_bytes


def fits(asked: Asked, prediction: Prediction, measured: Measured | None) -> bool:
    """Return whether the budget is kept, as predicted and as measured."""
    if asked.budget_bytes is None:
        return True
    most = max(asked.used(prediction), asked.measured(measured) or 0)
    return most <= asked.budget_bytes


def verdict(
    asked: Asked, plan: Plan, before: tuple[Prediction, Prediction], measured: Measured | None
) -> Iterator[str]:
    """Yield what came out: whether it fits and by how much, at what price, and what was measured.

    Args:
        asked: what the budget bounds.
        plan: with its figures.
        before: what the model needs as it was given, and after ordering alone.
        measured: what was measured.
    """
    prediction, (original, ordered) = plan.prediction, before
    yield room(asked, prediction, measured)
    yield price(prediction, original, stored=bool(plan.stored))
    if original.transient_peak_bytes > prediction.transient_peak_bytes:
        yield (
            f"As it was given, the step would hold {bytes_text(original.transient_peak_bytes)} at its peak besides "
            f"parameters and batch; in a better order {bytes_text(ordered.transient_peak_bytes)}; as rewritten "
            f"{bytes_text(prediction.transient_peak_bytes)}."
        )
    deadline = plan.limits.deadline_seconds
    if deadline is not None:
        kept = "kept" if prediction.seconds <= plan.limits.latest_seconds else "missed"
        yield f"The deadline of {scaled_text(deadline, 's')} is {kept}."
    yield from _measured_words(asked, prediction, measured)


def room(asked: Asked, prediction: Prediction, measured: Measured | None) -> str:
    """Say whether the budget is kept, as predicted and as measured, and what it leaves."""
    used, budget = asked.used(prediction), asked.budget_bytes
    takes = f"{asked.what} takes {bytes_text(used)} at most"
    if budget is None:
        return f"{takes}. No budget was given."
    most = max(used, asked.measured(measured) or 0)
    left = budget - most
    if left < 0:
        return f"It does not fit: it took {bytes_text(most)}, and the budget is {bytes_text(budget)}."
    share = percent_text(left / budget) if budget else "0 %"
    return f"It fits. {takes}; the budget is {bytes_text(budget)}, which leaves {bytes_text(left)} ({share})."


def price(prediction: Prediction, original: Prediction, *, stored: bool) -> str:
    """Say what the plan costs above the step as it was given."""
    more = prediction.energy_joules - original.energy_joules
    energy, time = scaled_text(prediction.energy_joules, "J"), scaled_text(prediction.seconds, "s")
    longer = _share(prediction.seconds - original.seconds, original.seconds)
    moved = prediction.page_out_bytes + prediction.page_in_bytes
    if not (prediction.recomputed_nodes or moved or stored):
        dearer = ""
        if more > LEAST_SHARE * original.energy_joules:
            dearer = f", {_share(more, original.energy_joules)} more energy than as it was given"
        return f"Each node runs once, and nothing is moved to make room: a step takes {energy} and {time}{dearer}."
    means = []
    if prediction.recomputed_nodes:
        nodes = prediction.recomputed_nodes
        means.append(f"{nodes:,} node{' runs' if nodes == 1 else 's run'} again")
    if moved:
        out, back = bytes_text(prediction.page_out_bytes), bytes_text(prediction.page_in_bytes)
        means.append(f"{out} go to storage and {back} come back")
    if stored:
        means.append("parameters pass through RAM from their store")
    *others, last = means
    reasons = f"{', '.join(others)}, and {last}" if others else last
    return (
        f"The price: {_share(more, original.energy_joules)} more energy ({energy} a step) and "
        f"{longer} more time ({time}), as {reasons}."
    )


def _share(more: float, whole: float) -> str:
    return percent_text(max(0.0, more) / whole) if whole else "no"


def _measured_words(asked: Asked, prediction: Prediction, measured: Measured | None) -> Iterator[str]:
    if measured is None:
        return
    for name, found, said in (
        ("the process", measured.process_peak_bytes, asked.process_peak_bytes),
        ("the step's peak", measured.transient_peak_bytes, prediction.transient_peak_bytes),
    ):
        if found is not None:
            predicted = f", {bytes_text(said)} predicted" if said else ""
            yield f"Measured with {measured.runtime}: {bytes_text(found)} for {name}{predicted}."
    if not measured.passed:
        yield "The check that measured this found something wrong: run poet-onnx verify to see what."


def proof(certificate: Certificate) -> Iterator[str]:
    """Yield what a certificate says."""
    if certificate.status == "not_needed":
        yield "The ordered step fits as it is. Nothing is recomputed and nothing is paged, so no plan spends less."
        return
    energy = scaled_text(certificate.objective_joules, "J")
    if certificate.status == "other_costs":
        yield f"Planned with other costs. With these a step spends {energy}. Nothing is proven of that."
        return
    bound = scaled_text(certificate.bound_joules, "J")
    yield f"The plan spends {energy} a step. {_every(certificate.covers)} spends at least {bound}."
    if certificate.gap < LEAST_SHARE:
        yield "Nothing is left to save: the two differ by under 0.01 %."
    else:
        missing = scaled_text(certificate.objective_joules - certificate.bound_joules, "J")
        yield f"A better plan could save at most {percent_text(certificate.gap)} of the energy, {missing} a step."
    if certificate.wide_bound_joules < certificate.bound_joules:
        wide = scaled_text(certificate.wide_bound_joules, "J")
        every = _every(replace(certificate.covers, hops=None, stays=None))
        yield f"{every}, whether the search could express it or not, spends at least {wide}."
    yield {
        "optimal": "The search ended because that is within the gap that was asked for.",
        "time_limit": "The search ended at its time limit: more time may find a better plan, or a better proof.",
        "interrupted": "The search was interrupted: more time may find a better plan, or a better proof.",
    }.get(certificate.status, "The search ended; what it proved leaves that much open.")
    yield f"Solved by {certificate.solver}, seed {certificate.seed}."


def _every(covers: PlanClass) -> str:
    """Return the subject of a bound. Example: "Every plan with this order of nodes that does not page"."""
    plans = "Every plan" if covers.hops is None else "Every plan considered"
    order = " with this order of nodes" if covers.in_order else " of these nodes"
    leaves_out = {(True, True): "", (True, False): " that does not page", (False, True): " that does not recompute"}
    return f"{plans}{order}{leaves_out.get((covers.recompute, covers.paging), ' that does neither recompute nor page')}"
