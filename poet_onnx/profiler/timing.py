"""Times whole steps and every kernel in them, with ONNX Runtime's own profiler."""

from __future__ import annotations

import ctypes
import json
import math
import mmap
import resource
import time
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from poet_onnx.errors import InputError
from poet_onnx.profiler.power import EnergyMeter
from poet_onnx.runtime import session_options

Feeds = Mapping[str, npt.NDArray[np.generic]]

_KERNEL_SUFFIX = "_kernel_time"
_IDLE_SECONDS = 1.0

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3  # mallopt(3)
_LARGEST_MMAP_THRESHOLD = 32 << 20  # of glibc on 64 bits; also where its own adjustment ends
_NEVER_TRIM = 2**31 - 1


@dataclass(frozen=True)
class KernelTimes:
    """What the steps took.

    Attributes:
        step_seconds: median of the plain steps: processor time with one thread, else wall time.
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


def keep_heap() -> None:
    """Let this process keep the memory it frees, as far as the C library can be told.

    Without an arena every tensor comes from malloc. By default glibc moves between giving freed blocks back and keeping
    them, as the process's history has it; a step of VGG-16 then has between 0 and 11,500 page faults and takes between
    44 and 66 ms. Kept blocks make steps quick and times repeatable; what a step has allocated at once does not change.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(_M_MMAP_THRESHOLD, _LARGEST_MMAP_THRESHOLD)
        mallopt(_M_TRIM_THRESHOLD, _NEVER_TRIM)


class StepTime(NamedTuple):
    """What one step took.

    Attributes:
        wall_seconds: from beginning to end.
        cpu_seconds: of the calling thread; with one thread, what the step takes if nothing else wants the processor.
    """

    wall_seconds: float
    cpu_seconds: float


class StepRunner:
    """A session of a training graph with its feeds bound: `run()` takes one step and returns its time.

    The process keeps freed memory from then on: see `keep_heap`.
    """

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

        keep_heap()
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

    def run(self) -> StepTime:
        """Run one step and return the time it took, outputs included."""
        binding = self._session.io_binding()
        for name, array in self._feeds.items():
            binding.bind_cpu_input(name, array)
        for output in self._session.get_outputs():
            binding.bind_output(output.name)
        start, cpu_start = time.perf_counter(), time.thread_time()
        self._session.run_with_iobinding(binding)
        return StepTime(time.perf_counter() - start, time.thread_time() - cpu_start)

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
    """Time plain steps of a model before and after the same number of profiled ones.

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
    # Not one by one: what the profiler writes between two plain steps tears holes into the heap that these then miss.
    seconds, joules = _plain_steps(plain, warmup, math.ceil(repetitions / 2), meter)
    for _ in range(warmup):
        profiled.run()
    before = _page_faults()
    for _ in range(repetitions):
        profiled.run()
    faults = (_page_faults() - before) / repetitions
    before = _page_faults()
    more_seconds, more_joules = _plain_steps(plain, warmup, math.ceil(repetitions / 2), meter)
    faults -= (_page_faults() - before) / (warmup + math.ceil(repetitions / 2))
    steps = seconds + more_seconds
    active_watts = (joules + more_joules) / sum(step.wall_seconds for step in steps) - idle_watts if meter else 0.0
    step_seconds = [step.cpu_seconds if threads == 1 else step.wall_seconds for step in steps]
    times = _read_events(
        profiled.end_profiling(),
        warmup=warmup,
        step_seconds=float(np.median(step_seconds)),
        active_watts=active_watts if active_watts > 0 else None,
    )
    return _without_fresh_pages(times, round(faults))


def _page_faults() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt


def _without_fresh_pages(times: KernelTimes, faults: int) -> KernelTimes:
    """Take the page faults that only profiled steps have out of the kernels that had them.

    What the profiler notes down keeps the heap from giving the largest tensors the same pages in every step, as it does
    in a plain one; the kernel that writes such a tensor first then pays for fresh pages. A large embedding's GatherGrad
    seemed to take 8.4 ms that way instead of 1.
    """
    kernel_seconds = dict(times.kernel_seconds)
    fault_seconds = _fault_seconds() if faults > 0 else 0.0
    for name in sorted(kernel_seconds, key=lambda name: -times.output_bytes[name]):
        pages = min(faults, times.output_bytes[name] // mmap.PAGESIZE)
        if pages <= 0:
            break
        faults -= pages
        kernel_seconds[name] = max(0.1 * kernel_seconds[name], kernel_seconds[name] - pages * fault_seconds)
    return replace(times, kernel_seconds=kernel_seconds)


def _fault_seconds() -> float:
    """Return what the first write to a fresh page takes beyond a later one, the median of a few measurements."""
    size = 2 * _LARGEST_MMAP_THRESHOLD
    extra = []
    for _ in range(5):
        pages = mmap.mmap(-1, size)
        if hasattr(mmap, "MADV_NOHUGEPAGE"):
            pages.madvise(mmap.MADV_NOHUGEPAGE)  # the heap's pages are small ones
        block = np.frombuffer(pages, dtype=np.uint8)
        start = time.perf_counter()
        block.fill(1)
        between = time.perf_counter()
        block.fill(2)
        extra.append(2 * between - start - time.perf_counter())
    return max(0.0, float(np.median(extra))) / (size / mmap.PAGESIZE)


def _plain_steps(
    runner: StepRunner, warmup: int, repetitions: int, meter: EnergyMeter | None
) -> tuple[list[StepTime], float]:
    """Return the time of every step after the warm-up, and the joules of them all."""
    for _ in range(warmup):
        runner.run()
    before = meter.read_joules() if meter else 0.0
    seconds = [runner.run() for _ in range(repetitions)]
    return seconds, (meter.read_joules() - before if meter else 0.0)


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
