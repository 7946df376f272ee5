#!/usr/bin/env python3
"""Throughput of paging beside fio's on the same file system, and what a step costs that pages nothing.

    python scripts/benchmarks/paging/paging_throughput.py --page-dir DIR -o CSV

For each block size and back end, fio (one job, one request) and the paging operators write and read the same number of
bytes in blocks of that size, in turns, one after the other in the same file: the page file, for two files on one disk
may differ by more than what is asked here. A shared storage may be twice as fast in one second as in the next: each
turn of paging is compared with fio's of the same second, and the median of these shares counts; how far fio's own rates
lie apart stands beside it. The time of paging is that of its transfers, as the page store counts it; what whole runs of
a model that does nothing else reach, with ONNX Runtime's own time for every node, stands beside it too. Then the
original graph of a model and the rewritten one that pages nothing run in turns. The exit code is 1 if paging reaches
less than 95 % of fio, or the rewritten step takes more than 1.02 times the original.
"""

from __future__ import annotations

import argparse
import json
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
from onnx import TensorProto, helper
from paging_cases import Stepper, exported, interleaved_medians, page_files, show, write_table

from poet_onnx import rewrite
from poet_onnx.profiler.timing import keep_heap
from poet_onnx.runtime import PagingOptions, count_paging, page_directory, session_options
from poet_onnx.runtime.feeds import random_feeds

BLOCKS_BYTES = [64 << 10, 256 << 10, 1 << 20, 4 << 20]
BACKENDS = ["cached", "uncached", "direct"]
LIKE = {
    "cached": ["--ioengine=psync", "--direct=0", "--invalidate=0"],
    # A block is on the storage before the next one is written, and not in the page cache when it is read: neither from
    # before nor read ahead with others, which in a page file are not the next ones to be read.
    "uncached": [
        "--ioengine=psync",
        "--direct=0",
        "--invalidate=1",
        "--fadvise_hint=random",
        "--sync_file_range=wait_before,write,wait_after:1",
    ],
    "direct": ["--ioengine=psync", "--direct=1", "--invalidate=0"],
}
"""How fio is told to work like a back end."""

TOTAL_BYTES = 128 << 20
PASSES = {"cached": 12, "uncached": 2, "direct": 2}
"""Over all bytes in a turn, so that it takes a few tenths of a second: fio's clock has milliseconds."""
TURNS = 9
LEAST_SHARE, MOST_OVERHEAD = 0.95, 1.02


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, and write a row for each case."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-o", "--output", type=Path, help="CSV file (default: only print)")
    parser.add_argument("--page-dir", type=Path, help="directory of the page file and of fio's")
    parser.add_argument("--backends", nargs="+", default=BACKENDS, choices=BACKENDS)
    parser.add_argument("--blocks", type=int, nargs="+", default=BLOCKS_BYTES, help="bytes")
    parser.add_argument("--turns", type=int, default=TURNS)
    parser.add_argument("--models", nargs="*", default=["resnet18", "bert-2"], help="for the step that pages nothing")
    parser.add_argument("--steps", type=int, default=60, help="of each graph")
    parser.add_argument("--checksum", action="store_true", help="also check each page, as is the default of sessions")
    options = parser.parse_args(arguments)
    if shutil.which("fio") is None:
        print("fio is missing: `apt-get install fio` (Debian, Ubuntu) adds it", file=sys.stderr)
        return 2
    rows = []
    with tempfile.TemporaryDirectory(dir=page_directory(options.page_dir)) as folder:
        for backend in options.backends:
            for block in options.blocks:
                paging = PagingOptions(backend=backend, checksum=options.checksum)
                for row in compare(Path(folder), block, paging, options.turns):
                    rows.append(row)
                    show(row)
                write_table(options.output, rows)
        for name in options.models:
            rows.append(idle_overhead(name, Path(folder), options.steps))
            show(rows[-1])
    write_table(options.output, rows)
    return 0 if all(row["passed"] == "yes" for row in rows) else 1


def compare(folder: Path, block: int, paging: PagingOptions, turns: int) -> Iterator[dict[str, object]]:
    """Yield a row for writing and one for reading blocks of a size."""
    others = set(page_files(folder))
    pages = Pages(folder, block, paging)
    (file,) = set(page_files(folder)) - others
    fio = Fio(file, block, paging.backend)
    found = [(pages.turn(), fio.turn()) for _ in range(turns + 1)][1:]  # the first one warms up
    for kind in ("write", "read"):
        share = statistics.median(ours[kind] / theirs[kind] for ours, theirs in found)
        ours, theirs = ([turn[side][kind] for turn in found] for side in (0, 1))
        yield {
            "what": kind,
            "passed": "yes" if share >= LEAST_SHARE else "NO",
            "backend": paging.backend,
            "checksum": "yes" if paging.checksum else "no",
            "block_bytes": block,
            "paging_bytes_per_second": f"{statistics.median(ours):.0f}",
            "fio_bytes_per_second": f"{statistics.median(theirs):.0f}",
            "share": f"{share:.4f}",
            "fio_most_over_least": f"{max(theirs) / min(theirs):.3f}",
            "whole_run_bytes_per_second": f"{statistics.median(turn['both'] for turn, _ in found):.0f}",
        }


