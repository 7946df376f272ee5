#!/usr/bin/env python3
"""Does a process keep to its RAM budget in every call: training, evaluation, checkpoints, resuming, export?

    PYTHONPATH=scripts python scripts/benchmarks/memory/every_call.py --python PYTHON... -o OUT.csv

Each model is exported with torch and rewritten with AdamW, for the runtime of each Python, and a RAM budget between
what its ordered step needs and the least. Two processes of each Python then live under a memory cgroup equal to that
budget, which is smaller or larger by what this Python and its onnxruntime take less or more than those that it is
planned for:
first   trains, evaluates, trains, writes a checkpoint, trains; goes back to the checkpoint and trains the same batches:
        losses must be the same to the bit; writes inference models, and trains between them; fits and evaluates batches
        of files.
second  starts from the checkpoint and trains the same batches: the same losses again.
`peak_bytes` is the larger VmHWM of both, `trained_bytes` and the like VmHWM of the first after these calls. `passed`
says that neither was killed, that it is within the budget, that the losses were the same, and that no block of a step
was outside the planned region. Stores are read past the page cache. The exit code is 1 if a row fails.
"""

from __future__ import annotations

import argparse
import csv
import functools
import json
import operator
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from quantized_memory import LORA
from quantized_memory import exported as exported_decoder

from poet_onnx.costing.device import HOST, load_device
from poet_onnx.costing.versions import Saved, Versions

PIXELS = "pixels"
"""Scores for each pixel of large images, [N, C, H, W], with labels [N, H, W]: nearly all of its RAM is the loss's."""

DECODER = "decoder-24"
"""A causal language model of 24 layers: its step has 2,500 nodes."""

ADAPTERS = "qwen2-lora"
"""Adapters of a decoder whose weights of 4 bits live in a store; layers are those of Qwen2-0.5B."""

ADAPTERS_SHAPE = argparse.Namespace(size="0.5B", layers=8, words=8000, tokens=128)
ADAPTERS_OPTIONS = {"loss": "causal-lm", "lora": LORA, "quantize": "4bit", "store": "always", "paging": False}

WORKER = Path(__file__).with_name("every_call_worker.py")
MODELS = {
    "mlp-mse": 32,
    "resnet18": 4,
    "mobilenet": 8,
    "unet": 2,
    PIXELS: 4,
    "gpt": 4,
    "transformer": 8,
    "vit": 4,
    "bert-2": 1,
    DECODER: 1,
    ADAPTERS: 1,
}
"""Batch sizes by name of scripts/models.py: among them a decoder (gpt), one with dropout (transformer), and one that is
never as large as while onnxruntime is imported (mlp-mse)."""

SHARE = 0.7
"""The budget leaves this share of the ordered step's transient bytes."""

ATTEMPTS, LARGER = 4, 1.03
"""At a budget, and what it grows by where no plan is found."""

CALLS = ("trained_bytes", "evaluated_bytes", "saved_bytes", "resumed_bytes", "exported_bytes", "fitted_bytes")
FIELDS = (
    *("model", "threads", "target", "python", "onnxruntime", "passed", "budget_bytes", "predicted_bytes", "peak_bytes"),
    *(*CALLS, "unplanned", "note"),
)
Row = dict[str, Any]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the cases and write their rows."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="*", metavar="MODEL", help=f"default all: {', '.join(MODELS)}")
    parser.add_argument("--threads", nargs="+", type=int, default=[1, 2], help="inside an operator (default 1 2)")
    parser.add_argument("--python", nargs="+", metavar="PYTHON", help="interpreters, with any of the runtimes")
    parser.add_argument("-o", "--output", type=Path, help="CSV file (default: only print)")
    options = parser.parse_args(arguments)
    own = os.environ.get("POET_STOCK_PYTHON")
    pythons = options.python or ([own] if own else [])
    if not pythons:
        parser.error("--python is needed: the interpreter of an environment that trains")
    if unknown := set(options.models) - set(MODELS):
        parser.error(f"no model {sorted(unknown)[0]!r}: use {', '.join(MODELS)}")
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        for name in options.models or MODELS:
            for threads in options.threads:
                for row in lived(name, threads, Path(folder), pythons):
                    rows.append(row)
                    print("  ".join(f"{key}={value}" for key, value in row.items()), flush=True)
                    write(options.output, rows)
    return 0 if all(row["passed"] == "yes" for row in rows) else 1


