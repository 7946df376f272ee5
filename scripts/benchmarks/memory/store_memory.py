#!/usr/bin/env python3
"""What RAM does training from a store take, and is it the training that has all in RAM, to the bit?

    PYTHONPATH=scripts python scripts/benchmarks/memory/store_memory.py --stock-python PYTHON -o OUT.csv

Each model is exported with torch and rewritten with AdamW for the stock runtime, one thread: with all in RAM, for
`--store always` and 1.02 times the least RAM budget that is found, and for `--store auto` and other budgets. Fresh
processes then train so many steps on the same batches, with the store in the page cache, with a commit behind each step
and one every 100; times are the median of the steps behind the first two, which fill it. `peak_mib` is VmHWM,
`predicted_mib` what `rewrite` says of a process that also evaluates, saves and exports. `is_equal` tells whether all
parameters, moments and losses are those of the training in RAM, `ratio` how much processor time a step takes beside it,
and `wall_ratio` how much time by the clock: a store's transfers run beside the step's own work where a core is free.
Beside them torch trains the same module eagerly, and onnxruntime-training its own artifacts of it; adapters beside
frozen weights are PEFT's there, and onnxruntime-training has none. Rows of other models and trainers stay in the file.
The exit code is 1 if tensors are not equal, or a peak is above its prediction.
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
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

BUDGETS = {
    "bert-base": ("128MiB", "512MiB"),
    "vit-tiny": ("80MiB", "120MiB"),
    "resnet18": ("70MiB", "100MiB"),
    "decoder-lora": ("128MiB",),
    "bert-large": (),
}
"""RAM budgets by model, besides the least."""

COMMITS = (1, 100)
"""Updates from one commit of a store to the next."""

WORKER = Path(__file__).with_name("store_memory_worker.py")
OTHERS = Path(__file__).with_name("store_memory_others.py")

OURS = "poet-onnx"
TRAINERS = (OURS, "torch", "onnxruntime-training")

LARGER = 1.02
"""A plan for exactly the least budget may not be found again within the time."""

LORA = "rank=8,alpha=16,targets=*query.weight,*value.weight"
FIELDS = (
    "model",
    "parameters",
    "trainer",
    "steps",
    "store",
    "commit_every",
    "budget_mib",
    "nodes",
    "predicted_mib",
    "peak_mib",
    "step_seconds",
    "ratio",
    "wall_seconds",
    "wall_ratio",
)
FIELDS += ("read_mib", "written_mib", "tensors", "is_equal")
Row = dict[str, Any]


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure all models and write the rows."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="*", metavar="MODEL", help=f"default all: {', '.join(BUDGETS)}")
    parser.add_argument(
        "--budgets", nargs="+", metavar="BYTES", help="with all that can be in a store (default: as above)"
    )
    parser.add_argument("--trainers", nargs="+", choices=TRAINERS, default=list(TRAINERS), help="default all")
    parser.add_argument("--stock-python", default=os.environ.get("POET_STOCK_PYTHON"), metavar="PYTHON")
    parser.add_argument("--steps", type=int, default=20, help="that each process trains (default 20)")
    parser.add_argument("-o", "--output", type=Path, help="CSV file (default: only print)")
    options = parser.parse_args(arguments)
    rows: list[Row] = []
    for name in options.models or BUDGETS:
        with tempfile.TemporaryDirectory() as folder:
            made = measured(name, Path(folder), options) if OURS in options.trainers else []
            count = sum(each.numel() for each in recipe(name).build().parameters())
            for row in [*made, *others(name, Path(folder), options)]:
                rows.append({field: ({"parameters": count} | row).get(field, "") for field in FIELDS})
                print(*(f"{field}={value}" for field, value in rows[-1].items()), flush=True)
    if options.output is not None:
        now = {(row["model"], row["trainer"]) for row in rows}
        kept = [row for row in known_rows(options.output) if (row["model"], row["trainer"]) not in now]
        with options.output.open("w", newline="", encoding="utf-8") as file:
            file.write("# PYTHONPATH=scripts python scripts/benchmarks/memory/store_memory.py MODEL --steps STEPS\n")
            writer = csv.DictWriter(file, FIELDS, lineterminator="\n")
            writer.writeheader()
            writer.writerows(sorted([*kept, *rows], key=lambda row: (row["model"], TRAINERS.index(row["trainer"]))))
    ours = [row for row in rows if row["trainer"] == OURS]
    return 0 if all(row["is_equal"] and row["peak_mib"] <= row["predicted_mib"] for row in ours) else 1


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

    forward, settings = exported(name, folder), settings_of(name)
    asked = [{"store": "never", "activation_budget": "100%"}]
    asked += [{"store": "always", "ram_budget": budget} for budget in options.budgets or ()]
    if not options.budgets:
        try:
            rewrite(forward, store="always", ram_budget="20MiB", **settings)
            raise AssertionError("a process of 20 MiB")
        except InfeasibleError as error:
            asked += [{"store": "always", "ram_budget": round(LARGER * (error.smallest_budget_bytes or 0))}]
        asked += [{"store": "auto", "ram_budget": budget} for budget in BUDGETS[name]]
    rows: list[Row] = []
    for number, each in enumerate(asked):
        result = rewrite(forward, **settings, **each)
        model = folder / f"{number}.onnx"
        result.save(model)
        told = {
            "model": name,
            "trainer": OURS,
            "steps": options.steps,
            "store": each["store"],
            "budget_mib": "" if number == 0 else round(result.budget_bytes / 2**20, 1),
            "nodes": len(list(result.model.graph)),
            "predicted_mib": round(result.process.peak_bytes / 2**20, 1),
        }
        for commit_every in COMMITS if result.plan.stored else (0,):
            found = trained(options, model, commit_every)
            first = rows[0] if rows else found
            ratios = {
                field: round(found[seconds] / first[seconds], 2)
                for field, seconds in (("ratio", "step_seconds"), ("wall_ratio", "wall_seconds"))
            }
            is_equal = found["digest"] == first["digest"]
            rows.append({**told, **found, **ratios, "commit_every": commit_every or "", "is_equal": is_equal})
    return rows


def trained(options: argparse.Namespace, model: Path, commit_every: int) -> Row:
    """Return what a fresh process says of a training, from a store with so many updates a commit; 0: without one."""
    with tempfile.TemporaryDirectory(dir=model.parent) as folder:
        command = [options.stock_python, str(WORKER), str(model), folder, str(options.steps), str(commit_every)]
        return dict(json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout))


def settings_of(name: str) -> dict[str, Any]:
    """Return what a model is rewritten with."""
    settings: dict[str, Any] = {"device": "host", "target": "stock", "loss": "cross-entropy", "optimizer": "adamw"}
    settings |= {"python": "3.11", "gap": 0.05, "time_limit_seconds": 60}
    settings |= {"lora": LORA} if name == "decoder-lora" else {}
    settings |= {"train": parameters(name)} if name == "vit-tiny" else {}
    return settings


def others(name: str, folder: Path, options: argparse.Namespace) -> Iterator[Row]:
    """Yield the rows of those that have all in RAM."""
    import numpy as np
    from export_models import export, quiet

    for trainer in [each for each in TRAINERS[1:] if each in options.trainers]:
        if trainer != "torch":
            if name.endswith("-lora"):
                continue
            made = recipe(name)
            with quiet():
                export(made, folder)
            batch = [tensor.numpy() for tensor in made.inputs(1).values()]
            np.savez(folder / "batch.npz", *batch, np.zeros(1, np.int64))
        command = [sys.executable, str(OTHERS), trainer, name, str(options.steps), str(folder)]
        done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
        yield {"model": name, "trainer": trainer, "steps": options.steps} | json.loads(done.stdout)


def recipe(name: str) -> Any:
    """Return how to build a model."""
    from attention_nets import Bert, Gpt, Vit
    from convolutional_nets import mobilenet_v2
    from models import RECIPES, Recipe, images, sequences, tokens

    own = {
        "bert-large": Recipe(
            functools.partial(Bert, 24, 1024, 16, vocabulary=30522, dropout=0.0), functools.partial(tokens, 128, 30522)
        ),
        "mobilenet-v2": Recipe(mobilenet_v2, functools.partial(images, 224)),
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
