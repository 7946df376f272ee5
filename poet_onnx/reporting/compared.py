"""A comparison as a page: energy, time and memory of every method by budget, with all cells as a table."""

from __future__ import annotations

import html
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import groupby
from typing import Any

from poet_onnx.choices import OURS
from poet_onnx.record import Record
from poet_onnx.reporting.figures import bytes_text, percent_text, scaled_text
from poet_onnx.reporting.shell import shell

_WIDTH, _HEIGHT, _LEFT, _RIGHT, _TOP, _BOTTOM = 420, 240, 68, 404, 12, 196
_RADIUS, _OUR_RADIUS = 3.5, 5.0
_HEADS = ("budget", "status", "energy", "above once", "could be saved", "time", "peak", "written", "run again")


class ComparedCell(Record):
    """A cell of a comparison.

    Attributes:
        model, device, method, budget, deadline, status, message: names and words.
        budget_bytes: bound on the transient peak.
        base_joules, base_seconds: of computing every node once.
        energy_joules, seconds, transient_peak_bytes, page_out_bytes, recomputed_nodes: of a step; None where there is
            no plan.
        bound_joules: no plan of the method's class spends less; None where nothing is proven.
    """

    model: str
    device: str
    method: str
    budget: str
    budget_bytes: int
    deadline: str
    status: str
    message: str
    base_joules: float
    base_seconds: float
    energy_joules: float | None
    bound_joules: float | None
    seconds: float | None
    transient_peak_bytes: int | None
    page_out_bytes: int | None
    recomputed_nodes: int | None


_Figure = Callable[[ComparedCell], float | None]


def compared_page(rows: Sequence[Mapping[str, Any]]) -> str:
    """Return a comparison as HTML that needs nothing else.

    Args:
        rows: of the cells, with at least the fields of `ComparedCell` by name.
    """
    cells = [ComparedCell(**{name: row[name] for name in ComparedCell.model_fields}) for row in rows]
    methods = sorted(dict.fromkeys(cell.method for cell in cells), key=lambda name: name not in OURS)
    colors = {name: f"hsl({20 + 360 * place // len(methods)} 60% 50%)" for place, name in enumerate(methods)}
    planned = sum(cell.energy_joules is not None for cell in cells)
    sections = [_section(list(group), colors) for _, group in groupby(sorted(cells, key=_case), _case)]
    models = ", ".join(dict.fromkeys(cell.model for cell in cells)) or "Nothing was compared"
    return shell(
        title=f"{models}: methods side by side",
        kicker="One training step, planned by several methods",
        heading=models,
        about=f"{planned} of {len(cells)} cells have a plan, by {len(methods)} methods.",
        body="\n".join(sections),
        footer="Made by poet-onnx. Nothing is loaded from elsewhere. The simulator judged every plan; compare.csv has "
        "every figure.",
    )


def _case(cell: ComparedCell) -> tuple[str, str, str]:
    return cell.model, cell.device, cell.deadline


def _section(cells: Sequence[ComparedCell], colors: Mapping[str, str]) -> str:
    """Return the cells of a model, device and deadline: three drawings, their legend, the table."""
    model, device, deadline = _case(cells[0])
    until = "" if deadline == "none" else f", deadline {deadline}"
    first = cells[0]
    once = f"Computing once takes {scaled_text(first.base_joules, 'J')} and {scaled_text(first.base_seconds, 's')}."
    mine = {method: color for method, color in colors.items() if any(cell.method == method for cell in cells)}
    drawings = (
        _drawing("Energy of a step", cells, mine, lambda cell: cell.energy_joules, lambda size: scaled_text(size, "J")),
        _drawing("Time of a step", cells, mine, lambda cell: cell.seconds, lambda size: scaled_text(size, "s")),
        _drawing(
            "Activations, gradients, workspace",
            cells,
            mine,
            lambda cell: cell.transient_peak_bytes,
            lambda size: bytes_text(round(size)),
        ),
    )
    legend = "".join(
        f'<li><span class="chip" style="background:{color}"></span>{html.escape(method)}</li>'
        for method, color in mine.items()
    )
    return (
        f'<section><h2>{html.escape(f"{model} on {device}{until}")}</h2><p class="lead">{html.escape(once)} '
        f'A line is a method; where it ends, the method has no plan.</p><div class="tiles">{"".join(drawings)}</div>'
        f'<ul class="legend">{legend}</ul><div class="scroll">{_table(cells)}</div></section>'
    )


