"""The checks of a verification, one after the other."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import numpy as np
import numpy.typing as npt
import onnx
import onnx_ir as ir

from poet_onnx.addresses.marks import marks
from poet_onnx.costing.workspace import has_workspace_rule
from poet_onnx.description.energy import PlannedEnergy
from poet_onnx.description.metadata import Description
from poet_onnx.description.names import RECOMPUTED, TRAINING_KEY
from poet_onnx.energy import open_meter
from poet_onnx.errors import CheckFailedError, InputError
from poet_onnx.graph.loading import as_model
from poet_onnx.passes.arena import read_region
from poet_onnx.passes.layout import nodes_of_plan
from poet_onnx.passes.materialize import check_materialized
from poet_onnx.plan import Action
from poet_onnx.quantities import check_whole
from poet_onnx.runtime import count_allocations, installed_runtime
from poet_onnx.runtime.directories import page_directory
from poet_onnx.verification.claims import false_claims
from poet_onnx.verification.compare import difference
from poet_onnx.verification.energy import measure_energy
from poet_onnx.verification.optimized import fused_copies
from poet_onnx.verification.report import Difference, EnergyRun, OptimizedRun, VerificationReport
from poet_onnx.verification.sessions import Conditions, ProfiledSession, Session
from poet_onnx.verification.stored import StoredTensors
from poet_onnx.verification.subject import Subject, feeds_of, initial_state, make_subject

PEAK_TOLERANCE = 0.002
"""Part of the predicted transient peak by which the measured one may differ."""

PEAK_TOLERANCE_BYTES = 64
"""The same in bytes, for graphs so small that a part of the peak is less than an allocation's rounding."""

SHOWN_DIFFERENCES = 10

_RECORDED_STEPS = 3
"""The first ones warm the session up."""

Array = npt.NDArray[np.generic]


def verify(
    original: str | os.PathLike[str] | onnx.ModelProto | ir.Model,
    rewritten: str | os.PathLike[str] | onnx.ModelProto | ir.Model,
    *,
    feeds: int = 3,
    threads: int | None = None,
    page_dir: str | os.PathLike[str] | None = None,
    budget_bytes: int | None = None,
    optimized: bool = False,
    seed: int = 0,
    profile_out: Path | None = None,
    meter: str | os.PathLike[str] | None = None,
) -> VerificationReport:
    """Run both models on the same random feeds and check that the rewritten one keeps every promise.

    Compared bit for bit: every output, every buffer that is updated in place and every tensor of a store, over
    consecutive training steps that start from the same random contents. Checked besides: the file carries out the plan
    in it, its metadata say what the plan says and the plan what its steps make, ONNX Runtime executes exactly the
    file's order, the allocator's transient peak is the predicted one and within the budget. Time and what is proven are
    not measured, and energy only if it is asked for.

    Args:
        original: the model before the rewrite.
        rewritten: the model that poet-onnx made of it.
        feeds: how many random feeds, one training step each.
        threads: inside an operator; default those that the model was planned for. Results of several threads are not
            reproducible for every operator.
        page_dir: existing directory for the page file.
        budget_bytes: bound on the transient peak; default the plan's.
        optimized: also run both under all of the runtime's optimizations, in its own order; that is none for a model
            with an optimizer in its step, whose parameters are read before they are updated by the file's order alone.
        seed: of the random feeds.
        profile_out: where ONNX Runtime's profile of some steps of the rewritten model goes, if nothing is wrong; the
            last one is warm. None to make none.
        meter: of energy, which is measured if nothing is wrong: "auto" for the machine's own, or the CSV file of an
            external one. None to measure none.

    Raises:
        InputError: if the models cannot be verified: not rewritten by poet-onnx, or not from this original.
    """
    check_whole(feeds, "number of feeds", 1)
    check_whole(seed, "seed", 0)
    if budget_bytes is not None:
        check_whole(budget_bytes, "budget", 1)
    rewritten = as_model(rewritten)
    if optimized and TRAINING_KEY in rewritten.metadata_props:
        raise InputError(
            "A model with an optimizer in its step keeps to the file's order, and the runtime's optimizations do not: "
            "verify it without them."
        )
    described = Description.of_metadata(rewritten.metadata_props)
    if meter is not None and described is not None and described.has_store:
        raise InputError("Energy of a model with a store is measured while it trains: use TrainingSession.energy.")
    if meter is not None:
        open_meter(meter).close()  # what is wrong with it is said before all else runs
    if page_dir is None and any(node.op_type.startswith("PageOut") for node in rewritten.graph):
        page_directory()  # else the first session says what is wrong with it, in the runtime's words
    subject = make_subject(as_model(original), rewritten, threads, page_dir, seed)
    bound = subject.plan.limits.budget_bytes if budget_bytes is None else budget_bytes
    false = [*subject.problems, *false_claims(subject.rewritten, subject.graph, subject.plan)]
    undone = _undone(subject)
    problems = [*false, *undone]
    runs, executed, misplaced, optimized_run, energy = _Runs(), 0, None, None, None
    try:
        runs = _run_both(subject, feeds)
        problems += runs.problems or _peak_problems(subject, runs.measured_bytes, bound)  # no peaks where bits differ
        executed, misplaced = _check_order(subject)
        problems += misplaced
        if optimized:
            optimized_run, lost = _check_optimized(subject)
            problems += lost
        if profile_out is not None and not problems:
            _record(subject, profile_out)
        if meter is not None and not problems:
            energy = _energy(subject, meter)
    except CheckFailedError as error:
        problems.append(str(error))
    runtime = installed_runtime()
    plan = subject.plan
    return VerificationReport(
        passed=not problems,
        problems=tuple(problems),
        runtime=f"{runtime.distribution} {runtime.version}",
        device=plan.device,
        fingerprint=plan.fingerprint,
        steps=feeds,
        threads=subject.conditions.threads,
        seeds_pinned=subject.seeds_pinned,
        outputs_compared=len(subject.graph.outputs),
        buffers_compared=len(subject.state),
        bytes_compared=runs.bytes_compared,
        bits_equal=runs.bytes_compared > 0 and not runs.differences,
        differences=runs.differences[:SHOWN_DIFFERENCES],
        executed_nodes=executed,
        order_exact=misplaced == [],
        metadata_true=not false,
        plan_carried_out=not undone,
        recomputed_nodes=plan.prediction.recomputed_nodes,
        predicted_transient_peak_bytes=plan.prediction.transient_peak_bytes,
        measured_transient_peak_bytes=runs.measured_bytes,
        original_transient_peak_bytes=runs.original_bytes,
        budget_bytes=bound,
        optimized=optimized_run,
        energy=energy,
    )


