"""What other budgets would cost: the plans of `poet-onnx compare`, as a drawing and a table of a page."""

from __future__ import annotations

import csv
import html
import os
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path

import pydantic

from poet_onnx.choices import OURS
from poet_onnx.errors import InputError
from poet_onnx.record import Record
from poet_onnx.reporting.figures import bytes_text, percent_text, scaled_text

_MOST_ROWS = 10_000
_WIDTH, _HEIGHT, _LEFT, _RIGHT, _TOP, _BOTTOM = 720, 260, 70, 704, 14, 218
_MOST_TIMES = 4.0
"""Plans that spend so many times what ours do at most, above computing once, stand in the table alone."""


_LEGEND = (
    '<ul class="legend"><li><span class="chip ours"></span>poet, and what leaves one of its means out</li>'
    '<li><span class="chip other"></span>other methods</li></ul>'
)


class FrontierPoint(Record):
    """A plan of a comparison.

    Attributes:
        method: that made it.
        budget_bytes, transient_peak_bytes: what it may take, and takes.
        energy_joules, base_joules, seconds: of a step; the base is what computing once spends.
        bound_joules: no plan of the method's class spends less; None where nothing is proven.
    """

    method: str
    budget_bytes: int = pydantic.Field(ge=0)
    transient_peak_bytes: int = pydantic.Field(ge=0)
    energy_joules: float = pydantic.Field(gt=0)
    base_joules: float = pydantic.Field(gt=0)
    seconds: float = pydantic.Field(ge=0)
    bound_joules: float | None = None

    @property
    def overhead(self) -> float:
        """Return the energy above computing once, as a part of that."""
        return self.energy_joules / self.base_joules - 1

    @property
    def gap(self) -> float | None:
        """Return what of the energy a better plan could save at most; None where nothing is proven."""
        return None if self.bound_joules is None else max(0.0, 1 - self.bound_joules / self.energy_joules)


def read_frontier(path: str | os.PathLike[str], device: str, original_peak_bytes: int) -> tuple[FrontierPoint, ...]:
    """Return the plans without a deadline in a compare.csv that are of a device and a model.

    Args:
        path: of the file.
        device: for which they were made.
        original_peak_bytes: transient peak of the model as it was given, which tells the model.

    Raises:
        InputError: if it is no such file, or has no such plan.
    """
    try:
        with Path(path).open(encoding="utf-8", newline="") as file:
            rows = [*islice(csv.DictReader(file), _MOST_ROWS)]
    except (OSError, UnicodeError, csv.Error) as error:
        raise InputError(f"{path} cannot be read: {getattr(error, 'strerror', None) or error}.") from error
    points = []
    for row in rows:
        if row.get("device") != device or row.get("deadline_seconds") or not row.get("energy_joules"):
            continue
        if row.get("original_peak_bytes") != str(original_peak_bytes):
            continue
        values = {name: row.get(name) or None for name in FrontierPoint.model_fields}
        try:
            points.append(FrontierPoint.model_validate(values))
        except pydantic.ValidationError as error:
            raise InputError(f"{path} is not what `poet-onnx compare` writes: {error.errors()[0]['msg']}.") from error
    if not points:
        raise InputError(
            f"{path} has no plan for {device} of a model whose transient peak is {original_peak_bytes:,} bytes as it "
            "is given: give the compare.csv of this model and device."
        )
    return tuple(sorted(points, key=lambda point: (point.method not in OURS, point.method, -point.budget_bytes)))


def frontier_section(points: Sequence[FrontierPoint], budget_bytes: int | None) -> str:
    """Return the plans as a section of a page, or nothing where there are none."""
    if not points:
        return ""
    return (
        '<section aria-labelledby="frontier-title"><h2 id="frontier-title">What another budget would cost</h2>'
        '<p class="lead">Energy above computing everything once, by the memory that a step holds besides parameters '
        "and batch. A bar under a plan of ours reaches down to what is proven: no plan of its kind is below it.</p>"
        f'{_drawing(points, budget_bytes)}{_LEGEND}<div class="scroll">{_table(points)}</div></section>'
    )


