#!/usr/bin/env python3
"""Which boards train which models, and does a process on a plan for a board take what the board has?

    python scripts/benchmarks/boards/fit_models.py --stock-python PYTHON -o CSV

For each model `fit` gives a verdict on all boards. For each kind of verdict, the board with the least RAM is then
taken: `rewrite` plans for it, and a fresh process of the stock runtime makes two steps here. Its VmHWM (proc(5)) must
be at most the board's RAM. The exit code is 1 if one is more. Seconds are predicted; no board was measured.
"""

from __future__ import annotations

import argparse
import csv
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[3]
sys.path.insert(0, str(ROOT / "scripts"))

MODELS = ("mobilenet", "densenet", "unet", "resnet18", "gpt", "vit", "bert-2", "resnet50", "vgg16", "bert-base")
LOSSES = {"CrossEntropyLoss": "cross-entropy"}
FIELDS = (
    *("model", "device", "ram_bytes", "verdict", "process_bytes", "step_seconds", "times_ordered"),
    *("planned_process_bytes", "measured_process_bytes", "passed"),
)
TWO_STEPS = """
import sys
import numpy as np
import poet_onnx
from poet_onnx.training.trial import status_bytes
store = {"store": sys.argv[3]} if len(sys.argv) > 3 else {}
session = poet_onnx.TrainingSession(sys.argv[1], sys.argv[2], page_dir=".", **store)
batch = {name: np.zeros(shape, dtype) for name, dtype, shape in session.data_inputs}
for _ in range(2):
    session.step(batch)
print(status_bytes("VmHWM"))
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Ask for the verdicts, check one of each kind, and write the rows."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="*", default=MODELS, metavar="MODEL", help=f"default: {', '.join(MODELS)}")
    parser.add_argument("--stock-python", required=True, metavar="PYTHON", help="with the stock onnxruntime")
    parser.add_argument("--batch", type=int, default=8, help="samples a step (default 8)")
    parser.add_argument("--time-limit", type=float, default=60.0, help="for each plan, in seconds (default 60)")
    parser.add_argument("-o", "--output", type=Path, help="CSV file (default: only print)")
    options = parser.parse_args(arguments)
    rows: list[dict[str, Any]] = []
    for name in options.models:
        with tempfile.TemporaryDirectory() as folder:
            for row in verdicts(name, Path(folder), options):
                rows.append(row)
                print("  ".join(f"{key}={value}" for key, value in row.items()), flush=True)
        write(options.output, rows)
    return 1 if any(row["passed"] == "NO" for row in rows) else 0


def verdicts(name: str, folder: Path, options: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """Yield a row for each board."""
    import onnx
    from export_models import export_forward, quiet
    from models import RECIPES

    import poet_onnx

    recipe, forward = RECIPES[name], folder / "forward.onnx"
    module = recipe.build()
    with quiet():
        onnx.save(export_forward(module, recipe.inputs(options.batch)), forward)
    step = {"loss": LOSSES[recipe.loss], "train": [name for name, _ in module.named_parameters()], "target": "stock"}
    found = poet_onnx.fit(forward, **step)
    seen = {"none"}
    for board in found.boards:  # the least RAM first
        row = {
            "model": name,
            "device": board.device,
            "ram_bytes": board.ram_bytes,
            "verdict": board.verdict,
            "process_bytes": board.process_bytes,
            "step_seconds": "" if board.seconds is None else f"{board.seconds:.3f}",
            "times_ordered": "" if board.times is None else f"{board.times:.2f}",
        }
        if board.verdict not in seen:
            seen.add(board.verdict)
            row |= trained(forward, step, board.device, folder, options)
            row["passed"] = "yes" if row["measured_process_bytes"] <= board.ram_bytes else "NO"
        yield dict.fromkeys(FIELDS, "") | row


def trained(
    forward: Path, step: Mapping[str, Any], device: str, folder: Path, options: argparse.Namespace
) -> dict[str, Any]:
    """Plan for a board, make two steps in a fresh process, and return what both say of its RAM."""
    import poet_onnx

    result = poet_onnx.rewrite(forward, device=device, time_limit_seconds=options.time_limit, **step)
    files = result.save(folder / f"{device}.onnx")
    store = [str(folder / f"{device}.store")] if result.plan.stored else []
    command = [options.stock_python, "-c", TWO_STEPS, str(files[0]), str(files[1]), *store]
    done = subprocess.run(command, cwd=folder, check=True, stdout=subprocess.PIPE, text=True)
    return {"planned_process_bytes": result.process.peak_bytes, "measured_process_bytes": int(done.stdout)}


def write(path: Path | None, rows: Sequence[dict[str, Any]]) -> None:
    """Write the rows that there are."""
    if path is None:
        return
    with path.open("w", newline="", encoding="utf-8") as file:
        file.write(
            "# python scripts/benchmarks/boards/fit_models.py --stock-python PYTHON -o scripts/results/fit.csv\n"
        )
        writer = csv.DictWriter(file, FIELDS, lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)


if __name__ == "__main__":
    sys.exit(main())
