"""From a normalized model and a request to the graph variant that answers it, and its plan."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TypeAlias

import onnx_ir as ir

from poet_onnx.choices import OURS
from poet_onnx.costing.process import ProcessMemory
from poet_onnx.description.metadata import Updates
from poet_onnx.errors import InfeasibleError, InputError
from poet_onnx.graph import TrainingGraph
from poet_onnx.passes.stored import StoreChoice
from poet_onnx.plan import Plan, Step
from poet_onnx.rewriting.asked import Asked, first_variant
from poet_onnx.rewriting.baseline import Baseline
from poet_onnx.rewriting.evaluation import EvaluationStep
from poet_onnx.rewriting.fitting import (
    EvaluationBudgetError,
    PageFileError,
    ProcessBudgetError,
    check_page_file,
    fitting_plan,
)
from poet_onnx.rewriting.given_plan import read_plan, replayed, variant_options
from poet_onnx.rewriting.known_plans import by_variant, check_none_is_left, least_joules, steps_of
from poet_onnx.rewriting.optimizer_choice import in_words
from poet_onnx.rewriting.process import LaidOutPlan
from poet_onnx.rewriting.refusal import Failure, refusal
from poet_onnx.rewriting.request import Request
from poet_onnx.rewriting.smallest import thriftiest
from poet_onnx.rewriting.variants import GraphVariant, panels_on, variant_of, variants
from poet_onnx.scheduling import (
    NoneExistsError,
    NothingFoundError,
    known_plan,
    least_overhead_in_order,
    overhead_gap_of,
    plan_by,
    schedule,
)


@dataclass(frozen=True)
class Answer:
    """The variant that answers a request, with its plan.

    Attributes:
        asked: what the request means for the model.
        baseline: of the variant.
        plan: for it.
        laid_out: what carries the plan out.
    """

    asked: Asked
    baseline: Baseline
    plan: Plan
    laid_out: LaidOutPlan

    @property
    def joules(self) -> float:
        """Return the predicted energy of a step."""
        return self.plan.prediction.energy_joules

    @property
    def ordered_process(self) -> ProcessMemory:
        """Return what a process takes that runs the baseline order; that of the plan where the plan is that order."""
        asked = self.asked
        if self.baseline is asked.first and self.plan.steps == asked.first.ordered.steps:
            return self.laid_out.memory
        return asked.budget.process.of_order(asked.first.graph, asked.ordered)


Beside: TypeAlias = Callable[[GraphVariant], EvaluationStep | None]
"""Returns what the process runs besides the first variant of a model, under the same budget; None for nothing."""


def answer_of(
    model: ir.Model,
    request: Request,
    updates: Updates | None = None,
    evaluation: Beside = lambda _: None,
    *,
    stored: StoreChoice | None = None,
    measured_graph: TrainingGraph | None = None,
    gives_way: bool = False,
    in_order: bool = False,
) -> Answer:
    """Plan a normalized model's step as requested, or check the plan that came with the request.

    Args:
        model: normalized; it is not changed, but may be the model of the variant that is returned.
        request: what was asked for.
        updates: what the optimizer in the step does; None for none.
        evaluation: of the first variant.
        stored: what lives in a store; None without one.
        measured_graph: what costs were measured of, if that is not the first variant.
        gives_way: do not look for the smallest budget where this one leaves the step no room, or with a store has none
            for its first variant, or no plan is found: there is another way.
        in_order: if it gives way, do so as well where the first variant does not fit in its order.

    Raises:
        NoRoomError: then.
        InputError: if the model cannot be planned, or the plan that was given is for another graph or device, cannot be
            carried out or is not what it says.
        InfeasibleError: if no plan keeps to the limits.
        LimitReachedError: if the time limit came before any plan was found.
        CheckFailedError: if a plan does not hold in the simulator.
    """
    if request.plan is not None:
        return _given_answer(
            model, request, request.plan, updates, evaluation, stored=stored, measured_graph=measured_graph
        )
    return _best_answer(
        model,
        request,
        updates,
        evaluation,
        stored=stored,
        measured_graph=measured_graph,
        gives_way=gives_way,
        in_order=in_order,
    )


def _given_answer(
    model: ir.Model,
    request: Request,
    given: Plan | str,
    updates: Updates | None,
    evaluation: Beside,
    *,
    stored: StoreChoice | None,
    measured_graph: TrainingGraph | None,
) -> Answer:
    """Replay a plan that was made before on the graph variant that it is for."""
    options = variant_options(given, request.device.name, request.options.target, in_words(updates))
    target, threads = request.options.target, request.threads
    first = first_variant(model, request, updates, stored)
    asked = Asked.of(request, first, evaluation(first), measured_graph=measured_graph)
    variant = first
    if options != first.options:
        panels = panels_on(request.device, threads)
        variant = variant_of(model, target, options, updates, stored, panels=panels, threads=threads)
    plan = read_plan(given, variant.graph)
    baseline = asked.baseline(variant)
    problem, limits = asked.problem(baseline), asked.limits(baseline, asked.budget.step_bytes(variant.graph))
    check_page_file(problem, plan, "; plan again for that storage.")
    plan = replayed(problem, limits, plan, aside_bytes=baseline.aside_bytes)
    laid_out = asked.budget.process.laid_out(problem, plan.steps)
    if asked.budget.excess_bytes(laid_out.memory) > 0:
        needed, bound = laid_out.memory.peak_bytes, asked.budget.bound_bytes
        raise InputError(f"The plan needs a process of {needed:,} bytes, but the RAM budget is {bound:,}; plan again.")
    if asked.budget.evaluation_excess_bytes > 0:
        needed = asked.budget.evaluation_bytes
        raise EvaluationBudgetError(needed).explained(asked.budget.terms(baseline, needed, split=True))
    return Answer(asked, baseline, plan, laid_out)


def _best_answer(
    model: ir.Model,
    request: Request,
    updates: Updates | None,
    evaluation: Beside,
    *,
    stored: StoreChoice | None,
    measured_graph: TrainingGraph | None,
    gives_way: bool,
    in_order: bool,
) -> Answer:
    """Plan the first variant in which something fits, and then those that may have a plan that spends less.

    That are those whose memory leaves room for plans that spend less by more than the gap that was asked for, and those
    of known plans that do.
    """
    end = time.monotonic() + request.options.time_limit_seconds
    asked: Asked | None = None
    own: EvaluationStep | None = None
    best: Answer | None = None
    failures: list[Failure] = []
    plans = by_variant(request.known_plans, request.device.name, request.options.target, in_words(updates))
    try:
        for variant in variants(
            model,
            request.device,
            request.options.target,
            split=request.options.split,
            updates=updates,
            stored=stored,
            threads=request.threads,
        ):
            if asked is None:
                own = evaluation(variant)
                asked = Asked.of(request, variant, own, measured_graph=measured_graph, gives_way=gives_way)
                if gives_way and stored is not None:
                    asked.check_room(in_order=in_order)
            elif variant.stored != asked.first.variant.stored:
                continue  # the evaluation graph reads others from the store
            known = steps_of(plans.pop(variant.options, ()), variant.graph)
            if best is None or known or could_save(best, end):
                found = _variant_answer(asked, variant, known, best, end)
                if isinstance(found, Failure):
                    failures.append(found)
                elif found is not None and (best is None or found.joules < best.joules):
                    best = found
            if best is not None and not plans and not could_save(best, end):
                break
        else:
            check_none_is_left(plans)
    except KeyboardInterrupt:
        if best is None:
            raise
    if best is None:
        assert asked is not None
        # With its own order, what evaluating takes does not depend on the budget either.
        asked = asked if own is None else asked.evaluating(own)
        best = _thriftiest_answer(asked, failures, searches=not (gives_way and stored is not None))
    return replace(best, plan=replace(best.plan, optimizer=in_words(updates)))


def _thriftiest_answer(asked: Asked, failures: Sequence[Failure], *, searches: bool) -> Answer:
    """Return the plan that needs the smallest budget of those found, where the usual search has found nothing.

    So each budget that is at least the one which a refusal names has a plan, whatever that search makes of it.

    Raises:
        PoetError: if that budget is larger than the one that was asked for, where it is named; or if nothing `searches`
            for it.
    """
    request, budget = asked.request, asked.budget
    in_ram = request.options.method not in OURS
    candidates = [each.candidate for each in failures] if searches else []
    thrifty = thriftiest(candidates, budget, in_ram=in_ram, progress=request.options.progress)
    if thrifty is None or thrifty.budget_bytes > (budget.bound_bytes or 0):
        raise refusal(failures, request, budget, thrifty)
    candidate, plan = thrifty.candidate, thrifty.plan
    limits = candidate.limits.within(plan.prediction.transient_peak_bytes)
    known = known_plan(candidate.problem, limits, plan, gap=request.options.gap, seed=request.options.seed)
    return _answer(asked, candidate.baseline, known, budget.process.laid_out(candidate.problem, known.steps))


def _answer(asked: Asked, baseline: Baseline, plan: Plan, laid_out: LaidOutPlan) -> Answer:
    """Return a graph variant with its plan, whose options and whole budget are written into that."""
    budget_bytes = None if plan.limits.budget_bytes is None else plan.limits.budget_bytes + baseline.aside_bytes
    part_bytes, stored = baseline.variant.options
    limits = replace(plan.limits.within(budget_bytes), max_written_bytes=asked.request.limits.max_written_bytes)
    target = asked.request.options.target
    plan = replace(plan, part_bytes=part_bytes, target=target, stored=stored, limits=limits)
    return Answer(asked, baseline, plan, laid_out)


def could_save(best: Answer, end: float) -> bool:
    """Return whether a plan spends so much more than the computations alone that other variants are worth a look."""
    is_late = end <= time.monotonic() or best.plan.certificate.status == "interrupted"
    return not is_late and best.asked.ordered.energy_joules < _worth_joules(best)


def _worth_joules(best: Answer | None) -> float:
    """Return the energy that another variant's plan must stay below to be an improvement.

    Example: the best plan spends 100 J and the gap is 1 %. Another one must spend less than 99 J.
    """
    if best is None:
        return math.inf
    gap = best.asked.request.options.gap
    return best.joules - min(gap * best.joules, overhead_gap_of(gap) * (best.joules - best.asked.ordered.energy_joules))


def _variant_answer(
    asked: Asked, variant: GraphVariant, known: Sequence[tuple[Step, ...]], best: Answer | None, end: float
) -> Answer | Failure | None:
    """Schedule a variant in what is left until a moment of `time.monotonic`; None where it may not or need not be.

    Known steps that keep the limits are the dearest answer; the search ends where none is worth it beside the best
    plan of another variant.
    """
    baseline = asked.baseline(variant)
    is_dear = not known and baseline.problem.base_joules >= _worth_joules(best)
    if is_dear:
        return None
    candidate = asked.candidate(baseline)
    problem, limits = candidate.problem, candidate.limits
    if asked.budget.evaluation_excess_bytes > 0:
        return Failure(EvaluationBudgetError(asked.budget.evaluation_bytes), candidate)
    bound_joules = 0.0
    if best is not None:
        is_cheaper = least_joules(problem, limits, known) < best.joules
        if not is_cheaper and not could_save(best, end):
            return None
        bound_joules = problem.base_joules + least_overhead_in_order(problem, limits, baseline.order)
        if not is_cheaper and bound_joules >= _worth_joules(best):
            return None
    request = asked.request
    make = _planner(request, baseline, known, best, bound_joules)
    try:
        found = fitting_plan(problem, limits, make, asked.budget, seconds=max(1.0, end - time.monotonic()))
    except (InfeasibleError, NothingFoundError, ProcessBudgetError) as error:
        is_slow = not isinstance(error, (NoneExistsError, NothingFoundError, PageFileError, ProcessBudgetError))
        if is_slow and baseline is asked.first and request.measured is None:
            raise  # the computations alone take too long, and other variants are not modelled to take less
        return Failure(error, candidate)
    return _answer(asked, baseline, found.plan, found.laid_out)


def _planner(
    request: Request,
    baseline: Baseline,
    known: Sequence[tuple[Step, ...]],
    best: Answer | None,
    bound_joules: float,
) -> Callable[..., Plan]:
    """Return what plans a problem within limits in `time_limit_seconds`, by the method that was asked for."""
    if request.options.method in OURS:
        return partial(
            schedule,
            gap=request.options.gap,
            seed=request.options.seed,
            progress=request.options.progress,
            baseline=baseline.ordered,
            known=known,
            worth_joules=_worth_joules(best),
            baseline_bound_joules=bound_joules,  # smaller budgets only raise it
            explains=False,
        )

    return partial(
        plan_by, request.options.method, gap=request.options.gap, seed=request.options.seed, baseline=baseline.order
    )
