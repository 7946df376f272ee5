#!/usr/bin/env python3
"""Does the process's memory follow the allocator's? Under which malloc settings, at what cost, and under a hard limit.

    python scripts/benchmarks/paging/paging_memory.py -o CSV

For each model and malloc setting, original and rewritten graph run in a process of their own. Reported are the peak of
the resident memory during a step above what was in use before it, the peak that the allocator's counter saw, and the
time of a step. Then both graphs run in processes whose memory is limited from their start, by a memory cgroup where
one can be made and by RLIMIT_AS everywhere, at the middle between the smallest limits that they live with: the
original must die, the rewritten one must train, to the bits of the original without a limit. What a cgroup has had at
most is no such limit, for it counts what files leave in memory until somebody needs it: the limits of cgroups are
found by trying. The exit code is 1 if it is otherwise. The batch is large because Linux counts resident memory in
batches of pages for each processor, in which a peak of a few MiB drowns.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import hashlib
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from poet_onnx.training.trial import status_bytes

Row = dict[str, Any]

SETTINGS: dict[str, dict[str, str]] = {
    "default": {},
    "one arena": {"MALLOC_ARENA_MAX": "1"},
    "mmap 128 KiB": {"MALLOC_MMAP_THRESHOLD_": "131072", "MALLOC_TRIM_THRESHOLD_": "0", "MALLOC_TOP_PAD_": "0"},
    "mmap 32 KiB, one arena": {
        "MALLOC_ARENA_MAX": "1",
        "MALLOC_MMAP_THRESHOLD_": "32768",
        "MALLOC_TRIM_THRESHOLD_": "0",
        "MALLOC_TOP_PAD_": "0",
    },
    "mmap 4 KiB": {"MALLOC_MMAP_THRESHOLD_": "4096", "MALLOC_TRIM_THRESHOLD_": "0", "MALLOC_TOP_PAD_": "0"},
}
"""What glibc reads from the environment when a process starts: mallopt(3)."""

FOLLOWING = "mmap 32 KiB, one arena"
"""The setting that the limits are tried with."""

WITHIN = 0.05
NO_LIMIT_BYTES = 1 << 40
LIMITS = ("RLIMIT_AS", "memory cgroup")
_MALLOPT = {
    "MALLOC_TRIM_THRESHOLD_": -1,
    "MALLOC_TOP_PAD_": -2,
    "MALLOC_MMAP_THRESHOLD_": -3,
    "MALLOC_ARENA_MAX": -8,
}
STEPS, WARMUP = 9, 3
PROBE_STEPS = 2
LIMIT_PRECISION = 0.01


def main(arguments: Sequence[str] | None = None) -> int:
    """Run all settings and limits and write their rows."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="*", default=["resnet18", "vgg16"], metavar="MODEL")
    parser.add_argument("-o", "--output", type=Path, help="CSV file (default: only print)")
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--budget", type=float, default=1.05, help="in parts of the smallest that works")
    parser.add_argument("--settings", nargs="+", choices=SETTINGS, default=list(SETTINGS), help="of malloc")
    parser.add_argument("--worker", help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.worker is not None:
        print(json.dumps(work(json.loads(options.worker))), flush=True)
        return 0
    from paging_cases import exported, show, write_table

    rows: list[Row] = []
    with tempfile.TemporaryDirectory() as folder:
        for name in options.models:
            path = exported(name, Path(folder), batch=options.batch)
            graphs = make_graphs(path, Path(folder), int(options.budget * smallest_budget(path)))
            for row in (*compare_settings(graphs, options.settings), *compare_limits(graphs)):
                rows.append({"model": name, **row})
                show(rows[-1])
    write_table(options.output, rows)
    return 0 if all(row["passed"] in ("yes", "") for row in rows) else 1


def smallest_budget(path: Path) -> int:
    """Return the smallest transient budget that works for a training graph."""
    from poet_onnx import rewrite
    from poet_onnx.errors import InfeasibleError

    try:
        rewrite(path, device="host", activation_budget=1024)
    except InfeasibleError as error:
        return error.smallest_budget_bytes or 1024
    return 1024


def make_graphs(path: Path, folder: Path, budget: int | str) -> dict[str, str]:
    """Rewrite a training graph and save it beside its feeds; return the files."""
    from poet_onnx import rewrite
    from poet_onnx.runtime.feeds import random_feeds

    result = rewrite(path, device="host", activation_budget=budget, gap=0.05)
    rewritten, feeds = folder / "rewritten.onnx", folder / "feeds.npz"
    result.save(rewritten)
    arrays = random_feeds(result.graph, 0)
    np.savez(feeds, **{f"feed_{index}": array for index, array in enumerate(arrays.values())})
    names = json.dumps(list(arrays))
    return {"original": str(path), "rewritten": str(rewritten), "feeds": str(feeds), "names": names}


def compare_settings(graphs: Mapping[str, str], settings: Sequence[str]) -> Iterator[Row]:
    """Yield a row for each malloc setting and graph, and for the chosen one as mallopt sets it."""
    cases = [(name, "environment") for name in settings] + [(FOLLOWING, "mallopt")]
    for setting, way in cases:
        for graph in ("original", "rewritten"):
            found = run({**graphs, "graph": graph, "setting": setting, "way": way})
            share = found["resident_growth_bytes"] / found["counted_peak_bytes"]
            yield {
                "what": "malloc setting",
                "setting": setting,
                "set_by": way,
                "graph": graph,
                "passed": ("yes" if abs(share - 1) <= WITHIN else "NO") if setting == FOLLOWING else "",
                "counted_peak_bytes": found["counted_peak_bytes"],
                "resident_growth_bytes": found["resident_growth_bytes"],
                "resident_over_counted": f"{share:.4f}",
                "step_seconds": f"{found['seconds']:.6f}",
                "step_processor_seconds": f"{found['cpu_seconds']:.6f}",
                "page_faults": found["page_faults"],
            }


def compare_limits(graphs: Mapping[str, str], kinds: Sequence[str] = LIMITS) -> Iterator[Row]:
    """Yield a row for each kind of limit and graph."""
    from poet_onnx.verification.limits import can_make_cgroup

    for kind in kinds:
        if kind == "memory cgroup" and not can_make_cgroup():
            continue
        free = {
            graph: run({**graphs, "graph": graph, "setting": FOLLOWING, "limit": kind, "limit_bytes": NO_LIMIT_BYTES})
            for graph in ("original", "rewritten")
        }
        needed = {graph: free[graph]["most_bytes"] for graph in free}
        if kind == "memory cgroup":
            needed = {graph: smallest_limit(graphs, graph, most) for graph, most in needed.items()}
        limit = (needed["original"] + needed["rewritten"]) // 2
        for graph in ("original", "rewritten"):
            found = run({**graphs, "graph": graph, "setting": FOLLOWING, "limit": kind, "limit_bytes": limit})
            trained = found.get("digest") == free["original"]["digest"]
            yield {
                "what": "limit",
                "setting": FOLLOWING,
                "set_by": kind,
                "graph": graph,
                "passed": "yes" if trained == (graph == "rewritten") else "NO",
                "limit_bytes": limit,
                "needed_bytes": needed[graph],
                "outcome": "same bits as the original without a limit" if trained else found.get("died", "other bits"),
            }


def smallest_limit(graphs: Mapping[str, str], graph: str, most_bytes: int) -> int:
    """Return the smallest limit of a memory cgroup, to LIMIT_PRECISION, with which a graph makes a few steps."""
    low = most_bytes // 4
    while most_bytes - low > LIMIT_PRECISION * most_bytes:
        middle = (low + most_bytes) // 2
        limits = {"limit": "memory cgroup", "limit_bytes": middle, "steps": PROBE_STEPS}
        if "died" in run({**graphs, "graph": graph, "setting": FOLLOWING, **limits}):
            low = middle
        else:
            most_bytes = middle
    return most_bytes


def run(case: Mapping[str, Any]) -> Row:
    """Run a case in a process of its own; a process that died returns how."""
    from poet_onnx.verification.limits import memory_cgroup

    by_environment = case.get("way", "environment") == "environment"
    environment = {name: value for name, value in os.environ.items() if not name.startswith("MALLOC_")}
    environment |= SETTINGS[case["setting"]] if by_environment else {}
    with contextlib.ExitStack() as stack:
        if case.get("limit") == "memory cgroup":
            case = {**case, "cgroup": str(stack.enter_context(memory_cgroup(case["limit_bytes"])))}
        command = [sys.executable, __file__, "--worker", json.dumps(case)]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if done.returncode == 0:
        return dict(json.loads(done.stdout.splitlines()[-1]))
    if case.get("limit_bytes", NO_LIMIT_BYTES) == NO_LIMIT_BYTES:
        raise RuntimeError(f"a process without a limit failed: {done.stderr}")
    reason = (done.stderr.strip().splitlines() or [""])[-1]
    return {"died": f"signal {-done.returncode}" if done.returncode < 0 else reason[:200]}


def work(case: Mapping[str, Any]) -> Row:
    """Run steps of a graph, under a limit if there is one, and return what they took and needed."""
    if "cgroup" in case:
        Path(case["cgroup"], "cgroup.procs").write_text(str(os.getpid()))
    elif "limit" in case:
        resource.setrlimit(resource.RLIMIT_AS, (case["limit_bytes"], case["limit_bytes"]))
    if case.get("way") == "mallopt":
        mallopt = ctypes.CDLL(None).mallopt
        for name, value in SETTINGS[case["setting"]].items():
            mallopt(_MALLOPT[name], int(value))
    import onnxruntime

    from poet_onnx.runtime import count_allocations, session_options

    with np.load(case["feeds"]) as saved:
        arrays = [saved[name] for name in saved.files]
    feeds = dict(zip(json.loads(case["names"]), arrays, strict=True))
    options = session_options()
    options.log_severity_level = 4
    with count_allocations() as counter:
        session = onnxruntime.InferenceSession(case[case["graph"]], options, providers=["CPUExecutionProvider"])
        digest = hashlib.sha256()
        peaks, growths, seconds, cpu_seconds, faults = [], [], [], [], []
        for step in range(case.get("steps", WARMUP + STEPS)):
            binding = session.io_binding()
            for wanted in session.get_inputs():
                binding.bind_cpu_input(wanted.name, feeds[wanted.name])
            for output in session.get_outputs():
                binding.bind_output(output.name)
            give_back_free_memory()
            Path("/proc/self/clear_refs").write_text("5")  # VmHWM starts anew: proc(5)
            before, faults_before = status_bytes("VmRSS"), resource.getrusage(resource.RUSAGE_SELF).ru_minflt
            counter.reset_peak()
            begun, cpu_begun = time.perf_counter(), time.thread_time()
            session.run_with_iobinding(binding)
            took, cpu_took = time.perf_counter() - begun, time.thread_time() - cpu_begun
            if step >= WARMUP or "steps" in case:
                growths.append(status_bytes("VmHWM") - before)
                peaks.append(counter.transient_peak_bytes)
                seconds.append(took)
                cpu_seconds.append(cpu_took)
                faults.append(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - faults_before)
            for value in binding.get_outputs():
                digest.update(value.numpy().tobytes())
    for array in feeds.values():
        digest.update(array.tobytes())
    return {
        "digest": digest.hexdigest(),
        "counted_peak_bytes": max(peaks),
        "resident_growth_bytes": max(growths),
        "seconds": statistics.median(seconds),
        "cpu_seconds": statistics.median(cpu_seconds),
        "page_faults": int(statistics.median(faults)),
        "most_bytes": most_in_cgroup(Path(case["cgroup"])) if "cgroup" in case else status_bytes("VmPeak"),
    }


def give_back_free_memory() -> None:
    """Give the system what malloc keeps for later: a step that used it again would seem to need less than it does."""
    ctypes.CDLL(None).malloc_trim(0)  # malloc_trim(3)


def most_in_cgroup(group: Path) -> int:
    """Return the most bytes that a memory cgroup ever had."""
    names = ("memory.max_usage_in_bytes", "memory.peak")
    return int(next(group / name for name in names if (group / name).exists()).read_text())


if __name__ == "__main__":
    sys.exit(main())
