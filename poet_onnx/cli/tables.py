"""What people read: figures with units, tables, and the progress line."""

from __future__ import annotations

import ctypes
import json
import math
import os
import sys
import time
import unicodedata
from collections.abc import Callable, Iterator, Sequence
from types import TracebackType
from typing import Any

import rich.box
from rich.console import Console
from rich.status import Status
from rich.table import Table
from rich.text import Text

from poet_onnx.device import DeviceProfile
from poet_onnx.inspection import Inspection
from poet_onnx.measured import MeasuredCosts
from poet_onnx.report import Figures, Report, Wear
from poet_onnx.scheduling import Progress
from poet_onnx.verify import VerificationReport

_PLAIN_WIDTH = 120
"""Columns of what is printed into a file or a pipe."""
_PLAIN_PROGRESS_SECONDS = 10.0
"""A file or a pipe gets a progress line this often."""
_SHOWN_NODES = 3
_COMMANDS = ("Cc", "Cf", "Cs", "Zl", "Zp")
"""Unicode's categories of control characters, formats such as the direction of writing, half characters, line ends."""
_PREFIXES = ((1.0, ""), (1e-3, "m"), (1e-6, "u"), (1e-9, "n"))


def make_console(*, stderr: bool = False) -> Console:
    """Return a console on stdout or stderr as it is now; NO_COLOR and pipes are respected."""
    stream = sys.stderr if stderr else sys.stdout
    width = None if stream.isatty() else _PLAIN_WIDTH
    return _Console(file=stream, width=width, markup=False, highlight=False, emoji=False)


def show(text: str | Table, *, stderr: bool = False) -> None:
    """Print a text or a table to stdout, or to stderr."""
    make_console(stderr=stderr).print(text, soft_wrap=isinstance(text, str))


def show_json(text: str) -> None:
    """Print JSON to stdout as it is, whatever the terminal; what would command one is escaped as JSON does it."""
    sys.stdout.write(printable(text.rstrip("\n"), lambda each: json.dumps(each)[1:-1]) + "\n")


def printable(text: str, escape: Callable[[str], str] = lambda each: each.encode("unicode_escape").decode()) -> str:
    """Return a text in which nothing commands a terminal: names and messages may come from anybody's file."""
    return "".join(escape(each) if each != "\n" and unicodedata.category(each) in _COMMANDS else each for each in text)


class _Console(Console):
    """A console that shows what texts have in them and obeys none of it."""

    def render_str(self, text: str, **options: Any) -> Text:
        """Return a text ready to be printed; every string in a table comes here too."""
        return super().render_str(printable(text), **options)


def bytes_text(count: int) -> str:
    """Return bytes in the binary unit that reads best."""
    size, units = float(count), ["B", "KiB", "MiB", "GiB", "TiB"]
    while abs(size) >= 1024 and len(units) > 1:
        size /= 1024
        units.pop(0)
    return f"{count} B" if units[0] == "B" else f"{size:.2f} {units[0]}"


def scaled_text(value: float, unit: str) -> str:
    """Return a number with four digits and the SI prefix that reads best."""
    if value == 0 or not math.isfinite(value):
        return f"{value:g} {unit}"
    if abs(value) >= 1e4:
        return f"{value:,.0f} {unit}"
    factor, prefix = next((pair for pair in _PREFIXES if abs(value) >= pair[0]), _PREFIXES[-1])
    return f"{value / factor:.4g} {prefix}{unit}"


def percent_text(fraction: float) -> str:
    """Return a fraction as a percentage with at most two decimals; never 0 for what is not."""
    return "under 0.01 %" if 0 < fraction < 1e-4 else f"{100 * fraction:.2f} %"


def duration_text(seconds: float) -> str:
    """Return a time that people plan with, in the unit that reads best."""
    units = ((365.25 * 86400, "years"), (86400.0, "days"), (3600.0, "hours"), (60.0, "minutes"))
    size, name = next((unit for unit in units if seconds >= 2 * unit[0]), (1.0, "seconds"))
    return f"{seconds / size:,.3g} {name}" if seconds / size < 1000 else f"{seconds / size:,.0f} {name}"


def plain_table(headings: Sequence[str], rows: Sequence[Sequence[str]], title: str | None = None) -> Table:
    """Return a table whose first column is text and whose others are figures."""
    table = Table(box=rich.box.SIMPLE_HEAD, title=title, title_justify="left", pad_edge=False)
    for index, heading in enumerate(headings):
        table.add_column(heading, justify="right" if index else "left", overflow="fold")
    for row in rows:
        table.add_row(*row)
    return table


