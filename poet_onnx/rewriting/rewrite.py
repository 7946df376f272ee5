"""Rewrite a training graph: plan its step for a device and carry the plan out on the model."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any, SupportsIndex

import onnx
import onnx_ir as ir
from onnx_ir.passes import InPlacePass, PassError, PassResult, Sequential

from poet_onnx.adapters.lora import Lora
from poet_onnx.costing.costs import CostTable
from poet_onnx.costing.device import DeviceProfile
from poet_onnx.costing.process import ProcessMemory
from poet_onnx.errors import InputError, PoetError
from poet_onnx.files.atomic import Written
from poet_onnx.files.external_data import hold_external
from poet_onnx.files.saving import save_model
from poet_onnx.gradients.class_weights import ClassWeights
from poet_onnx.gradients.train_graph import TrainGraph, files_beside
from poet_onnx.graph import TrainingGraph
from poet_onnx.graph.extract import check_wellformed
from poet_onnx.passes.annotate import AnnotateCosts
from poet_onnx.passes.arena import InsertArena
from poet_onnx.passes.batch_norm_modes import warn_user
from poet_onnx.passes.layout import DOMAIN
from poet_onnx.passes.materialize import MaterializePlan
from poet_onnx.passes.metadata import VERSION_KEY, WriteInputRanges, WriteMetadata
from poet_onnx.passes.normalize import own_errors
from poet_onnx.passes.unread import RemoveUnread
from poet_onnx.plan import Plan, Prediction
from poet_onnx.rewriting.evaluation import EvaluationStep
from poet_onnx.rewriting.planning import Answer, answer_of
from poet_onnx.rewriting.request import BudgetKind, Request, read_request
from poet_onnx.rewriting.source import Given, normalized

if TYPE_CHECKING:
    from poet_onnx.costing.measured import MeasuredCosts
    from poet_onnx.scheduling import Progress


@dataclass(frozen=True)
class RewriteResult:
    """A rewritten model and what is known about it.

    Attributes:
        model: the rewritten model.
        plan: what was carried out, with its certificate.
        graph: the training graph that was planned: the model as given, after normalization.
        costs: what the plan's figures are made of.
        original: what the simulator predicts of the nodes in the order of the file.
        ordered: the same after memory-aware ordering alone.
        rewritten: the same of the plan.
        region_bytes: of the memory that serves the plan's step, laid out; graph outputs are not in it.
        original_nodes: nodes of the model as given.
        original_process, ordered_process, process: what a training process takes that runs them.
        budget_bytes: the bound on what `budget_kind` names: "ram" bounds the process's peak, "activation" the transient
            peak.
        method: how the plan was made.
        is_given: the plan was made before; its certificate says what was proven then.
        frozen_batch_norms: what the batch normalizations make that use their running statistics in training, too.
        warnings: what could not be decided, a sentence each.
        train_graph: what was made of a forward model, with the parameters' values; None if a training graph was given.
            With an optimizer in the step its evaluation graph is planned, too, for the same region of memory.
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
    budget_bytes: int | None
    budget_kind: BudgetKind
    method: str
    is_given: bool
    frozen_batch_norms: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    train_graph: TrainGraph | None = None

    def save(
        self, path: str | os.PathLike[str], *, replace: bool = True, written: Written | None = None
    ) -> tuple[Path, ...]:
        """Write the model to a file, whole or not at all; what is external data stays external.

        What a forward model also gave goes beside it: of `net.onnx` the parameters to `net.safetensors` and the
        evaluation graph to `net.eval.onnx`. All of them are written or none.

        Args:
            path: of the model.
            replace: whether files of these names may be replaced.
            written: gets to know the files; by default those that are new are removed after an error.

        Returns:
            The files.

        Raises:
            InputError: if one cannot be written, or is there and must stay.
        """
        target = Path(path)
        beside = () if self.train_graph is None else files_beside(target)
        with contextlib.nullcontext(written) if written is not None else Written() as files:
            if self.train_graph is not None:
                self.train_graph.save_beside(target, replace=replace, written=files)
            save_model(self.model, target, replace=replace, written=files)
        return (target, *beside)


