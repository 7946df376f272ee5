"""The cells of a comparison as pictures, in the form of the figures in POET's paper; needs matplotlib."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any

from poet_onnx.comparison.cell import CellResult
from poet_onnx.comparison.table import groups
from poet_onnx.files.atomic import write_text

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_MIB = 2**20
_MARKERS = "osv^Dp<>hXP*"
_WIDTH, _HEIGHT = 4.2, 3.2
"""Inches of one of the pictures in a row."""


def draw_all(results: Sequence[CellResult], folder: Path) -> tuple[Path, ...]:
    """Draw what the cells have to show, as SVG files in a folder, and return them.

    `energy.svg` has the energy by budget for every model, device and deadline, `overhead.svg` what of it is above
    computing once as bars, `pareto.svg` the plans that no other plan of the same model and device beats in memory, time
    and energy at once; `deadlines.svg` the energy by deadline where there are several.

    Raises:
        ImportError: if matplotlib is not installed.
    """
    planned = [result for result in results if result.planned]
    if not planned:
        return ()
    colors = dict.fromkeys(result.cell.method for result in results)
    styles = _Styles(tuple(colors))
    by_case = [(_title(cells[0], deadline=True), cells) for cells in groups(planned).values()]
    pictures: list[tuple[str, list[tuple[str, list[CellResult]]], Callable[..., None]]] = [
        ("energy", by_case, _draw_energy),
        ("overhead", by_case, _draw_overhead),
        ("pareto", list(_by(planned, ("model", "device"))), _draw_pareto),
    ]
    timed = list(_by(planned, ("model", "device", "budget")))
    timed = [(title, cells) for title, cells in timed if len({cell.cell.deadline for cell in cells}) > 1]
    if timed:
        pictures.append(("deadlines", timed, _draw_deadlines))
    return tuple(_draw(folder / f"{name}.svg", panels, draw, styles) for name, panels, draw in pictures)


@dataclass(frozen=True)
class _Styles:
    """The color and marker of each method, the same in every picture."""

    methods: tuple[str, ...]

    def of(self, method: str) -> dict[str, Any]:
        place = self.methods.index(method)
        return {"color": f"C{place % 10}", "marker": _MARKERS[place % len(_MARKERS)], "markersize": 4.0}


def _title(result: CellResult, *, deadline: bool) -> str:
    cell = result.cell
    return f"{cell.model}, {cell.device}" + (f", {cell.deadline}" if deadline and cell.deadline != "none" else "")


def _by(results: Sequence[CellResult], names: tuple[str, ...]) -> Iterator[tuple[str, list[CellResult]]]:
    """Yield cells that are alike in some attributes, with a title."""

    def key(result: CellResult) -> tuple[str, ...]:
        return tuple(str(getattr(result.cell, name)) for name in names)

    for values, cells in groupby(sorted(results, key=key), key):
        yield ", ".join(values), list(cells)


def _draw(
    path: Path, panels: Sequence[tuple[str, list[CellResult]]], draw: Callable[..., None], styles: _Styles
) -> Path:
    """Draw panels side by side, four in a row at most, with one legend."""
    import matplotlib as mpl
    from matplotlib.backends.backend_svg import FigureCanvasSVG
    from matplotlib.figure import Figure

    columns = min(4, len(panels))
    rows = -(-len(panels) // columns)
    # The same cells give the same file, in which text stays text.
    with mpl.rc_context({"svg.hashsalt": path.name, "svg.fonttype": "none", "font.size": 8.0}):
        figure = Figure(figsize=(_WIDTH * columns + 1.2, _HEIGHT * rows), layout="constrained")
        FigureCanvasSVG(figure)
        grid = figure.subplots(rows, columns, squeeze=False).flat
        shown: dict[str, Any] = {}
        for axes, (title, cells) in zip(grid, panels, strict=False):
            draw(axes, cells, styles)
            axes.set_title(title, fontsize="medium")
            shown |= dict(zip(*reversed(axes.get_legend_handles_labels()), strict=True))
        for axes in list(grid)[len(panels) :]:
            axes.set_axis_off()
        labels = [method for method in styles.methods if method in shown]
        figure.legend([shown[label] for label in labels], labels, loc="outside right upper", frameon=False)
        drawn = io.StringIO()
        figure.savefig(drawn, format="svg", metadata={"Date": None})
    write_text(path, drawn.getvalue())
    return path


def _of_methods(cells: Sequence[CellResult], styles: _Styles) -> Iterator[tuple[str, list[CellResult]]]:
    for method in styles.methods:
        own = [result for result in cells if result.cell.method == method]
        if own:
            yield method, own


def _draw_energy(axes: Axes, cells: Sequence[CellResult], styles: _Styles) -> None:
    """Draw the energy of each method by budget, the smallest at the right."""
    for method, own in _of_methods(cells, styles):
        own.sort(key=lambda result: -result.cell.budget_bytes)
        budgets = [result.cell.budget_bytes / _MIB for result in own]
        axes.plot(budgets, [1 + (result.overhead or 0.0) for result in own], label=method, **styles.of(method))
    axes.set(xlabel="budget of activations [MiB]", ylabel="energy of a step / computing once")
    axes.invert_xaxis()


def _draw_deadlines(axes: Axes, cells: Sequence[CellResult], styles: _Styles) -> None:
    """Draw the energy of each method by deadline."""
    for method, own in _of_methods([each for each in cells if each.cell.deadline_seconds is not None], styles):
        own.sort(key=lambda result: result.cell.deadline_seconds or 0.0)
        times = [(result.cell.deadline_seconds or 0.0) / result.cell.base_seconds for result in own]
        axes.plot(times, [1 + (result.overhead or 0.0) for result in own], label=method, **styles.of(method))
    axes.set(xlabel="deadline / time of computing once", ylabel="energy of a step / computing once")


def _draw_overhead(axes: Axes, cells: Sequence[CellResult], styles: _Styles) -> None:
    """Draw the energy above computing once as bars, on a scale that shows small and large ones."""
    budgets = list(dict.fromkeys(result.cell.budget for result in cells))
    width = 0.8 / len(styles.methods)
    for method, own in _of_methods(cells, styles):
        shift = (styles.methods.index(method) + 0.5) * width - 0.4
        places = [budgets.index(result.cell.budget) + shift for result in own]
        heights = [max(0.0, 100 * (result.overhead or 0.0)) for result in own]
        axes.bar(places, heights, width, label=method, color=styles.of(method)["color"])
    axes.set_yscale("symlog", linthresh=0.1)
    axes.set_xticks(range(len(budgets)), budgets)
    axes.set(xlabel="budget", ylabel="energy above computing once [%]")


def _draw_pareto(axes: Axes, cells: Sequence[CellResult], styles: _Styles) -> None:
    """Draw peak and energy of every plan, its size the time of a step; those that no other one beats have a rim."""
    front = pareto_front(cells)
    for method, own in _of_methods(cells, styles):
        style = styles.of(method)
        for number, result in enumerate(own):
            outcome = result.outcome
            time = (outcome.seconds or 0.0) / result.cell.base_seconds
            axes.scatter(
                (outcome.transient_peak_bytes or 0) / _MIB,
                1 + (result.overhead or 0.0),
                s=min(400.0, 20.0 * time**2),
                label=method if not number else None,
                color=style["color"],
                marker=style["marker"],
                alpha=0.8 if result in front else 0.35,
                edgecolors="black" if result in front else "none",
            )
    axes.set(xlabel="transient peak [MiB]", ylabel="energy of a step / computing once")


def pareto_front(cells: Sequence[CellResult]) -> list[CellResult]:
    """Return the plans that no other plan beats: with no more memory, time and energy, and less of one of them."""

    def figures(result: CellResult) -> tuple[float, float, float]:
        outcome = result.outcome
        return outcome.transient_peak_bytes or 0, outcome.seconds or 0.0, outcome.energy_joules or 0.0

    def beats(one: tuple[float, ...], other: tuple[float, ...]) -> bool:
        return one != other and all(mine <= theirs for mine, theirs in zip(one, other, strict=True))

    known = {figures(result) for result in cells}
    return [result for result in cells if not any(beats(each, figures(result)) for each in known)]
