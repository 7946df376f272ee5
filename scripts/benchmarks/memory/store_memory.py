#!/usr/bin/env python3
"""What RAM does training from a store take, and is it the training that has all in RAM, to the bit?

    PYTHONPATH=scripts python scripts/benchmarks/memory/store_memory.py --stock-python PYTHON -o OUT.csv

Each model is exported with torch and rewritten with AdamW for the stock runtime, one thread: with all in RAM, for
`--store always` and 1.02 times the least RAM budget that is found, and for `--store auto` and other budgets. Fresh
processes then train so many steps on the same batches, with the store in the page cache; times are the median of the
steps behind the first two, which fill it. `peak_mib` is VmHWM,
`predicted_mib` what `rewrite` says of a process that also evaluates, saves and exports. `is_equal` tells whether all
parameters, moments and losses are those of the training in RAM, `ratio` how much processor time a step takes beside it.
Rows of other models stay in the file. The exit code is 1 if they are not equal, or a peak is above its prediction.
"""

from __future__ import annotations

import argparse
import csv
import functools
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

BUDGETS = {
    "bert-base": ("128MiB", "512MiB"),
    "vit-tiny": (),
    "resnet18": ("100MiB",),
    "decoder-lora": ("256MiB",),
}
"""RAM budgets by model, besides the least."""

WORKER = Path(__file__).with_name("store_memory_worker.py")

LARGER = 1.02
"""A plan for exactly the least budget may not be found again within the time."""

LORA = "rank=8,alpha=16,targets=*query.weight,*value.weight"
FIELDS = ("model", "steps", "store", "budget_mib", "nodes", "predicted_mib", "peak_mib", "step_seconds", "ratio")
FIELDS += ("read_mib", "written_mib", "tensors", "is_equal")
Row = dict[str, Any]


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure all models and write the rows."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="*", metavar="MODEL", help=f"default all: {', '.join(BUDGETS)}")
    parser.add_argument("--stock-python", default=os.environ.get("POET_STOCK_PYTHON"), metavar="PYTHON")
    parser.add_argument("--steps", type=int, default=20, help="that each process trains (default 20)")
    parser.add_argument("-o", "--output", type=Path, help="CSV file (default: only print)")
    options = parser.parse_args(arguments)
    rows: list[Row] = []
    for name in options.models or BUDGETS:
        with tempfile.TemporaryDirectory() as folder:
            for row in measured(name, Path(folder), options):
                rows.append(row)
                print(*(f"{field}={value}" for field, value in row.items()), flush=True)
    if options.output is not None:
        measured_now = {row["model"] for row in rows}
        kept = [row for row in known_rows(options.output) if row["model"] not in measured_now]
        with options.output.open("w", newline="", encoding="utf-8") as file:
            file.write("# PYTHONPATH=scripts python scripts/benchmarks/memory/store_memory.py MODEL --steps STEPS\n")
            writer = csv.DictWriter(file, FIELDS, lineterminator="\n")
            writer.writeheader()
            writer.writerows([*kept, *rows])
    return 0 if all(row["is_equal"] and row["peak_mib"] <= row["predicted_mib"] for row in rows) else 1


def known_rows(path: Path) -> list[Row]:
    """Return the rows that a file has."""
    if not path.exists():
        return []
    with path.open(newline="", encoding="utf-8") as file:
        next(file)  # the command
        return list(csv.DictReader(file))


def measured(name: str, folder: Path, options: argparse.Namespace) -> list[Row]:
    """Return the rows of a model, the first of which has all in RAM."""
    from poet_onnx import rewrite
    from poet_onnx.errors import InfeasibleError

    forward = exported(name, folder)
    settings: dict[str, Any] = {"device": "host", "target": "stock", "loss": "cross-entropy", "optimizer": "adamw"}
    settings |= {"python": "3.11", "gap": 0.05, "time_limit_seconds": 60}
    settings |= {"lora": LORA} if name == "decoder-lora" else {}
    settings |= {"train": parameters(name)} if name == "vit-tiny" else {}
    try:
        rewrite(forward, store="always", ram_budget="20MiB", **settings)
        raise AssertionError("a process of 20 MiB")
    except InfeasibleError as error:
        least = round(LARGER * (error.smallest_budget_bytes or 0))
    asked = [{"store": "never", "activation_budget": "100%"}, {"store": "always", "ram_budget": least}]
    asked += [{"store": "auto", "ram_budget": budget} for budget in BUDGETS[name]]
    rows: list[Row] = []
    for number, each in enumerate(asked):
        result = rewrite(forward, **settings, **each)
        model = folder / f"{number}.onnx"
        result.save(model)
        store = folder / f"{number}.store" if result.plan.stored else None
        command = [options.stock_python, str(WORKER), str(model), str(store or ""), str(options.steps)]
        found = json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout)
        first = rows[0] if rows else found
        rows.append(
            {
                "model": name,
                "steps": options.steps,
                "store": each["store"],
                "budget_mib": "" if number == 0 else round(result.budget_bytes / 2**20, 1),
                "nodes": len(list(result.model.graph)),
                "predicted_mib": round(result.process.peak_bytes / 2**20, 1),
                **found,
                "ratio": round(found["step_seconds"] / first["step_seconds"], 2),
                "is_equal": found["digest"] == first["digest"],
            }
        )
    return [{field: row[field] for field in FIELDS} for row in rows]


def recipe(name: str) -> Any:
    """Return how to build a model."""
    from attention_nets import Gpt, Vit
    from models import RECIPES, Recipe, images, sequences

    own = {
        "vit-tiny": Recipe(functools.partial(Vit, 12, 192, 3, size=224, patch=16), functools.partial(images, 224)),
        "decoder-lora": Recipe(
            functools.partial(Gpt, 12, 768, 12, vocabulary=32000, length=128), functools.partial(sequences, 128, 32000)
        ),
    }
    return (RECIPES | own)[name]


def parameters(name: str) -> list[str]:
    """Return the names of a model's parameters, which an ONNX file does not always tell."""
    return [each for each, _ in recipe(name).build().named_parameters()]


def exported(name: str, folder: Path) -> Path:
    """Return the forward model."""
    import onnx
    import torch
    from export_models import export_forward, quiet

    torch.manual_seed(0)
    path, made = folder / "forward.onnx", recipe(name)
    with quiet():
        onnx.save(export_forward(made.build(), made.inputs(1)), path)
    return path


if __name__ == "__main__":
    sys.exit(main())
