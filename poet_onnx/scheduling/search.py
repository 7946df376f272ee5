"""One search for a plan: orders are tried, bounded and solved, and the cheapest plan gets its certificate."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from poet_onnx.errors import InfeasibleError, LimitReachedError
from poet_onnx.plan import ALL_PLANS, Certificate, Plan, Step, gaps
from poet_onnx.plan.limits import Limits
from poet_onnx.plan.problem import ScheduleProblem
from poet_onnx.scheduling.attempt import solve_in_order
from poet_onnx.scheduling.bound import least_overhead
from poet_onnx.scheduling.choices import class_in_order
from poet_onnx.scheduling.incumbent import LEAST_SECONDS, Bound, Effort, Incumbent, Progress
from poet_onnx.scheduling.liveness import Instance, Liveness, build_instance
from poet_onnx.scheduling.order_search import order_for
from poet_onnx.scheduling.quick_plan import quick_plan
from poet_onnx.scheduling.refusals import NoneExistsError, NothingFoundError
from poet_onnx.scheduling.steps import SimulatedPlan, order_of
from poet_onnx.simulate import simulate
from poet_onnx.transfers import overlap

NEAR = 0.1
"""Share of the asked gaps at which the relaxation alone settles a plan."""

ORDER_SHARE = 1 / 3
"""The search for an order gets this share of the time limit; small graphs use a fraction of that."""

ROUNDING = 1e-9
"""Energies that differ by no more than this part of them are the same."""


@dataclass(frozen=True)
class Search:
    """One search for a plan: what is asked, and what is known so far.

    Attributes:
        problem, limits, progress: as of `schedule`; so are its gap, seed and worth in the effort.
        baseline: the nodes in the memory-aware order; None where another order is given.
        begin, end: when the search began, and when it is to end, in one order where several are looked at.
        known: plans found before that keep the limits.
        least: joules that no plan in the baseline order stays below, if that was worked out before; 0 otherwise.
        relaxed: the best plan without the limits on what is moved, if it breaks them.
    """

    problem: ScheduleProblem
    limits: Limits
    effort: Effort
    progress: Callable[[Progress], None] | None
    baseline: SimulatedPlan | None
    begin: float
    end: float
    known: tuple[SimulatedPlan, ...] = ()
    least: float = 0.0
    relaxed: Plan | None = None

    @classmethod
    def beginning(
        cls,
        problem: ScheduleProblem,
        limits: Limits,
        effort: Effort,
        progress: Callable[[Progress], None] | None = None,
        baseline: SimulatedPlan | None = None,
    ) -> Search:
        """Begin a search now."""
        begin = time.monotonic()
        return cls(problem, limits, effort, progress, baseline, begin, begin + effort.time_limit_seconds)

    @property
    def baseline_order(self) -> tuple[str, ...]:
        """Return the memory-aware order."""
        assert self.baseline is not None
        return self.baseline.order

    def best(self, order: tuple[str, ...] | None) -> Plan:
        """Schedule in an order, or in the best one that is found."""
        if order is not None:
            return self.in_order(order)[0]
        baseline, budget_bytes = self.baseline, self.limits.budget_bytes
        assert baseline is not None
        if budget_bytes is None or baseline.prediction.transient_peak_bytes <= budget_bytes:
            return self.in_order(baseline.order)[0]
        return self.in_best_order()

    def with_any_transfers(self, known: Sequence[tuple[Step, ...]], order: tuple[str, ...] | None) -> Plan | None:
        """Return the best plan without the limits on what is moved, if there are any and a plan is found.

        Its bound holds for plans that keep them, and it is where the search for one sets out.
        """
        free = self.limits.without_transfers()
        if free == self.limits:
            return None
        effort = replace(self.effort, time_limit_seconds=self.effort.time_limit_seconds / 2)
        try:
            return Search.beginning(self.problem, free, effort, None, self.baseline).knowing(known).best(order)
        except (NoneExistsError, NothingFoundError):
            return None

    def in_best_order(self) -> Plan:
        """Schedule in the order that is best for the budget, or in two where only solving can tell."""
        found: list[SimulatedPlan] = []
        try:
            choice = order_for(
                self.problem,
                self.limits,
                seconds=ORDER_SHARE * self.effort.time_limit_seconds,
                seed=self.effort.seed,
                baseline=self.baseline_order,
                found=lambda steps: self._take(steps, found),
            )
        except KeyboardInterrupt:
            return replace(self, known=(*self.known, *found)).interrupted()
        least = max(self.least, choice.baseline_bound_joules)
        run = replace(self, known=(*self.known, *found), least=least)
        # The cheaper quick plan first: what comes of it may spare much of the other search.
        return run._best_of([choice.rival, choice.order] if choice.rival else [choice.order])

    def _best_of(self, orders: Sequence[tuple[str, ...]]) -> Plan:
        """Schedule in each order, and in the baseline order where there is no plan in any."""
        plans, failures, ending = self._in_orders(orders)
        best = self._cheapest(plans, ending)
        if best is not None:
            return best
        if ending == "interrupted":
            raise KeyboardInterrupt
        # What would do is said of the order that the peak is known of.
        if self.baseline_order in failures:
            raise failures[self.baseline_order]
        end = max(self.end, time.monotonic() + LEAST_SECONDS)
        return replace(self, end=end).in_order(self.baseline_order)[0]

    def _in_orders(
        self, orders: Sequence[tuple[str, ...]]
    ) -> tuple[list[Plan], dict[tuple[str, ...], InfeasibleError | LimitReachedError], str]:
        """Schedule in each order, the time shared among them.

        Returns:
            The plans, why other orders have none, and the status of a plan that is not proven to be optimal.
        """
        plans: list[Plan] = []
        failures: dict[tuple[str, ...], InfeasibleError | LimitReachedError] = {}
        ending, effort = "feasible", self.effort
        for number, order in enumerate(orders):
            now = time.monotonic()
            end = now + max(LEAST_SECONDS, (self.end - now) / (len(orders) - number))
            try:
                plan, ended = replace(self, end=end, effort=effort).in_order(order)
                plans.append(plan)
                effort = replace(effort, known_joules=min(plan.certificate.objective_joules, effort.known_joules))
                ending = ended if ended != "feasible" else ending
            except (InfeasibleError, LimitReachedError) as error:
                failures[order] = error
            except KeyboardInterrupt:
                ending = "interrupted"
            if ending == "interrupted":
                break
        return plans, failures, ending

    def _cheapest(self, plans: Sequence[Plan], ending: str) -> Plan | None:
        """Return the cheapest of some plans and those found before."""
        best = min(plans, key=lambda plan: plan.certificate.objective_joules, default=None)
        known = min(self.known, key=lambda known: known.joules, default=None)
        # What is cheaper by rounding alone would come with a worse bound.
        most = float("inf") if best is None else best.certificate.objective_joules * (1 - ROUNDING)
        if known is None or known.joules >= most:
            return best
        # No plan of any kind and any order spends less than the computations.
        return self.plan(self._just_in_time(known), Bound.base(self.problem.base_joules), ending)

    def interrupted(self) -> Plan:
        """Return the best plan found on the way; go on with the interrupt if there is none."""
        best = self._cheapest([], "interrupted")
        if best is None:
            raise KeyboardInterrupt
        return best

    def knowing(self, plans: Sequence[tuple[Step, ...]]) -> Search:
        """Return the search with those of some plans that keep the limits."""
        kept: list[SimulatedPlan] = []
        for steps in plans:
            self._take(steps, kept)
        return replace(self, known=(*self.known, *kept))

    def _take(self, steps: tuple[Step, ...], kept: list[SimulatedPlan]) -> None:
        """Add a plan that was found before or on the way to an order to a list, if it keeps the limits."""
        incumbent = Incumbent(self.problem, self.limits, self.progress, self.begin)
        try:
            incumbent.offer_steps(steps)
        finally:  # an interrupt may come as it is told of
            if incumbent.plan is not None:
                kept.append(incumbent.plan)

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

    def in_order(self, order: tuple[str, ...]) -> tuple[Plan, str]:
        """Schedule in one order; return the plan, and how the search ended: "feasible" where nothing cut it short."""
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
            return self.plan(ordered, Bound.base(ordered.joules), is_needed=False), "feasible"
        incumbent = self._incumbent(order)
        try:
            ending = self._search(incumbent, instance, order)
        except KeyboardInterrupt:
            ending = "interrupted"
        if incumbent.plan is None and ending == "interrupted":
            raise KeyboardInterrupt
        if incumbent.plan is None:
            raise NothingFoundError(problem, limits, order, incumbent.fastest_seconds)
        return self.plan(self._just_in_time(incumbent.plan), incumbent.bound, ending), ending

    def _search(self, incumbent: Incumbent, instance: Instance, order: tuple[str, ...]) -> str:
        """Bound all that is allowed in an order, and solve where that and a quick plan do not settle it.

        Returns:
            How the search ended.
        """
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
            return "feasible"
        if incumbent.plan is not None and time.monotonic() > self.end:
            return "time_limit"
        return self._solve(incumbent, instance)

    def _solve(self, incumbent: Incumbent, instance: Instance) -> str:
        """Offer plans to the incumbent until one settles it."""
        if instance.largest_node_bytes > self.limits.transient_bytes:
            raise NoneExistsError(instance, self.limits, ALL_PLANS)
        status, covers = solve_in_order(incumbent, instance, self.limits, self.effort.until(self.end))
        if status == "infeasible" and incumbent.plan is None:
            raise NoneExistsError(instance, self.limits, covers)
        return status if status in ("time_limit", "interrupted") else "feasible"

    def _just_in_time(self, plan: SimulatedPlan) -> SimulatedPlan:
        """Return a plan with its transfers placed thoroughly, or as they are where that is faster."""
        steps = overlap(self.problem, self.limits, plan.steps)
        if steps == plan.steps:
            return plan
        return min(SimulatedPlan(steps, simulate(self.problem, steps)), plan, key=lambda each: each.prediction.seconds)

    def plan(self, placed: SimulatedPlan, bound: Bound, ending: str = "feasible", *, is_needed: bool = True) -> Plan:
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
            solver, status = solver_name(), "optimal" if is_optimal else ending
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
