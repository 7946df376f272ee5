"""The picture of a rewritten model, made from the model alone."""

from __future__ import annotations

import os
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import onnx_ir as ir

from poet_onnx.costing.costs import TransferCost
from poet_onnx.costing.flops import storage_work
from poet_onnx.costing.process import MEANS as PROCESS_MEANS
from poet_onnx.costing.store_traffic import store_written_bytes
from poet_onnx.errors import CheckFailedError, InputError
from poet_onnx.graph import Node, Role, TrainingGraph
from poet_onnx.plan import Action, Step
from poet_onnx.reporting import words
from poet_onnx.reporting.curve_point import read_curve
from poet_onnx.reporting.frontier import read_frontier
from poet_onnx.reporting.layers import FATES, MEANS, Layer, Places, layer
from poet_onnx.reporting.measured import Measured
from poet_onnx.reporting.other_budgets import other_budgets
from poet_onnx.reporting.picture import Before, Nodes, Part, Proof, StepPicture, Tensors
from poet_onnx.reporting.rewritten import RewrittenStep, read_rewritten
from poet_onnx.scheduling import Progress

_SPENT = {
    "forward": "computing the loss",
    "backward": "computing the gradients",
    "update": "changing the parameters, or collecting their gradients",
    "recompute": "computing again what was not kept",
    "page out": "writing to storage",
    "page in": "reading from storage",
    "store": "waiting for the store that parameters live in",
    "idle": "what the device takes whatever it does",
}
"""What a step's energy is spent on."""


def picture_of(
    model_or_path: str | os.PathLike[str] | ir.Model,
    *,
    name: str | None = None,
    measured: Measured | None = None,
    compared: str | os.PathLike[str] | None = None,
    curve: str | os.PathLike[str] | None = None,
    budgets: bool = False,
    progress: Callable[[Progress], None] | None = None,
) -> StepPicture:
    """Return the picture of a rewritten model, from the model alone.

    Args:
        model_or_path: what poet-onnx made.
        name: of the model; default that of its file.
        measured: what was measured of it.
        compared: a compare.csv of the model that was rewritten.
        curve: what `inspect --curve --json` printed of that model.
        budgets: plan for other budgets, too; a curve has better ones, and stands in for them.
        progress: told about that planning.

    Raises:
        InputError: if the model was not rewritten, or by another version, or does not do what its plan says; or if the
            comparison is of another model or device.
    """
    step = read_rewritten(model_or_path)
    if name is None:
        name = "model" if isinstance(model_or_path, ir.Model) else Path(model_or_path).name
    graph, plan, prediction = step.problem.graph, step.plan, step.plan.prediction
    certificate, settings = plan.certificate, step.settings
    nodes = [node for node in graph.nodes if not node.view]
    tensors = list(dict.fromkeys(value for node in nodes for value in graph.transient_writes(node)))
    try:
        layers = tuple(_layers(step, Places.of([node.name for node in nodes], tensors)))
    except CheckFailedError as error:
        raise InputError(f"The model's nodes cannot run in the order of its file: {error}") from error
    process = tuple(_process(step))
    is_ram = settings.ram_budget_bytes is not None
    asked = words.Asked(
        process_peak_bytes=int(sum(part.size for part in process)),
        budget_bytes=settings.ram_budget_bytes if is_ram else plan.limits.budget_bytes,
        is_ram=is_ram,
    )
    works = [work for node in _runs(step) if (work := storage_work(graph, node)) is not None]
    return StepPicture(
        model=name,
        device=plan.device,
        target=settings.target,
        threads=settings.threads,
        optimizer=plan.optimizer,
        fits=words.fits(asked, prediction, measured),
        verdict=tuple(words.verdict(asked, plan, (step.original, step.ordered), measured)),
        budget_bytes=asked.budget_bytes,
        budget_kind="ram" if is_ram else "activation",
        activation_budget_bytes=plan.limits.budget_bytes,
        deadline_seconds=plan.limits.deadline_seconds,
        max_written_bytes=plan.limits.max_written_bytes,
        process_peak_bytes=asked.process_peak_bytes,
        **StepPicture.taken_over(prediction) | {"stall_seconds": max(0.0, prediction.stall_seconds)},
        nodes_in_file=step.nodes,
        store_read_bytes=sum(work.read_bytes for work in works),
        store_written_bytes=store_written_bytes(graph),
        time_measured=step.time_measured,
        energy_measured=step.problem.costs.energy_measured,
        measured=measured,
        process=process,
        residents=tuple(_residents(graph)),
        energy=tuple(_energy(step)),
        original=Before.of(step.original),
        ordered=Before.of(step.ordered),
        proof=Proof(**Proof.taken_over(certificate)),
        proof_words=tuple(words.proof(certificate)),
        curve=() if curve is None else read_curve(curve, plan.device, step.original.transient_peak_bytes),
        budgets=other_budgets(step, asked.process_peak_bytes, progress) if budgets and curve is None else (),
        frontier=() if compared is None else read_frontier(compared, plan.device, step.original.transient_peak_bytes),
        fates=tuple((fate.value, MEANS[fate]) for fate in FATES),
        nodes=_nodes(step),
        tensors=_tensors(step, tensors),
        layers=layers,
    )


