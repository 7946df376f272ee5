"""What people read: tables, and what they cannot say."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import rich.box
from rich.table import Table

from poet_onnx.choices import NO_OPTIMIZER
from poet_onnx.errors import quoted
from poet_onnx.reporting.figures import bytes_text, duration_text, percent_text, scaled_text

if TYPE_CHECKING:
    from poet_onnx.costing.device import DeviceProfile
    from poet_onnx.plan import PlanClass
    from poet_onnx.reporting.curve_point import CurvePoint
    from poet_onnx.reporting.fit import Fit
    from poet_onnx.reporting.inspection import Inspection
    from poet_onnx.reporting.plan_figures import PlanFigures
    from poet_onnx.reporting.report import Figures, ProcessPart, Report, Wear

_SHOWN_NODES = 3
_WITHOUT = {
    (True, True): "",
    (True, False): " and without paging",
    (False, True): " and without recompute",
    (False, False): " and without either",
}
"""What a class of plans leaves out, by whether its plans may recompute, and page."""


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
        ["process peak", *(bytes_text(c.process_peak_bytes) for c in columns)],
        ["step peak", *(bytes_text(c.step_peak_bytes) for c in columns)],
        ["  resident", *(bytes_text(c.resident_bytes) for c in columns)],
        ["  transient", *(bytes_text(c.transient_peak_bytes) for c in columns)],
        ["  laid out", "", "", bytes_text(report.region_bytes)],
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


def process_table(parts: Sequence[ProcessPart], what: str) -> Table:
    """Return what a training process takes, line by line, and the sum.

    Args:
        parts: that add up.
        what: the process trains, in words.
    """
    rows = [[part.name, bytes_text(part.size_bytes), part.means] for part in parts if part.size_bytes]
    rows.append(["process peak", bytes_text(sum(part.size_bytes for part in parts)), ""])
    loaded_bytes = sum(part.size_bytes for part in parts if part.is_loaded)
    rows.append(["  until all is loaded", bytes_text(loaded_bytes), "about, with the optimizer in the step"])
    table = Table(box=rich.box.SIMPLE_HEAD, pad_edge=False)
    table.add_column(f"RAM of a process that trains {what}")
    table.add_column("predicted", justify="right")
    table.add_column("", overflow="fold")
    for row in rows:
        table.add_row(*row)
    return table


def frozen_lines(frozen: Sequence[str]) -> list[str]:
    """Return what is to be said of frozen batch normalizations, if there are any."""
    if not frozen:
        return []
    which = "1 batch normalization is" if len(frozen) == 1 else f"{len(frozen)} batch normalizations are"
    return [f"{which} frozen: running statistics are used, and stay as they are"]


def report_lines(report: Report) -> list[str]:
    """Return what the table cannot say: limits, and what is proven."""
    lines = []
    if report.budget_bytes is not None:
        used = report.transient_peak_bytes if report.budget_kind == "activation" else report.process_peak_bytes
        what = "transient peak" if report.budget_kind == "activation" else "process peak"
        lines.append(f"budget: {bytes_text(report.budget_bytes)} ({what}); used: {bytes_text(used)}")
    if report.optimizer != NO_OPTIMIZER:
        place = "resident" if report.store is None else "in the store, as the parameters are"
        lines.append(f"optimizer: {report.optimizer}, in the step; what it keeps is {place}")
    if report.part_bytes is not None:
        lines.append(f"weight gradients of more than {bytes_text(report.part_bytes)} are computed in parts")
    lines += plain_lines(report)
    if report.status == "not_needed":
        lines.append("the ordered step fits: nothing is recomputed and nothing is paged")
    elif report.status != "other_costs":
        lines += _certificate_lines(report)
    return lines


def plain_lines(report: Report) -> list[str]:
    """Return the part of that which everybody has to know: other limits, storage, and what is uncertain."""
    lines = frozen_lines(report.frozen_batch_norms)
    if report.deadline_seconds is not None:
        late = report.seconds > report.deadline_seconds * (1 + 1e-9)
        lines.append(
            f"deadline: {scaled_text(report.deadline_seconds, 's')}; predicted: {scaled_text(report.seconds, 's')}"
            + (" with these costs, so it is missed" if late else "")
        )
    if report.max_written_bytes is not None:
        used = report.page_out_bytes + (0 if report.store is None else report.store.written_bytes)
        allowed, written = bytes_text(report.max_written_bytes), bytes_text(used)
        lines.append(f"written a step: at most {allowed}; used: {written}")
    lines += estimate_lines(report.estimated_workspace_nodes)
    if report.store is not None:
        read, written = bytes_text(report.store.read_bytes), bytes_text(report.store.written_bytes)
        steps = report.store.life_steps
        lasts = "" if steps is None else f"; what the storage endures lasts {steps:,} steps"
        waits = scaled_text(report.store.seconds, "s")
        lines.append(f"store: a step reads {read} and writes {written}, and waits {waits} for that{lasts}")
    if report.wear is not None:
        lines.append(_wear_text(report.wear))
    if report.status == "other_costs":
        lines.append(
            f"planned with other costs: energy {scaled_text(report.objective_joules, 'J')} with these; computing once "
            f"takes {scaled_text(report.bound_joules, 'J')}, and how near the least energy this is, is not known"
        )
    return lines


def _none_of(covers: PlanClass) -> str:
    """Return the subject of a bound in plain words; --json and docs/limits.md say in full which plans it covers.

    Example: "no plan with this order of nodes and without paging".
    """
    none = "no plan" if covers.hops is None else "none of the plans considered"
    order = "with this order of nodes" if covers.in_order else "of these nodes"
    return f"{none} {order}{_WITHOUT[covers.recompute, covers.paging]}"


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
    yield f"{_none_of(report.covers)} spends less than {scaled_text(report.bound_joules, 'J')}"
    if report.wide_bound_joules < report.bound_joules:
        every = _none_of(replace(report.covers, hops=None, stays=None))
        yield f"{every}, considered or not, spends less than {scaled_text(report.wide_bound_joules, 'J')}"
    solved = f"solved by {report.solver} in {report.solve_seconds:.1f} s, seed {report.seed}"
    yield solved if is_proven else f"{solved}, when it was made; no solver ran here"


def estimate_lines(nodes: Sequence[str]) -> Iterator[str]:
    """Say that budgets rest on an estimate, and how to settle it."""
    if nodes:
        count = f"{len(nodes)} node{'' if len(nodes) == 1 else 's'}"
        yield (
            f"estimated: what the kernels of {count} allocate for themselves ({quoted(nodes, _SHOWN_NODES)}); measure "
            "them with `poet-onnx profile` and give --costs, or compare the peak with `rewrite --check 1`"
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


def devices_table(devices: Sequence[DeviceProfile]) -> Table:
    """Return the list of devices."""
    table = Table(box=rich.box.SIMPLE_HEAD, pad_edge=False)
    for heading in ("name", "what it is", "RAM", "storage"):
        table.add_column(heading, overflow="fold")
    for device in devices:
        how = "none" if device.storage is None else "asynchronous" if device.storage.asynchronous else "synchronous"
        storage = ", ".join(device.storage_kinds) or how
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
    sections = (
        ("", device),
        ("compute.", device.compute),
        ("compute.all_cores.", device.compute.all_cores),
        ("storage.", device.storage),
        ("storage.store.", None if device.storage is None else device.storage.store),
        ("process.", device.process),
    )
    for prefix, section in sections:
        for key, source in section.sources.items() if section is not None else ():
            value = getattr(section, key)
            whole = not isinstance(value, bool) and isinstance(value, (int, float)) and value == int(value)
            table.add_row(prefix + key, f"{int(value):,}" if whole else str(value), source)
    if device.storage is None:
        table.add_row("storage", "none", "")
    for kind, bus in device.storage_kinds.items():
        table.add_row(f"storage_kinds.{kind}", f"{bus.value:,.0f}", bus.source)
    return table


def fit_table(fit: Fit) -> Table:
    """Return a line for each board: whether a model can be trained there, and at about what price."""
    means = {"ordered": "fits", "restored": "fits with recompute or paging", "store": "fits from a store on disk"}
    rows = []
    for board in fit.boards:
        if board.seconds is not None and board.times is not None:
            verdict = means[board.verdict]
            verdict += (
                "" if board.verdict == "ordered" else f", in at most about {board.times:.3g} times the step's time"
            )
            time = scaled_text(board.seconds, "s")
        else:
            verdict = (
                f"does not fit: {bytes_text(board.excess_bytes)} too much; "
                f"{board.largest_part}: {bytes_text(board.largest_part_bytes)}"
            )
            time = "none"
        rows.append([board.device, bytes_text(board.ram_bytes), bytes_text(board.process_bytes), time, verdict])
    table = plain_table(["board", "RAM for training", "process", "a step", "verdict"], rows)
    table.columns[-1].justify = "left"
    return table


def curve_table(curve: Sequence[CurvePoint]) -> Table:
    """Return what a step takes at some RAM budgets."""
    rows = [
        [
            f"{point.process_bytes:,} B",
            str(point.stored_tensors),
            scaled_text(point.energy_joules, "J"),
            scaled_text(point.seconds, "s"),
            bytes_text(point.read_bytes),
            bytes_text(point.written_bytes),
            percent_text(point.gap),
        ]
        for point in curve
    ]
    headings = ["--ram-budget", "tensors in a store", "energy", "time", "read", "written", "could be saved"]
    return plain_table(headings, rows, title="a step, with parameters in a store or in RAM")


def plans_table(plans: Sequence[PlanFigures]) -> Table:
    """Return what a step takes with the plan for each RAM budget of a model."""
    rows = [
        [
            bytes_text(plan.budget_bytes),
            bytes_text(plan.process_peak_bytes),
            scaled_text(plan.energy_joules, "J"),
            scaled_text(plan.seconds, "s"),
            f"{plan.recomputed_nodes:,}",
            bytes_text(plan.page_out_bytes),
            percent_text(plan.gap),
        ]
        for plan in plans
    ]
    headings = ["--ram-budgets", "process", "energy", "time", "run again", "paged out", "could be saved"]
    return plain_table(headings, rows, title="a step, with the plan for each budget")


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
    yield process_table(inspection.process, "the ordered graph")
    floors = [("with recompute alone", inspection.without_paging)]
    if inspection.with_paging is not None:
        floors.insert(0, ("with recompute and paging", inspection.with_paging))
    if inspection.with_parts is not None:
        floors.insert(0, ("with weight gradients in parts too", inspection.with_parts))
    whole = inspection.ordered.transient_peak_bytes + inspection.set_aside_bytes
    rows = [
        [
            what,
            f"{floor.budget_bytes:,} B",
            f"{floor.budget_bytes / whole:.1%}",
            f"{floor.process_bytes:,} B",
        ]
        for what, floor in floors
    ]
    yield plain_table(
        ["smallest budget found", "--activation-budget", "of ordered", "--ram-budget"],
        rows,
        title=f"on {inspection.device} ({bytes_text(inspection.ram_bytes)} of RAM)",
    )
    for what, floor in floors:
        yield f"{what}: {_none_of(floor.covers)} needs less than {floor.bound_bytes:,} B"
    yield (
        f"no plan with whole gradients needs less than {bytes_text(inspection.largest_node_bytes)}: "
        f"node '{inspection.largest_node}' does by itself"
    )