def _drawing(points: Sequence[FrontierPoint], budget_bytes: int | None) -> str:
    ours = [point for point in points if point.method in OURS]
    most_overhead = (
        max((point.overhead for point in ours or points), default=0.0) * (_MOST_TIMES if ours else 1) or 0.01
    )
    shown = [point for point in points if point.overhead <= most_overhead]
    most_overhead = max((point.overhead for point in shown), default=0.0) * 1.1 or 0.01
    most_bytes = max(*(point.transient_peak_bytes for point in points), budget_bytes or 0) * 1.05 or 1

    def x(size_bytes: float) -> float:
        return _LEFT + size_bytes / most_bytes * (_RIGHT - _LEFT)

    def y(overhead: float) -> float:
        return _BOTTOM - max(0.0, overhead) / most_overhead * (_BOTTOM - _TOP)

    def parts() -> Iterator[str]:
        for share in (0.0, 0.25, 0.5, 0.75, 1.0):
            yield f'<path class="grid" d="M{_LEFT} {y(share * most_overhead):.1f}H{_RIGHT}"/>'
            yield _words(_LEFT - 8, y(share * most_overhead) + 4, f"{100 * share * most_overhead:.2g} %", "end")
            anchor = "end" if share == 1 else "mid"
            yield _words(x(share * most_bytes), _BOTTOM + 20, bytes_text(int(share * most_bytes)), anchor)
        if budget_bytes is not None:
            yield f'<path class="level" d="M{x(budget_bytes):.1f} {_TOP}V{_BOTTOM}"/>'
        best = sorted(
            (point for point in shown if point.method == OURS[0]), key=lambda point: point.transient_peak_bytes
        )
        line = " ".join(f"{x(point.transient_peak_bytes):.1f},{y(point.overhead):.1f}" for point in best)
        yield f'<polyline class="line" points="{line}"/>'
        for point in reversed(shown):  # ours come first, and lie on top
            here, there = x(point.transient_peak_bytes), y(point.overhead)
            kind = "ours" if point.method in OURS else "other"
            if point.method in OURS and point.bound_joules is not None:
                proven = y(point.bound_joules / point.base_joules - 1)
                yield f'<path class="bound" d="M{here:.1f} {there:.1f}V{proven:.1f}"/>'
            title = (
                f"{point.method}: {bytes_text(point.transient_peak_bytes)}, {percent_text(max(0.0, point.overhead))}"
            )
            place = f'class="{kind}" cx="{here:.1f}" cy="{there:.1f}" r="4.5"'
            yield f"<circle {place}><title>{html.escape(title)}</title></circle>"

    label = f"{len(shown)} plans by memory and energy; the table below has their figures."
    box = f'viewBox="0 0 {_WIDTH} {_HEIGHT}"'
    return f'<svg class="frontier" {box} role="img" aria-label="{label}">{"".join(parts())}</svg>'


def _words(x: float, y: float, text: str, anchor: str) -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" class="{anchor}">{html.escape(text)}</text>'


def _table(points: Sequence[FrontierPoint]) -> str:
    heads = ("method", "budget", "peak", "energy", "above computing once", "could still be saved", "time")
    first, *others = heads
    head = "".join((f'<th scope="col">{first}</th>', *(f'<th scope="col" class="n">{name}</th>' for name in others)))
    rows = "".join(f"<tr>{''.join(_cells(point))}</tr>" for point in points)
    return f'<table id="frontier"><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table>'


def _cells(point: FrontierPoint) -> Iterator[str]:
    yield f'<th scope="row">{html.escape(point.method)}</th>'
    for text in (
        bytes_text(point.budget_bytes),
        bytes_text(point.transient_peak_bytes),
        scaled_text(point.energy_joules, "J"),
        percent_text(max(0.0, point.overhead)),
        "not known" if point.gap is None else f"at most {percent_text(point.gap)}",
        scaled_text(point.seconds, "s"),
    ):
        yield f'<td class="n">{html.escape(text)}</td>'
