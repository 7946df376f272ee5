#!/usr/bin/env python3
"""Let `poet_onnx.torch.export` check public architectures and the networks of docs/exporters.md against torch.

Names of networks may follow the command. It runs in an environment with the extras [training] and [architectures].
Networks of torchvision are left out: that package is not to be had for every torch. Rows go to
scripts/results/torch_check.csv, which keeps those of other names:

  worst_gradient_error    of a parameter's gradient, relative to its largest element, at the best of the points
  at_points               parameters whose gradients differ at some points alone, as kinks make them
  differences             known ones, by what follows the last dot of their names
  status                  passed, or what was refused
"""

from __future__ import annotations

import argparse
import csv
import re
import sys
import tempfile
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from public_architectures import ARCHITECTURES
from torch import nn
from torch_networks.catalogue import NETWORKS

import poet_onnx.torch
from poet_onnx.errors import PoetError

RESULTS = Path(__file__).resolve().parents[2] / "results" / "torch_check.csv"
COMMAND = (
    "PYTHONPATH=scripts:scripts/benchmarks/lowering:tests/support python scripts/benchmarks/lowering/torch_check.py"
)
COLUMNS = ("model", "exporter", "worst_gradient_error", "at_points", "differences", "status")
PASSED = "passed"
BATCH = 2
OPTIONS: dict[str, Any] = {"device": "a72", "target": "stock", "optimizer": "sgd", "recompute": False, "paging": False}

Case = tuple[Callable[[], nn.Module], Callable[[], Any], str]
"""Makes a module, and a batch; and the loss."""


def cases() -> dict[str, Case]:
    """Return all networks by name."""
    found: dict[str, Case] = {
        name: (recipe.build, lambda recipe=recipe: list(recipe.inputs(BATCH).values()), "cross-entropy")
        for name, recipe in ARCHITECTURES.items()
        if not name.startswith("torchvision")
    }
    return found | {name: (each.build, each.inputs, each.loss) for name, each in NETWORKS.items()}


def examine(name: str, case: Case) -> dict[str, object]:
    """Return the row of a network, from the first exporter that can export it."""
    build, inputs, loss = case
    row: dict[str, object] = dict.fromkeys(COLUMNS, "") | {"model": name}
    for exporter in ("legacy", "dynamo"):
        torch.manual_seed(0)
        with tempfile.TemporaryDirectory() as scratch, warnings.catch_warnings():
            warnings.simplefilter("ignore")
            path = Path(scratch, "net.onnx")
            try:
                made = poet_onnx.torch.export(build(), inputs(), path, loss=loss, exporter=exporter, **OPTIONS)
            except PoetError as error:
                row |= {"exporter": exporter, "status": " ".join(str(error).split())}
                if "exporter cannot export" in str(error):
                    continue
                return row
        report = made.check
        if report is None:
            return row | {"exporter": exporter, "status": "not checked"}
        kinds = {re.split(r"'", sentence)[1].rpartition(".")[2] for sentence in report.differences if "'" in sentence}
        return row | {
            "exporter": exporter,
            "worst_gradient_error": f"{max(report.gradient_errors.values()):.1e}",
            "at_points": len(report.at_points),
            "differences": " ".join(sorted(kinds)),
            "status": PASSED,
        }
    return row


def main() -> int:
    """Fill the table; return 1 if a network does not pass."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME", help="networks; default all")
    names = parser.parse_args().names
    torch.set_num_threads(1)
    rows: dict[str, dict[str, object]] = {}
    if names and RESULTS.exists():
        with RESULTS.open(encoding="utf-8", newline="") as file:
            file.readline()  # the command
            rows = {row["model"]: dict(row) for row in csv.DictReader(file)}
    off = []
    for name, case in cases().items():
        if names and name not in names:
            continue
        rows[name] = examine(name, case)
        sys.stderr.write(f"{rows[name]}\n")
        off += [name] if rows[name]["status"] != PASSED else []
        with RESULTS.open("w", encoding="utf-8", newline="") as file:
            file.write(f"# {COMMAND}\n")
            writer = csv.DictWriter(file, COLUMNS, lineterminator="\n")
            writer.writeheader()
            writer.writerows(rows.values())
    return bool(off)


if __name__ == "__main__":
    sys.exit(main())
