"""What is verified: both models, made alike, with the feeds and first contents of their steps."""

from __future__ import annotations

import os
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from poet_onnx.description.metadata import TRAINING_KEY, Description
from poet_onnx.errors import InputError
from poet_onnx.graph import Role, TrainingGraph
from poet_onnx.graph.extract import check_training, extract
from poet_onnx.passes.batch_norm_modes import settle_alike
from poet_onnx.passes.lowering import prepare
from poet_onnx.passes.lowering.opset import DeclareKnownOpset
from poet_onnx.passes.metadata import PLAN_KEY, read_settings
from poet_onnx.passes.normalize import FixDims, InlineFunctions, Normalization, PinSeeds
from poet_onnx.passes.split import SplitWeightGradients
from poet_onnx.passes.updates import WriteUpdates
from poet_onnx.plan import Plan, serialization
from poet_onnx.rewriting.optimizer_choice import in_words
from poet_onnx.runtime.feeds import random_feeds
from poet_onnx.verification.sessions import Conditions

Array = npt.NDArray[np.generic]

_SHOWN_LETTERS = 40


@dataclass(frozen=True)
class Subject:
    """What is verified: both models, the graph and the plan.

    Attributes:
        expected: what the original says of its training, with the same optimizer in its step.
        problems: what the rewritten file says otherwise of it.
    """

    original: ir.Model
    rewritten: ir.Model
    graph: TrainingGraph
    plan: Plan
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
    if described is not None and described.has_store:
        raise InputError(
            "The second model keeps its parameters in a store, with which bits are not compared: verify what --store"
            " never makes of the original; verify --process measures this one."
        )
    normalized = original.clone()
    file = serialization.parse(text)
    prepare(target=settings.target, dims=settings.dims or None, expansions=file.expansions)(normalized)
    if settings.target == "training":
        fix = [FixDims(settings.dims)] if settings.dims else []
        Normalization(InlineFunctions(), *fix, DeclareKnownOpset(settings.target))(original)
    else:
        original = normalized.clone()
    if file.part_bytes is not None:
        SplitWeightGradients(file.part_bytes)(normalized)
    seeds_pinned = Normalization(PinSeeds())(original).modified
    if described is not None:
        for model, counts_runs in ((normalized, True), (original, False)):  # the original draws as the runtime does
            Normalization(WriteUpdates(described.updates, kept=described.buffers, counts_runs=counts_runs))(model)
    graph, expected = extract(normalized), Description.of_metadata(normalized.metadata_props)
    state = dict.fromkeys(name for node in graph.nodes for name in node.updates)
    return Subject(
        original=original,
        rewritten=rewritten,
        graph=graph,
        plan=serialization.from_json(text, graph),
        state=tuple(state),
        seeds_pinned=seeds_pinned,
        conditions=Conditions(threads or settings.threads, None if page_dir is None else os.fspath(page_dir)),
        seed=seed,
        expected=expected,
        problems=_false_descriptions(described, expected, file.optimizer),
    )


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
    feeds = random_feeds(subject.graph, subject.seed)
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
    feeds = random_feeds(subject.graph, subject.seed + step) | _statistics(subject)
    for name, array in feeds.items():
        role = subject.graph.tensors[name].role
        if role is Role.FLAG:
            array[...] = step % 2 == 1
        elif role is Role.RUNS:
            array[...] = step
    return feeds
