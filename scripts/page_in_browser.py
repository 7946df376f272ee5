#!/usr/bin/env python3
"""Open pages of `poet-onnx report` in a headless Chromium: how soon they answer, and whether their figures are right.

python scripts/page_in_browser.py resnet18.html bert.html decoder.html -o scripts/results/page_in_browser.csv
Each page is opened from its file, as a reader would. A script at its end asks for what nobody sees: requests that were
made, the time that a key and a search take. What the page shows is held against the JSON in it. `--shots DIR` keeps a
picture of each.
"""

from __future__ import annotations

import argparse
import csv
import html
import json
import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from poet_onnx.reporting.figures import bytes_text, scaled_text

MOST_MILLISECONDS, MOST_BYTES = 2000, 5 * 10**6
"""A page answers within, and is at most."""

_ASKS = """<script>
addEventListener("load", () => {
  const said = document.documentElement.dataset, map = byId("map"), search = byId("table-search");
  const timed = (work) => { const start = performance.now(); work(); return String(performance.now() - start); };
  said.keyMilliseconds = timed(() => map.dispatchEvent(new KeyboardEvent("keydown", {key: "ArrowRight"})));
  said.details = byId("details").textContent;
  const rows = [...byId("table").tBodies[0].rows];
  said.rows = JSON.stringify(rows.map((row) => [...row.cells].map((cell) => cell.textContent)));
  said.count = byId("table-count").textContent;
  search.value = "grad";
  said.searchMilliseconds = timed(() => search.dispatchEvent(new Event("input")));
  said.requests = String(performance.getEntriesByType("resource").length);
});
</script></body>"""


@dataclass(frozen=True)
class Row:
    """What opening a page took.

    Attributes:
        page: name of its file.
        nodes, buffers: of the rewritten step.
        page_bytes: of the file.
        ready_milliseconds: from the start until everything is drawn and answers.
        key_milliseconds, search_milliseconds: that a key on the map, and a search in the table, take.
        requests: that the page made.
        wrong_figures: figures on the page that are not those of its JSON.
    """

    page: str
    nodes: int
    buffers: int
    page_bytes: int
    ready_milliseconds: int
    key_milliseconds: float
    search_milliseconds: float
    requests: int
    wrong_figures: int


def browser() -> str | None:
    """Return the path of a Chromium, if one is installed."""
    return next(
        (found for name in ("chromium", "chromium-browser", "google-chrome") if (found := shutil.which(name))), None
    )


def opened(page: Path) -> tuple[Row, list[str]]:
    """Open a page, and return what it took, and a sentence for each figure that is wrong."""
    text = page.read_text(encoding="utf-8")
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder, page.name)
        copy.write_text(text.replace("</body>", _ASKS), encoding="utf-8")
        drawn = _run(copy, "--dump-dom")
    said = {
        name: html.unescape(value)
        for name, value in re.findall(r'data-([a-z-]+)="([^"]*)"', drawn[: drawn.index("<head")])
    }
    picture = json.loads(text[text.index('id="picture">') + 13 : text.index("</script>", text.index('id="picture">'))])
    wrong = list(_wrong(picture, drawn, said))
    return (
        Row(
            page=page.name,
            nodes=len(picture["nodes"]["names"]),
            buffers=len(picture["layers"][-1]["blocks"]["born"]),
            page_bytes=page.stat().st_size,
            ready_milliseconds=int(said["ready-milliseconds"]),
            key_milliseconds=round(float(said["key-milliseconds"]), 1),
            search_milliseconds=round(float(said["search-milliseconds"]), 1),
            requests=int(said["requests"]),
            wrong_figures=len(wrong),
        ),
        wrong,
    )


def shoot(page: Path, folder: Path) -> Path:
    """Keep a picture of a page."""
    target = folder / f"{page.stem}.png"
    _run(page, f"--screenshot={target}", "--window-size=1280,2400")
    return target


def _run(page: Path, *asked: str) -> str:
    program = browser()
    assert program is not None, "no Chromium is installed"
    with tempfile.TemporaryDirectory() as profile:
        command = [program, "--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={profile}", *asked]
        done = subprocess.run(
            [*command, page.resolve().as_uri()], capture_output=True, text=True, check=True, timeout=300
        )
    return done.stdout


def _wrong(picture: dict[str, Any], drawn: str, said: dict[str, str]) -> Iterator[str]:
    """Yield what the drawn page shows otherwise than its JSON has it."""
    tiles = re.findall(r'<p class="figure">([^<]*)</p>', drawn)
    is_ram = picture["budget_kind"] == "ram"
    used = picture["process_peak_bytes" if is_ram else "transient_peak_bytes"]
    figures = [bytes_text(used), scaled_text(picture["energy_joules"], "J"), scaled_text(picture["seconds"], "s")]
    for shown, expected in zip(tiles, figures, strict=False):
        if html.unescape(shown).replace("\N{MICRO SIGN}", "u") != expected:
            yield f"a tile shows {shown}, not {expected}"
    values = sorted(float(value) for value in re.findall(r'<data value="([^"]*)"', drawn))
    parts = [part["size"] for name in ("energy", "process", "residents") for part in picture[name] if part["size"]]
    totals = [picture["energy_joules"], picture["resident_bytes"]]
    totals += [picture["process_peak_bytes"]] if picture["process"] else []
    if values != sorted(map(float, [*parts, *totals])):
        yield "the tables of parts have other figures"
    blocks = picture["layers"][-1]["blocks"]
    rows = json.loads(said["rows"])
    if f"of {len(blocks['born']):,}" not in said["count"] or len(rows) != min(100, len(blocks["born"])):
        yield f"the table counts {said['count']}"
    for place, row in enumerate(rows):
        address = "outside" if blocks["offsets"][place] < 0 else f"{blocks['offsets'][place]:,}"
        if (row[1], row[5]) != (f"{blocks['sizes'][place]:,}", address):
            yield f"row {place} has {row[1]} bytes at {row[5]}, not {blocks['sizes'][place]:,} at {address}"
    if not said["details"].strip():
        yield "a key shows no details"


def main() -> None:
    """Open the pages of the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("pages", type=Path, nargs="+")
    parser.add_argument("-o", "--output", type=Path, required=True)
    parser.add_argument("--shots", type=Path)
    given = parser.parse_args()
    rows = []
    for page in given.pages:
        row, wrong = opened(page)
        print(row, *wrong, sep="\n  ")
        rows.append(row)
        if given.shots:
            print(shoot(page, given.shots))
    with given.output.open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, [field.name for field in fields(Row)], lineterminator="\n")
        writer.writeheader()
        writer.writerows(map(asdict, rows))


if __name__ == "__main__":
    main()
