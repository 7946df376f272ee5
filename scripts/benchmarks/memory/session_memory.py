"""Measure what a process takes beside tensors: imports, the first session, and each session by its nodes.

    python scripts/benchmarks/memory/session_memory.py MODEL... -o CSV

Every row is a process of its own, with the ONNX Runtime of the interpreter that runs this: `imports` is the session's
part of poet-onnx imported, `options` what `session_options` adds (the runtime's library), `session` what making the
session of a model adds, and `load_peak` how much more than at its end was taken while it was made. No tensor counts:
the inputs of a training graph, which hold all parameters, are bound only later. The last lines are least squares over
the rows: bytes of a session = a + b nodes + c initializers.
"""

from __future__ import annotations

import argparse
import csv
import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import onnx

FIELDS = (
    "runtime",
    "model",
    "nodes",
    "initializers",
    "file_bytes",
    "start",
    "imports",
    "options",
    "session",
    "load_peak",
)
"""Figures from `start` on are bytes of resident memory."""

WORKER = """
import json, sys

def resident(key="VmRSS"):
    with open("/proc/self/status") as status:
        return next(1024 * int(line.split()[1]) for line in status if line.startswith(key))

start = resident()
from poet_onnx.training import batch, checkpoint, memory, parameters, runner
imports = resident()
from poet_onnx.runtime import installed_runtime, session_options
options = session_options()
options.log_severity_level = 4
import onnxruntime
with_options = resident()
session = onnxruntime.InferenceSession(sys.argv[1], options, providers=["CPUExecutionProvider"])
end, peak = resident(), resident("VmHWM")
runtime = installed_runtime()
print(json.dumps({
    "runtime": f"{runtime.distribution} {runtime.version}", "start": start, "imports": imports - start,
    "options": with_options - imports, "session": end - with_options, "load_peak": peak - end,
}))
"""


def main(arguments: Sequence[str]) -> int:
    """Measure every model and write the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="+", type=Path, metavar="MODEL", help="rewritten for this runtime")
    parser.add_argument("-o", "--output", type=Path, help="CSV file (default: only print)")
    options = parser.parse_args(arguments)
    rows = [row(path) for path in options.models]
    for each in rows:
        print("  ".join(f"{name}={value}" for name, value in each.items()))
    a, b, c = fit(rows)
    print(f"bytes of a session = {a:.0f} + {b:.0f} nodes + {c:.0f} initializers")
    if options.output is not None:
        with options.output.open("w", newline="", encoding="utf-8") as file:
            file.write("# python scripts/benchmarks/memory/session_memory.py MODEL... -o CSV\n")
            writer = csv.DictWriter(file, FIELDS, lineterminator="\n")
            writer.writeheader()
            writer.writerows(rows)
    return 0


def row(path: Path) -> dict[str, object]:
    """Measure one model in a process of its own."""
    done = subprocess.run([sys.executable, "-c", WORKER, path], capture_output=True, text=True, check=True)
    graph = onnx.load(path).graph
    counted = {"model": path.stem, "nodes": len(graph.node), "initializers": len(graph.initializer)}
    measured = json.loads(done.stdout) | counted | {"file_bytes": path.stat().st_size}
    return {name: measured[name] for name in FIELDS}


def fit(rows: Sequence[dict[str, object]]) -> tuple[float, float, float]:
    """Return bytes of a session, of each of its nodes and of each of its initializers."""
    terms = np.array([[1, row["nodes"], row["initializers"]] for row in rows], np.float64)
    taken = np.array([row["session"] for row in rows], np.float64)
    a, b, c = np.linalg.lstsq(terms, taken, rcond=None)[0]
    return float(a), float(b), float(c)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
