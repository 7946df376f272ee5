"""What if the budget were another one: a slider and a table of a page, over plans for other budgets.

The points are those of `inspect --curve` where they are at hand, and else plans of the model's own graph.
"""

from __future__ import annotations

import html
from collections.abc import Sequence

from poet_onnx.reporting.budget_point import BudgetPoint
from poet_onnx.reporting.curve_point import CurvePoint
from poet_onnx.reporting.figures import bytes_text, percent_text, scaled_text
from poet_onnx.reporting.picture import StepPicture

_CURVE_HEADS: tuple[str, ...] = (
    "RAM of the process",
    "tensors in a store",
    "energy",
    "time",
    "read",
    "written",
    "could still be saved",
)


def budgets_section(picture: StepPicture) -> str:
    """Return plans for other budgets as a section of a page, or nothing where there are none."""
    if picture.curve:
        heads, rows = _CURVE_HEADS, [_curve_row(point) for point in picture.curve]
        taken = [point.process_bytes for point in picture.curve]
        start = max((place for place, size in enumerate(taken) if size <= picture.process_peak_bytes), default=0)
        lead = "Each point is a RAM budget for which a plan is known, from parameters in a store on disk to all in RAM."
        words = _words(picture.curve[start], taken[start])
    elif len(picture.budgets) > 1:
        knows_process = bool(picture.process)
        heads = _heads(knows_process=knows_process)
        rows = [_row(point, knows_process=knows_process) for point in picture.budgets]
        taken = [point.transient_peak_bytes for point in picture.budgets]
        start = max((place for place, size in enumerate(taken) if size <= picture.transient_peak_bytes), default=0)
        lead = (
            "Each point is a plan of the same graph that keeps to so many bytes, found quickly. The proof holds for "
            "plans in the same order of the nodes; <code>poet-onnx rewrite</code> may find better ones."
        )
        words = _words(picture.budgets[start], taken[start])
    else:
        return ""
    slider = (
        f'<label class="slider">{heads[0]} <input type="range" id="what-if" min="0" max="{len(rows) - 1}" '
        f'step="1" value="{start}"></label>'
    )
    return (
        '<section aria-labelledby="what-if-title"><h2 id="what-if-title">What if the budget were ...</h2>'
        f'<p class="lead">{lead}</p>{slider}<p id="what-if-words" role="status">{words}</p>'
        f'<div class="scroll">{_table(heads, rows, start)}</div></section>'
    )


def _words(point: CurvePoint | BudgetPoint, size_bytes: int) -> str:
    energy, time = scaled_text(point.energy_joules, "J"), scaled_text(point.seconds, "s")
    return html.escape(f"With {bytes_text(size_bytes)} a step takes {energy} and {time}.")


def _table(heads: Sequence[str], rows: Sequence[tuple[str, ...]], start: int) -> str:
    first, *others = heads
    head = f'<th scope="col">{first}</th>' + "".join(f'<th scope="col" class="n">{each}</th>' for each in others)
    body = "".join(
        f"<tr{' class=chosen' if place == start else ''}>"
        f'<th scope="row">{html.escape(row[0])}</th>'
        f"{''.join(map(_cell, row[1:]))}</tr>"
        for place, row in enumerate(rows)
    )
    return f'<table id="what-if-table"><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>'


def _cell(text: str) -> str:
    return f'<td class="n">{html.escape(text)}</td>'


def _curve_row(point: CurvePoint) -> tuple[str, ...]:
    return (
        bytes_text(point.process_bytes),
        f"{point.stored_tensors:,}",
        scaled_text(point.energy_joules, "J"),
        scaled_text(point.seconds, "s"),
        bytes_text(point.read_bytes),
        bytes_text(point.written_bytes),
        f"at most {percent_text(point.gap)}",
    )


def _heads(*, knows_process: bool) -> tuple[str, ...]:
    process = ("RAM of the process, about",) if knows_process else ()
    last = ("energy", "time", "run again", "paged out", "paged in", "could still be saved")
    return ("Activations, gradients, workspace", *process, *last)


def _row(point: BudgetPoint, *, knows_process: bool) -> tuple[str, ...]:
    own = " (this plan)" if point.is_own else ""
    return (
        f"{bytes_text(point.transient_peak_bytes)}{own}",
        *((bytes_text(point.process_bytes),) if knows_process else ()),
        scaled_text(point.energy_joules, "J"),
        scaled_text(point.seconds, "s"),
        f"{point.recomputed_nodes:,}",
        bytes_text(point.page_out_bytes),
        bytes_text(point.page_in_bytes),
        f"at most {percent_text(point.gap)}",
    )