def report_table(report: Report) -> Table:
    """Return the before/after table: the model as given, ordered, and rewritten."""
    columns: tuple[Figures, ...] = (report.original, report.ordered, report)
    rows = [
        ["step peak", *(bytes_text(c.step_peak_bytes) for c in columns)],
        ["  resident", *(bytes_text(c.resident_bytes) for c in columns)],
        ["  transient", *(bytes_text(c.transient_peak_bytes) for c in columns)],
        [f"energy ({report.energy_origin})", *(scaled_text(c.energy_joules, "J") for c in columns)],
        [
            f"time ({'modelled' if report.time_origin == 'modelled' else 'from measured nodes'})",
            *(scaled_text(c.seconds, "s") for c in columns),
        ],
        ["nodes", *(str(c.nodes) for c in columns)],
        ["recomputed nodes", *(str(c.recomputed_nodes) for c in columns)],
        ["paged out", *(bytes_text(c.page_out_bytes) for c in columns)],
        ["paged in", *(bytes_text(c.page_in_bytes) for c in columns)],
    ]
    return plain_table(["one training step", "original", "ordered", "rewritten"], rows)


def frozen_lines(frozen: Sequence[str]) -> list[str]:
    """Return what is to be said of frozen batch normalizations, if there are any."""
    if not frozen:
        return []
    which = "1 batch normalization is" if len(frozen) == 1 else f"{len(frozen)} batch normalizations are"
    return [f"{which} frozen: running statistics are used, and stay as they are"]


def report_lines(report: Report) -> list[str]:
    """Return what the table cannot say: budget, deadline, and what is proven."""
    lines = []
    if report.budget_bytes is not None:
        used = report.transient_peak_bytes if report.budget_kind == "activation" else report.step_peak_bytes
        what = "transient peak" if report.budget_kind == "activation" else "step peak"
        lines.append(f"budget: {bytes_text(report.budget_bytes)} ({what}); used: {bytes_text(used)}")
    lines += frozen_lines(report.frozen_batch_norms)
    if report.gradient_buffer_bytes:
        lines.append(f"gradient buffers: {bytes_text(report.gradient_buffer_bytes)} of what is resident")
    if report.deadline_seconds is not None:
        late = report.seconds > report.deadline_seconds * (1 + 1e-9)
        lines.append(
            f"deadline: {scaled_text(report.deadline_seconds, 's')}; predicted: {scaled_text(report.seconds, 's')}"
            + (" with these costs, so it is missed" if late else "")
        )
    lines += _estimate_lines(report.estimated_workspace_nodes)
    if report.part_bytes is not None:
        lines.append(f"weight gradients of more than {bytes_text(report.part_bytes)} are computed in parts")
    if report.wear is not None:
        lines.append(_wear_text(report.wear))
    if report.status == "not_needed":
        lines.append("the ordered step fits: nothing is recomputed and nothing is paged")
    elif report.status == "other_costs":
        lines.append(
            f"planned with other costs: energy {scaled_text(report.objective_joules, 'J')} with these; computing once "
            f"takes {scaled_text(report.bound_joules, 'J')}, and how near the least energy this is, is not known"
        )
    else:
        lines += _certificate_lines(report)
    return lines


def _certificate_lines(report: Report) -> Iterator[str]:
    """Yield what was proven of a plan that needed a solver, and whether that was here."""
    is_proven = report.certificate_origin == "proven"
    if not is_proven:
        yield "stated by the plan that was given, not proven here:"
    yield (
        f"{report.status}: energy {scaled_text(report.objective_joules, 'J')}, "
        f"{'proven ' if is_proven else ''}bound {scaled_text(report.bound_joules, 'J')}, "
        f"gap {percent_text(report.gap)} "
        f"({percent_text(report.overhead_gap)} of what is spent above computing once)"
    )
    yield f"the bound covers: {report.covers}"
    if report.wide_bound_joules < report.bound_joules:
        yield (f"of these, however they are formed, none spends less than {scaled_text(report.wide_bound_joules, 'J')}")
    yield f"solved by {report.solver} in {report.solve_seconds:.1f} s, seed {report.seed}"


def _estimate_lines(nodes: Sequence[str]) -> Iterator[str]:
    """Say that budgets rest on an estimate, and how to settle it."""
    if nodes:
        shown = ", ".join(f"'{name}'" for name in nodes[:_SHOWN_NODES])
        more = f" and {len(nodes) - _SHOWN_NODES} more" if len(nodes) > _SHOWN_NODES else ""
        yield (
            f"estimated: what {len(nodes)} kernels allocate for themselves ({shown}{more}); measure them with "
            "`poet-onnx profile` and give --costs, or compare the peak with `rewrite --check 1`"
        )


