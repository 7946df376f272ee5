"""From a case to a problem: extraction, order, splitting and the budget in bytes, each timed."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import onnx_ir as ir

from benchmark.artifacts import training_model
from benchmark.cases import LADDER_TOP, Case
from poet_onnx.costing.costs import cost_table
from poet_onnx.costing.device import load_device
from poet_onnx.errors import InputError
from poet_onnx.graph.extract import extract, load_model
from poet_onnx.passes.normalize import normalize
from poet_onnx.passes.split import SplitWeightGradients
from poet_onnx.plan.limits import Limits
from poet_onnx.plan.problem import ScheduleProblem
from poet_onnx.scheduling import memory_aware_order, ordered_steps, smallest_budget
from poet_onnx.simulate import simulate

PARTS = (None, 1 << 20, 128 << 10)
"""Sizes of parts of weight gradients; those of `rewrite` may change, these stay, so that results can be compared."""


@dataclass(frozen=True)
class Variant:
    """A model with its gradients whole or split, on a device, without limits.

    Attributes:
        part_bytes: size of the parts, None for whole gradients.
        model: normalized, and split.
        problem: graph and costs.
        order: the memory-aware one.
        peak_bytes: transient peak in that order.
        compute_seconds: time of the computations alone.
        extract_seconds, order_seconds: phases.
    """

    part_bytes: int | None
    model: ir.Model
    problem: ScheduleProblem
    order: tuple[str, ...]
    peak_bytes: int
    compute_seconds: float
    extract_seconds: float
    order_seconds: float


@dataclass(frozen=True)
class Prepared:
    """A case ready for the methods.

    Attributes:
        variant: what is scheduled.
        limits: budget and deadline.
        ordered_peak_bytes: of the model with whole gradients, of which budgets are shares.
    """

    variant: Variant
    limits: Limits
    ordered_peak_bytes: int

    @property
    def problem(self) -> ScheduleProblem:
        """Return what is to be planned."""
        return self.variant.problem


@dataclass
class Workshop:
    """Prepares cases; what several of them share is made once.

    Attributes:
        models: folder of exported models.
        say: told what takes long.
    """

    models: Path
    say: Callable[[str], None]
    _variants: dict[tuple[str, int, str, int | None], Variant] = field(default_factory=dict)
    _smallest: dict[tuple[str, int, str, int | None], int] = field(default_factory=dict)

    def prepare(self, case: Case) -> Prepared:
        """Return the problem of a case."""
        whole = self._variant(case, None)
        deadline = None if case.deadline is None else case.deadline * whole.compute_seconds
        if case.budget.kind == "share":
            budget = int(case.budget.value * whole.peak_bytes)
            variant = self._variant(case, self._part_bytes(case, budget))
        elif case.split == "auto":
            raise InputError(f"Case {case.name}: a ladder of budgets needs to know how gradients are split.")
        else:
            variant = self._variant(case, case.split)
            low = self._smallest_bytes(case, case.split)
            budget = low + int(case.budget.value * max(0.0, LADDER_TOP * variant.peak_bytes - low))
        return Prepared(variant, Limits(budget, deadline), whole.peak_bytes)

    def _part_bytes(self, case: Case, budget: int) -> int | None:
        """Return the part size of a case: as given, or the first with which some plan, as slow as it likes, fits."""
        if case.split != "auto":
            return case.split
        fitting = (part for part in PARTS if self._smallest_bytes(case, part) <= budget)
        return next(fitting, PARTS[-1])

    def _smallest_bytes(self, case: Case, part_bytes: int | None) -> int:
        key = (case.model, case.batch, case.device, part_bytes)
        if key not in self._smallest:
            self.say(f"looking for the smallest budget of {case.model} on {case.device}, parts {part_bytes}")
            variant = self._variant(case, part_bytes)
            self._smallest[key] = smallest_budget(variant.problem, variant.order).budget_bytes
        return self._smallest[key]

    def _variant(self, case: Case, part_bytes: int | None) -> Variant:
        key = (case.model, case.batch, case.device, part_bytes)
        if key not in self._variants:
            self.say(f"extracting {case.model} for {case.device}, parts {part_bytes}")
            path = training_model(case.model, case.batch, self.models)
            self._variants[key] = _make_variant(path, case.device, part_bytes)
        return self._variants[key]


def _make_variant(path: Path, device: str, part_bytes: int | None) -> Variant:
    begin = time.monotonic()
    model = load_model(path)
    normalize()(model)
    if part_bytes is not None:
        SplitWeightGradients(part_bytes, threads=1)(model)
    graph = extract(model)
    costs = cost_table(graph, load_device(device))
    problem = ScheduleProblem(graph, costs, paging=bool(costs.page_out))
    extracted = time.monotonic()
    order = memory_aware_order(problem)
    ordered = time.monotonic()
    prediction = simulate(problem, ordered_steps(order))
    return Variant(
        part_bytes,
        model,
        problem,
        order,
        prediction.transient_peak_bytes,
        prediction.compute_seconds,
        extracted - begin,
        ordered - extracted,
    )
