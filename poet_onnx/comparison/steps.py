"""The training step of a model on a device: costed, ordered, and in the graph variants that budgets ask for."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

import onnx
import onnx_ir as ir

from poet_onnx.comparison.cell import problem_fingerprint
from poet_onnx.comparison.options import CompareOptions
from poet_onnx.costing.device import DeviceProfile
from poet_onnx.description.metadata import Updates
from poet_onnx.errors import InputError
from poet_onnx.plan import Prediction
from poet_onnx.quantities import Budget
from poet_onnx.rewriting.baseline import Baseline
from poet_onnx.rewriting.source import Given
from poet_onnx.rewriting.variants import GraphVariant, variant_of, variants
from poet_onnx.scheduling import file_order, ordered_steps, smallest_budget
from poet_onnx.simulate import simulate

Model: TypeAlias = "str | os.PathLike[str] | onnx.ModelProto | ir.Model"


@dataclass(frozen=True)
class StepVariant:
    """A graph variant that cells may be about.

    Attributes:
        baseline: with its costs and memory-aware order.
        smallest_bytes: the smallest budget of transient bytes for which a plan is known.
        fingerprint: of its problem.
    """

    baseline: Baseline
    smallest_bytes: int
    fingerprint: str

    @classmethod
    def of(cls, baseline: Baseline) -> StepVariant:
        """Look for the smallest budget of a variant."""
        found = smallest_budget(baseline.problem, baseline.order, in_order=True).budget_bytes
        return cls(baseline, found + baseline.aside_bytes, problem_fingerprint(baseline.problem))


@dataclass(frozen=True)
class PreparedStep:
    """The training step of a model on a device, before anything is planned.

    Attributes:
        model: its name.
        variants: of its graph; budgets and deadlines are relative to the first.
        original: prediction for the first one's nodes in the order of the file.
        ordered: the same in the memory-aware order.
    """

    model: str
    variants: tuple[StepVariant, ...]
    original: Prediction
    ordered: Prediction

    def budget_bytes(self, budget: Budget) -> int:
        """Return a budget in bytes; a share is one of what the ordered step needs."""
        return budget.in_bytes(self.ordered.transient_peak_bytes + self.variants[0].baseline.aside_bytes)

    def variant_for(self, budget_bytes: int) -> StepVariant:
        """Return the first variant in which something fits, else the last."""
        fitting = (variant for variant in self.variants if variant.smallest_bytes <= budget_bytes)
        return next(fitting, self.variants[-1])


def prepared_steps(
    model: Model,
    options: CompareOptions,
    devices: Sequence[DeviceProfile],
    budgets: Sequence[Budget],
    *,
    part_bytes: int | None = None,
) -> Iterator[PreparedStep]:
    """Yield the training step of a model on every device.

    Args:
        model: a training graph; with a loss among the options, a forward model.
        options: of the comparison.
        devices: profiles.
        budgets: that variants are made for.
        part_bytes: as in `Sweep`.

    Raises:
        InputError: if an option or the model cannot be used.
    """
    given = Given.read(model, options)
    most_threads = max(device.compute.threads(options.threads) for device in devices)
    source, updates = given.prepared(options, threads=most_threads)
    name = options.name or _name_of(model, source.model)
    for device in devices:
        threads = device.compute.threads(options.threads)
        graphs = _graphs(source.model, device, options.target, part_bytes, updates, threads=threads)
        baselines = (Baseline.of(each, device, options.target, threads=threads) for each in graphs)
        first = next(baselines)
        original = simulate(first.problem, ordered_steps(file_order(first.graph)))
        ordered = first.ordered.prediction
        step = PreparedStep(name, (StepVariant.of(first),), original, ordered)
        yield _for_budgets(step, baselines, min(map(step.budget_bytes, budgets)))


def _graphs(
    model: ir.Model,
    device: DeviceProfile,
    target: str,
    part_bytes: int | None,
    updates: Updates | None,
    *,
    threads: int,
) -> Iterator[GraphVariant]:
    """Yield the variants that may be compared: all that a rewrite may choose, or the one that was asked for."""
    all_variants = variants(model.clone(), device, target, updates=updates, threads=threads)
    if part_bytes is None:
        yield from all_variants
        return
    first = next(all_variants)
    try:
        options = part_bytes, ()
        yield variant_of(model, target, options, updates, threads=threads) if part_bytes else first
    except InputError:  # no weight gradient is that large
        yield first


def _for_budgets(step: PreparedStep, others: Iterator[Baseline], least_bytes: int) -> PreparedStep:
    """Return a step with as many variants as the smallest budget asks for."""
    found = list(step.variants)
    while found[-1].smallest_bytes > least_bytes:
        baseline = next(others, None)
        if baseline is None:
            break
        found.append(StepVariant.of(baseline))
    return PreparedStep(step.model, tuple(found), step.original, step.ordered)


def _name_of(given: Model, model: ir.Model) -> str:
    """Return what a model is called: by its file, or by its folder where the file has the name of every artifact."""
    if isinstance(given, (str, os.PathLike)):
        path = Path(given).resolve()
        return path.parent.name if path.stem == "training_model" else path.stem
    return model.graph.name or "model"