def rewrite(
    model_or_path: str | os.PathLike[str] | onnx.ModelProto | ir.Model,
    *,
    device: str | os.PathLike[str] | DeviceProfile,
    ram_budget: SupportsIndex | str | None = None,
    activation_budget: SupportsIndex | str | None = None,
    deadline: float | str | None = None,
    costs: MeasuredCosts | str | os.PathLike[str] | None = None,
    method: str = "poet",
    recompute: bool = True,
    paging: bool = True,
    split: bool = True,
    gap: float = 0.01,
    time_limit_seconds: float = 60.0,
    seed: int = 0,
    plan: Plan | str | os.PathLike[str] | None = None,
    known_plans: Sequence[Plan | str | os.PathLike[str]] = (),
    progress: Callable[[Progress], None] | None = None,
    dims: Mapping[str, int] | None = None,
    target: str = "training",
    frozen_batch_norm: str = "auto",
    threads: int = 1,
    python: str | None = None,
    optimizer: str | None = None,
    accumulation_steps: int = 1,
    clip_norm: bool = False,
    loss: str | None = None,
    train: str | Sequence[str] | None = None,
    freeze: str | Sequence[str] = (),
    ignore_index: int | None = None,
    label_smoothing: float = 0.0,
    class_weights: ClassWeights | None = None,
    lora: Lora | str | None = None,
    max_written: SupportsIndex | str | None = None,
    lifetime: SupportsIndex | str | None = None,
) -> RewriteResult:
    """Rewrite a training graph so that its step keeps to a budget on a device, for the least energy.

    The rewritten graph computes the same bits. The model given is not changed. With a loss it is a forward model, of
    which a training graph is made first.

    Args:
        model_or_path: the training graph, or the forward model: a file or a model in memory.
        device: a profile, its name or its TOML file.
        ram_budget: bound on what the whole training process takes, Python included: bytes, or text such as "256MiB".
            Default: the device's RAM.
        activation_budget: bound on the transient peak instead: bytes, text, or a percentage of the transient peak after
            ordering, such as "75%"; for the stock runtime of that and of what its budgets set aside for aarch64.
        deadline: bound on the predicted time of a step: seconds, or text such as "250ms" or "1.3x" (of the time that
            computing alone takes). Default none.
        costs: measured costs, or the file of a profile, in place of modelled ones.
        method: how to plan: "poet", "poet-recompute" and "poet-paging" without one of its means, or a published method,
            such as "dtr" or "checkmate", which knows nothing of energy; docs/benchmarks.md has them all.
        recompute: whether the plan may run nodes again.
        paging: whether the plan may move values to storage and back.
        split: whether large weight gradients may be computed in parts, where whole ones do not fit or cost more.
        gap: how close to the least energy the plan must be proven to be.
        time_limit_seconds: for the solver; the best plan found by then is used.
        seed: of the solver.
        plan: a plan made before for this model, or its file: carried out without a solver. Budget and deadline are then
            the plan's own.
        known_plans: plans made before for this model and device, or their files: the answer spends no more energy than
            one of them that keeps the limits asked for. So, with what was planned for smaller budgets, a larger one
            never costs more.
        progress: called while the solver works.
        dims: sizes of named dynamic dimensions.
        target: runtime that will run the model: "training" is onnxruntime-training, "stock" the plain onnxruntime,
            for which operators that only train are lowered to others.
        frozen_batch_norm: batch normalizations that use their running statistics and never move them, as torch's in
            eval mode: "auto" are those of which the model, or the eval_model.onnx beside its file, tells; "all";
            "none"; or patterns of names of nodes or parameters with commas between them, such as "layer1.*,bn1.*".
        threads: threads inside an operator that the model will run with; each may need workspace of its own.
        python: version of Python that the model will train with, such as "3.11", which tells what the process takes
            besides the step. Default: the one that takes the most of those that the device's profile knows; for device
            "host" the one that runs now.
        optimizer: what updates the parameters within the step, with what it keeps for each of them: "sgd", "momentum",
            "adam" or "adamw", which compute what torch's do, or "adamw-ort", ONNX Runtime's own variant of AdamW.
            "none" leaves gradients to be collected, for ONNX Runtime's own optimizer. Default "adamw" for the stock
            runtime, "none" for onnxruntime-training. Learning rate and other settings are `TrainingSession`'s.
        accumulation_steps: batches whose gradients are averaged for one update; more than 1 needs a buffer for each.
        clip_norm: whether the session may bound the norm of all gradients together, which needs a buffer for each.
        loss: says that the model is a forward model, and what is minimized, as for `train_graph`.
        train: patterns of names of a forward model's parameters that are trained; default all that lead to the loss.
        freeze: patterns of names of those that are not.
        ignore_index: a label that does not count.
        label_smoothing: what of a label is shared among all classes.
        class_weights: by which a sample counts, one for each class: numbers, or a text or file of them.
        lora: low-rank adapters beside the forward model's weights, which stay as they are, as for `train_graph`.
        max_written: bound on what a step writes to storage, for flash wears out: bytes, or text such as "20MiB".
        lifetime: steps that the storage must endure instead, as a number or text such as "100000steps".

    Raises:
        InputError: if an argument or the model cannot be used.
        InfeasibleError: if no plan keeps to the limits.
        LimitReachedError: if the time limit came before any plan was found.
        CheckFailedError: if a check of ours did not hold.
    """
    options = dict(locals())  # all of them are read_request's, but for the model
    del options["model_or_path"]
    request = read_request(**options)
    given = Given.read(
        model_or_path,
        gradients=request.gradients,
        target=request.target,
        dims=request.dims,
        frozen_batch_norm=request.frozen_batch_norm,
    )
    settled = replace(request, dims=given.dims, frozen_batch_norm=given.frozen_batch_norm)
    made = given.train_graph
    with own_errors():
        result = _rewritten(given.model, settled, given.forward, made)
    warnings = (*(() if made is None else made.warnings), *result.warnings)
    return replace(result, warnings=warnings)


