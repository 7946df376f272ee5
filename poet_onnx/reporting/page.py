"""The page: a picture of a rewritten model as one HTML file that needs nothing else."""

from __future__ import annotations

import html
import re
from collections.abc import Iterable, Iterator, Sequence
from string import Template

from poet_onnx.choices import NO_OPTIMIZER
from poet_onnx.reporting.budgets import budgets_section
from poet_onnx.reporting.figures import bytes_text, percent_text, scaled_text
from poet_onnx.reporting.frontier import frontier_section
from poet_onnx.reporting.picture import Part, StepPicture
from poet_onnx.reporting.shell import PAGE_FILES, shell

_MICRO = re.compile(r"(?<=[0-9] )u(?=[Js]\b)")
_SCRIPTS = ("figures.js", "curves.js", "map.js", "lanes.js", "table.js", "budgets.js", "main.js")


def page_of(picture: StepPicture) -> str:
    """Return the page as HTML. Its tables are in it as text; the maps are drawn from the same picture."""
    first, *others = picture.verdict
    headline, _, rest = first.partition(". ") if first.startswith("It fits") else ("", "", first)
    peaks = ", ".join(f"{each.name} at most {bytes_text(each.transient_peak_bytes)}" for each in picture.layers)
    template = Template((PAGE_FILES / "page.html").read_text(encoding="utf-8"))
    body = template.substitute(
        verdict_class="" if picture.fits else "over",
        headline=_text(_headline(picture, headline)),
        verdict="\n".join(f"<p>{_text(each)}</p>" for each in (rest, *others)),
        tiles="\n".join(_tiles(picture)),
        curves_label=_text(f"Memory of the step over its time: {peaks}."),
        lanes_label=_text(f"Lanes of compute and storage over the {scaled_text(picture.seconds, 's')} of the step."),
        before=_before(picture),
        energy=_parts(picture.energy, "J", picture.energy_joules),
        process=_process(picture),
        residents=_parts(picture.residents, "B", picture.resident_bytes),
        budgets=budgets_section(picture),
        frontier=frontier_section(picture.frontier, picture.activation_budget_bytes),
        proof="\n".join(f"<p>{_text(each)}</p>" for each in picture.proof_words),
        store=_store(picture),
    )
    return shell(
        title=f"{picture.model}: one training step",
        kicker="One training step, as it is planned",
        heading=picture.model,
        about=_made_for(picture),
        body=body.rstrip("\n"),
        footer=f"Made by poet-onnx from the model's file alone. Nothing is loaded from elsewhere. {_origins(picture)}",
        scripts="\n".join(_scripts(picture)),
    )


def _scripts(picture: StepPicture) -> Iterator[str]:
    data = picture.model_dump_json().replace("<", "\\u003c")
    yield f'<script type="application/json" id="picture">{data}</script>'
    code = "\n".join((PAGE_FILES / name).read_text(encoding="utf-8") for name in _SCRIPTS)
    yield f"<script>\n{code}\n</script>\n"


def _text(text: str) -> str:
    """Return text as HTML, with the sign for a millionth that terminals may lack."""
    return html.escape(_MICRO.sub("\N{MICRO SIGN}", text))


def _made_for(picture: StepPicture) -> str:
    optimizer = "no optimizer in the step" if picture.optimizer == NO_OPTIMIZER else picture.optimizer
    runtime = "onnxruntime" if picture.target == "stock" else "onnxruntime-training"
    threads = "1 thread" if picture.threads == 1 else f"{picture.threads} threads"
    return f"for {picture.device} with {runtime}, {threads}; {optimizer}"


def _headline(picture: StepPicture, said: str) -> str:
    if not picture.fits:
        return "It does not fit"
    return said or "No budget was given"


def _origins(picture: StepPicture) -> str:
    time = "measured" if picture.time_measured else "modelled"
    energy = "measured" if picture.energy_measured else "modelled"
    return f"Times are {time}, energy is {energy}; bytes are exact."


