"""The scheduler's front door: a problem in, a checked plan with its certificate out."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from poet_onnx.errors import InfeasibleError, LimitReachedError
from poet_onnx.plan import ALL_PLANS, Certificate, Plan, Step, gaps
from poet_onnx.plan.limits import UNLIMITED, Limits
from poet_onnx.plan.problem import ScheduleProblem
from poet_onnx.scheduling.attempt import solve_in_order
from poet_onnx.scheduling.bound import least_overhead
from poet_onnx.scheduling.choices import class_in_order
from poet_onnx.scheduling.incumbent import LEAST_SECONDS, Bound, Effort, Incumbent, Progress, overhead_gap_of
from poet_onnx.scheduling.liveness import Instance, Liveness, build_instance
from poet_onnx.scheduling.order import memory_aware_order
from poet_onnx.scheduling.order_search import order_for
from poet_onnx.scheduling.quick_plan import quick_plan
from poet_onnx.scheduling.refusals import NoneExistsError, NothingFoundError, Terms
from poet_onnx.scheduling.smallest import smallest_budget
from poet_onnx.scheduling.steps import SimulatedPlan, order_of
from poet_onnx.simulate import simulate
from poet_onnx.transfers import overlap

NEAR = 0.1
"""Share of the asked gaps at which the relaxation alone settles a plan."""

ORDER_SHARE = 1 / 3
"""The search for an order gets this share of the time limit; small graphs use a fraction of that."""

ROUNDING = 1e-9
"""Energies that differ by no more than this part of them are the same."""


def schedule(
    problem: ScheduleProblem,
    limits: Limits = UNLIMITED,
    *,
    gap: float = 0.01,
    time_limit_seconds: float = 60.0,
    seed: int = 0,
    progress: Callable[[Progress], None] | None = None,
    order: Sequence[str] | None = None,
    baseline: SimulatedPlan | None = None,
    known: Sequence[tuple[Step, ...]] = (),
    worth_joules: float = math.inf,
    baseline_bound_joules: float = 0.0,
    explains: bool = True,
) -> Plan:
    """Find the plan of least energy within limits.

    Args:
        problem: what to plan.
        limits: what the plan must keep to.
        gap: stop when (energy - bound) / energy is at most this.
        time_limit_seconds: of the solver; the best plan found by then is returned.
        seed: of the solver.
        progress: called with a `Progress` while the solver works.
        order: of the nodes; if not given, the best one found for the budget.
        baseline: the nodes in the memory-aware order, if it was made and simulated before.
        known: steps of plans found before, for other limits; no plan is returned that spends more than one of them
            which keeps these limits. With an order given, plans in other orders are not looked at.
        worth_joules: the search ends where no plan spends less; what it has found by then, if anything, is the answer.
        baseline_bound_joules: what no plan in the memory-aware order spends less than, if that was worked out before.
        explains: where no plan is found, look for the smallest budget, which takes a while: its plan is the answer
            where it keeps the limits, and what would do otherwise. Without that, `NoneExistsError` or
            `NothingFoundError` is raised, and can be asked.

    Raises:
        InfeasibleError: if no plan keeps to the limits; it says what would do.
        LimitReachedError: if the time limit came before any plan was found.
    """
    effort = Effort(gap, overhead_gap_of(gap), time_limit_seconds, seed, known_joules=worth_joules)
    if order is None:
        baseline = baseline or SimulatedPlan.in_order(problem, memory_aware_order(problem))
    run = _Run(problem, limits, effort, progress, baseline, least=baseline_bound_joules)
    for steps in known:
        run.take(steps)
    in_order = None if order is None else tuple(order)
    try:
        return run.with_any_transfers(known, in_order) or run.best(in_order)
    except (NoneExistsError, NothingFoundError) as failure:
        if isinstance(failure, NothingFoundError):
            failure.seconds = time.monotonic() - run.begin
        if not explains:
            raise
        first = in_order or run.baseline_order
        smallest = smallest_budget(problem, first, limits=limits, in_order=in_order is not None)
        if smallest.plan is not None and not any(limits.broken_by(smallest.plan.prediction)):
            return known_plan(problem, limits, smallest.plan, gap=gap, seed=seed)
        terms = Terms(
            "transient budget", limits.transient_bytes, None if smallest.plan is None else smallest.budget_bytes
        )
        raise failure.explained(terms) from None


def known_plan(problem: ScheduleProblem, limits: Limits, known: SimulatedPlan, *, gap: float, seed: int) -> Plan:
    """Return the plan of steps that keep limits; its bound is the energy of computing once."""
    run = _Run(problem, limits, Effort(gap, overhead_gap_of(gap), 0.0, seed), None, None)
    return run.plan(known, Bound.base(problem.base_joules))


@dataclass
class _Run:
    """One search for a plan.

    Attributes:
        problem, limits, progress: as of `schedule`; so are its gap, seed and worth in the effort.
        baseline: the nodes in the memory-aware order; None where another order is given.
        begin: when the search began.
        end: when it is to end, in one order where several are looked at.
        known: plans found before that keep the limits.
        least: joules that no plan in the baseline order stays below, if that was worked out before; 0 otherwise.
        relaxed: the best plan without the limits on what is moved, if it breaks them.
        ending: status of a plan that is not proven to be optimal: "feasible" while no search was cut short.
    """

    problem: ScheduleProblem
    limits: Limits
    effort: Effort
    progress: Callable[[Progress], None] | None
    baseline: SimulatedPlan | None
    begin: float = field(default_factory=time.monotonic)
    end: float = field(init=False)
    known: list[SimulatedPlan] = field(default_factory=list)
    least: float = 0.0
    relaxed: Plan | None = None
    ending: str = "feasible"

    def __post_init__(self) -> None:
        self.end = self.begin + self.effort.time_limit_seconds

    @property
    def baseline_order(self) -> tuple[str, ...]:
        """Return the memory-aware order."""
        assert self.baseline is not None
        return self.baseline.order

    def best(self, order: tuple[str, ...] | None) -> Plan:
        """Schedule in an order, or in the best one that is found."""
        if order is not None:
            return self.in_order(order)
        baseline, budget_bytes = self.baseline, self.limits.budget_bytes
        assert baseline is not None
        if budget_bytes is None or baseline.prediction.transient_peak_bytes <= budget_bytes:
            return self.in_order(baseline.order)
        return self.in_best_order()

    def with_any_transfers(self, known: Sequence[tuple[Step, ...]], order: tuple[str, ...] | None) -> Plan | None:
        """Return the best plan without the limits on what is moved, if there are any and it keeps them all the same.

        Otherwise its bound holds for plans that keep them, and it is where the search for one sets out.
        """
        free = self.limits.without_transfers()
        if free == self.limits:
            return None
        effort = replace(self.effort, time_limit_seconds=self.effort.time_limit_seconds / 2)
        run = _Run(self.problem, free, effort, None, self.baseline)
        for steps in known:
            run.take(steps)
        try:
            plan = run.best(order)
        except (NoneExistsError, NothingFoundError):
            return None
        if not any(self.limits.broken_by(plan.prediction)):
            return replace(plan, limits=self.limits)
        if plan.certificate.status == "interrupted":
            return self._interrupted()
        self.relaxed = plan
        return None

    def in_best_order(self) -> Plan:
        """Schedule in the order that is best for the budget, or in two where only solving can tell."""
        try:
            seconds, seed = ORDER_SHARE * self.effort.time_limit_seconds, self.effort.seed
            choice = order_for(
                self.problem, self.limits, seconds=seconds, seed=seed, baseline=self.baseline_order, found=self.take
            )
        except KeyboardInterrupt:
            return self._interrupted()
        self.least = max(self.least, choice.baseline_bound_joules)
        # The cheaper quick plan first: what comes of it may spare much of the other search.
        orders = [choice.rival, choice.order] if choice.rival else [choice.order]
        plans, failures = self._in_orders(orders)
        best = self._cheapest(plans)
        if best is not None:
            return best
        if self.ending == "interrupted":
            raise KeyboardInterrupt
        # What would do is said of the order that the peak is known of.
        if self.baseline_order in failures:
            raise failures[self.baseline_order]
        self.end = max(self.end, time.monotonic() + LEAST_SECONDS)
        return self.in_order(self.baseline_order)

    def _in_orders(
        self, orders: Sequence[tuple[str, ...]]
    ) -> tuple[list[Plan], dict[tuple[str, ...], InfeasibleError | LimitReachedError]]:
        """Schedule in each order, the time shared among them; return the plans, and why others have none."""
        plans: list[Plan] = []
        failures: dict[tuple[str, ...], InfeasibleError | LimitReachedError] = {}
        end = self.end
        for number, order in enumerate(orders):
            now = time.monotonic()
            self.end = now + max(LEAST_SECONDS, (end - now) / (len(orders) - number))
            try:
                plans.append(self.in_order(order))
                known = min(plan.certificate.objective_joules for plan in plans)
                self.effort = replace(self.effort, known_joules=min(known, self.effort.known_joules))
            except (InfeasibleError, LimitReachedError) as error:
                failures[order] = error
            except KeyboardInterrupt:
                self.ending = "interrupted"
            if self.ending == "interrupted":
                break
        self.end = end
        return plans, failures

    def _cheapest(self, plans: Sequence[Plan]) -> Plan | None:
        """Return the cheapest of some plans and those found before."""
        best = min(plans, key=lambda plan: plan.certificate.objective_joules, default=None)
        known = min(self.known, key=lambda known: known.joules, default=None)
        # What is cheaper by rounding alone would come with a worse bound.
        most = float("inf") if best is None else best.certificate.objective_joules * (1 - ROUNDING)
        if known is None or known.joules >= most:
            return best
        # No plan of any kind and any order spends less than the computations.
        return self.plan(self._just_in_time(known), Bound.base(self.problem.base_joules))

    def _interrupted(self) -> Plan:
        """Return the best plan found on the way; go on with the interrupt if there is none."""
        self.ending = "interrupted"
        best = self._cheapest([])
        if best is None:
            raise KeyboardInterrupt
        return best

    def take(self, steps: tuple[Step, ...]) -> None:
        """Take a plan that was found before or on the way to an order, if it keeps the limits."""
        incumbent = Incumbent(self.problem, self.limits, self.progress, self.begin)
        try:
            incumbent.offer_steps(steps)
        finally:  # an interrupt may come as it is told of
            if incumbent.plan is not None:
                self.known.append(incumbent.plan)

    def _incumbent(self, order: tuple[str, ...]) -> Incumbent:
        """Return what is known so far of an order; plans in others may be cheaper than its bound."""
        incumbent = Incumbent(self.problem, self.limits, self.progress, self.begin)
        for known in self.known:
            if known.order == order:
                incumbent.take(known)
        if self.relaxed is not None and order_of(self.relaxed.steps) == order:
            certificate = self.relaxed.certificate
            incumbent.start = incumbent.start or self.relaxed.steps
            incumbent.bound = Bound(certificate.bound_joules, certificate.covers, certificate.wide_bound_joules)
        return incumbent

    def in_order(self, order: tuple[str, ...]) -> Plan:
        """Schedule in one order."""
        problem, limits = self.problem, self.limits
        instance = build_instance(problem, order)
        is_baseline = self.baseline is not None and self.baseline.order == order
        ordered = self.baseline if self.baseline is not None and is_baseline else SimulatedPlan.in_order(problem, order)
        deadline, seconds = limits.deadline_seconds, ordered.prediction.seconds
        if deadline is not None and seconds > deadline:
            raise InfeasibleError(
                f"No plan meets a deadline of {deadline:.6g} s: the computations alone take {seconds:.6g} s; "
                "give at least that."
            )
        if limits.budget_bytes is None or ordered.prediction.transient_peak_bytes <= limits.budget_bytes:
            return self.plan(ordered, Bound.base(ordered.joules), is_needed=False)
        incumbent = self._incumbent(order)
        try:
            self._search(incumbent, instance, order)
        except KeyboardInterrupt:
            self.ending = "interrupted"
        if incumbent.plan is None and self.ending == "interrupted":
            raise KeyboardInterrupt
        if incumbent.plan is None:
            raise NothingFoundError(problem, limits, order, incumbent.fastest_seconds)
        return self.plan(self._just_in_time(incumbent.plan), incumbent.bound)

    def _search(self, incumbent: Incumbent, instance: Instance, order: tuple[str, ...]) -> None:
        """Bound all that is allowed in an order, and solve where that and a quick plan do not settle it."""
        profile = Liveness(self.problem).in_order(order)
        # What keeps limits on transfers may be far from the best plan within them: it may come from tighter ones.
        if incumbent.plan is None or self.relaxed is not None:
            quick = quick_plan(profile, self.limits)
            if quick is not None:
                incumbent.offer_steps(quick.steps)
        is_known = self.least > 0 and self.baseline is not None and order == self.baseline.order
        least = self.least - self.problem.base_joules if is_known else least_overhead(profile, self.limits)
        wide = class_in_order(self.problem)
        if math.isinf(least):
            raise NoneExistsError(instance, self.limits, wide)
        incumbent.lift(least, wide)
        # The solver goes on when the asked gaps are reached, and so mostly ends below them; so must what replaces it.
        effort = self.effort
        if incumbent.settles(replace(effort, gap=NEAR * effort.gap, overhead_gap=NEAR * effort.overhead_gap)):
            return
        if incumbent.plan is not None and time.monotonic() > self.end:
            self.ending = "time_limit"
        else:
            self._solve(incumbent, instance)

    def _solve(self, incumbent: Incumbent, instance: Instance) -> None:
        """Offer plans to the incumbent until one settles it."""
        if instance.largest_node_bytes > self.limits.transient_bytes:
            raise NoneExistsError(instance, self.limits, ALL_PLANS)
        status, covers = solve_in_order(incumbent, instance, self.limits, self.effort.until(self.end))
        if status == "infeasible" and incumbent.plan is None:
            raise NoneExistsError(instance, self.limits, covers)
        if status in ("time_limit", "interrupted"):
            self.ending = status

    def _just_in_time(self, plan: SimulatedPlan) -> SimulatedPlan:
        """Return a plan with its transfers placed thoroughly, or as they are where that is faster."""
        steps = overlap(self.problem, self.limits, plan.steps)
        if steps == plan.steps:
            return plan
        return min(SimulatedPlan(steps, simulate(self.problem, steps)), plan, key=lambda each: each.prediction.seconds)

    def plan(self, placed: SimulatedPlan, bound: Bound, *, is_needed: bool = True) -> Plan:
        """Return the plan of some steps with its certificate; none is needed where everything fits as it is."""
        problem, effort, prediction = self.problem, self.effort, placed.prediction
        if any(self.limits.broken_by(prediction)):
            simulate(problem, placed.steps, self.limits)  # which raises, and says where
        energy = prediction.energy_joules
        solver, status = "none", "not_needed"
        if is_needed:
            from poet_onnx.scheduling.solver import solver_name

            # Here and not before, for placing the transfers may have saved energy.
            is_optimal = energy - min(energy, bound.joules) <= (effort.gap + ROUNDING) * energy
            solver, status = solver_name(), "optimal" if is_optimal else self.ending
        gap, overhead_gap = gaps(energy, min(energy, bound.joules), problem.base_joules)
        certificate = Certificate(
            status=status,
            objective_joules=energy,
            bound_joules=min(energy, bound.joules),
            gap=gap,
            overhead_gap=overhead_gap,
            covers=bound.covers,
            wide_bound_joules=min(energy, bound.wide_joules),
            solver=solver,
            seed=effort.seed,
            threads=1,
            solve_seconds=time.monotonic() - self.begin,
        )
        return Plan(
            fingerprint=problem.graph.fingerprint,
            device=problem.costs.device,
            limits=self.limits,
            steps=placed.steps,
            prediction=prediction,
            certificate=certificate,
        )
