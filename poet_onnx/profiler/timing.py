"""Times whole steps and every kernel in them, with ONNX Runtime's own profiler."""

from __future__ import annotations

import json
import time
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from poet_onnx.errors import InputError
from poet_onnx.profiler.power import EnergyMeter
from poet_onnx.runtime import session_options

Feeds = Mapping[str, npt.NDArray[np.generic]]

_KERNEL_SUFFIX = "_kernel_time"
_IDLE_SECONDS = 1.0


@dataclass(frozen=True)
class KernelTimes:
    """What the steps took.

    Attributes:
        step_seconds: median of the plain steps.
        kernel_seconds: median of each kernel in the profiled steps, by node name.
        gap_seconds: what a profiled step takes between two kernels, the median of the steps' means.
        output_bytes: by node name.
        active_watts: power during the plain steps less power at rest, None without a meter.
    """

    step_seconds: float
    kernel_seconds: Mapping[str, float]
    gap_seconds: float
    output_bytes: Mapping[str, int]
    active_watts: float | None


class StepRunner:
    """A session of a training graph with its feeds bound: `run()` takes one step and returns its seconds."""

    def __init__(
        self,
        model_path: Path,
        feeds: Feeds,
        *,
        threads: int = 1,
        page_dir: Path | None = None,
        profile_prefix: Path | None = None,
    ) -> None:
        import onnxruntime

        options = session_options(threads=threads, page_dir=page_dir)
        if profile_prefix is not None:
            options.enable_profiling = True
            options.profile_file_prefix = str(profile_prefix)
        options.log_severity_level = 3
        try:
            self._session = onnxruntime.InferenceSession(str(model_path), options, providers=["CPUExecutionProvider"])
        except Exception as error:  # ONNX Runtime's exceptions have no common base
            raise InputError(f"ONNX Runtime cannot load {model_path.name}: {_first_line(error)}.") from error
        self._feeds = feeds

    def run(self) -> float:
        """Run one step and return the seconds it took, outputs included."""
        binding = self._session.io_binding()
        for name, array in self._feeds.items():
            binding.bind_cpu_input(name, array)
        for output in self._session.get_outputs():
            binding.bind_output(output.name)
        start = time.perf_counter()
        self._session.run_with_iobinding(binding)
        return time.perf_counter() - start

    def end_profiling(self) -> list[dict[str, Any]]:
        """Return the events of all steps so far, and remove the file they were written to."""
        path = Path(self._session.end_profiling())
        events = json.loads(path.read_text(encoding="utf-8"))
        path.unlink()
        return list(events)


def time_steps(
    model_path: Path,
    feeds: Feeds,
    scratch: Path,
    *,
    repetitions: int,
    warmup: int,
    threads: int,
    meter: EnergyMeter | None,
) -> KernelTimes:
    """Time plain and profiled steps of a model, in turn.

    Args:
        model_path: of a model whose nodes all have names.
        feeds: an array for every input; accumulators write into theirs.
        scratch: directory for the profile.
        repetitions: timed steps of each kind.
        warmup: steps of each kind before them.
        threads: threads inside an operator.
        meter: of energy, if the machine has one.

    Raises:
        InputError: ONNX Runtime cannot load the model.
    """
    plain = StepRunner(model_path, feeds, threads=threads)
    profiled = StepRunner(model_path, feeds, threads=threads, profile_prefix=scratch / "step")
    idle_watts = _watts_at_rest(meter)
    for _ in range(warmup):
        plain.run()
        profiled.run()
    step_seconds, step_joules = [], 0.0
    for _ in range(repetitions):
        before = meter.read_joules() if meter else 0.0
        step_seconds.append(plain.run())
        step_joules += (meter.read_joules() if meter else 0.0) - before
        profiled.run()
    active_watts = step_joules / sum(step_seconds) - idle_watts if meter else 0.0
    return _read_events(
        profiled.end_profiling(),
        warmup=warmup,
        step_seconds=float(np.median(step_seconds)),
        active_watts=active_watts if active_watts > 0 else None,
    )


def _watts_at_rest(meter: EnergyMeter | None) -> float:
    if meter is None:
        return 0.0
    before, start = meter.read_joules(), time.perf_counter()
    time.sleep(_IDLE_SECONDS)
    return (meter.read_joules() - before) / (time.perf_counter() - start)


def _read_events(
    events: list[dict[str, Any]], *, warmup: int, step_seconds: float, active_watts: float | None
) -> KernelTimes:
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
        step_seconds=step_seconds,
        kernel_seconds=dict(zip(durations, kernel_seconds.tolist(), strict=True)),
        gap_seconds=max(0.0, float(np.median(gaps)) - 0.5) * 1e-6,
        output_bytes=output_bytes,
        active_watts=active_watts,
    )


def _first_line(error: BaseException) -> str:
    return str(error).strip().partition("\n")[0].rstrip(".")