def write(path: Path | None, rows: Sequence[Row]) -> None:
    """Write the rows as CSV."""
    if path is None:
        return
    with path.open("w", newline="", encoding="utf-8") as file:
        file.write("# PYTHONPATH=scripts python scripts/benchmarks/memory/every_call.py --python PYTHON... -o CSV\n")
        writer = csv.DictWriter(file, FIELDS, lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)


def lived(name: str, threads: int, folder: Path, pythons: Sequence[str]) -> Iterator[Row]:
    """Yield a row for each Python: what a model's processes took, and whether all is as promised."""
    forward, parameters = exported(name, folder)
    planned: dict[tuple[str, bool], tuple[Any, Any]] = {}
    for python in pythons:
        target, versions = runtime_of(python)
        if name == ADAPTERS and target != "stock":
            continue  # stores are for the stock runtime
        takes_columns = versions.running_on(load_device(HOST), target).whole_columns
        model = folder / f"{name}-{threads}-{target}-{takes_columns}.poet.onnx"
        if (target, takes_columns) not in planned:  # one plan for all that take as much in a step
            made = rewritten(forward, parameters, threads, target, versions)
            made.save(model)
            planned[target, takes_columns] = versions, made
        others, result = planned[target, takes_columns]
        job = {"model": str(model), "checkpoint": str(folder / "checkpoint"), "threads": threads}
        if result.plan.stored:
            job["store"] = str(folder / "store")
        saved, process = Saved(*map(operator.sub, versions.saved, others.saved)), result.process
        training_bytes = process.training_bytes - saved.runtime_bytes - saved.session_bytes
        predicted_bytes = max(training_bytes, process.import_bytes - saved.runtime_bytes - saved.loading_bytes)
        budget_bytes = result.budget_bytes + predicted_bytes - process.peak_bytes
        yield {
            "model": name,
            "threads": threads,
            "target": target,
            "python": versions.python,
            "onnxruntime": versions.onnxruntime,
            "predicted_bytes": predicted_bytes,
            **both({**job, "exported": str(folder / "trained.onnx")}, budget_bytes, python),
        }
        shutil.rmtree(folder / "store", ignore_errors=True)


def runtime_of(python: str) -> tuple[str, Versions]:
    """Return the target and the versions of an interpreter and of the runtime that it imports."""
    code = """
import sys
from poet_onnx.runtime.installed import installed_runtime, installed_target
runtime = installed_runtime()
print(installed_target(), "%d.%d" % sys.version_info[:2], "%d.%d" % runtime.numbers[:2])
"""
    told = subprocess.run([python, "-c", code], stdout=subprocess.PIPE, text=True, check=True).stdout
    target, version, runtime = told.split()
    return target, Versions(version, runtime if target == "stock" else None)  # the other one has one version


def both(job: Mapping[str, Any], budget_bytes: int, python: str) -> Row:
    """Return what the two processes of a job took."""
    first = taken(job, budget_bytes, python)
    again = {key: value for key, value in job.items() if key != "exported"}
    second = taken(again, budget_bytes, python) if "problem" not in first else {"problem": "not run"}
    problems = [run["problem"] for run in (first, second) if "problem" in run]
    peak_bytes = max(run.get("peak_bytes", 0) for run in (first, second))
    if first.get("losses") != second.get("losses"):
        problems.append("another process goes on from the checkpoint to other losses")
    if peak_bytes > budget_bytes:
        problems.append(f"{peak_bytes - budget_bytes:,} bytes above the budget")
    unplanned = sum(run.get("unplanned", 0) for run in (first, second))
    if unplanned:
        problems.append("blocks outside the region")
    return {
        "budget_bytes": budget_bytes,
        "passed": "NO" if problems else "yes",
        "peak_bytes": peak_bytes,
        **{field: first[field] for field in CALLS if field in first},
        "unplanned": unplanned,
        "note": "; ".join(problems),
    }