def _drawing(
    name: str, cells: Sequence[ComparedCell], colors: Mapping[str, str], figure: _Figure, words: Callable[[float], str]
) -> str:
    """Return a figure of every method by budget, the smallest budget at the right."""
    budgets = sorted({cell.budget_bytes for cell in cells}, reverse=True)
    known = [size for cell in cells if (size := figure(cell)) is not None]
    low, high = 0.0, max(known, default=0.0) * 1.05 or 1.0
    least = min(known, default=0.0)
    if least > high / 2:  # what differs is to be seen; the axis says that it does not begin at 0
        low = max(0.0, least - (high - least) / 4)

    def x(budget_bytes: int) -> float:
        return _LEFT + (budgets.index(budget_bytes) + 0.5) / len(budgets) * (_RIGHT - _LEFT)

    def y(size: float) -> float:
        return _BOTTOM - (size - low) / (high - low) * (_BOTTOM - _TOP)

    def parts() -> Iterator[str]:
        for share in (0.0, 0.5, 1.0):
            size = low + share * (high - low)
            yield f'<path class="grid" d="M{_LEFT} {y(size):.1f}H{_RIGHT}"/>'
            yield f'<text class="end" x="{_LEFT - 6}" y="{y(size) + 4:.1f}">{html.escape(words(size))}</text>'
        for budget in budgets:
            yield f'<text class="mid" x="{x(budget):.1f}" y="{_BOTTOM + 18}">{html.escape(bytes_text(budget))}</text>'
        for method, color in reversed(list(colors.items())):  # ours come first, and lie on top
            own = sorted((cell for cell in cells if cell.method == method), key=lambda cell: -cell.budget_bytes)
            sizes = [(cell, figure(cell)) for cell in own]
            found = [(cell, height) for cell, height in sizes if height is not None]
            line = " ".join(f"{x(cell.budget_bytes):.1f},{y(size):.1f}" for cell, size in found)
            yield f'<polyline fill="none" stroke="{color}" stroke-width="1.5" points="{line}"/>'
            radius = _OUR_RADIUS if method in OURS else _RADIUS
            for cell, size in found:
                title = html.escape(f"{method}, {cell.budget}: {words(size)}")
                place = f'cx="{x(cell.budget_bytes):.1f}" cy="{y(size):.1f}" r="{radius}" fill="{color}"'
                yield f"<circle {place}><title>{title}</title></circle>"

    label = html.escape(f"{name} of {len(colors)} methods by budget; the table below has the figures.")
    drawing = f'<svg class="frontier" viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img" aria-label="{label}">'
    return f'<div class="tile"><p class="name">{name}</p>{drawing}{"".join(parts())}</svg></div>'


def _table(cells: Sequence[ComparedCell]) -> str:
    head = "".join(('<th scope="col">method</th>', *(f'<th scope="col" class="n">{name}</th>' for name in _HEADS)))
    ordered = sorted(cells, key=lambda cell: (-cell.budget_bytes, cell.energy_joules is None, cell.energy_joules or 0))
    rows = "".join(f"<tr>{''.join(_cells(cell))}</tr>" for cell in ordered)
    return f"<table><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table>"


def _cells(cell: ComparedCell) -> Iterator[str]:
    yield f'<th scope="row">{html.escape(cell.method)}</th>'
    texts = [f"{cell.budget} ({bytes_text(cell.budget_bytes)})", cell.status.replace("_", " ")]
    if cell.energy_joules is None:
        yield from (f'<td class="n">{html.escape(text)}</td>' for text in texts)
        span = f'colspan="{len(_HEADS) - len(texts)}" style="text-align:left"'
        yield f'<td class="n" {span}><small>{html.escape(cell.message)}</small></td>'
        return
    bound = cell.bound_joules
    texts += [
        scaled_text(cell.energy_joules, "J"),
        percent_text(max(0.0, cell.energy_joules / cell.base_joules - 1)),
        "not known" if bound is None else f"at most {percent_text(max(0.0, 1 - bound / cell.energy_joules))}",
        scaled_text(cell.seconds or 0.0, "s"),
        bytes_text(cell.transient_peak_bytes or 0),
        bytes_text(cell.page_out_bytes or 0),
        f"{cell.recomputed_nodes or 0:,}",
    ]
    yield from (f'<td class="n">{html.escape(text)}</td>' for text in texts)
