"""What if the budget were another one: the points of `inspect --curve` as a slider and a table of a page."""

from __future__ import annotations

import html
from collections.abc import Iterator, Sequence

from poet_onnx.reporting.curve_point import CurvePoint
from poet_onnx.reporting.figures import bytes_text, percent_text, scaled_text


def budgets_section(points: Sequence[CurvePoint], process_bytes: int) -> str:
    """Return the points as a section of a page, or nothing where there are none.

    Args:
        points: smallest budget first.
        process_bytes: what the process of this page takes, where the slider begins.
    """
    if not points:
        return ""
    start = max((place for place, point in enumerate(points) if point.process_bytes <= process_bytes), default=0)
    slider = (
        f'<label class="slider">RAM of the process <input type="range" id="what-if" min="0" max="{len(points) - 1}" '
        f'step="1" value="{start}"></label>'
    )
    return (
        '<section aria-labelledby="what-if-title"><h2 id="what-if-title">What if the budget were ...</h2>'
        '<p class="lead">Each point is a RAM budget for which a plan is known, from parameters in a store on disk to '
        f'all in RAM.</p>{slider}<p id="what-if-words" role="status">{_words(points[start])}</p>'
        f'<div class="scroll">{_table(points, start)}</div></section>'
    )


def _words(point: CurvePoint) -> str:
    budget, energy, time = bytes_text(point.process_bytes), scaled_text(point.energy_joules, "J"), point.seconds
    return html.escape(f"With {budget} a step takes {energy} and {scaled_text(time, 's')}.")


def _table(points: Sequence[CurvePoint], start: int) -> str:
    heads = ("tensors in a store", "energy", "time", "read", "written", "could still be saved")
    head = '<th scope="col">RAM of the process</th>' + "".join(
        f'<th scope="col" class="n">{each}</th>' for each in heads
    )
    rows = "".join(
        f"<tr{' class=chosen' if place == start else ''}>{''.join(_cells(point))}</tr>"
        for place, point in enumerate(points)
    )
    return f'<table id="what-if-table"><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table>'


def _cells(point: CurvePoint) -> Iterator[str]:
    yield f'<th scope="row">{bytes_text(point.process_bytes)}</th>'
    for text in (
        f"{point.stored_tensors:,}",
        scaled_text(point.energy_joules, "J"),
        scaled_text(point.seconds, "s"),
        bytes_text(point.read_bytes),
        bytes_text(point.written_bytes),
        f"at most {percent_text(point.gap)}",
    ):
        yield f'<td class="n">{html.escape(text)}</td>'
