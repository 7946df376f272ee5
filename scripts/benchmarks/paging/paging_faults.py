#!/usr/bin/env python3
"""Fail every system call and every allocation of the operator library in turn, in training steps of real models.

    cmake -S ops -B build/faults -DPOET_FAULT_INJECTION=ON -DCMAKE_BUILD_TYPE=Release && cmake --build build/faults
    python scripts/benchmarks/paging/paging_faults.py --library build/faults -o CSV

For each model, back end and kind of fault, the calls of one step are counted; then the first one fails, the second one,
and so on to the last. Each such step must end with the bits of an untouched one or with an error of ONNX Runtime, an
interrupted or a short call always with the bits, and so must the step behind it. Memory, threads and open files must be
what they were. The exit code is 1 if anything of this fails; a crash or a hang ends the script.
"""

from __future__ import annotations

import argparse
import ctypes
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from paging_cases import Stepper, exported, open_descriptors, show, write_table

import poet_onnx.ops
from poet_onnx import rewrite
from poet_onnx.runtime import PagingOptions, count_allocations, page_directory
from poet_onnx.runtime.feeds import random_feeds

FAULTS = {
    "interrupted": 1,
    "short": 2,
    "EIO": 3,
    "ENOSPC": 4,
    "EDQUOT": 5,
    "end of file": 6,
    "out of memory": 7,
    "unsupported": 8,
}
"""The numbers of ops/faults/faults.h."""

HARMLESS = ("interrupted", "short")
CASES = [("bert-2", "12%"), ("resnet18", "75%")]
BACKENDS = ["cached", "direct"]
NEVER = 1 << 60
RuntimeFailure = Exception  # ONNX Runtime's exceptions have no common base but this one


def main(arguments: Sequence[str] | None = None) -> int:
    """Run all cases and write a row for each kind of fault."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-o", "--output", type=Path, help="CSV file (default: only print)")
    parser.add_argument("--library", type=Path, required=True, help="folder of a library with POET_FAULT_INJECTION")
    parser.add_argument("--models", nargs="+", choices=[name for name, _ in CASES], default=[name for name, _ in CASES])
    parser.add_argument("--backends", nargs="+", choices=BACKENDS, default=BACKENDS)
    options = parser.parse_args(arguments)
    poet_onnx.ops.__path__.insert(0, str(options.library))  # before anything loads the library
    rows: list[dict[str, object]] = []
    with tempfile.TemporaryDirectory(dir=page_directory()) as folder:
        for name, budget in CASES:
            if name in options.models:
                path = exported(name, Path(folder))
                for backend in options.backends:
                    rows += run_case(name, path, budget, backend)
    write_table(options.output, rows)
    failed = sum(int(str(row["failed_calls"])) for row in rows)
    print(f"{failed} calls failed in turn")
    return 0 if all(row["passed"] == "yes" for row in rows) else 1


def run_case(name: str, path: Path, budget: str, backend: Any) -> list[dict[str, object]]:
    """Return the rows of a model and back end."""
    result = rewrite(path, device="host", activation_budget=budget, recompute=False, gap=0.5)
    rows = []
    with tempfile.TemporaryDirectory(dir=path.parent) as folder:
        rewritten = Path(folder, "rewritten.onnx")
        result.save(rewritten)
        feeds = random_feeds(result.graph, 0)
        stepper = Stepper(rewritten, feeds, page_dir=Path(folder), paging=PagingOptions(backend=backend))
        step = Step(stepper, {name for node in result.graph.nodes for name in node.updates if name in feeds})
        for fault in FAULTS:
            rows.append({"model": name, "backend": backend, "fault": fault, **step.fail_each_call(fault)})
            show(rows[-1])
    return rows


class Step:
    """A step that can be repeated, and what it makes of its inputs."""

    def __init__(self, stepper: Stepper, updated: set[str]) -> None:
        self._session = stepper.session
        self._feeds = stepper.feeds
        self._updated = sorted(updated)
        self._library = ctypes.CDLL(str(poet_onnx.ops.library_path()))
        self._library.poet_arm_fault.argtypes = [ctypes.c_int, ctypes.c_uint64]
        self._library.poet_arm_fault.restype = None
        self._library.poet_disarm_fault.restype = ctypes.c_uint64
        self.run()
        self._expected = self.run()

    def run(self) -> list[bytes]:
        """Run it on fresh buffers and return the bytes of outputs and updated buffers."""
        feeds = {name: array.copy() if name in self._updated else array for name, array in self._feeds.items()}
        outputs = self._session.run(None, {wanted.name: feeds[wanted.name] for wanted in self._session.get_inputs()})
        return [output.tobytes() for output in outputs] + [feeds[name].tobytes() for name in self._updated]

    def fail_each_call(self, fault: str) -> dict[str, object]:
        """Let each call of the step fail in turn and return what came of it."""
        number = FAULTS[fault]
        self._library.poet_arm_fault(number, NEVER)
        self.run()
        calls = int(self._library.poet_disarm_fault())
        descriptors, threads = open_descriptors(), _threads()
        right = told = wrong = 0
        with count_allocations() as memory:
            for nth in range(calls):
                self._library.poet_arm_fault(number, nth)
                try:
                    outcome = self.run()
                except RuntimeFailure:
                    told += 1
                else:
                    right += outcome == self._expected
                    wrong += outcome != self._expected
                reached = int(self._library.poet_disarm_fault()) > nth
                wrong += not reached or self.run() != self._expected
            left = memory.current_bytes - memory.level_bytes
        kept = left <= 0 and open_descriptors() == descriptors and _threads() == threads
        passed = calls > 0 and wrong == 0 and kept and (told == 0 or fault not in HARMLESS)
        return {
            "passed": "yes" if passed else "NO",
            "failed_calls": calls,
            "right_bits": right,
            "errors_told": told,
            "wrong": wrong,
            "bytes_left": left,
        }


def _threads() -> int:
    return sum(1 for _ in Path("/proc/self/task").iterdir())


if __name__ == "__main__":
    sys.exit(main())