class Pages:
    """A model that pages a block out to many slots and then each of them in."""

    def __init__(self, folder: Path, block: int, paging: PagingOptions) -> None:
        import onnxruntime

        keep_heap()
        count, floats = TOTAL_BYTES // block, block // 4
        self._passes = PASSES[paging.backend]
        self._bytes = count * block * self._passes
        self._block = np.random.default_rng(0).standard_normal(floats).astype(np.float32)
        # What a step pages is a node's output, in memory of ONNX Runtime's.
        nodes = [helper.make_node("Neg", ["x"], ["block"])]
        nodes += [_node("PageOut", ["block"], [f"token{slot}"], slot=slot) for slot in range(count)]
        for slot in range(count):
            # Each page-in waits for the one before, whose block is gone then: all use the same memory, as fio does.
            trigger = [f"done{slot - 1}"] if slot else []
            page_in = _node("PageIn", [f"token{slot}", *trigger], [f"y{slot}"], slot=slot, dtype=1, shape=[floats])
            nodes += [page_in, helper.make_node("Shape", [f"y{slot}"], [f"done{slot}"])]
        model = _model(nodes, [("x", TensorProto.FLOAT, [floats])], [f"done{count - 1}"])
        options = session_options(page_dir=folder, paging=paging)
        self._session: Any = onnxruntime.InferenceSession(model, options)

    def turn(self) -> dict[str, float]:
        """Write and read everything once and return the rates, in bytes per second."""
        with count_paging() as counter:
            begun = time.perf_counter()
            for _ in range(self._passes):
                self._session.run(None, {"x": self._block})
            whole = time.perf_counter() - begun
            moved = counter.statistics
        return {
            "write": self._bytes / moved.page_out_seconds,
            "read": self._bytes / moved.page_in_seconds,
            "both": 2 * self._bytes / whole,
        }


def _node(op_type: str, inputs: Sequence[str], outputs: Sequence[str], **attributes: object) -> onnx.NodeProto:
    return helper.make_node(op_type, list(inputs), list(outputs), domain="poet", name=outputs[0], **attributes)


def _model(nodes: Sequence[onnx.NodeProto], inputs: Sequence[tuple[str, int, list[int]]], outputs: list[str]) -> bytes:
    graph = helper.make_graph(
        list(nodes),
        "pages",
        [helper.make_tensor_value_info(*value) for value in inputs],
        [helper.make_tensor_value_info(name, TensorProto.INT64, [1]) for name in outputs],
    )
    imports = [helper.make_opsetid("", 15), helper.make_opsetid("poet", 1)]
    model: onnx.ModelProto = helper.make_model(graph, opset_imports=imports, ir_version=8)
    return bytes(model.SerializeToString())


class Fio:
    """fio, writing and reading the page file in the same blocks."""

    def __init__(self, file: Path, block: int, backend: str) -> None:
        self._command = ["fio", f"--filename={file}", *LIKE[backend], "--thread"]
        self._command += [f"--bs={block}", f"--size={TOTAL_BYTES // block * block}", "--output-format=json"]
        # The file is reserved, and nothing is done but reading or writing.
        self._command += ["--overwrite=1", "--gtod_reduce=1", "--refill_buffers=0", "--stonewall"]
        # As paging does: all is written, then all is read, and again, while the storage may still be busy writing.
        for number in range(PASSES[backend]):
            self._command += [f"--name=write{number}", "--rw=write", f"--name=read{number}", "--rw=read"]

    def turn(self) -> dict[str, float]:
        """Write and read everything once and return the rates of both, in bytes per second."""
        done = subprocess.run(self._command, check=True, capture_output=True, text=True)
        jobs = json.loads(done.stdout[done.stdout.index("{") :])["jobs"]
        found = {}
        for kind in ("write", "read"):
            parts = [job[kind] for job in jobs if job["jobname"].startswith(kind)]
            seconds = sum(float(part["runtime"]) for part in parts) / 1e3
            found[kind] = sum(float(part["io_bytes"]) for part in parts) / seconds
        return found


def idle_overhead(name: str, folder: Path, steps: int) -> dict[str, object]:
    """Return the row of a rewritten graph that keeps its order's memory and pages nothing, beside the original."""
    path = exported(name, folder)
    result = rewrite(path, device="host", activation_budget="100%")
    rewritten = folder / f"{name}.poet.onnx"
    result.save(rewritten)
    feeds: dict[str, npt.NDArray[np.generic]] = random_feeds(result.graph, 0)
    steppers = [Stepper(path, feeds), Stepper(rewritten, feeds)]
    for stepper in steppers * 3:
        stepper.run()
    original, ours = interleaved_medians(steppers, steps=steps)
    ratio = ours.wall_seconds / original.wall_seconds
    return {
        "what": f"step of {name} that pages nothing",
        "passed": "yes" if ratio <= MOST_OVERHEAD else "NO",
        "share": f"{ratio:.4f}",
        "original_seconds": f"{original.wall_seconds:.6f}",
        "rewritten_seconds": f"{ours.wall_seconds:.6f}",
        "processor_share": f"{ours.cpu_seconds / original.cpu_seconds:.4f}",
    }


if __name__ == "__main__":
    sys.exit(main())
