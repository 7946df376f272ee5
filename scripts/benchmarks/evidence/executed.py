"""A plan of every method, executed by ONNX Runtime: the same bits as the original's, and the peak as measured."""

from __future__ import annotations

import csv
import shlex
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

from poet_onnx import rewrite, verify
from poet_onnx.choices import METHODS

EXECUTED = "executed"
"""Name of this part."""

DEVICE = "tx2"
CASE = ("densenet", 1, "95%")
"""Model, batch size and budget for a plan that all methods have to recompute or page for."""

CASES = {"checkpoint-all": ("densenet", 1, "100%"), "poet-paper": ("mlp-bce", 256, "75%")}
"""One keeps everything; the other's program is too hard for the larger model."""

COLUMNS = (
    *("method", "model", "budget", "budget_bytes", "predicted_peak_bytes", "measured_peak_bytes"),
    *("recomputed_nodes", "page_out_bytes", "order_exact", "bits_equal"),
)


def write_executed(exported: Callable[[str, int], Path], target: Path, command: Sequence[str]) -> None:
    """Rewrite and execute with every method, and write a CSV file.

    Args:
        exported: returns the file of a model for a batch size.
        target: of the CSV file.
        command: that makes it, for its first line.
    """
    target.parent.mkdir(parents=True, exist_ok=True)
    with target.open("w", newline="", encoding="utf-8") as file, tempfile.TemporaryDirectory() as folder:
        file.write(f"# {shlex.join(command)}\n")
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(COLUMNS)
        for method in METHODS:
            model, batch, budget = CASES.get(method, CASE)
            writer.writerow(_row(method, exported(model, batch), budget, Path(folder) / "rewritten.onnx"))
            print(f"executed {method}", flush=True)


def _row(method: str, path: Path, budget: str, out: Path) -> tuple[object, ...]:
    result = rewrite(path, device=DEVICE, activation_budget=budget, split=False, method=method)
    result.save(out)
    report, prediction = verify(path, out, feeds=1), result.plan.prediction
    return (
        method,
        path.parent.name,
        budget,
        result.plan.limits.budget_bytes,
        report.predicted_transient_peak_bytes,
        report.measured_transient_peak_bytes,
        prediction.recomputed_nodes,
        prediction.page_out_bytes,
        report.order_exact,
        report.bits_equal,
    )
