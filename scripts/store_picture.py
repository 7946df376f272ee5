#!/usr/bin/env python3
"""Draw the RAM of training against the size of the model: from a store, with torch and with onnxruntime-training.

    python scripts/store_picture.py scripts/results/store_memory.csv -o docs/store_memory.svg

The figures are those of scripts/benchmarks/memory/store_memory.py: VmHWM of whole processes that train with AdamW at
batch 1. Of poet-onnx it draws the least for each model. The picture has colours for light and for dark pages.
"""

from __future__ import annotations

import argparse
import csv
import math
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from xml.sax.saxutils import escape

WIDTH, HEIGHT = 760, 400
LEFT, RIGHT, TOP, BOTTOM = 70, 190, 50, 70
LEAST_MIB, MOST_MIB = 32, 8192
LEAST_PARAMETERS, MOST_PARAMETERS = 4e6, 5e8

NAMES = {
    "resnet18": "ResNet-18",
    "vit-tiny": "ViT-tiny",
    "bert-base": "BERT-base",
    "bert-large": "BERT-large",
    "decoder-lora": "decoder, LoRA",
}
TRAINERS = {"poet-onnx": "poet-onnx, from a store", "torch": "torch", "onnxruntime-training": "onnxruntime-training"}
BELOW = {"poet-onnx": 4, "torch": -8, "onnxruntime-training": 16}
"""How far below its last dot the name of a trainer stands: torch and onnxruntime-training take nearly the same."""
STYLE = """
text { font: 13px sans-serif; fill: #1f2328; }
.title { font-size: 15px; font-weight: bold; }
.small { font-size: 11px; }
line { stroke: #d1d9e0; }
g { color: #0969da; }
.torch { color: #bc4c00; }
.onnxruntime-training { color: #6e7781; }
path { fill: none; stroke: currentColor; stroke-width: 2.5; }
circle, .name { fill: currentColor; }
@media (prefers-color-scheme: dark) {
  text { fill: #e6edf3; }
  line { stroke: #30363d; }
  g { color: #58a6ff; }
  .torch { color: #f0883e; }
  .onnxruntime-training { color: #9198a1; }
  .name { fill: currentColor; }
}
"""
Point = tuple[str, float, float]
"""A model, its parameters, and MiB."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Draw the figures of a file."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("figures", type=Path, metavar="CSV")
    parser.add_argument("-o", "--output", type=Path, required=True, metavar="SVG")
    options = parser.parse_args(arguments)
    with options.figures.open(newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(line for line in file if not line.startswith("#")))
    ours = {row["model"] for row in rows if row["trainer"] == "poet-onnx"}
    rows = [row for row in rows if row["model"] in ours]
    options.output.write_text(picture({trainer: least(rows, trainer) for trainer in TRAINERS}), encoding="utf-8")
    return 0


def least(rows: Sequence[dict[str, str]], trainer: str) -> list[Point]:
    """Return the least RAM that a trainer takes for each model, smaller models first."""
    found: dict[str, Point] = {}
    for row in rows:
        point = row["model"], float(row["parameters"]), float(row["peak_mib"])
        if row["trainer"] == trainer and point[2] < found.get(row["model"], (None, 0.0, math.inf))[2]:
            found[row["model"]] = point
    return sorted(found.values(), key=lambda each: each[1])


def picture(lines: dict[str, list[Point]]) -> str:
    """Return the picture of what each trainer takes."""
    parts = [*axes(), *curves(lines), *models(lines)]
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" role="img">\n'
        f"<style>{STYLE}</style>\n" + "\n".join(parts) + "\n</svg>\n"
    )


def axes() -> Iterator[str]:
    """Yield a line for each power of two, and what the axes are."""
    yield f'<text class="title" x="{LEFT}" y="24">RAM of the whole training process, AdamW, batch 1</text>'
    mib = LEAST_MIB
    while mib <= MOST_MIB:
        y = _y(mib)
        yield f'<line x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>'
        label = f"{mib // 1024} GiB" if mib >= 1024 else f"{mib} MiB"
        yield f'<text x="{LEFT - 8}" y="{y + 4:.1f}" text-anchor="end">{label}</text>'
        mib *= 2
    yield f'<text x="{(LEFT + WIDTH - RIGHT) / 2}" y="{HEIGHT - 8}" text-anchor="middle">parameters of the model</text>'


def curves(lines: dict[str, list[Point]]) -> Iterator[str]:
    """Yield a line through the models that a trainer trains whole, a dot for each, and its name."""
    for trainer, points in lines.items():
        if not points:
            continue
        whole = [point for point in points if not point[0].endswith("-lora")]
        places = " L ".join(f"{_x(parameters):.1f} {_y(mib):.1f}" for _, parameters, mib in whole)
        yield f'<g class="{trainer}"><path d="M {places}"/>'
        for _, parameters, mib in points:
            x, y = _x(parameters), _y(mib)
            label = y + (16 if trainer == "onnxruntime-training" else -8)
            yield f'<circle cx="{x:.1f}" cy="{y:.1f}" r="4"/>'
            yield f'<text class="small" x="{x:.1f}" y="{label:.1f}" text-anchor="middle">{mib:,.0f}</text>'
        name, foot = escape(TRAINERS[trainer]), _y(points[-1][2]) + BELOW[trainer]
        yield f'<text class="name" x="{WIDTH - RIGHT + 14}" y="{foot:.1f}">{name}</text></g>'


def models(lines: dict[str, list[Point]]) -> Iterator[str]:
    """Yield the models' names below their places."""
    places = {point[0]: point[1] for points in lines.values() for point in points}
    for number, (model, parameters) in enumerate(sorted(places.items(), key=lambda each: each[1])):
        y = HEIGHT - BOTTOM + 18 + 14 * (number % 2)
        said = f"{NAMES[model]}, {parameters / 1e6:.0f} M"
        yield f'<text class="small" x="{_x(parameters):.1f}" y="{y}" text-anchor="middle">{said}</text>'


def _x(parameters: float) -> float:
    share = math.log(parameters / LEAST_PARAMETERS) / math.log(MOST_PARAMETERS / LEAST_PARAMETERS)
    return LEFT + share * (WIDTH - LEFT - RIGHT)


def _y(mib: float) -> float:
    share = math.log(mib / LEAST_MIB) / math.log(MOST_MIB / LEAST_MIB)
    return HEIGHT - BOTTOM - share * (HEIGHT - TOP - BOTTOM)


if __name__ == "__main__":
    sys.exit(main())