def _energy(subject: Subject, meter: str | os.PathLike[str]) -> EnergyRun:
    sessions = {
        "original": partial(_session, subject, subject.original, "original", subject.conditions),
        "rewritten": partial(_session, subject, subject.rewritten, "rewritten", subject.conditions),
    }
    planned = PlannedEnergy.of_metadata(subject.rewritten.metadata_props)
    return measure_energy(meter, planned, sessions, feeds_of(subject, 0))


def _undone(subject: Subject) -> list[str]:
    """Return what is wrong where the file's nodes are not those that the plan in it asks for."""
    try:
        region = read_region(subject.rewritten)
        told = {} if region is None else marks(region.steps)
        check_materialized(subject.rewritten, nodes_of_plan(subject.graph, subject.plan.steps, told))
    except CheckFailedError as error:
        return [f"The file does not carry out the plan in it: {error}"]
    return []


@dataclass(frozen=True)
class _Runs:
    """What some steps of both models made: how their bits compare, and the allocator's peaks."""

    problems: tuple[str, ...] = ()
    differences: tuple[Difference, ...] = ()
    bytes_compared: int = 0
    original_bytes: int = 0
    measured_bytes: int = 0


def _run_both(subject: Subject, feeds: int) -> _Runs:
    """Run both models for some steps, and compare everything after each."""
    found = _Runs()
    with contextlib.ExitStack() as stack:
        counter = stack.enter_context(count_allocations())
        original = stack.enter_context(_session(subject, subject.original, "original", subject.conditions))
        rewritten = stack.enter_context(_session(subject, subject.rewritten, "rewritten", subject.conditions))
        for step in range(max(feeds, 2)):  # the first step warms the sessions up, later ones are measured
            inputs = feeds_of(subject, step)
            peaks, results = [], []
            for session in (original, rewritten):
                binding = session.prepare(inputs)
                counter.reset_peak()
                session.run(binding)
                peaks.append(counter.transient_peak_bytes)
                results.append(session.read(binding))
            if step:
                original_bytes, measured_bytes = (
                    max(found.original_bytes, peaks[0]),
                    max(found.measured_bytes, peaks[1]),
                )
                found = replace(found, original_bytes=original_bytes, measured_bytes=measured_bytes)
            if step < feeds:
                found = _compared(found, step, *results)
            if found.differences:
                break
    return found


def _session(subject: Subject, model: ir.Model, role: str, conditions: Conditions) -> Session:
    stored = _stored(subject, conditions) if model is subject.rewritten else None
    session = Session(model, role, subject.state, conditions, stored=stored)
    session.start(initial_state(subject))
    return session


def _stored(subject: Subject, conditions: Conditions) -> StoredTensors | None:
    """Return a store of what the rewritten model has there; None if it has none."""
    described = Description.of_metadata(subject.rewritten.metadata_props)
    if described is None or not described.has_store:
        return None
    return StoredTensors(described, subject.constants, conditions.page_dir)