def _wear_text(wear: Wear) -> str:
    """Say what paging writes to the storage, and how long that can go on."""
    text = (
        f"writes {bytes_text(wear.written_bytes_per_step)} a step to storage, "
        f"{bytes_text(round(wear.written_bytes_per_hour))} an hour; the page file takes "
        f"{bytes_text(wear.page_file_bytes)} of {bytes_text(wear.capacity_bytes)}"
    )
    if wear.life_seconds is None:
        return f"{text}; as much as all of that is written in {duration_text(wear.capacity_seconds)} of training"
    return (
        f"{text}; its endurance of {bytes_text(wear.endurance_bytes or 0)} lasts "
        f"{duration_text(wear.life_seconds)} of training, {wear.life_steps:,} steps"
    )


class ProgressLine:
    """A line on stderr that tells how the work is going: rewritten in place on a terminal, rare lines elsewhere.

    Until it ends, what native libraries print to stdout goes to stderr, so that stdout holds the result alone: SCIP
    says there how often Ctrl-C was pressed.
    """

    def __init__(self, text: str) -> None:
        self._console = make_console(stderr=True)
        self._status: Status | None = self._console.status(Text(printable(text))) if self._console.is_terminal else None
        self._printed_at = time.monotonic()
        self._stdout = -1

    def __enter__(self) -> ProgressLine:
        """Begin."""
        sys.stdout.flush()
        self._stdout = os.dup(1)
        os.dup2(2, 1)
        if self._status is not None:
            self._status.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """End, and give stdout back."""
        if self._status is not None:
            self._status.stop()
        ctypes.CDLL(None).fflush(None)
        os.dup2(self._stdout, 1)
        os.close(self._stdout)

    def __call__(self, progress: Progress) -> None:
        """Show incumbent, bound, gap and seconds."""

        def joules(value: float | None) -> str:
            return "none yet" if value is None or not math.isfinite(value) else scaled_text(value, "J")

        gap = "unknown" if progress.gap is None or not math.isfinite(progress.gap) else percent_text(progress.gap)
        text = (
            f"solving: incumbent {joules(progress.objective_joules)}, bound {joules(progress.bound_joules)}, "
            f"gap {gap}, {progress.seconds:.0f} s (Ctrl-C keeps the best plan so far)"
        )
        self.say(text)

    def say(self, text: str) -> None:
        """Show what is being done."""
        if self._status is not None:
            self._status.update(Text(printable(text)))
        elif time.monotonic() - self._printed_at >= _PLAIN_PROGRESS_SECONDS:
            self._printed_at = time.monotonic()
            self._console.print(text, soft_wrap=True)


def devices_table(devices: Sequence[DeviceProfile]) -> Table:
    """Return the list of devices."""
    table = Table(box=rich.box.SIMPLE_HEAD, pad_edge=False)
    for heading in ("name", "what it is", "RAM", "storage"):
        table.add_column(heading, overflow="fold")
    for device in devices:
        storage = "none" if device.storage is None else "asynchronous" if device.storage.asynchronous else "synchronous"
        what = device.description + (" (planning only)" if device.planning_only else "")
        table.add_row(device.name, what, bytes_text(device.ram_bytes), storage)
    return table


def device_table(device: DeviceProfile) -> Table:
    """Return every number of a device with its source."""
    title = f"{device.name}: {device.description}" + (" (planning only)" if device.planning_only else "")
    table = Table(box=rich.box.SIMPLE_HEAD, pad_edge=False, title=title, title_justify="left")
    table.add_column("figure")
    table.add_column("value", justify="right")
    table.add_column("source", overflow="fold")
    sections = (("", device), ("compute.", device.compute), ("storage.", device.storage))
    for prefix, section in sections:
        for key, source in section.sources.items() if section is not None else ():
            value = getattr(section, key)
            whole = not isinstance(value, bool) and isinstance(value, (int, float)) and value == int(value)
            table.add_row(prefix + key, f"{int(value):,}" if whole else str(value), source)
    if device.storage is None:
        table.add_row("storage", "none", "")
    return table


