"""The checks of a verification, one after the other."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Mapping

import numpy as np
import numpy.typing as npt
import onnx
import onnx_ir as ir

from poet_onnx.addresses.marks import marks
from poet_onnx.costing.workspace import has_workspace_rule
from poet_onnx.description.metadata import TRAINING_KEY
from poet_onnx.errors import CheckFailedError, InputError
from poet_onnx.graph.loading import as_model
from poet_onnx.passes.arena import read_region
from poet_onnx.passes.layout import nodes_of_plan
from poet_onnx.passes.materialize import check_materialized
from poet_onnx.plan import Action
from poet_onnx.quantities import check_whole
from poet_onnx.runtime import count_allocations, installed_runtime
from poet_onnx.verification.claims import false_claims
from poet_onnx.verification.compare import difference
from poet_onnx.verification.optimized import fused_copies
from poet_onnx.verification.report import OptimizedRun, VerificationReport
from poet_onnx.verification.sessions import Conditions, ProfiledSession, Session
from poet_onnx.verification.subject import Subject, feeds_of, initial_state, make_subject

PEAK_TOLERANCE = 0.002
"""Part of the predicted transient peak by which the measured one may differ."""

PEAK_TOLERANCE_BYTES = 64
"""The same in bytes, for graphs so small that a part of the peak is less than an allocation's rounding."""

SHOWN_DIFFERENCES = 10

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
) -> VerificationReport:
    """Run both models on the same random feeds and check that the rewritten one keeps every promise.

    Compared bit for bit: every output and every buffer that is updated in place, over consecutive training steps that
    start from the same random contents. Checked besides: the file carries out the plan in it, its metadata say what
    the plan says and the plan what its steps make, ONNX Runtime executes exactly the file's order, the allocator's
    transient peak is the predicted one and within the budget. Energy, time and what is proven of them are not measured.

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
    subject = make_subject(as_model(original), rewritten, threads, page_dir, seed)
    bound = subject.plan.limits.budget_bytes if budget_bytes is None else budget_bytes
    subject.problems += false_claims(subject.rewritten, subject.graph, subject.plan)
    metadata_true = not subject.problems
    carried_out = _check_plan(subject)
    executed, order_exact, optimized_run = 0, False, None
    try:
        _check_bits(subject, feeds)
        _check_peak(subject, bound)
        executed, order_exact = _check_order(subject)
        optimized_run = _check_optimized(subject) if optimized else None
    except CheckFailedError as error:
        subject.problems.append(str(error))
    runtime = installed_runtime()
    plan = subject.plan
    return VerificationReport(
        passed=not subject.problems,
        problems=tuple(subject.problems),
        runtime=f"{runtime.distribution} {runtime.version}",
        device=plan.device,
        fingerprint=plan.fingerprint,
        steps=feeds,
        threads=subject.conditions.threads,
        seeds_pinned=subject.seeds_pinned,
        outputs_compared=len(subject.graph.outputs),
        buffers_compared=len(subject.state),
        bytes_compared=subject.bytes_compared,
        bits_equal=subject.bytes_compared > 0 and not subject.differences,
        differences=tuple(subject.differences[:SHOWN_DIFFERENCES]),
        executed_nodes=executed,
        order_exact=order_exact,
        metadata_true=metadata_true,
        plan_carried_out=carried_out,
        recomputed_nodes=plan.prediction.recomputed_nodes,
        predicted_transient_peak_bytes=plan.prediction.transient_peak_bytes,
        measured_transient_peak_bytes=subject.measured_bytes,
        original_transient_peak_bytes=subject.original_bytes,
        budget_bytes=bound,
        optimized=optimized_run,
    )


def _check_plan(subject: Subject) -> bool:
    """Check that the file's nodes are those that the plan in it asks for."""
    try:
        region = read_region(subject.rewritten)
        told = {} if region is None else marks(region.steps)
        check_materialized(subject.rewritten, nodes_of_plan(subject.graph, subject.plan.steps, told))
    except CheckFailedError as error:
        subject.problems.append(f"The file does not carry out the plan in it: {error}")
        return False
    return True


