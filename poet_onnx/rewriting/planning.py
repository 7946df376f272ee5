"""The plan that answers a request, and the model it is for."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass, replace
from functools import partial

import onnx_ir as ir

from poet_onnx.addresses.region import Region
from poet_onnx.costing.costs import CostTable, cost_table
from poet_onnx.costing.process import ProcessCosts, ProcessMemory
from poet_onnx.errors import InfeasibleError, InputError
from poet_onnx.graph import TrainingGraph
from poet_onnx.graph.extract import extract
from poet_onnx.plan import Plan, Prediction
from poet_onnx.plan.problem import ScheduleProblem
from poet_onnx.rewriting.capacity import PageFileError, check_page_file, schedule_in_capacity
from poet_onnx.rewriting.forms import forms, take_form
from poet_onnx.rewriting.given_plan import form_of, read_plan, replayed
from poet_onnx.rewriting.known_plans import KnownPlans, least_joules
from poet_onnx.rewriting.optimizer_choice import in_words
from poet_onnx.rewriting.process_budget import ProcessBudget, ProcessBudgetError
from poet_onnx.rewriting.refusal import Asked, Failure, refusal
from poet_onnx.rewriting.request import Request
from poet_onnx.rewriting.variant import Variant, set_aside_bytes
from poet_onnx.scheduling import memory_aware_order, ordered_steps, schedule
from poet_onnx.scheduling.bound import RELAXATION_SECONDS, least_overhead
from poet_onnx.scheduling.eviction import Prices
from poet_onnx.scheduling.incumbent import overhead_gap_of
from poet_onnx.scheduling.liveness import Lifetimes
from poet_onnx.scheduling.refusals import NoneExistsError, NothingFoundError, seconds_to_explain
from poet_onnx.simulate import simulate
from poet_onnx.training.description import Updates


@dataclass(frozen=True)
class Planned:
    """A plan and what it is to be compared with.

    Attributes:
        graph, costs: what was planned.
        plan: the plan.
        original: prediction for the nodes in the order of the file.
        ordered: prediction after memory-aware ordering alone.
        rewritten: prediction for the plan.
        original_process, ordered_process, process: what the process takes that runs them.
        region: where the plan's blocks lie.
        budget_bytes: the bound on the process or the transient peak, as the request's `budget_kind` says.
    """

    graph: TrainingGraph
    costs: CostTable
    plan: Plan
    original: Prediction
    ordered: Prediction
    rewritten: Prediction
    original_process: ProcessMemory
    ordered_process: ProcessMemory
    process: ProcessMemory
    region: Region
    budget_bytes: int | None


def make_plan(model: ir.Model, request: Request, updates: Updates | None = None) -> Planned:
    """Plan a normalized model's step as requested, or check the plan that came with the request; prepare the model.

    The first of the model's forms in which something fits is planned, and then those whose memory leaves room for plans
    that spend less by more than the gap that was asked for, and those of known plans that do.

    Args:
        model: normalized.
        request: what was asked for.
        updates: what the optimizer in the step does; None for none.

    Raises:
        InputError: if the model cannot be planned, or the plan that was given is for another graph or device, cannot be
            carried out or is not what it says.
        InfeasibleError: if no plan keeps to the budget and the deadline.
        LimitReachedError: if the time limit came before any plan was found.
        CheckFailedError: if a plan does not hold in the simulator.
    """
    if request.plan is not None:
        return _carry_given(model, request, request.plan, updates)
    end = time.monotonic() + request.time_limit_seconds
    whole: _Whole | None = None
    best: Planned | None = None
    failures: list[Failure] = []
    plans = KnownPlans(request.known_plans, request.device.name, request.target, in_words(updates))
    for form in forms(model, request.device, request.target, split=request.split, updates=updates):
        graph = extract(form.model)
        whole = whole or _Whole.of(graph, request)
        variant = Variant(form, whole.problem(graph), request.target, plans.take(form, graph))
        if best is not None and not whole.is_worth_a_look(variant, best, end - time.monotonic()):
            continue
        try:
            planned = whole.planned(variant, best, end)
        except KeyboardInterrupt:
            if best is None:
                raise
            break
        if isinstance(planned, Failure):
            failures.append(planned)
        elif best is None or planned.plan.prediction.energy_joules < best.plan.prediction.energy_joules:
            best = planned
        if best is not None and not plans.are_left and not whole.could_save(best, end - time.monotonic()):
            break
    else:
        plans.check_none_is_left()
    if best is None:
        assert whole is not None
        asked = Asked(request, whole.bound_bytes or 0, whole.process)
        raise refusal(failures, asked, seconds_to_explain(end))
    take_form(model, request.target, best.plan.part_bytes, best.plan.expansions, updates)
    return replace(best, plan=replace(best.plan, optimizer=in_words(updates)))


def _carry_given(model: ir.Model, request: Request, given: Plan | str, updates: Updates | None) -> Planned:
    """Replay a plan that was made before on the model, lowered and split as it asks."""
    options = form_of(given, request.device.name, request.target, in_words(updates))
    first = next(forms(model, request.device, request.target, updates=updates))
    whole = _Whole.of(extract(first.model), request)
    take_form(model, request.target, *options, updates)
    graph = extract(model)
    plan = read_plan(given, graph)
    problem = whole.problem(graph)
    check_page_file(problem, plan, "; plan again for that storage.")
    aside = set_aside_bytes(problem, memory_aware_order(problem), request.target)
    plan = replayed(problem, plan, aside_bytes=aside)
    planned = whole.answer(problem, plan)
    needed, bound = planned.process.peak_bytes, whole.process.budget_bytes
    if bound is not None and needed > bound:
        raise InputError(f"The plan needs a process of {needed:,} bytes, but the RAM budget is {bound:,}; plan again.")
    return planned


@dataclass(frozen=True)
class _Whole:
    """The model in its first form, and what a request means for it: budgets and deadlines are relative to that."""

    request: Request
    graph: TrainingGraph
    original: Prediction
    ordered: Prediction
    bound_bytes: int | None
    deadline_seconds: float | None
    process: ProcessBudget

    @classmethod
    def of(cls, graph: TrainingGraph, request: Request) -> _Whole:
        """Simulate the graph in the file's order and in a better one."""
        free = ScheduleProblem(graph, cost_table(graph, request.device, request.measured, threads=request.threads))
        rule = memory_aware_order(free)
        original = simulate(free, ordered_steps([node.name for node in graph.nodes if not node.view]))
        ordered = simulate(free, ordered_steps(rule))
        deadline = None if request.deadline is None else request.deadline.in_seconds(ordered.compute_seconds)
        aside = set_aside_bytes(free, rule, request.target)
        bound = _budget_bytes(request, ordered, aside)
        costs = ProcessCosts.of(request.device, request.measured, request.target)
        process = ProcessBudget(costs, request.target, bound if request.budget_kind == "ram" else None)
        return cls(request, graph, original, ordered, bound, deadline, process)

    def problem(self, graph: TrainingGraph) -> ScheduleProblem:
        """Return the problem for the graph of any of the model's forms."""
        request = self.request
        costs = cost_table(graph, request.device, request.measured, first_graph=self.graph, threads=request.threads)
        transient = self.bound_bytes
        if transient is not None and request.budget_kind == "ram":
            transient -= self.process.fixed_bytes(graph)
        paging = request.paging and bool(costs.page_out)
        return ScheduleProblem(graph, costs, transient, self.deadline_seconds, request.recompute, paging)

    def could_save(self, planned: Planned, left_seconds: float) -> bool:
        """Return whether a plan spends so much more than the computations alone that other forms are worth a look."""
        is_late = left_seconds <= 0 or planned.plan.certificate.status == "interrupted"
        return not is_late and self.ordered.energy_joules < self._worth_joules(planned)

    def _worth_joules(self, planned: Planned | None) -> float:
        """Return the energy below which a plan is worth looking for beside one: as close as that had to be proven."""
        if planned is None:
            return math.inf
        joules, gap = planned.plan.prediction.energy_joules, self.request.gap
        return joules - min(gap * joules, overhead_gap_of(gap) * (joules - self.ordered.energy_joules))

    def is_worth_a_look(self, variant: Variant, planned: Planned, left_seconds: float) -> bool:
        """Return whether another form has a plan that spends less than the best one so far.

        Args:
            variant: the form.
            planned: the best plan so far.
            left_seconds: for anything but plans made before for the form.
        """
        if variant.known and least_joules(variant.limited, variant.known) < planned.plan.prediction.energy_joules:
            return True
        return self.could_save(planned, left_seconds) and self._may_be_cheaper(variant, planned)

    def _may_be_cheaper(self, variant: Variant, planned: Planned) -> bool:
        """Return whether the memory of another form, in one order, leaves room for a plan worth looking for."""
        problem = variant.limited
        worth_joules = self._worth_joules(planned) - problem.base_joules
        if worth_joules <= 0:
            return False
        lives = Lifetimes(problem)
        profile = lives.profile(lives.order_of(variant.rule))
        prices, budget_bytes = Prices.of(lives), problem.budget_bytes or 0
        return least_overhead(lives, prices, profile, budget_bytes, seconds=RELAXATION_SECONDS) < worth_joules

    def planned(self, variant: Variant, best: Planned | None, end: float) -> Planned | Failure:
        """Schedule the graph of a form in what is left until a moment of `time.monotonic`.

        Known steps that keep the limits are the dearest answer; the search ends where none is worth it beside the best
        plan of another form.
        """
        form, problem = variant.form, variant.problem
        graph = problem.graph
        ask = partial(self._schedule, variant, variant.rule, best)  # making the order takes of the time

        def in_capacity(problem: ScheduleProblem, seconds: float) -> Plan:
            return schedule_in_capacity(problem, ask, seconds=seconds)

        try:
            plan = self.process.schedule(variant.limited, in_capacity, seconds=max(1.0, end - time.monotonic()))
        except (InfeasibleError, NothingFoundError, ProcessBudgetError) as error:
            is_slow = not isinstance(error, (NoneExistsError, NothingFoundError, PageFileError, ProcessBudgetError))
            if is_slow and graph is self.graph and self.request.measured is None:
                raise  # the computations alone take too long, and in other forms they are not modelled to take less
            return Failure(error, variant)
        budget = None if plan.budget_bytes is None else plan.budget_bytes + variant.aside_bytes
        plan = replace(plan, part_bytes=form.part_bytes, expansions=form.expansions, budget_bytes=budget)
        return self.answer(problem, plan)

    def answer(self, problem: ScheduleProblem, plan: Plan) -> Planned:
        """Return a plan for a problem with what it is to be compared with."""
        return Planned(
            problem.graph,
            problem.costs,
            plan,
            self.original,
            self.ordered,
            plan.prediction,
            self.process.of_order(self.graph, self.original),
            self.process.of_order(self.graph, self.ordered),
            self.process.of_steps(problem, plan.steps),
            self.process.region(problem, plan.steps),
            self.bound_bytes,
        )

    def _schedule(
        self,
        variant: Variant,
        rule: tuple[str, ...],
        best: Planned | None,
        problem: ScheduleProblem,
        seconds: float,
    ) -> Plan:
        request = self.request
        return schedule(
            problem,
            gap=request.gap,
            time_limit_seconds=seconds,
            seed=request.seed,
            progress=request.progress,
            rule=rule,
            known=variant.known,
            worth_joules=self._worth_joules(best),
            explains=False,
        )


def _budget_bytes(request: Request, ordered: Prediction, aside_bytes: int) -> int | None:
    """Return the bound as it was asked for; a plan that was given has its own.

    A share is one of all that the ordered step needs, so that it keeps to 100 %: also of what is set aside.
    """
    budget = request.budget
    if budget is None:
        return None if request.plan is not None else request.device.ram_bytes
    return budget.in_bytes(ordered.transient_peak_bytes + aside_bytes)
