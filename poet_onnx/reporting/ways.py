"""The ways in which a training step may fit: in order, with recompute and paging, from a store; each with its process.

They are found for one device, and are true for every device with the same process whose operators are expanded alike.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import chain
from typing import Literal, TypeAlias

import onnx_ir as ir

from poet_onnx.costing.costs import cost_table
from poet_onnx.costing.device import DeviceProfile
from poet_onnx.costing.process import ProcessMemory
from poet_onnx.costing.process_costs import ProcessCosts
from poet_onnx.costing.versions import Versions
from poet_onnx.description.metadata import Updates
from poet_onnx.gradients.train_graph import TrainGraph
from poet_onnx.passes.paging import page_file_bytes
from poet_onnx.passes.stored import StoreChoice
from poet_onnx.plan import Prediction
from poet_onnx.plan.limits import UNLIMITED, Limits
from poet_onnx.rewriting.baseline import Baseline
from poet_onnx.rewriting.budget import RequestedBudget
from poet_onnx.rewriting.evaluation import EvaluationStep, process_beside
from poet_onnx.rewriting.process import TrainingProcess
from poet_onnx.rewriting.smallest import Candidate
from poet_onnx.rewriting.storing import constants_of
from poet_onnx.rewriting.variants import GraphVariant, variants
from poet_onnx.scheduling import SimulatedPlan, plan_quickly
from poet_onnx.simulate import simulate

MOST_ATTEMPTS = 3
"""Quick plans for a RAM before the search for the smallest budget: with the first one, its own nodes are too much."""

Means: TypeAlias = Literal["ordered", "restored", "store"]


@dataclass(frozen=True)
class Way:
    """A plan with the process that carries it out.

    Attributes:
        means: "ordered" for the nodes in a good order; "restored" with recompute, paging or gradients in parts; "store"
            with parameters in a store.
        baseline: of the graph variant.
        plan: for it.
        memory: what the process takes.
        process_bytes: the smallest RAM budget that the plan keeps.
    """

    means: Means
    baseline: Baseline
    plan: SimulatedPlan
    memory: ProcessMemory
    process_bytes: int

    def fits(self, device: DeviceProfile) -> bool:
        """Return whether a device has room for process and page file."""
        pages_bytes = page_file_bytes(self.baseline.graph, self.plan.steps)
        room_bytes = 0 if device.storage is None else device.storage.capacity_bytes
        return self.process_bytes <= device.ram_bytes and pages_bytes <= room_bytes

    def on(self, device: DeviceProfile, threads: int) -> Prediction:
        """Return what the plan takes on a device."""
        costs = cost_table(self.baseline.graph, device, threads=threads)
        return simulate(replace(self.baseline.problem, costs=costs), self.plan.steps)


@dataclass(frozen=True)
class Ways:
    """The ways in which a model may be trained.

    Attributes:
        model: normalized.
        made: the training graph that was made of a forward model; None if a training graph was given.
        device: that they are looked for on.
        target: runtime that trains.
        threads: inside an operator.
        updates: what the optimizer in the step does; None for none.
        versions: of Python and onnxruntime.
    """

    model: ir.Model
    made: TrainGraph | None
    device: DeviceProfile
    target: str
    threads: int
    updates: Updates | None
    versions: Versions

    def until(self, wanted_bytes: Callable[[], int]) -> Iterator[Way]:
        """Yield ways in the order in which `rewrite` tries them, until nobody wants more.

        Args:
            wanted_bytes: returns the largest RAM for which a way is wanted; 0 for none any more.
        """
        yield self.ordered
        if not wanted_bytes():
            return
        (first, others), process, stored = self._resident, self._resident_process, self._stored()
        if stored is None or process.fixed_bytes(first.graph) < wanted_bytes():
            yield from _searched("restored", first, others, process, wanted_bytes, last=stored is None)
        if stored is not None and wanted_bytes():
            whole, others = stored
            process = self._process(whole)
            yield _way("store", whole, whole.ordered, process)
            yield from _searched("store", whole, others, process, wanted_bytes, last=True)

    @cached_property
    def ordered(self) -> Way:
        """Return the first variant in a good order."""
        first = self._resident[0]
        return _way("ordered", first, first.ordered, self._resident_process)

    @cached_property
    def _resident_process(self) -> TrainingProcess:
        return self._process(self._resident[0])

    @cached_property
    def _resident(self) -> tuple[Baseline, Iterator[Baseline]]:
        """Return the first variant with all in RAM, and the others, which can be looked at once."""
        baselines = self._baselines(None)
        return next(baselines), baselines

    def _stored(self) -> tuple[Baseline, Iterator[Baseline]] | None:
        """Return the first variant with all in a store that can be, and the others; None where there is no store."""
        if self.updates is None or self.target != "stock" or self.device.storage is None:
            return None
        baselines = self._baselines(StoreChoice(constants_of(self._evaluated, self.model)))
        whole = next(baselines)
        same = (each for each in baselines if each.variant.stored == whole.variant.stored)
        return (whole, same) if whole.variant.stored else None

    @property
    def _evaluated(self) -> TrainGraph | None:
        return None if self.updates is None else self.made

    def _baselines(self, stored: StoreChoice | None) -> Iterator[Baseline]:
        found: Iterable[GraphVariant] = variants(
            self.model, self.device, self.target, updates=self.updates, stored=stored, threads=self.threads
        )
        return (Baseline.of(each, self.device, self.target, threads=self.threads) for each in found)

    def _process(self, baseline: Baseline) -> TrainingProcess:
        costs = ProcessCosts.of(self.device, None, self.target, threads=self.threads, versions=self.versions)
        stored, made = baseline.variant.stored, self._evaluated
        evaluation = EvaluationStep.beside(
            made,
            self.model,
            self.device,
            self.target,
            threads=self.threads,
            stored=stored or (),
            constants=None if stored is None else constants_of(made, self.model),
        )
        return process_beside(evaluation, costs, baseline.graph, self.target)


def _searched(
    means: Means,
    first: Baseline,
    others: Iterable[Baseline],
    process: TrainingProcess,
    wanted_bytes: Callable[[], int],
    *,
    last: bool,
) -> Iterator[Way]:
    """Yield plans of graph variants that recompute and page, of each variant those of the least energy first.

    Args:
        means: what they are called.
        first: variant.
        others: variants that are looked at where the first has nothing for all who want it.
        process: that trains.
        wanted_bytes: as for `Ways.until`.
        last: whether the smallest one is wanted even where it fits nobody, to tell by how much.
    """
    budget = RequestedBudget("ram", None, process)
    known_bytes = math.inf
    for baseline in chain([first], others):
        if wanted_bytes() <= (0 if last else process.fixed_bytes(baseline.graph)):
            return
        if budget.least_variant_bytes(baseline) <= wanted_bytes():
            yield from _quick_ways(means, baseline, process, wanted_bytes)
        wanted = wanted_bytes()
        is_useful = budget.least_variant_bytes(baseline) <= wanted or (
            last and budget.could_lower(baseline, known_bytes)
        )
        if wanted and is_useful:
            for plan in _plans(baseline, budget, wanted_bytes):
                if plan.steps != first.ordered.steps:  # a way that is known
                    way = _way(means, baseline, plan, process)
                    known_bytes = min(known_bytes, way.process_bytes)
                    yield way


def _quick_ways(
    means: Means, baseline: Baseline, process: TrainingProcess, wanted_bytes: Callable[[], int]
) -> Iterator[Way]:
    """Yield plans that are quickly found, each for the largest RAM that is wanted still.

    What recomputed nodes and gaps between blocks add to the process is known once a plan is laid out. Where that is too
    much, another plan is made for so much less.
    """
    aim = wanted = wanted_bytes()
    attempts = 0
    while wanted and attempts < MOST_ATTEMPTS:
        limits = Limits(RequestedBudget("ram", aim, process).plan_bytes(baseline))
        plan = plan_quickly(baseline.problem, baseline.order, limits)
        if plan is None:
            return
        way = _way(means, baseline, plan, process)
        yield way
        left = wanted_bytes()
        aim, attempts = (left, 0) if left < wanted else (aim - max(0, way.process_bytes - wanted), attempts + 1)
        wanted = left


def _plans(baseline: Baseline, budget: RequestedBudget, wanted_bytes: Callable[[], int]) -> Iterator[SimulatedPlan]:
    """Yield plans of a variant that may fit, and the one that likely takes the least: to lay one out takes a while."""
    found = Candidate(baseline, baseline.problem, UNLIMITED).smallest(varied=True)
    likely_bytes = budget.least_bytes(baseline)
    plans = [plan for plan in (found.plan, *found.others) if plan is not None]
    least = min(plans, key=likely_bytes, default=None)
    for plan in sorted(plans, key=lambda plan: plan.prediction.energy_joules):
        if plan is least or likely_bytes(plan) <= wanted_bytes():
            yield plan


def _way(means: Means, baseline: Baseline, plan: SimulatedPlan, process: TrainingProcess) -> Way:
    memory = process.laid_out(baseline.problem, plan.steps).memory
    return Way(means, baseline, plan, memory, RequestedBudget("ram", None, process).ram_bytes(baseline, plan, memory))
