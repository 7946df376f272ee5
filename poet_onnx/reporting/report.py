"""The report of a rewrite: what was asked, what is predicted and what is proven, as one validated JSON value."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Literal, TypeAlias

import pydantic

from poet_onnx.costing.costs import CostTable, estimated_workspace_nodes
from poet_onnx.costing.device import StorageProfile
from poet_onnx.costing.flops import storage_work
from poet_onnx.costing.measured import MeasuredCosts
from poet_onnx.costing.process import ProcessMemory
from poet_onnx.costing.store_traffic import store_written_bytes
from poet_onnx.files.model_file import files_beside
from poet_onnx.graph import TrainingGraph
from poet_onnx.passes.paging import page_file_bytes
from poet_onnx.plan import Action, Plan, PlanClass, Prediction
from poet_onnx.record import Record
from poet_onnx.reporting.plan_figures import PlanFigures, plan_figures
from poet_onnx.rewriting.rewrite import RewriteResult

SCHEMA_VERSION: Literal[2] = 2

Origin: TypeAlias = Literal["modelled", "measured"]


class ProcessPart(Record):
    """A part of what a training process takes at its peak.

    Attributes:
        name: of the part.
        size_bytes: that it takes.
        means: what is in it.
        is_loaded: whether it is taken before the first step.
    """

    name: str
    size_bytes: int = pydantic.Field(ge=0)
    means: str
    is_loaded: bool


class Figures(Record):
    """What one training step of one version of the graph needs, as the simulator predicts it.

    Attributes:
        nodes: nodes of the graph, inserted ones included.
        resident_bytes: parameters, gradient buffers and batch.
        transient_peak_bytes: the most that everything else takes at one moment.
        step_peak_bytes: the sum of both.
        process_peak_bytes: what a process takes that trains with it; see `poet_onnx.costing.process`.
        energy_joules: compute and transfers, modelled or measured as the report's `energy_origin` says.
        seconds: predicted wall time.
        page_out_bytes, page_in_bytes: moved to and from storage.
        recomputed_nodes: nodes that run again.
    """

    nodes: int = pydantic.Field(ge=0)
    resident_bytes: int = pydantic.Field(ge=0)
    transient_peak_bytes: int = pydantic.Field(ge=0)
    step_peak_bytes: int = pydantic.Field(ge=0)
    process_peak_bytes: int = pydantic.Field(ge=0)
    energy_joules: float = pydantic.Field(ge=0)
    seconds: float = pydantic.Field(ge=0)
    page_out_bytes: int = pydantic.Field(ge=0)
    page_in_bytes: int = pydantic.Field(ge=0)
    recomputed_nodes: int = pydantic.Field(ge=0)

    @pydantic.model_validator(mode="after")
    def _adds_up(self) -> Figures:
        if self.step_peak_bytes != self.resident_bytes + self.transient_peak_bytes:
            raise ValueError("step_peak_bytes is not resident_bytes plus transient_peak_bytes")
        return self

    @classmethod
    def of(cls, prediction: Prediction, nodes: int, process: ProcessMemory) -> Figures:
        """Make the figures of a simulator's prediction for a graph of so many nodes and its process."""
        return cls(nodes=nodes, process_peak_bytes=process.peak_bytes, **Figures.taken_over(prediction))


class Wear(Record):
    """What paging writes to the storage while a model trains, and how long the storage stands that.

    Attributes:
        written_bytes_per_step: `page_out_bytes`, and what goes to a store.
        written_bytes_per_hour: if one step follows the other.
        page_file_bytes: room that the page file needs.
        capacity_bytes: of the storage.
        capacity_seconds: training time in which as much is written as the storage holds.
        endurance_bytes: what may be written before the storage wears out; None where the device profile does not know.
        life_steps, life_seconds: training until then, if the storage is new and nothing else writes to it.
    """

    written_bytes_per_step: int = pydantic.Field(gt=0)
    written_bytes_per_hour: float = pydantic.Field(gt=0)
    page_file_bytes: int = pydantic.Field(gt=0)
    capacity_bytes: int = pydantic.Field(gt=0)
    capacity_seconds: float = pydantic.Field(gt=0)
    endurance_bytes: int | None = pydantic.Field(default=None, gt=0)
    life_steps: int | None = pydantic.Field(default=None, ge=0)
    life_seconds: float | None = pydantic.Field(default=None, gt=0)

    @classmethod
    def of_plan(cls, plan: Plan, graph: TrainingGraph, storage: StorageProfile | None) -> Wear | None:
        """Make the figures of a plan; None where it writes nothing or takes no time."""
        written, seconds = plan.prediction.page_out_bytes, plan.prediction.seconds
        if storage is None or not written or not seconds:
            return None
        written += store_written_bytes(graph)
        endurance = storage.endurance_bytes
        return cls(
            written_bytes_per_step=written,
            written_bytes_per_hour=written * 3600 / seconds,
            page_file_bytes=page_file_bytes(graph, plan.steps),
            capacity_bytes=storage.capacity_bytes,
            capacity_seconds=storage.capacity_bytes / written * seconds,
            endurance_bytes=endurance,
            life_steps=None if endurance is None else endurance // written,
            life_seconds=None if endurance is None else endurance / written * seconds,
        )


