"""What people read first of a rewrite or an inspection: the verdict, then bars. No word of it needs the glossary."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from poet_onnx.cli.bars import Bars
from poet_onnx.cli.tables import curve_table, estimate_lines, frozen_lines, plain_lines, plans_table
from poet_onnx.reporting import words
from poet_onnx.reporting.figures import LEAST_SHARE, bytes_text, percent_text

if TYPE_CHECKING:
    from rich.table import Table

    from poet_onnx.reporting.inspection import Inspection
    from poet_onnx.reporting.measured import Measured
    from poet_onnx.reporting.report import ProcessPart, Report
    from poet_onnx.rewriting.rewrite import RewriteResult

_PROCESS = "RAM of the training process"
_STEP = "What the step holds besides parameters and batch"
_TENSORS = 6
_SMALL = 0.01
"""Parts of a process that are less of it than this are one bar."""
_NAMES = {
    "runtime": "Python, numpy and onnxruntime",
    "session": "the session's own",
    "moments": "what the optimizer keeps",
    "batch": "batches",
    "region": "activations, gradients, scratch memory",
    "store": "on the way to the store and back",
    "paging": "on the way to storage and back",
}
_ENDS = {"time_limit": "; the search ended at its time limit", "interrupted": "; the search was interrupted"}


def rewrite_summary(result: RewriteResult, report: Report, measured: Measured | None) -> Iterator[str | Bars | Table]:
    """Yield whether it fits, by how much and at what price, then where the bytes are.

    Args:
        result: of the rewrite.
        report: that was made of it.
        measured: what a check measured; None without one.
    """
    is_ram = report.budget_kind == "ram"
    asked = words.Asked(report.process_peak_bytes, report.budget_bytes, is_ram)
    yield words.room(asked, result.rewritten, measured)
    yield words.price(result.rewritten, result.original, stored=report.store is not None)
    yield ""
    versions = (("as it was given", report.original), ("in a better order", report.ordered), ("rewritten", report))
    yield Bars(
        _PROCESS if is_ram else _STEP,
        [(name, each.process_peak_bytes if is_ram else each.transient_peak_bytes) for name, each in versions],
        report.budget_bytes,
    )
    yield ""
    yield _process_bars(f"{_PROCESS}: {bytes_text(report.process_peak_bytes)} at most", report.process)
    yield ""
    if report.plans:
        yield plans_table(report.plans)
        yield ""
    yield from plain_lines(report)
    yield from _proof_line(report)
    time = "modelled" if report.time_origin == "modelled" else "from measured nodes"
    yield f"bytes are exact; time is {time}, energy {report.energy_origin}"


def _proof_line(report: Report) -> Iterator[str]:
    """Yield how much energy another plan could save, if a solver has proven that."""
    if report.status in ("not_needed", "other_costs"):
        return
    by = "proven" if report.certificate_origin == "proven" else "so says the plan that was given, not proven here"
    ends = _ENDS.get(report.status, "")
    most = percent_text(max(report.gap, LEAST_SHARE))
    yield f"another plan could save at most {most} of the energy ({by}; -v says of which plans{ends})"


def inspection_summary(inspection: Inspection) -> Iterator[str | Bars | Table]:
    """Yield whether a step fits the device as it is, and into how little it can be made to fit, then what fills it."""
    needs, ram = inspection.ordered.process_peak_bytes, inspection.ram_bytes
    least = inspection.smallest_process_bytes
    takes = (
        f"the training process takes {bytes_text(needs)} at most with each node run once, in the best order found; "
        f"{inspection.device} has {bytes_text(ram)}"
    )
    yield f"It fits: {takes}." if needs <= ram else f"It does not fit as it is: {takes}."
    if least <= ram:
        yield (
            f"It can be made to fit {bytes_text(least)} (--ram-budget {least}), the least that was found to work with "
            "all parameters in RAM; `poet-onnx rewrite` says at what price."
        )
    else:
        yield (
            f"The least that was found to work with all parameters in RAM is {bytes_text(least)} "
            f"(--ram-budget {least}), more than it has."
        )
    yield ""
    rows = [
        ("as it was given", inspection.original.process_peak_bytes),
        ("in a better order", needs),
        ("at the smallest budget found", least),
    ]
    yield Bars(_PROCESS, rows, ram, f"that of {inspection.device}")
    yield ""
    yield _process_bars(f"{_PROCESS}, in the better order: {bytes_text(needs)} at most", inspection.process)
    yield ""
    yield _tensor_bars(inspection)
    if inspection.curve:
        yield curve_table(inspection.curve)
    yield ""
    yield from estimate_lines(inspection.estimated_workspace_nodes)
    yield from frozen_lines(inspection.frozen_batch_norms)


def _process_bars(title: str, parts: Sequence[ProcessPart]) -> Bars:
    whole = sum(part.size_bytes for part in parts)
    rows = [(_NAMES.get(part.name, part.name), part.size_bytes) for part in parts if part.size_bytes >= _SMALL * whole]
    rest = whole - sum(size_bytes for _, size_bytes in rows)
    return Bars(title, [*rows, *([("the rest", rest)] if rest else [])])


def _tensor_bars(inspection: Inspection) -> Bars:
    """Return what is in memory when the step needs the most."""
    peak = inspection.ordered
    rows = [(tensor.name, tensor.size_bytes) for tensor in peak.peak_tensors[:_TENSORS]]
    others = peak.peak_tensor_count - len(rows)
    scratch = peak.peak_workspace_bytes
    rest = peak.transient_peak_bytes - scratch - sum(size_bytes for _, size_bytes in rows)
    rows += [(f"{others} smaller tensors", rest)] if others > 0 and rest > 0 else []
    rows += [(f"scratch memory of {peak.peak_op_type}", scratch)] if scratch else []
    title = f"The step's fullest moment, at node '{peak.peak_node}': {bytes_text(peak.transient_peak_bytes)}"
    return Bars(title, rows)
