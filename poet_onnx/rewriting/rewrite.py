"""Rewrite a training graph: plan its step for a device and carry the plan out on the model."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from importlib.metadata import version
from pathlib import Path
from typing import Any

import onnx
import onnx_ir as ir
from onnx_ir.passes import InPlacePass, PassError, PassResult, Sequential

from poet_onnx.costing.costs import CostTable
from poet_onnx.costing.process import ProcessMemory
from poet_onnx.description.family import PlanFamily
from poet_onnx.description.groups import ParameterGroup, missed
from poet_onnx.description.metadata import Description
from poet_onnx.description.names import POET_DOMAIN, TRAINING_KEY
from poet_onnx.errors import InputError, PoetError, quoted
from poet_onnx.files.atomic import Written
from poet_onnx.files.external_data import hold_external
from poet_onnx.files.model_file import files_beside
from poet_onnx.files.saving import save_model
from poet_onnx.files.sources import check_apart, files_read
from poet_onnx.gradients.train_graph import TrainGraph
from poet_onnx.graph import TrainingGraph
from poet_onnx.graph.extract import check_wellformed
from poet_onnx.graph.extract.roles import forget_roles
from poet_onnx.graph.operators import spec_of
from poet_onnx.options import read, taking
from poet_onnx.passes.annotate import AnnotateCosts
from poet_onnx.passes.arena import InsertArena
from poet_onnx.passes.batch_norm_modes import warn_user
from poet_onnx.passes.materialize import MaterializePlan
from poet_onnx.passes.metadata import VERSION_KEY, WriteInputRanges, WriteMetadata
from poet_onnx.passes.normalize import own_errors
from poet_onnx.passes.unread import RemoveUnread
from poet_onnx.plan import Plan, Prediction
from poet_onnx.rewriting.evaluation import EvaluationStep
from poet_onnx.rewriting.family import budgets_of, planned_family
from poet_onnx.rewriting.options import RewriteOptions
from poet_onnx.rewriting.planning import Answer
from poet_onnx.rewriting.request import BudgetKind, Request
from poet_onnx.rewriting.source import Given, normalized
from poet_onnx.rewriting.storing import all_in_ram, answer_where_it_fits, constants_of


@dataclass(frozen=True)
class RewriteResult:
    """A rewritten model and what is known about it.

    Attributes:
        model: the rewritten model.
        plan: what was carried out, with its certificate.
        graph: the training graph that was planned: the model as given, after normalization.
        costs: what the plan's figures are made of.
        original: what the simulator predicts of the nodes in the order of the file, all parameters in RAM.
        ordered: the same after memory-aware ordering alone, parameters from a store where the plan has one.
        rewritten: the same of the plan.
        region_bytes: of the memory that serves the plan's step, laid out; graph outputs are not in it.
        original_nodes, ordered_nodes: nodes of the model as given, and of the normalized one that is ordered.
        original_process, ordered_process, process: what a training process takes that runs them.
        budget_bytes: the bound on what `budget_kind` names: "ram" bounds the process's peak, "activation" the transient
            peak.
        method: how the plan was made.
        is_given: the plan was made before; its certificate says what was proven then.
        frozen_batch_norms: what the batch normalizations make that use their running statistics in training, too.
        warnings: what could not be decided, a sentence each.
        train_graph: what was made of a forward model, with the parameters' values; None if a training graph was given.
            With an optimizer in the step its evaluation graph is planned, too, for the same region of memory.
        others: the same model with plans for smaller RAM budgets, smallest first, where several were asked for.
        sources: files that the model was read from; none of them is written over.
    """

    model: ir.Model
    plan: Plan
    graph: TrainingGraph
    costs: CostTable
    original: Prediction
    ordered: Prediction
    rewritten: Prediction
    region_bytes: int
    original_process: ProcessMemory
    ordered_process: ProcessMemory
    process: ProcessMemory
    original_nodes: int
    ordered_nodes: int
    budget_bytes: int | None
    budget_kind: BudgetKind
    method: str
    is_given: bool
    frozen_batch_norms: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    train_graph: TrainGraph | None = None
    others: tuple[RewriteResult, ...] = ()
    sources: frozenset[Path] = frozenset()

    def save(
        self, path: str | os.PathLike[str], *, replace: bool = True, written: Written | None = None
    ) -> tuple[Path, ...]:
        """Write the model to a file, whole or not at all; what is external data stays external.

        What a forward model also gave goes beside it: of `net.onnx` the parameters to `net.safetensors` and the
        evaluation graph to `net.eval.onnx`. Plans for other budgets have their names in that of the file, as
        `net.64MiB.onnx` and `net.64MiB.eval.onnx`. All of them are written or none.

        Args:
            path: of the model.
            replace: whether files of these names may be replaced.
            written: gets to know the files; by default those that are new are removed after an error.

        Returns:
            The files: the model, what goes beside it, and those of other plans.

        Raises:
            InputError: if one cannot be written, or is there and must stay, or is one that the model was read from.
        """
        target, paths = Path(path), self.files(path)
        check_apart(paths, self.sources)
        with contextlib.nullcontext(written) if written is not None else Written() as files:
            if self.train_graph is not None:
                self.train_graph.save_values(target, replace=replace, written=files)
            for result in (*self.others, self):
                place = result._place(target)
                if result.train_graph is not None:
                    result.train_graph.save_evaluation(place, replace=replace, written=files)
                save_model(result.model, place, replace=replace, written=files)
        return paths

    def files(self, path: str | os.PathLike[str]) -> tuple[Path, ...]:
        """Return the files that `save` writes: the model, what goes beside it, and those of other plans."""
        target = Path(path)
        found = [target] if self.train_graph is None else [target, *files_beside(target)]
        for result in self.others:
            place = result._place(target)
            found += [place] if result.train_graph is None else [place, files_beside(place)[1]]
        return tuple(found)

    def _place(self, target: Path) -> Path:
        """Return where the model goes if the plan for the largest budget goes to a target."""
        family = PlanFamily.of_metadata(self.model.metadata_props)
        return target if family is None else family.path_of(target, family.budget_bytes)


@taking(RewriteOptions)
def rewrite(
    model_or_path: str | os.PathLike[str] | onnx.ModelProto | ir.Model, options: RewriteOptions
) -> RewriteResult:
    """Rewrite a training graph so that its step keeps to a budget on a device, for the least energy.

    The rewritten graph computes the same bits. The model given is not changed. With a loss it is a forward model, of
    which a training graph is made first.

    Args:
        model_or_path: the training graph, or the forward model: a file or a model in memory.
        options: each field of `RewriteOptions` as a keyword argument; `device` is needed.

    Raises:
        InputError: if an argument or the model cannot be used.
        InfeasibleError: if no plan keeps to the limits.
        LimitReachedError: if the time limit came before any plan was found.
        CheckFailedError: if a check of ours did not hold.
    """
    request = Request.of(options)
    given = Given.read(model_or_path, options)
    settled = replace(request, options=given.settle(options))
    made = given.train_graph
    budgets = budgets_of(settled)

    def planned(request: Request) -> RewriteResult:
        return _rewritten(given.model.clone(), request, given.forward, made)

    with own_errors():
        if budgets:
            result = planned_family(settled, budgets, planned)
        else:
            result = _rewritten(given.model, settled, given.forward, made)
    warnings = (*(() if made is None else made.warnings), *result.warnings)
    return replace(result, warnings=warnings, sources=files_read(model_or_path) if made is None else made.sources)


def pipeline(**options: Any) -> InPlacePass:
    """Return `rewrite` as one `onnx_ir` pass for an export pipeline; it changes the model in place.

    Args:
        options: the keyword arguments of `rewrite`.

    Raises:
        InputError: if an option cannot be used. What is wrong with a model is raised when the pass runs, as the cause
            of an `onnx_ir.passes.PassError`.
    """
    read_options = read(RewriteOptions, "pipeline", options)
    if read_options.loss is not None:
        raise InputError("A pass returns no values of parameters: give a forward model with its loss to `rewrite`.")
    if read_options.ram_budgets:
        raise InputError("A pass returns one model: give ram_budgets to `rewrite`, or one ram_budget.")
    return _Rewrite(Request.of(read_options))


class _Rewrite(InPlacePass):
    """Rewrite a training graph as requested."""

    def __init__(self, request: Request) -> None:
        super().__init__()
        self._request = request

    def call(self, model: ir.Model) -> PassResult:
        """Rewrite the model, which gets the graph of its best variant.

        Raises:
            PassError: with what is wrong as its cause.
        """
        try:
            check_wellformed(model)
            hold_external(model)
            with own_errors():
                rewritten = _rewritten(model, self._request).model
        except PoetError as error:
            raise PassError(f"The training graph was not rewritten: {error}") from error
        model.graph = rewritten.graph
        model.metadata_props.update(rewritten.metadata_props)
        return PassResult(model, modified=True)


def _warn_of_missed(made: TrainGraph, groups: Sequence[ParameterGroup], warn: Callable[[str], None]) -> None:
    """Warn of parameters that groups name by their modules: groups go by the names in the file."""
    found: dict[ParameterGroup, list[str]] = {}
    for group, name in missed(groups, made.called, {name: value.ndim for name, value in made.values.items()}):
        found.setdefault(group, []).append(name)
    for group, names in found.items():
        warn(
            f"Parameters {quoted(names)} are of modules that {group} names, but not in it, for the exporter named them"
            " itself: name them in it, too."
        )


def _rewritten(
    model: ir.Model,
    request: Request,
    forward: Callable[[], ir.Model | None] = lambda: None,
    made: TrainGraph | None = None,
) -> RewriteResult:
    """Rewrite a model, which is changed: normalize it, plan the variants of its graph, carry the best plan out.

    Args:
        model: whole, and not in use elsewhere.
        request: what was asked for.
        forward: returns the evaluation graph of the same loss, if there is one.
        made: what the model comes from, if it was made of a forward model.
    """
    # An import alone says nothing: ONNX Runtime writes one for every domain that is known to its process.
    if VERSION_KEY in model.metadata_props or any(map(_is_planned, model.graph)):
        raise InputError("The model was rewritten by poet-onnx already: give the model that it was made from.")
    warnings: list[str] = []

    def warn(sentence: str) -> None:
        warnings.append(sentence)
        warn_user(sentence)

    options = request.options
    source = normalized(model, options, forward=forward, warn=warn, threads=request.threads)
    WriteInputRanges()(source.model)
    updates = request.optimizer.for_model(source.model, warn)
    if made is not None and updates is not None:
        _warn_of_missed(made, updates.groups, warn)
    evaluated = None if updates is None else made
    beside = partial(
        EvaluationStep.beside, evaluated, source.model, request.device, options.target, threads=request.threads
    )
    constants = cache(partial(constants_of, made, source.model))
    answer = answer_where_it_fits(source.model, request, updates, beside, constants)
    region_bytes, evaluation = answer.laid_out.region.region_bytes, answer.asked.evaluation
    if made is not None and evaluation is not None:
        region_bytes = max(region_bytes, evaluation.region.region_bytes)
        made = replace(made, evaluation=evaluation.carried_out(region_bytes))
        if answer.plan.stored:
            frozen = constants()
            of_store = frozen.values(name for name in frozen.kinds if name in answer.plan.stored)
            made = replace(made, constants=of_store)
    asked, baseline = answer.asked, answer.baseline
    original, original_process = asked.original, asked.budget.process.of_order(asked.first.graph, asked.original)
    if answer.plan.stored:
        original, original_process = all_in_ram(source.model, request, updates, beside())
    _carry_out(answer, region_bytes, original)
    described = Description.of_metadata(baseline.variant.model.metadata_props)
    if described is not None and described.unresumable:
        warn(
            f"Training with {', '.join(described.unresumable)} cannot be resumed, for ONNX Runtime does not tell the"
            " state of its generator: it takes no checkpoints and no store. Draw these numbers outside and feed them."
        )
    return RewriteResult(
        model=baseline.variant.model,
        plan=answer.plan,
        graph=baseline.graph,
        costs=baseline.costs,
        original=original,
        ordered=asked.ordered,
        rewritten=answer.plan.prediction,
        region_bytes=answer.laid_out.region.region_bytes,
        original_process=original_process,
        ordered_process=answer.ordered_process,
        process=answer.laid_out.memory,
        original_nodes=source.node_count,
        ordered_nodes=len(asked.first.graph.nodes),
        budget_bytes=asked.budget.bound_bytes,
        budget_kind=request.budget_kind,
        method=options.method,
        is_given=request.plan is not None,
        frozen_batch_norms=source.frozen_batch_norms,
        warnings=tuple(warnings),
        train_graph=made,
    )


def _is_planned(node: ir.Node) -> bool:
    """Return whether a node is of a rewritten model: of our operators a training graph has few."""
    return node.domain == POET_DOMAIN and not spec_of(node.domain, node.op_type).of_graphs


def _carry_out(answer: Answer, region_bytes: int, original: Prediction) -> None:
    """Write a plan into the model of its graph variant, with a region of a size that the evaluation needs, too."""
    baseline, laid_out, request = answer.baseline, answer.laid_out, answer.asked.request
    Sequential(
        AnnotateCosts(baseline.costs),
        MaterializePlan(baseline.graph, laid_out.layout),
        InsertArena(replace(laid_out.region, region_bytes=region_bytes)),
        RemoveUnread(),
        WriteMetadata(
            baseline.graph,
            answer.plan,
            version=version("poet-onnx"),
            target=request.options.target,
            dims=request.options.dims or {},
            threads=request.threads,
            process={line.name: line.size_bytes for line in laid_out.memory.parts},
            ram_budget_bytes=answer.asked.budget.bound_bytes if request.budget_kind == "ram" else None,
            costs=baseline.costs,
            before={"original": original, "ordered": answer.asked.ordered},
        ),
    )(baseline.variant.model)
    if TRAINING_KEY in baseline.variant.model.metadata_props:
        # The description tells a session all that it needs, and the runtime would hold what inputs say in memory.
        forget_roles(baseline.variant.model.graph)