def inspection_parts(inspection: Inspection) -> Iterator[str | Table]:
    """Yield what an inspection says: both peaks, what is alive there, and the budgets that can work."""
    for title, peak in (("original, in file order", inspection.original), ("ordered", inspection.ordered)):
        rows = [["resident: parameters, gradient buffers, batch", "", bytes_text(peak.resident_bytes)]]
        for tensor in peak.peak_tensors:
            rows.append([tensor.name, f"{tensor.dtype} {list(tensor.shape)}", bytes_text(tensor.size_bytes)])
        others = peak.peak_tensor_count - len(peak.peak_tensors)
        if others > 0:
            listed = sum(tensor.size_bytes for tensor in peak.peak_tensors)
            rest = peak.transient_peak_bytes - peak.peak_workspace_bytes - listed
            rows.append([f"{others} smaller tensors", "", bytes_text(max(rest, 0))])
        rows.append([f"workspace of {peak.peak_op_type}", "", bytes_text(peak.peak_workspace_bytes)])
        yield plain_table(
            [f"at the peak, node '{peak.peak_node}'", "what", "size"],
            rows,
            title=f"{title}: step peak {bytes_text(peak.step_peak_bytes)}, "
            f"transient {bytes_text(peak.transient_peak_bytes)}",
        )
    floors = [("with recompute alone", inspection.without_paging)]
    if inspection.with_paging is not None:
        floors.insert(0, ("with recompute and paging", inspection.with_paging))
    if inspection.with_parts is not None:
        means = "weight gradients in parts" + (" or other expansions" if inspection.target == "stock" else "")
        floors.insert(0, (f"with {means} too", inspection.with_parts))
    whole = inspection.ordered.transient_peak_bytes + inspection.set_aside_bytes
    rows = [
        [
            what,
            f"{floor.budget_bytes:,} B",
            f"{floor.budget_bytes / whole:.1%}",
            f"{inspection.resident_bytes + floor.budget_bytes:,} B",
        ]
        for what, floor in floors
    ]
    yield plain_table(
        ["smallest budget found", "--activation-budget", "of ordered", "--ram-budget"],
        rows,
        title=f"on {inspection.device} ({bytes_text(inspection.ram_bytes)} of RAM)",
    )
    yield from _estimate_lines(inspection.estimated_workspace_nodes)
    yield from frozen_lines(inspection.frozen_batch_norms)
    for what, floor in floors:
        yield f"{what}: {floor.covers} need at least {floor.bound_bytes:,} B; others may need less"
    yield (
        f"no plan with whole gradients needs less than {bytes_text(inspection.largest_node_bytes)}: "
        f"node '{inspection.largest_node}' does by itself"
    )


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
    table = Table(box=rich.box.SIMPLE_HEAD, pad_edge=False)
    for heading in (f"on {report.runtime}", "", "compared"):
        table.add_column(heading, overflow="fold")
    for row in rows:
        table.add_row(*row)
    yield table
    yield from (f"problem: {problem}" for problem in report.problems)
    yield "verified: nothing is wrong" if report.passed else "not verified"


def _verdict(good: bool) -> str:
    return "yes" if good else "NO"


def measured_parts(measured: MeasuredCosts) -> Iterator[str | Table]:
    """Yield what a profile measured: the step, its slowest nodes, the storage and the power."""
    slowest = sorted(measured.nodes.items(), key=lambda item: -item[1].seconds)[:10]
    rows = [
        [name, scaled_text(node.seconds, "s"), bytes_text(node.workspace_bytes), bytes_text(node.output_bytes)]
        for name, node in slowest
    ]
    yield plain_table(["slowest nodes", "time (measured)", "workspace", "outputs"], rows)
    yield (
        f"step: {scaled_text(measured.step_seconds, 's')} measured, {len(measured.nodes)} nodes, "
        f"{measured.repetitions} repetitions, {measured.threads} thread(s), {measured.runtime}, {measured.machine}"
    )
    if measured.forms:
        nodes = sum(len(form) for form in measured.forms.values())
        yield (
            f"measured besides: {nodes} nodes of {len(measured.forms)} other forms of the graph, such as gradients in "
            "parts, which small budgets may need"
        )
    storage = measured.storage
    if storage is not None:
        yield (
            f"storage ({storage.method}): out {bytes_text(int(storage.page_out_bytes_per_second))}/s after "
            f"{scaled_text(storage.page_out_latency_seconds, 's')}, "
            f"in {bytes_text(int(storage.page_in_bytes_per_second))}/s after "
            f"{scaled_text(storage.page_in_latency_seconds, 's')}"
        )
    if measured.active_watts is None:
        yield "power: no meter is readable here; energy is modelled from the device's watts"
    else:
        yield f"power: {scaled_text(measured.active_watts, 'W')} above idle (measured)"
