"""Times every kernel with ONNX Runtime's own profiler, in a process of its own.

What the profiler notes down stays in memory until it is written, between the tensors of the steps: without an arena
these then have to move to fresh pages in every step, which costs more than many kernels, and memory grows by a step's
tensors each time (190,000 page faults and 0.7 GB with BERT-base). An arena keeps notes and tensors apart, but the first
session of a process decides for all others whether there is one.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from poet_onnx.errors import InputError, PoetError
from poet_onnx.graph.extract import extract, load_model
from poet_onnx.profiler.timing import StepRunner
from poet_onnx.runtime import session_options
from poet_onnx.runtime.feeds import random_feeds

_KERNEL_SUFFIX = "_kernel_time"


@dataclass(frozen=True)
class KernelTimes:
    """What the kernels of a step took.

    Attributes:
        kernel_seconds: median of each kernel, by node name.
        gap_seconds: what a step takes between two kernels, the median of the steps' means.
        output_bytes: by node name.
    """

    kernel_seconds: Mapping[str, float]
    gap_seconds: float
    output_bytes: Mapping[str, int]


def time_kernels(
    model_path: Path, scratch: Path, *, seed: int, repetitions: int, warmup: int, threads: int
) -> KernelTimes:
    """Time every kernel of a model's step.

    Args:
        model_path: of a model whose nodes all have names and whose inputs have fixed sizes.
        scratch: directory for the profile.
        seed: of the random feeds.
        repetitions: timed steps.
        warmup: steps before them.
        threads: threads inside an operator.

    Raises:
        InputError: ONNX Runtime cannot load the model, or the process that times it dies.
    """
    events = scratch / "events.json"
    task = {"seed": seed, "steps": warmup + repetitions, "threads": threads}
    command = [sys.executable, "-m", __name__, str(model_path), str(events), json.dumps(task)]
    # What this process imports from, the other one does.
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, errors="replace", check=False)
    if done.returncode != 0:
        why = (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1].rstrip(".")
        raise InputError(f"The process that times the kernels of {model_path.name} failed: {why}.")
    return read_events(json.loads(events.read_text(encoding="utf-8")), warmup=warmup)


def read_events(events: Sequence[Mapping[str, Any]], *, warmup: int) -> KernelTimes:
    """Return what the profiler's events say of the steps behind the warm-up."""
    durations: dict[str, list[int]] = defaultdict(list)
    starts: dict[str, list[int]] = defaultdict(list)
    output_bytes: dict[str, int] = {}
    for event in events:
        if event.get("cat") == "Node" and event["name"].endswith(_KERNEL_SUFFIX):
            name = event["name"].removesuffix(_KERNEL_SUFFIX)
            durations[name].append(event["dur"])
            starts[name].append(event["ts"])
            output_bytes[name] = int(event["args"]["output_size"])
    taken = np.array([each[warmup:] for each in durations.values()], dtype=float)  # by node and step
    begun = np.array([each[warmup:] for each in starts.values()], dtype=float)
    spans = (begun + taken).max(axis=0) - begun.min(axis=0)
    gaps = (spans - taken.sum(axis=0)) / max(1, len(durations) - 1)
    # The profiler rounds microseconds down: half of one is the expected rest of a kernel, and comes out of the gap.
    kernel_seconds = (np.median(taken, axis=1) + 0.5) * 1e-6
    return KernelTimes(
        kernel_seconds=dict(zip(durations, kernel_seconds.tolist(), strict=True)),
        gap_seconds=max(0.0, float(np.median(gaps)) - 0.5) * 1e-6,
        output_bytes=output_bytes,
    )


def main(model_path: str, events: str, task: str) -> None:
    """Run the steps and leave the profiler's events in a file; what goes wrong is one line on stderr."""
    asked = json.loads(task)
    path = Path(model_path)
    try:
        graph = extract(load_model(path))
        options = session_options(threads=asked["threads"])
        options.enable_cpu_mem_arena = True
        options.enable_profiling = True
        options.profile_file_prefix = str(Path(events).with_suffix(""))
        runner = StepRunner(path, random_feeds(graph, asked["seed"]), options=options)
    except PoetError as error:
        raise SystemExit(str(error)) from None
    for _ in range(asked["steps"]):
        runner.run()
    runner.end_profiling().rename(events)


if __name__ == "__main__":
    main(*sys.argv[1:])
