"""Measure what the paging operators cost besides the storage: seconds per node, and bytes per second with each cipher.

    python scripts/benchmarks/paging/ops_overhead.py -o CSV

Seconds of a node are the difference between models with many of it and with none, least of several runs. Of a paging
node, those that its transfer took on the I/O channel are subtracted: system calls and checksum. The asynchronous halves
follow each other immediately, so that their difference is all of starting and awaiting a transfer on another thread.
"""

from __future__ import annotations

import argparse
import csv
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
from onnx import TensorProto, helper

from poet_onnx.runtime import PagingOptions, count_paging, installed_runtime, page_directory, session_options

NODES = 400
RUNS = 60
SMALL, LARGE = (16,), (1 << 20,)
FIELDS = ("runtime", "what", "bytes", "backend", "checksum", "cipher", "microseconds", "bytes_per_second", "limit")


@dataclass(frozen=True)
class Timing:
    """Least seconds of a run, and the seconds of its transfers."""

    seconds: float
    page_out_seconds: float
    page_in_seconds: float

    @property
    def beyond_transfers(self) -> float:
        """Seconds besides the transfers."""
        return self.seconds - self.page_out_seconds - self.page_in_seconds


def main(arguments: Sequence[str]) -> int:
    """Measure everything and write the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-o", "--output", type=Path, help="CSV file (default: only print)")
    parser.add_argument(
        "--page-dir", type=Path, help="directory for the page files (default: a folder for temporary files on storage)"
    )
    options = parser.parse_args(arguments)
    directory = page_directory(options.page_dir)
    rows = [*node_rows(directory), *transfer_rows(directory)]
    for row in rows:
        print("  ".join(f"{name}={value}" for name, value in row.items() if value != ""))
    if options.output is not None:
        with options.output.open("w", newline="", encoding="utf-8") as file:
            file.write(f"# python scripts/benchmarks/paging/ops_overhead.py -o {options.output}\n")
            writer = csv.DictWriter(file, FIELDS)
            writer.writeheader()
            writer.writerows(rows)
    return 0


def node_rows(directory: Path) -> list[dict[str, object]]:
    """Return a row for each kind of node, with its limit in microseconds."""
    size = 4 * SMALL[0]
    empty = measure(model(0, gate), directory, PagingOptions(), SMALL)
    rows = []
    for what, nodes, count, limit in (
        ("Gate", gate, 1, 1),
        ("PageOut or PageIn, beyond I/O", synchronous, 2, 10),
        ("PageOutStart and -End, or PageInStart and -End, beyond I/O", asynchronous, 2, 50),
    ):
        for checksum in (True, False) if count > 1 else (True,):
            paging = PagingOptions(backend="cached", checksum=checksum)
            taken = measure(model(NODES, nodes), directory, paging, SMALL)
            each = (taken.beyond_transfers - empty.beyond_transfers) / NODES / count
            rows.append(row(what, size, paging, each, limit) if count > 1 else row(what, size, None, each, limit))
    return rows


def transfer_rows(directory: Path) -> list[dict[str, object]]:
    """Return two rows for each way to keep a page: how fast a large tensor goes out, and comes in."""
    rows = []
    size = 4 * LARGE[0]
    for backend in ("cached", "direct"):
        for checksum, cipher in ((False, None), (True, None), (True, "aes-256-gcm"), (True, "chacha20-poly1305")):
            paging = PagingOptions(backend=backend, checksum=checksum, cipher=cipher)
            taken = measure(model(1, asynchronous), directory, paging, LARGE)
            rows.append(row("page out", size, paging, taken.page_out_seconds, None))
            rows.append(row("page in", size, paging, taken.page_in_seconds, None))
    return rows


def row(what: str, size: int, paging: PagingOptions | None, seconds: float, limit: float | None) -> dict[str, object]:
    """Return a row of the table."""
    runtime = installed_runtime()
    return {
        "runtime": f"{runtime.distribution} {runtime.version}",
        "what": what,
        "bytes": size,
        "backend": "" if paging is None else paging.backend,
        "checksum": "" if paging is None else paging.checksum and paging.cipher is None,
        "cipher": "" if paging is None else paging.cipher or "none",
        "microseconds": f"{seconds * 1e6:.3f}",
        "bytes_per_second": "" if limit is not None else f"{size / seconds:.4g}",
        "limit": "" if limit is None else limit,
    }


def measure(model_bytes: bytes, directory: Path, paging: PagingOptions, shape: tuple[int, ...]) -> Timing:
    """Return the fastest of the runs."""
    session = onnxruntime.InferenceSession(model_bytes, session_options(page_dir=directory, paging=paging))
    x = np.ones(shape, np.float32)
    timings = []
    with count_paging() as counter:
        for _ in range(RUNS):
            counter.reset()
            start = time.perf_counter()
            session.run(None, {"x": x})
            seconds = time.perf_counter() - start
            moved = counter.statistics
            timings.append(Timing(seconds, moved.page_out_seconds, moved.page_in_seconds))
    return min(timings, key=lambda timing: timing.seconds)


Maker = Callable[[int, tuple[int, ...]], list[onnx.NodeProto]]


def model(count: int, make: Maker) -> bytes:
    """Return a model that passes a tensor through `count` of some nodes, between two others."""
    shape = SMALL if count != 1 else LARGE
    nodes = [helper.make_node("Neg", ["x"], ["v0"])]
    for index in range(count):
        nodes += make(index, shape)
    nodes.append(helper.make_node("Neg", [f"v{count}"], ["y"]))
    for node in nodes:
        node.name = node.output[0]
        node.domain = "" if node.op_type == "Neg" else "poet"
    graph = helper.make_graph(
        nodes,
        "overhead",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, shape)],
    )
    imports = [helper.make_opsetid("", 17), helper.make_opsetid("poet", 1)]
    made: onnx.ModelProto = helper.make_model(graph, opset_imports=imports, ir_version=8)
    return made.SerializeToString()


def gate(index: int, shape: tuple[int, ...]) -> list[onnx.NodeProto]:
    """Return a Gate."""
    del shape
    return [helper.make_node("Gate", [f"v{index}"], [f"v{index + 1}"])]


def synchronous(index: int, shape: tuple[int, ...]) -> list[onnx.NodeProto]:
    """Return a page-out and a page-in."""
    kind = {"slot": index, "dtype": TensorProto.FLOAT, "shape": shape}
    return [
        helper.make_node("PageOut", [f"v{index}"], [f"token{index}"], slot=index),
        helper.make_node("PageIn", [f"token{index}"], [f"v{index + 1}"], **kind),
    ]


def asynchronous(index: int, shape: tuple[int, ...]) -> list[onnx.NodeProto]:
    """Return the four halves, each end right behind its start."""
    kind = {"slot": index, "dtype": TensorProto.FLOAT, "shape": shape}
    return [
        helper.make_node("PageOutStart", [f"v{index}"], [f"started{index}"], slot=index),
        helper.make_node("PageOutEnd", [f"started{index}", f"v{index}"], [f"token{index}"]),
        helper.make_node("PageInStart", [f"token{index}"], [f"raw{index}", f"ticket{index}"], **kind),
        helper.make_node("PageInEnd", [f"raw{index}", f"ticket{index}"], [f"v{index + 1}"]),
    ]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