def pipeline(**options: Any) -> InPlacePass:
    """Return `rewrite` as one `onnx_ir` pass for an export pipeline; it changes the model in place.

    Args:
        options: the keyword arguments of `rewrite`.

    Raises:
        InputError: if an option cannot be used. What is wrong with a model is raised when the pass runs, as the cause
            of an `onnx_ir.passes.PassError`.
    """
    request = read_request(**options)
    if request.gradients is not None:
        raise InputError("A pass returns no values of parameters: give a forward model with its loss to `rewrite`.")
    return _Rewrite(request)


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
    if VERSION_KEY in model.metadata_props or any(node.domain == DOMAIN for node in model.graph):
        raise InputError("The model was rewritten by poet-onnx already: give the model that it was made from.")
    warnings: list[str] = []

    def warn(sentence: str) -> None:
        warnings.append(sentence)
        warn_user(sentence)

    source = normalized(
        model,
        target=request.target,
        dims=request.dims,
        frozen_batch_norm=request.frozen_batch_norm,
        forward=forward,
        warn=warn,
    )
    WriteInputRanges()(source.model)
    updates = request.optimizer.for_model(source.model, warn)
    evaluated = None if updates is None else made
    evaluation = EvaluationStep.beside(evaluated, source.model, request.device, request.target, request.threads)
    answer = answer_of(source.model, request, updates, evaluation)
    region_bytes, evaluation = answer.placement.region.region_bytes, answer.asked.evaluation
    if made is not None and evaluation is not None:
        region_bytes = max(region_bytes, evaluation.region.region_bytes)
        made = replace(made, evaluation=evaluation.carried_out(region_bytes))
    _carry_out(answer, region_bytes)
    asked, baseline, process = answer.asked, answer.baseline, answer.asked.budget.process
    return RewriteResult(
        model=baseline.variant.model,
        plan=answer.plan,
        graph=baseline.graph,
        costs=baseline.costs,
        original=asked.original,
        ordered=asked.ordered,
        rewritten=answer.plan.prediction,
        region_bytes=answer.placement.region.region_bytes,
        original_process=process.of_order(asked.first.graph, asked.original),
        ordered_process=answer.ordered_process,
        process=answer.placement.memory,
        original_nodes=source.node_count,
        budget_bytes=asked.budget.bound_bytes,
        budget_kind=request.budget_kind,
        method=request.method,
        is_given=request.plan is not None,
        frozen_batch_norms=source.frozen_batch_norms,
        warnings=tuple(warnings),
        train_graph=made,
    )


def _carry_out(answer: Answer, region_bytes: int) -> None:
    """Write a plan into the model of its graph variant.

    Args:
        answer: with the plan.
        region_bytes: of the region that it shares with the evaluation.
    """
    baseline, placement, request = answer.baseline, answer.placement, answer.asked.request
    Sequential(
        AnnotateCosts(baseline.costs),
        MaterializePlan(baseline.graph, placement.layout),
        InsertArena(replace(placement.region, region_bytes=region_bytes)),
        RemoveUnread(),
        WriteMetadata(
            baseline.graph,
            answer.plan,
            version=version("poet-onnx"),
            target=request.target,
            dims=request.dims,
            threads=request.threads,
            process={line.name: line.size_bytes for line in placement.memory.parts},
            ram_budget_bytes=answer.asked.budget.bound_bytes if request.budget_kind == "ram" else None,
        ),
    )(baseline.variant.model)
