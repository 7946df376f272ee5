"""The work of the command that makes a training graph."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

from poet_onnx.cli import terminal
from poet_onnx.cli.files import check_writable
from poet_onnx.errors import InputError, listed
from poet_onnx.files.values import kind_of
from poet_onnx.gradients.train_graph import EVALUATION, TRAINING, VALUES, TrainGraph
from poet_onnx.gradients.train_graph import train_graph as make_train_graph

_SHOWN = 8


def train_graph(
    *,
    model: Path,
    output: Path,
    force: bool,
    as_json: bool,
    **options: Any,
) -> None:
    """Differentiate the forward model MODEL, and write what training takes to the folder OUTPUT."""
    files = {name: output / name for name in (TRAINING, EVALUATION, VALUES)}
    if output.is_dir():
        check_writable((("--output", path) for path in files.values()), inputs={"FORWARD": model}, force=force)
    elif output.exists():
        raise InputError(f"--output {output} is no folder; name another one.")
    with terminal.ProgressLine(f"differentiating {model}"):
        made = make_train_graph(model, **options)
    made.save(output, replace=force)
    if as_json:
        terminal.show_json(json.dumps(_figures(made, files), indent=2))
        return
    for line in made_lines(made):
        terminal.show(line)
    terminal.show(f"wrote {', '.join(map(str, files.values()))}")


def _figures(made: TrainGraph, files: dict[str, Path]) -> dict[str, object]:
    return {
        "files": list(map(str, files.values())),
        "loss": made.loss,
        "nodes": len(made.training.graph),
        "trained": {name: list(kind_of(made.values, name).shape) for name in made.values},
        "frozen": list(made.frozen),
        "tied": dict(made.tied),
        "adapters": {} if made.adapters is None else {each.weight: each.module for each in made.adapters.each},
    }


def made_lines(made: TrainGraph) -> list[str]:
    """Return what is said of the result: what trains, and what does not."""
    numbers = sum(math.prod(kind_of(made.values, name).shape) for name in made.values)
    lines = [f"{numbers:,} numbers in {len(made.values)} parameters are trained for '{made.loss}'"]
    if made.adapters is not None:
        beside: dict[tuple[int, float], list[str]] = {}
        for each in made.adapters.each:
            beside.setdefault((made.adapters.rank_of(each), made.adapters.scale_of(each)), []).append(each.name)
        for (rank, scale), names in beside.items():
            lines.append(f"adapters of rank {rank}, scaled by {scale:g}, stand beside {listed(names, _SHOWN)}")
    if made.frozen:
        lines.append(f"not trained: {listed(made.frozen, _SHOWN)}")
    if made.tied:
        lines.append(f"copies read their original: {listed([f'{a} of {b}' for a, b in made.tied], _SHOWN)}")
    return lines