def _tiles(picture: StepPicture) -> Iterable[str]:
    is_ram = picture.budget_kind == "ram"
    used = picture.process_peak_bytes if is_ram else picture.transient_peak_bytes
    budget = picture.budget_bytes
    note = "no budget" if budget is None else f"of {bytes_text(budget)}"
    share = None if not budget else used / budget
    found = picture.measured and (
        picture.measured.process_peak_bytes if is_ram else picture.measured.transient_peak_bytes
    )
    note += f"; measured {bytes_text(found)}" if found else ""
    yield _tile("RAM of the process" if is_ram else "Activations, gradients, workspace", bytes_text(used), note, share)
    before = picture.original
    energy, time = picture.energy_joules, picture.seconds
    yield _tile("Energy a step", scaled_text(energy, "J"), _change(energy, before.energy_joules))
    yield _tile("Time a step", scaled_text(time, "s"), _change(time, before.seconds))
    moved = picture.page_out_bytes + picture.page_in_bytes
    paged = f"; {bytes_text(moved)} to storage and back" if moved else "; nothing is paged"
    nodes = picture.recomputed_nodes
    yield _tile("Computed again", f"{nodes:,} node{'' if nodes == 1 else 's'}", paged[2:])
    status = "proven" if picture.proof.status != "other_costs" else "not known"
    yield _tile(
        "Could still be saved", percent_text(picture.proof.gap).replace("under", "<"), f"of the energy, {status}"
    )


def _tile(name: str, figure: str, note: str, share: float | None = None) -> str:
    meter = ""
    if share is not None:
        over = " over" if share > 1 else ""
        meter = f'<div class="meter{over}"><i style="width:{min(1.0, share):.1%}"></i></div>'
    figures = f'<p class="figure">{_text(figure)}</p>{meter}<p class="note">{_text(note)}</p>'
    return f'<div class="tile"><p class="name">{_text(name)}</p>{figures}</div>'


def _change(now: float, before: float) -> str:
    if not before or now == before:
        return "as it was given"
    more = now / before - 1
    return f"{percent_text(abs(more))} {'more' if more > 0 else 'less'} than as it was given"


def _before(picture: StepPicture) -> str:
    columns = (picture.original, picture.ordered, picture)
    rows = [
        ("step peak", [bytes_text(each.resident_bytes + each.transient_peak_bytes) for each in columns]),
        ("resident", [bytes_text(each.resident_bytes) for each in columns]),
        ("transient", [bytes_text(each.transient_peak_bytes) for each in columns]),
        ("energy", [scaled_text(each.energy_joules, "J") for each in columns]),
        ("time", [scaled_text(each.seconds, "s") for each in columns]),
        ("run again", ["0", "0", f"{picture.recomputed_nodes:,}"]),
        ("paged out", ["0 B", "0 B", bytes_text(picture.page_out_bytes)]),
        ("paged in", ["0 B", "0 B", bytes_text(picture.page_in_bytes)]),
    ]
    head = "".join(f'<th scope="col" class="n">{name}</th>' for name in ("original", "ordered", "rewritten"))
    body = "".join(_row(name, cells) for name, cells in rows)
    return (
        f'<table id="before"><thead><tr><th scope="col">one step</th>{head}</tr></thead><tbody>{body}</tbody></table>'
    )


def _row(name: str, cells: Sequence[str]) -> str:
    return f'<tr><th scope="row">{_text(name)}</th>{"".join(f"<td class=n>{_text(cell)}</td>" for cell in cells)}</tr>'


def _parts(parts: Sequence[Part], unit: str, whole: float) -> str:
    """Return parts of a whole as a table with bars; each figure is also there as it is, for programs."""
    largest = max((part.size for part in parts), default=0.0) or 1.0
    rows = "".join(
        f'<tr><th scope="row">{_text(part.name)}<small>{_text(part.means)}</small></th>'
        f'<td class="bar" aria-hidden="true"><i style="width:{part.size / largest:.1%}"></i></td>'
        f'<td class="n"><data value="{part.size!r}">{_size(part.size, unit)}</data></td></tr>'
        for part in parts
        if part.size
    )
    total = f'<td></td><td class="n"><data value="{whole!r}">{_size(whole, unit)}</data></td>'
    return (
        f'<table class="parts"><tbody>{rows}<tr class="sum"><th scope="row">together</th>{total}</tr></tbody></table>'
    )


def _size(size: float, unit: str) -> str:
    return _text(bytes_text(int(size)) if unit == "B" else scaled_text(size, unit))


def _process(picture: StepPicture) -> str:
    if not picture.process:
        return ""
    table = _parts(picture.process, "B", picture.process_peak_bytes)
    return f'<section aria-labelledby="process-title"><h2 id="process-title">RAM of the process</h2>{table}</section>'


def _store(picture: StepPicture) -> str:
    if not picture.store_read_bytes:
        return ""
    read, written = bytes_text(picture.store_read_bytes), bytes_text(picture.store_written_bytes)
    words = (
        f"Parameters live in a store on disk. A step reads {read} of it and writes {written}, with the commit behind "
        "the step. The lanes show when; the table of nodes shows which node reads and writes how much."
    )
    heading = '<h2 id="store-title">What the store reads and writes</h2>'
    return f'<section aria-labelledby="store-title">{heading}<p>{_text(words)}</p></section>'
