"""What people read of checks and measurements: a verification, a training process that ran, a profile."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import rich.box
from rich.table import Table

from poet_onnx.cli.tables import plain_table
from poet_onnx.reporting.figures import bytes_text, scaled_text

if TYPE_CHECKING:
    from poet_onnx.costing.measured import MeasuredCosts
    from poet_onnx.verification import EnergyRun, ProcessRun, VerificationReport


def verification_parts(report: VerificationReport) -> Iterator[str | Table]:
    """Yield what a verification found: each check with its figures, then every problem."""
    budget = "" if report.budget_bytes is None else f", budget {report.budget_bytes:,} B"
    compared = (
        f"{report.outputs_compared} outputs and {report.buffers_compared} updated buffers, {report.steps} steps, "
        f"{bytes_text(report.bytes_compared)}"
    )
    rows = [
        ["same bits", _verdict(report.bits_equal), compared],
        ["order as in the file", _verdict(report.order_exact), f"{report.executed_nodes} nodes executed"],
        ["plan carried out", _verdict(report.plan_carried_out), f"{report.recomputed_nodes} nodes recomputed"],
        ["metadata as the plan", _verdict(report.metadata_true), "energy, time and bound are the plan's own words"],
        [
            "transient peak",
            "",
            f"{report.measured_transient_peak_bytes:,} B measured, {report.predicted_transient_peak_bytes:,} B "
            f"predicted{budget}; {report.original_transient_peak_bytes:,} B in the original",
        ],
    ]
    if report.optimized is not None:
        alive = f"{report.optimized.recomputed_nodes_alive} recomputed nodes ran"
        rows.append(["same bits, optimized", _verdict(report.optimized.bits_equal), alive])
    if report.energy is not None:
        rows.append(["energy of a step", "", _energy_text(report.energy, report.device)])
    table = Table(box=rich.box.SIMPLE_HEAD, pad_edge=False)
    for heading in (f"on {report.runtime}", "", "compared"):
        table.add_column(heading, overflow="fold")
    for row in rows:
        table.add_row(*row)
    yield table
    yield from (f"problem: {problem}" for problem in report.problems)
    yield "verified: nothing is wrong" if report.passed else "not verified"


def _energy_text(energy: EnergyRun, device: str) -> str:
    """Return what was measured of both models, and what the plan says."""
    counted = "rest included" if energy.counts_rest else f"above {scaled_text(energy.rest_watts, 'W')} at rest"
    return (
        f"{_with_error(energy.rewritten_joules, energy.rewritten_error_joules)} measured by {energy.meter}, {counted}; "
        f"the plan for {device} says {scaled_text(energy.planned_joules, 'J')} ({energy.planned_origin}); "
        f"{_with_error(energy.original_joules, energy.original_error_joules)} in the original (measured)"
    )


def _with_error(joules: float, error_joules: float) -> str:
    return f"{scaled_text(joules, 'J')} +- {scaled_text(error_joules, 'J')}"


def check_lines(report: VerificationReport) -> Iterator[str]:
    """Yield what a verification found that found nothing wrong, without its figures."""
    peak, said = report.measured_transient_peak_bytes, report.predicted_transient_peak_bytes
    yield (
        f"checked: in {report.steps} step{'' if report.steps == 1 else 's'} {report.outputs_compared} outputs and "
        f"{report.buffers_compared} updated buffers have the original's bits; besides parameters and batch the step "
        f"held {bytes_text(peak)}, {bytes_text(said)} predicted"
    )


def process_run_lines(run: ProcessRun) -> Iterator[str]:
    """Yield what a training process took: the problems last, and the peak beside what was promised."""
    if run.load_peak_bytes is not None and run.step_seconds is not None:
        yield (
            f"on {run.runtime}: {bytes_text(run.load_peak_bytes)} at most until all was loaded, "
            f"{scaled_text(run.step_seconds, 's')} a step"
        )
    yield from (f"problem: {problem}" for problem in run.problems)
    if run.measured_bytes is not None:
        promised = (
            ""
            if not run.predicted_bytes
            else (
                f", {bytes_text(run.predicted_bytes)} predicted "
                f"({(run.measured_bytes - run.predicted_bytes) / run.predicted_bytes:+.1%})"
            )
        )
        budget = (
            "no budget"
            if run.budget_bytes is None
            else (f"budget {bytes_text(run.budget_bytes)}, its limit by {run.limit}")
        )
        besides = (
            f", and {bytes_text(run.unplanned_bytes)} of an optimizer outside the plan" if run.unplanned_bytes else ""
        )
        measured = f"{bytes_text(run.measured_bytes)} measured"
        done = f"{run.steps} steps{' and an evaluation' if run.has_evaluated else ''}"
        yield f"process peak of {done}: {measured}{promised}{besides}; {budget}"


def _verdict(good: bool) -> str:
    return "yes" if good else "NO"


def measured_parts(measured: MeasuredCosts) -> Iterator[str | Table]:
    """Yield what a profile measured: the step, its slowest nodes, the storage and the power."""
    slowest = sorted(measured.nodes.items(), key=lambda item: -item[1].seconds)[:10]
    rows = [
        [name, scaled_text(node.seconds, "s"), bytes_text(node.workspace_bytes), bytes_text(node.output_bytes)]
        for name, node in slowest
    ]
    headings = ["slowest nodes", "time (measured)", "workspace", "outputs"]
    if any(node.active_watts is not None for node in measured.nodes.values()):
        headings.append("energy (measured)")
        for row, (_, node) in zip(rows, slowest, strict=True):
            row.append("" if node.active_watts is None else scaled_text(node.active_watts * node.seconds, "J"))
    yield plain_table(headings, rows)
    yield (
        f"step: {scaled_text(measured.step_seconds, 's')} measured, {len(measured.nodes)} nodes, "
        f"{measured.repetitions} repetitions, {measured.threads} thread(s), {measured.runtime}, {measured.machine}"
    )
    conditions = () if measured.conditions is None else tuple(measured.conditions.parts())
    if conditions:
        yield f"conditions: {', '.join(conditions)}"
    if measured.operators:
        fitted = measured.fitted_nodes
        yield (
            f"by node: {len(measured.operators)} different operators are known, each measured alone; the step is their "
            f"sum; {len(fitted)} nodes could not run alone and are fitted"
            + (f", such as {fitted[0]}" if fitted else "")
        )
    if measured.variants:
        nodes = sum(len(variant) for variant in measured.variants.values())
        yield (
            f"measured besides: {nodes} nodes of {len(measured.variants)} other variants of the graph, such as "
            "gradients in parts, which small budgets may need"
        )
    if measured.process is not None:
        yield (
            f"process: {bytes_text(measured.process.runtime_bytes)} once all is imported, a session "
            f"{bytes_text(measured.process.session_bytes)} besides its nodes and values"
        )
    storage = measured.storage
    if storage is not None:
        yield (
            f"storage ({storage.method}): out {bytes_text(int(storage.page_out_bytes_per_second))}/s after "
            f"{scaled_text(storage.page_out_latency_seconds, 's')}, "
            f"in {bytes_text(int(storage.page_in_bytes_per_second))}/s after "
            f"{scaled_text(storage.page_in_latency_seconds, 's')}"
            + ("" if storage.watts is None else f", {scaled_text(storage.watts, 'W')} above idle meanwhile (measured)")
        )
        if storage.store is not None:
            yield (
                f"a store there: writes {bytes_text(int(storage.store.write_bytes_per_second))}/s, reads "
                f"{bytes_text(int(storage.store.read_bytes_per_second))}/s, and commits in "
                f"{scaled_text(storage.store.commit_seconds, 's')}"
            )
    if measured.operators:
        yield "power: not measured by node; energy is modelled from the device's watts"
    elif measured.active_watts is None:
        yield "power: no meter is readable here; energy is modelled from the device's watts"
    else:
        idle = "" if measured.idle_watts is None else f", {scaled_text(measured.idle_watts, 'W')} idle"
        by = f" by {measured.meter}" if measured.meter else ""
        yield f"power: {scaled_text(measured.active_watts, 'W')} above idle{idle} (measured{by})"
