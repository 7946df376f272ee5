"""Measure what a session takes for a node of each operator.

    python scripts/benchmarks/memory/session_memory.py MODEL... [-o CSV]

Every figure is a process of its own, with the ONNX Runtime of the interpreter that runs this: it loads a rewritten
model as `TrainingSession` does, and the same model with NODES more nodes of one operator, which are copies of the
model's own. What the second takes more, by NODES, is what a node takes. `_MORE_BYTES` of
poet_onnx/costing/process_costs.py is made of these figures.
"""

from __future__ import annotations

import argparse
import copy
import csv
import itertools
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

import onnx

NODES = 400
FIELDS = ("model", "operator", "nodes", "bytes_per_node")

WORKER = """
import sys
from poet_onnx.runtime.installed import import_onnxruntime
from poet_onnx.runtime.options import session_options
from poet_onnx.training.session_model import loaded_from, write_session_model

def anonymous():
    with open("/proc/self/status") as status:
        return next(1024 * int(line.split()[1]) for line in status if line.startswith("RssAnon"))

runtime, options = import_onnxruntime(), session_options()
options.log_severity_level = 4
options.add_session_config_entry("session.model_external_initializers_file_folder_path", sys.argv[2])
before = anonymous()
with loaded_from(write_session_model(sys.argv[1], {})) as path:
    session = runtime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
print(anonymous() - before)
"""


def main(arguments: Sequence[str]) -> int:
    """Measure every operator of every model and write the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="+", type=Path, metavar="MODEL", help="rewritten for this runtime")
    parser.add_argument("-o", "--output", type=Path, help="CSV file (default: only print)")
    options = parser.parse_args(arguments)
    rows = []
    for row in itertools.chain.from_iterable(map(measured, options.models)):
        print(*row, sep="\t", flush=True)
        rows.append(row)
    if options.output is not None:
        with options.output.open("w", newline="", encoding="utf-8") as file:
            file.write("# python scripts/benchmarks/memory/session_memory.py MODEL... -o CSV\n")
            writer = csv.writer(file, lineterminator="\n")
            writer.writerows([FIELDS, *rows])
    return 0


def measured(path: Path) -> Iterator[tuple[str, str, int, int]]:
    """Yield a row of each operator of a model."""
    model = onnx.load(path, load_external_data=False)
    alone_bytes = session_bytes(path, path.parent)
    found: dict[str, list[onnx.NodeProto]] = {}
    for node in model.graph.node:
        found.setdefault(node.op_type, []).append(node)
    found.pop("Arena")  # each one has a region of its own
    with tempfile.TemporaryDirectory() as folder:
        for operator, nodes in sorted(found.items()):
            longer = Path(folder, "longer.onnx")
            onnx.save(with_copies(model, nodes), longer)
            more_bytes = session_bytes(longer, path.parent) - alone_bytes
            yield path.parent.name, operator, len(nodes), round(more_bytes / NODES)


def with_copies(model: onnx.ModelProto, nodes: Sequence[onnx.NodeProto]) -> onnx.ModelProto:
    """Return a model with more nodes, copies of some of its own whose outputs nobody reads."""
    longer = copy.deepcopy(model)
    for number, node in zip(range(NODES), itertools.cycle(nodes), strict=False):
        added = longer.graph.node.add()
        added.CopyFrom(node)
        added.name = f"copy_{number}"
        added.output[:] = [f"copy_{number}_{place}" if name else "" for place, name in enumerate(node.output)]
    return longer


def session_bytes(path: Path, folder: Path) -> int:
    """Return what a session of a model takes, whose constants may lie in files of a folder."""
    done = subprocess.run([sys.executable, "-c", WORKER, path, folder], capture_output=True, text=True, check=True)
    return int(done.stdout)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