def exported(name: str, folder: Path) -> tuple[Path, list[str]]:
    """Return the forward model, in the mode that it is trained in, and the names of its parameters."""
    import onnx
    import torch
    from attention_nets import Gpt
    from export_models import export_forward, quiet
    from models import RECIPES, Recipe, images, sequences

    if name == ADAPTERS:
        own = folder / name
        own.mkdir(exist_ok=True)
        return exported_decoder(own, ADAPTERS_SHAPE), []
    path = folder / f"{name}.onnx"
    torch.manual_seed(0)
    made = {
        PIXELS: Recipe(pixels, functools.partial(images, 256)),
        DECODER: Recipe(
            functools.partial(Gpt, 24, 128, 4, vocabulary=1000, length=128), functools.partial(sequences, 128, 1000)
        ),
    }
    recipe = (RECIPES | made)[name]
    module = recipe.build()
    if not path.exists():
        with quiet():
            onnx.save(export_forward(module, recipe.inputs(MODELS[name])), path)
    return path, [parameter for parameter, _ in module.named_parameters()]


def pixels() -> Any:
    """Return a network whose loss is over pixels."""
    from torch import nn

    return nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.ReLU(), nn.Dropout(0.1), nn.Conv2d(8, 4, 3, padding=1))


def rewritten(forward: Path, parameters: Sequence[str], threads: int, target: str, versions: Versions) -> Any:
    """Return the training step, for a budget that ordering alone does not keep to."""
    from poet_onnx import rewrite
    from poet_onnx.errors import InfeasibleError, LimitReachedError

    plain: dict[str, Any] = {
        "device": "host",
        "loss": "cross-entropy",
        "target": target,
        "threads": threads,
        "optimizer": "adamw",
    }
    plain |= {"gap": 0.05, "store": "never"}  # all of the state in RAM
    plain |= {"python": versions.python, "onnxruntime": versions.onnxruntime}
    if parameters:
        plain["train"] = parameters  # that vit's class token is one, an ONNX file does not tell
    else:
        plain |= ADAPTERS_OPTIONS
    ordered = rewrite(forward, **plain)
    budget = round(ordered.process.peak_bytes - (1 - SHARE) * ordered.rewritten.transient_peak_bytes)
    for _ in range(ATTEMPTS):
        try:
            return rewrite(forward, ram_budget=budget, **plain)
        except InfeasibleError as error:
            budget = error.smallest_budget_bytes or round(LARGER * budget)
        except LimitReachedError:
            budget = round(LARGER * budget)
    raise SystemExit(f"{forward.name}: no plan for {budget:,} bytes")


def taken(job: Mapping[str, Any], budget_bytes: int, python: str) -> Row:
    """Return what a process took that lives under the budget, or its problem."""
    from poet_onnx.verification.limits import memory_cgroup

    with memory_cgroup(budget_bytes) as group:
        done = subprocess.run(
            [python, str(WORKER), json.dumps(job)],
            capture_output=True,
            text=True,
            check=False,
            preexec_fn=functools.partial((group / "cgroup.procs").write_text, "0"),
        )
    found: Row = {}
    for line in done.stdout.splitlines():
        found |= json.loads(line)
    if done.returncode == 0:
        return found
    last = (done.stderr.strip().splitlines() or ["no message"])[-1]
    ending = "killed" if done.returncode == -9 else f"exit code {done.returncode}: {last}"
    return found | {"problem": f"{ending} after '{found.get('last', 'nothing')}'"}


if __name__ == "__main__":
    sys.exit(main())