class StoreTraffic(Record):
    """What a step moves between RAM and the store that parameters live in.

    Attributes:
        read_bytes, written_bytes: in a step; what is written includes a commit after each step.
        seconds: in which a step waits for that.
        life_steps: steps until as much is written as the storage endures, pages included, if it is new and nothing else
            writes to it; None where the device profile does not know.
    """

    read_bytes: int = pydantic.Field(ge=0)
    written_bytes: int = pydantic.Field(ge=0)
    seconds: float = pydantic.Field(ge=0)
    life_steps: int | None = pydantic.Field(default=None, ge=0)

    @classmethod
    def of_plan(cls, plan: Plan, graph: TrainingGraph, costs: CostTable) -> StoreTraffic | None:
        """Make the figures of a plan; None where parameters are resident."""
        if not plan.stored:
            return None
        nodes = {node.name: node for node in graph.nodes}
        runs = [nodes[step.subject] for step in plan.steps if step.action is Action.COMPUTE]
        works = [work for node in runs if (work := storage_work(graph, node)) is not None]
        written_bytes = store_written_bytes(graph)
        worn_bytes = written_bytes + plan.prediction.page_out_bytes
        endurance = None if costs.storage is None else costs.storage.endurance_bytes
        return cls(
            read_bytes=sum(work.read_bytes for work in works),
            written_bytes=written_bytes,
            seconds=sum(costs.nodes[node.name].storage_seconds for node in runs) + costs.commit.seconds,
            life_steps=None if endurance is None else endurance // worn_bytes,
        )