def _check_bits(subject: Subject, feeds: int) -> None:
    """Run both models for some steps, compare everything after each, and note the allocator's peaks."""
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
                subject.original_bytes = max(subject.original_bytes, peaks[0])
                subject.measured_bytes = max(subject.measured_bytes, peaks[1])
            if step < feeds:
                _compare(subject, step, *results)
            if subject.differences:
                break


def _session(subject: Subject, model: ir.Model, role: str, conditions: Conditions) -> Session:
    session = Session(model, role, subject.state, conditions)
    session.start(initial_state(subject))
    return session


def _profiled_session(subject: Subject, conditions: Conditions) -> ProfiledSession:
    session = ProfiledSession(subject.rewritten, "rewritten", subject.state, conditions)
    session.start(initial_state(subject))
    return session


def _compare(subject: Subject, step: int, original: Mapping[str, Array], rewritten: Mapping[str, Array]) -> None:
    for name, expected in original.items():
        found = rewritten.get(name)
        if found is None:
            subject.problems.append(f"The rewritten model has no output '{name}'.")
            continue
        subject.bytes_compared += expected.nbytes
        unequal = difference(name, step, expected, found)
        if unequal is not None:
            subject.differences.append(unequal)
    if subject.differences:
        first, others = subject.differences[0], len(subject.differences) - 1
        also = f", and {others} more tensors differ" if others else ""
        subject.problems.append(f"Bits differ: {first}{also}.")


def _check_peak(subject: Subject, budget_bytes: int | None) -> None:
    measured, predicted = subject.measured_bytes, subject.plan.prediction.transient_peak_bytes
    exact = all(has_workspace_rule(node) for node in subject.graph.nodes)  # otherwise the budget alone is a promise
    if exact and abs(measured - predicted) > max(PEAK_TOLERANCE * predicted, PEAK_TOLERANCE_BYTES):
        subject.problems.append(
            f"The measured transient peak is {measured:,} bytes, {measured - predicted:+,} bytes "
            f"({(measured - predicted) / max(predicted, 1):+.2%}) from the predicted {predicted:,}."
        )
    if budget_bytes is not None and measured > budget_bytes:
        subject.problems.append(
            f"The measured transient peak of {measured:,} bytes exceeds the budget of {budget_bytes:,} bytes "
            f"by {measured - budget_bytes:,}."
        )


def _check_order(subject: Subject) -> tuple[int, bool]:
    """Check that the runtime executes the file's nodes in the file's order; return how many ran."""
    with _profiled_session(subject, subject.conditions) as session:
        session.run(session.prepare(feeds_of(subject, 0)))
        executed = session.executed_nodes()
    expected = [node.name for node in subject.rewritten.graph]
    for index, ((ran, _), stands) in enumerate(zip(executed, expected, strict=False)):
        if ran != stands:
            subject.problems.append(f"Node {index} to run was '{ran}', but the file has '{stands}' there.")
            return len(executed), False
    if len(executed) != len(expected):
        subject.problems.append(f"{len(executed)} nodes ran, but the file has {len(expected)}.")
    return len(executed), len(executed) == len(expected)


def _check_optimized(subject: Subject) -> OptimizedRun:
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
    names = [f"{step.subject}/recompute_{step.copy}" for step in copies]
    missing = [name for name in names if name not in ran]
    fused = fused_copies(subject.rewritten, optimized, missing, subject.graph.tensors.keys())
    lost = tuple(name for name in missing if name not in fused)
    if unequal:
        subject.problems.append(f"Under all optimizations, '{unequal[0]}' and {len(unequal) - 1} more tensors differ.")
    if lost:
        subject.problems.append(f"Under all optimizations, {len(lost)} recomputed nodes are lost, such as '{lost[0]}'.")
    return OptimizedRun(
        bits_equal=not unequal,
        recomputed_nodes_alive=len(names) - len(lost),
        fused_nodes=tuple(sorted(fused)),
        lost_nodes=lost,
    )