def _runs(step: RewrittenStep) -> Iterator[Node]:
    nodes = {node.name: node for node in step.problem.graph.nodes}
    return (nodes[each.subject] for each in step.plan.steps if each.action is Action.COMPUTE)


def _layers(step: RewrittenStep, places: Places) -> Iterator[Layer]:
    """Yield the ways to run the step: as the file has it, in the plan's order, and as planned."""
    problem, target = step.problem, step.settings.target
    given = [Step(Action.COMPUTE, node.name) for node in problem.graph.nodes if not node.view]
    first_runs = [each for each in step.plan.steps if each.action is Action.COMPUTE and not each.copy]
    in_parts = " in parts" if step.plan.part_bytes is not None else ""
    but = ", but with weight gradients in parts as the plan has them" if in_parts else ""
    means = f"Every node once, in the order of the file{but}."
    yield layer(problem, given, places, name=f"original{in_parts}", means=means, target=target)
    means = f"Every node once, in the plan's order{but}."
    yield layer(problem, first_runs, places, name=f"ordered{in_parts}", means=means, target=target)
    means = "The plan: its order, with what it recomputes and pages."
    known = (step.replayed, step.region)
    yield layer(problem, step.plan.steps, places, name="rewritten", means=means, target=target, known=known)


def _process(step: RewrittenStep) -> Iterator[Part]:
    for name, size_bytes in step.settings.process.items():
        means = f"{step.nodes:,} nodes" if name == "session" else PROCESS_MEANS.get(name, "")
        yield Part(name=name, size=size_bytes, means=means)


def _residents(graph: TrainingGraph) -> Iterator[Part]:
    sizes, counts = Counter[Role](), Counter[Role]()
    for tensor in graph.tensors.values():
        if tensor.resident:
            sizes[tensor.role] += tensor.size_bytes
            counts[tensor.role] += 1
    for role, size_bytes in sizes.most_common():
        yield Part(name=role.value, size=size_bytes, means=f"{counts[role]:,} tensor{'' if counts[role] == 1 else 's'}")


def _energy(step: RewrittenStep) -> Iterator[Part]:
    """Yield what the energy of a step is spent on; the parts add up to it but for rounding."""
    costs, joules = step.problem.costs, defaultdict[str, float](float)
    for node in step.problem.graph.nodes:
        if node.view:
            joules[node.phase.value] += costs.nodes[node.name].joules
    for each, node in zip(_computed(step), _runs(step), strict=True):
        cost = costs.nodes[node.name]
        joules["store"] += cost.storage_joules
        joules["recompute" if each.copy else node.phase.value] += cost.joules - cost.storage_joules
    for each in step.plan.steps:
        if each.action is Action.PAGE_OUT_START:
            joules["page out"] += costs.page_out[each.subject].joules
        elif each.action is Action.PAGE_IN_START:
            joules["page in"] += costs.page_in[each.subject].joules
    joules["store"] += costs.commit.joules
    joules["idle"] = costs.idle_watts * step.plan.prediction.seconds
    for name, means in _SPENT.items():
        if joules[name] > 0:
            yield Part(name=name, size=joules[name], means=means)


def _computed(step: RewrittenStep) -> Iterator[Step]:
    return (each for each in step.plan.steps if each.action is Action.COMPUTE)


def _nodes(step: RewrittenStep) -> Nodes:
    graph, costs = step.problem.graph, step.problem.costs.nodes
    nodes = [node for node in graph.nodes if not node.view]
    works = [storage_work(graph, node) for node in nodes]
    return Nodes(
        names=tuple(node.name for node in nodes),
        operators=tuple(node.op_type for node in nodes),
        phases=tuple(node.phase for node in nodes),
        seconds=tuple(costs[node.name].seconds for node in nodes),
        joules=tuple(costs[node.name].joules for node in nodes),
        wait_seconds=tuple(costs[node.name].storage_seconds for node in nodes),
        read_bytes=tuple(0 if work is None else work.read_bytes for work in works),
        written_bytes=tuple(0 if work is None else work.written_bytes for work in works),
    )


def _tensors(step: RewrittenStep, names: Sequence[str]) -> Tensors:
    found = [step.problem.graph.tensors[name] for name in names]
    costs, none = step.problem.costs, TransferCost(0.0, 0.0)
    outs = [costs.page_out.get(name, none) for name in names]
    ins = [costs.page_in.get(name, none) for name in names]
    return Tensors(
        names=tuple(names),
        types=tuple(" ".join((each.dtype, " x ".join(map(str, each.shape)))).strip() for each in found),
        sizes=tuple(each.size_bytes for each in found),
        page_out_seconds=tuple(each.seconds for each in outs),
        page_in_seconds=tuple(each.seconds for each in ins),
        page_out_joules=tuple(each.joules for each in outs),
        page_in_joules=tuple(each.joules for each in ins),
    )