class Report(Figures):
    """What a rewrite did. The figures at the top level are the rewritten graph's.

    Attributes:
        schema_version: of this JSON.
        model: the file that was read, or the graph's name.
        output: the file that was written, or None.
        parameters, eval_model: the files written beside it for a forward model, or None.
        fingerprint: of the training graph.
        device, method: what was planned for, and how.
        time_origin: where the nodes' seconds come from: "measured" ones are from a profile.
        energy_origin: where the nodes' joules come from: "measured" ones are a profile's seconds and metered watts.
        budget_bytes: the budget as bytes of what `budget_kind` names: "ram" bounds the process's peak, "activation" the
            transient peak.
        deadline_seconds: the bound on predicted step time, or None.
        max_written_bytes: the bound on `page_out_bytes`, or None.
        certificate_origin: whether what is certified was "proven" here, or is "stated" by a plan that was given.
        status, objective_joules, bound_joules, wide_bound_joules, gap, overhead_gap, covers, solver, seed,
            solve_seconds: the plan's certificate, see `poet_onnx.plan.Certificate`.
        region_bytes: of the memory that a session reserves for the step, in which every buffer but the graph's outputs
            has its address; the transient peak, laid out.
        optimizer: what updates the parameters within the step, in words, with its moments among the resident bytes;
            "none" if nothing does: then moments come on top in any use.
        gradient_buffer_bytes: the part of the resident bytes that gradients are collected in. Without an optimizer in
            the step a `TrainingSession` does without most of them where it updates parameters within the step.
        part_bytes: weight gradients larger than this are computed in parts; None where all are whole.
        estimated_workspace_nodes: of the graph that was planned, those whose kernels' own memory is an estimate.
        frozen_batch_norms: what the batch normalizations make that use their running statistics in training, too.
        warnings: what could not be decided, a sentence each.
        wear: what paging does to the storage; None where nothing is paged.
        store: what a step moves to and from the store that parameters live in; None where they are resident.
        process: the parts of `process_peak_bytes`.
        load_peak_bytes: about what the process takes until all is loaded.
        plans: for all RAM budgets, smallest first, where several were asked for: this is the last of them.
        original: the graph as given.
        ordered: the normalized graph after memory-aware ordering alone.
    """

    schema_version: Literal[2] = SCHEMA_VERSION
    model: str
    output: str | None
    parameters: str | None = None
    eval_model: str | None = None
    fingerprint: str
    device: str
    method: str
    time_origin: Origin
    energy_origin: Origin
    budget_bytes: int | None = pydantic.Field(ge=0)
    budget_kind: Literal["ram", "activation"]
    deadline_seconds: float | None = pydantic.Field(gt=0)
    max_written_bytes: int | None = pydantic.Field(default=None, ge=0)
    certificate_origin: Literal["proven", "stated"]
    status: str
    objective_joules: float = pydantic.Field(ge=0)
    bound_joules: float = pydantic.Field(ge=0)
    wide_bound_joules: float = pydantic.Field(ge=0)
    gap: float = pydantic.Field(ge=0)
    overhead_gap: float = pydantic.Field(ge=0)
    covers: PlanClass
    solver: str
    seed: int
    solve_seconds: float = pydantic.Field(ge=0)
    region_bytes: int = pydantic.Field(default=0, ge=0)
    optimizer: str = "none"
    gradient_buffer_bytes: int = pydantic.Field(default=0, ge=0)
    part_bytes: int | None = pydantic.Field(default=None, ge=1)
    estimated_workspace_nodes: tuple[str, ...] = ()
    frozen_batch_norms: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    wear: Wear | None = None
    store: StoreTraffic | None = None
    process: tuple[ProcessPart, ...]
    load_peak_bytes: int = pydantic.Field(ge=0)
    plans: tuple[PlanFigures, ...] = ()
    original: Figures
    ordered: Figures

    @pydantic.model_validator(mode="after")
    def _process_adds_up(self) -> Report:
        if self.process_peak_bytes != sum(part.size_bytes for part in self.process):
            raise ValueError("process_peak_bytes is not the sum of the parts of the process")
        return self

    @classmethod
    def of_rewrite(
        cls, result: RewriteResult, *, model: str, output: str | None, measured: MeasuredCosts | None = None
    ) -> Report:
        """Make the report of a rewrite.

        Args:
            result: of the rewrite.
            model: the file that was read, or another name of the model.
            output: the file that was written, if there is one.
            measured: the costs that were planned with, if they were not modelled.
        """
        plan, certificate = result.plan, result.plan.certificate
        budget_bytes, budget_kind = result.budget_bytes, result.budget_kind
        if budget_bytes is None and plan.limits.budget_bytes is not None:
            budget_bytes, budget_kind = (
                plan.limits.budget_bytes,
                "activation",
            )  # a plan that was made before brings its own
        beside = {}
        if output is not None and result.train_graph is not None:
            beside = dict(zip(("parameters", "eval_model"), map(str, files_beside(Path(output))), strict=True))
        return cls(
            **Figures.of(result.rewritten, len(result.model.graph), result.process).model_dump(),
            model=model,
            output=output,
            **beside,
            fingerprint=plan.fingerprint,
            device=plan.device,
            method=result.method,
            time_origin="modelled" if measured is None else "measured",
            energy_origin="modelled" if measured is None or measured.active_watts is None else "measured",
            budget_bytes=budget_bytes,
            budget_kind=budget_kind,
            deadline_seconds=plan.limits.deadline_seconds,
            max_written_bytes=plan.limits.max_written_bytes,
            certificate_origin="stated" if result.is_given and certificate.covers.in_order else "proven",
            **Report.taken_over(certificate),
            region_bytes=result.region_bytes,
            optimizer=plan.optimizer,
            gradient_buffer_bytes=result.graph.gradient_buffer_bytes,
            part_bytes=plan.part_bytes,
            estimated_workspace_nodes=estimated_workspace_nodes(result.graph, result.costs),
            frozen_batch_norms=result.frozen_batch_norms,
            warnings=result.warnings,
            wear=Wear.of_plan(plan, result.graph, result.costs.storage),
            store=StoreTraffic.of_plan(plan, result.graph, result.costs),
            process=process_parts(result.process),
            load_peak_bytes=result.process.load_peak_bytes,
            plans=plan_figures(result, output),
            original=Figures.of(result.original, result.original_nodes, result.original_process),
            ordered=Figures.of(result.ordered, result.ordered_nodes, result.ordered_process),
        )


def process_parts(process: ProcessMemory) -> tuple[ProcessPart, ...]:
    """Return the parts of what a process takes."""
    return tuple(ProcessPart(**asdict(line)) for line in process.parts)