def _profiled_session(subject: Subject, conditions: Conditions) -> ProfiledSession:
    stored = _stored(subject, conditions)
    session = ProfiledSession(subject.rewritten, "rewritten", subject.state, conditions, stored=stored)
    session.start(initial_state(subject))
    return session


def _compared(runs: _Runs, step: int, original: Mapping[str, Array], rewritten: Mapping[str, Array]) -> _Runs:
    """Return what was found with what the results of one more step say."""
    problems = [f"The rewritten model has no output '{name}'." for name in original if name not in rewritten]
    pairs = {name: (expected, rewritten[name]) for name, expected in original.items() if name in rewritten}
    unequal = [found for name, pair in pairs.items() if (found := difference(name, step, *pair)) is not None]
    if unequal:
        also = f", and {len(unequal) - 1} more tensors differ" if len(unequal) > 1 else ""
        problems.append(f"Bits differ: {unequal[0]}{also}.")
    return replace(
        runs,
        problems=(*runs.problems, *problems),
        differences=(*runs.differences, *unequal),
        bytes_compared=runs.bytes_compared + sum(expected.nbytes for expected, _ in pairs.values()),
    )


def _peak_problems(subject: Subject, measured: int, budget_bytes: int | None) -> Iterator[str]:
    """Yield what the measured peak says against the predicted one and the budget."""
    predicted = subject.plan.prediction.transient_peak_bytes
    exact = all(has_workspace_rule(node) for node in subject.graph.nodes)  # otherwise the budget alone is a promise
    if exact and abs(measured - predicted) > max(PEAK_TOLERANCE * predicted, PEAK_TOLERANCE_BYTES):
        yield (
            f"The measured transient peak is {measured:,} bytes, {measured - predicted:+,} bytes "
            f"({(measured - predicted) / max(predicted, 1):+.2%}) from the predicted {predicted:,}."
        )
    if budget_bytes is not None and measured > budget_bytes:
        yield (
            f"The measured transient peak of {measured:,} bytes exceeds the budget of {budget_bytes:,} bytes "
            f"by {measured - budget_bytes:,}."
        )


def _check_order(subject: Subject) -> tuple[int, list[str]]:
    """Return how many nodes ran, and what is wrong where they are not the file's in the file's order."""
    with _profiled_session(subject, subject.conditions) as session:
        session.run(session.prepare(feeds_of(subject, 0)))
        executed = session.executed_nodes()
    expected = [node.name for node in subject.rewritten.graph]
    for index, ((ran, _), stands) in enumerate(zip(executed, expected, strict=False)):
        if ran != stands:
            return len(executed), [f"Node {index} to run was '{ran}', but the file has '{stands}' there."]
    if len(executed) != len(expected):
        return len(executed), [f"{len(executed)} nodes ran, but the file has {len(expected)}."]
    return len(executed), []


def _record(subject: Subject, profile_out: Path) -> None:
    """Write ONNX Runtime's profile of some steps of the rewritten model."""
    with _profiled_session(subject, subject.conditions) as session:
        for step in range(_RECORDED_STEPS):
            binding = session.prepare(feeds_of(subject, step))
            session.run(binding)
            session.read(binding)
        session.save_profile(profile_out)


def _check_optimized(subject: Subject) -> tuple[OptimizedRun, list[str]]:
    """Run both models under all optimizations: bits must be equal and recomputed nodes must run."""
    conditions = Conditions(subject.conditions.threads, subject.conditions.page_dir, optimized=True)
    with _session(subject, subject.original, "original", conditions) as session:
        binding = session.prepare(feeds_of(subject, 0))
        session.run(binding)
        expected = session.read(binding)
    with _profiled_session(subject, conditions) as session:
        binding = session.prepare(feeds_of(subject, 0))
        session.run(binding)
        found = session.read(binding)
        ran = {name for name, _ in session.executed_nodes()}
        optimized = session.optimized_nodes()
    unequal = [name for name in expected if name not in found or difference(name, 0, expected[name], found[name])]
    copies = [step for step in subject.plan.steps if step.action is Action.COMPUTE and step.copy]
    names = [f"{step.subject}{RECOMPUTED}{step.copy}" for step in copies]
    missing = [name for name in names if name not in ran]
    fused = fused_copies(subject.rewritten, optimized, missing, subject.graph.tensors.keys())
    lost = tuple(name for name in missing if name not in fused)
    problems = []
    if unequal:
        problems.append(f"Under all optimizations, '{unequal[0]}' and {len(unequal) - 1} more tensors differ.")
    if lost:
        problems.append(f"Under all optimizations, {len(lost)} recomputed nodes are lost, such as '{lost[0]}'.")
    run = OptimizedRun(
        bits_equal=not unequal,
        recomputed_nodes_alive=len(names) - len(lost),
        fused_nodes=tuple(sorted(fused)),
        lost_nodes=lost,
    )
    return run, problems
