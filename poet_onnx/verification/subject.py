"""What is verified: both models, made alike, with the feeds and first contents of their steps."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from poet_onnx.description.metadata import Description
from poet_onnx.description.names import TRAINING_KEY
from poet_onnx.errors import InputError
from poet_onnx.graph import Role, TrainingGraph
from poet_onnx.graph.extract import check_training, extract
from poet_onnx.passes.batch_norm_modes import settle_alike
from poet_onnx.passes.gathers import SumGathersInOrder
from poet_onnx.passes.lowering import normalize_for, prepare
from poet_onnx.passes.lowering.opset import DeclareKnownOpset
from poet_onnx.passes.metadata import PLAN_KEY, read_settings
from poet_onnx.passes.normalize import FixDims, InlineFunctions, Normalization, PinSeeds
from poet_onnx.passes.quantized.panels import has_blocks
from poet_onnx.passes.split import SplitWeightGradients
from poet_onnx.passes.stored import StoreChoice
from poet_onnx.passes.stored_panels import has_panels
from poet_onnx.passes.updates import WriteUpdates
from poet_onnx.plan import Plan, serialization
from poet_onnx.plan.serialization import PlanFile
from poet_onnx.rewriting.optimizer_choice import in_words
from poet_onnx.rewriting.variants import panels_here, quantized_panels, variant_of
from poet_onnx.runtime.feeds import random_feeds
from poet_onnx.verification.sessions import Conditions
from poet_onnx.verification.stored import as_constants, constants_in

Array = npt.NDArray[np.generic]

_SHOWN_LETTERS = 40


@dataclass(frozen=True)
class Subject:
    """What is verified: both models, the graph and the plan.

    Attributes:
        graph: that was planned.
        resident: the same with all in RAM, whose inputs both models have.
        constants: that the rewritten model reads from a store, by name.
        expected: what the original says of its training, with the same optimizer in its step.
        problems: what the rewritten file says otherwise of it.
    """

    original: ir.Model
    rewritten: ir.Model
    graph: TrainingGraph
    resident: TrainingGraph
    plan: Plan
    constants: Mapping[str, Array]
    state: tuple[str, ...]
    seeds_pinned: bool
    conditions: Conditions
    seed: int
    expected: Description | None
    problems: tuple[str, ...]


def make_subject(
    original: ir.Model,
    rewritten: ir.Model,
    threads: int | None,
    page_dir: str | os.PathLike[str] | None,
    seed: int,
) -> Subject:
    """Make the original such as the rewritten model says that it was: settled, lowered, with the same optimizer.

    Args:
        original: the model before the rewrite; it is changed.
        rewritten: the model after it.
        threads: inside an operator; default those that the model was planned for.
        page_dir: of the page file.
        seed: of the random feeds.

    Raises:
        InputError: if the models cannot be verified.
    """
    text = rewritten.metadata_props.get(PLAN_KEY)
    if text is None:
        raise InputError("The second model holds no plan: give the original and the model that poet-onnx made of it.")
    if PLAN_KEY in original.metadata_props:
        raise InputError("The first model was rewritten by poet-onnx: give the model that it was made from.")
    check_training(original)
    settle_alike(original, rewritten)
    settings = read_settings(rewritten)
    described = Description.of_metadata(rewritten.metadata_props)
    normalized = original.clone()
    file = serialization.parse(text)
    planned, constants = None, dict[str, Array]()
    if described is not None and described.has_store:
        constants = constants_in(original, described)
        planned = _with_store(original, rewritten, file, described, constants)
    prepare(
        target=settings.target,
        dims=settings.dims or None,
        threads=settings.threads,
    )(normalized)
    if settings.target == "training":
        fix = [FixDims(settings.dims)] if settings.dims else []
        # The runtime's own sums of rows are no two times alike on several threads.
        repeatable = [SumGathersInOrder()] if (threads or settings.threads) > 1 else []
        Normalization(InlineFunctions(), *fix, DeclareKnownOpset(settings.target), *repeatable)(original)
    else:
        original = normalized.clone()
    if file.part_bytes is not None:
        SplitWeightGradients(file.part_bytes, threads=settings.threads)(normalized)
    seeds_pinned = Normalization(PinSeeds())(original).modified
    if described is not None:
        for model in (normalized, original):
            Normalization(WriteUpdates(described.updates, kept=described.buffers))(model)
    resident = extract(normalized)
    if planned is None and has_blocks(normalized.graph):
        planned = normalized.clone()
        quantized_panels(settings.threads)(planned)
    planned = normalized if planned is None else planned
    graph = resident if planned is normalized else extract(planned)
    expected = Description.of_metadata(planned.metadata_props)
    return Subject(
        original=original,
        rewritten=rewritten,
        graph=graph,
        resident=resident,
        constants=constants,
        plan=serialization.from_json(text, graph),
        state=tuple(dict.fromkeys(name for node in resident.nodes for name in node.updates)),
        seeds_pinned=seeds_pinned,
        conditions=Conditions(threads or settings.threads, None if page_dir is None else os.fspath(page_dir)),
        seed=seed,
        expected=expected,
        problems=_false_descriptions(described, expected, file.optimizer),
    )


def _with_store(
    original: ir.Model, rewritten: ir.Model, file: PlanFile, described: Description, constants: Mapping[str, Array]
) -> ir.Model:
    """Return the original as it was planned, with what lives in a store there.

    Raises:
        InputError: if that cannot be.
    """
    settings = read_settings(rewritten)
    if settings.target != "stock":
        raise InputError("The second model has a store, and is not for the stock runtime: rewrite the original again.")
    model = original.clone()
    normalize_for(settings.target, settings.dims or None, threads=settings.threads)(model)
    choice = StoreChoice(as_constants(constants), frozenset((*described.stored, *described.constants)))
    panels = panels_here(settings.threads) if any(map(has_panels, rewritten.graph)) else None
    options = (file.part_bytes, file.stored)
    threads = settings.threads
    return variant_of(model, settings.target, options, described.updates, choice, panels=panels, threads=threads).model


def _false_descriptions(said: Description | None, expected: Description | None, planned: str) -> tuple[str, ...]:
    """Return a sentence for whatever a file says of its training otherwise than the original, or than its plan."""
    found = [] if said == expected else [f"The file's {TRAINING_KEY} is of another model."]
    optimizer = in_words(None if said is None else said.updates)
    if planned != optimizer:
        found.append(
            f"The file's plan is for the optimizer {planned[:_SHOWN_LETTERS]!r}, and the file has {optimizer!r}."
        )
    return tuple(found)


def initial_state(subject: Subject) -> dict[str, Array]:
    """Return contents for what the model updates: the initializers' own, random for inputs."""
    initializers = subject.original.graph.initializers
    feeds = random_feeds(subject.resident, subject.seed)
    state = {}
    for name in subject.state:
        tensor = initializers[name].const_value if name in initializers else None
        state[name] = feeds[name] if tensor is None else tensor.numpy()
    return state | {name: array for name, array in _statistics(subject).items() if name in state}


def _statistics(subject: Subject) -> dict[str, Array]:
    """Return the statistics that were the original's initializers and are inputs now."""
    state = {} if subject.expected is None else subject.expected.state
    return {name: each.array for name, each in state.items()}


def feeds_of(subject: Subject, step: int) -> dict[str, Array]:
    """Return random inputs of a step; accumulators add to what is there in even steps and start anew in odd ones."""
    feeds = random_feeds(subject.resident, subject.seed + step) | _statistics(subject)
    for name, array in feeds.items():
        role = subject.resident.tensors[name].role
        if role is Role.FLAG:
            array[...] = step % 2 == 1
        elif role is Role.RUNS:
            array[...] = step
    return feeds
