"""What a step takes for the RAM that it is given: from the smallest process that trains from a store to all in RAM.

All points but the smallest one are steps in the memory-aware order, which nobody has to search for: with all in the
store that can be there, with a part of it, and with all in RAM.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import onnx_ir as ir

from poet_onnx.costing.device import DeviceProfile
from poet_onnx.costing.flops import storage_work
from poet_onnx.costing.process_costs import ProcessCosts
from poet_onnx.costing.store_traffic import store_written_bytes
from poet_onnx.description.metadata import Updates
from poet_onnx.errors import InputError
from poet_onnx.passes.stored import StoreChoice
from poet_onnx.passes.stored_constants import StoredConstants
from poet_onnx.plan import Action
from poet_onnx.plan.limits import UNLIMITED
from poet_onnx.reporting.curve_point import CurvePoint
from poet_onnx.rewriting.baseline import Baseline
from poet_onnx.rewriting.budget import RequestedBudget
from poet_onnx.rewriting.evaluation import EvaluationStep, process_beside
from poet_onnx.rewriting.levels import Level, levels
from poet_onnx.rewriting.process import TrainingProcess
from poet_onnx.rewriting.smallest import Candidate, thriftiest_of
from poet_onnx.rewriting.variants import variants
from poet_onnx.scheduling import SimulatedPlan

_PARTS = 2
"""Points between all in the store and all in RAM."""


@dataclass(frozen=True)
class Curve:
    """What points of the curve are made of.

    Attributes:
        model: normalized.
        device: that is planned for.
        target: runtime that will run the model.
        threads: inside an operator.
        updates: what the optimizer in the step does.
        constants: that may live in a store.
        costs: of the process.
        evaluation: returns what the process runs besides, where what is `stored`, and `constants`, live in a store.
    """

    model: ir.Model
    device: DeviceProfile
    target: str
    threads: int
    updates: Updates | None
    constants: StoredConstants
    costs: ProcessCosts
    evaluation: Callable[..., EvaluationStep | None]

    def points(self, resident: Baseline, process_bytes: int) -> tuple[CurvePoint, ...]:
        """Return at most five points, each with more RAM and less energy than the one before.

        Args:
            resident: the variant with all in RAM.
            process_bytes: what a process takes that trains it in its order.

        Raises:
            InputError: if nothing can live in a store.
        """
        if self.updates is None or self.target != "stock" or self.device.storage is None:
            raise InputError(
                "There is no curve of a step without an optimizer for the stock runtime, or for a device without "
                "storage: use --target stock, and an --optimizer, or leave --curve out."
            )
        whole = self._baseline(None)
        if not whole.variant.stored:
            raise InputError("There is no curve where all parameters are small: leave --curve out.")
        found = [_point(resident, resident.ordered, process_bytes), *self._stored(whole)]
        for level in _some(levels(whole)):
            part = self._baseline(level.stored)
            found.append(self._in_order(part))
        found.sort(key=lambda point: (point.process_bytes, point.energy_joules))
        kept: list[CurvePoint] = []
        for point in found:
            if not kept or point.energy_joules < kept[-1].energy_joules:
                kept.append(point)
        return tuple(kept)

    def _stored(self, whole: Baseline) -> Iterator[CurvePoint]:
        """Yield the step with all in the store: in its order, and with the smallest process that was found."""
        ordered = self._in_order(whole)
        yield ordered
        candidate = Candidate(whole, whole.problem, UNLIMITED)
        budget = RequestedBudget("ram", None, self._process(whole))
        smallest = thriftiest_of(candidate, candidate.smallest(varied=True), budget, ordered.process_bytes)
        if smallest is not None:
            yield _point(whole, smallest.plan, smallest.budget_bytes)

    def _in_order(self, baseline: Baseline) -> CurvePoint:
        budget = RequestedBudget("ram", None, self._process(baseline))
        return _point(baseline, baseline.ordered, budget.needed_bytes(baseline, baseline.problem, baseline.ordered))

    def _baseline(self, names: frozenset[str] | None) -> Baseline:
        stored = StoreChoice(self.constants, names)
        found = variants(
            self.model, self.device, self.target, updates=self.updates, stored=stored, threads=self.threads
        )
        return Baseline.of(next(found), self.device, self.target, threads=self.threads)

    def _process(self, baseline: Baseline) -> TrainingProcess:
        evaluation = self.evaluation(stored=baseline.variant.stored, constants=self.constants)
        return process_beside(evaluation, self.costs, baseline.graph, self.target)


def _some(found: list[Level]) -> list[Level]:
    """Return a few levels, evenly spread."""
    return [found[len(found) * (part + 1) // (_PARTS + 1)] for part in range(min(_PARTS, len(found)))]


def _point(baseline: Baseline, plan: SimulatedPlan, process_bytes: int) -> CurvePoint:
    graph, prediction = baseline.graph, plan.prediction
    nodes = {node.name: node for node in graph.nodes}
    runs = (nodes[step.subject] for step in plan.steps if step.action is Action.COMPUTE)
    costs_more = prediction.recomputed_nodes > 0 or prediction.page_out_bytes > 0
    read_bytes = sum(work.read_bytes for node in runs if (work := storage_work(graph, node)) is not None)
    return CurvePoint(
        process_bytes=process_bytes,
        stored_tensors=len(baseline.variant.stored or ()),
        energy_joules=prediction.energy_joules,
        seconds=prediction.seconds,
        read_bytes=read_bytes + prediction.page_in_bytes,
        written_bytes=store_written_bytes(graph) + prediction.page_out_bytes,
        gap=max(0.0, 1 - baseline.problem.base_joules / prediction.energy_joules) if costs_more else 0.0,
    )
