"""Times whole steps, as they run in training."""

from __future__ import annotations

import ctypes
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import numpy.typing as npt

from poet_onnx.energy import RunEnergy
from poet_onnx.errors import InputError
from poet_onnx.runtime import session_options
from poet_onnx.runtime.installed import import_onnxruntime

if TYPE_CHECKING:
    from onnxruntime import SessionOptions

Feeds = Mapping[str, npt.NDArray[np.generic]]

_M_TRIM_THRESHOLD, _M_MMAP_MAX = -1, -4  # mallopt(3)
_NEVER_TRIM = 2**31 - 1


class StepTime(NamedTuple):
    """What one step took.

    Attributes:
        wall_seconds: from beginning to end.
        cpu_seconds: of the calling thread; with one thread, what the step takes if nothing else wants the processor.
    """

    wall_seconds: float
    cpu_seconds: float


@dataclass(frozen=True)
class PlainSteps:
    """What steps without any profiling took.

    Attributes:
        steps: the time of each.
        energy: of a step, None where it was not metered.
    """

    steps: tuple[StepTime, ...]
    energy: RunEnergy | None


def keep_heap() -> None:
    """Let this process keep the memory it frees, as far as the C library can be told.

    Without an arena every tensor comes from malloc. By default glibc moves between giving freed blocks back and keeping
    them, as the process's history has it; a step of VGG-16 then has between 0 and 11,500 page faults and takes between
    44 and 66 ms. Kept blocks make steps quick and times repeatable; what a step has allocated at once does not change.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(_M_MMAP_MAX, 0)  # blocks of their own are given back, whatever their size
        mallopt(_M_TRIM_THRESHOLD, _NEVER_TRIM)


class StepRunner:
    """A session of a training graph with its feeds bound: `run()` takes one step and returns its time.

    The process keeps freed memory from then on: see `keep_heap`.
    """

    def __init__(
        self, model_path: Path, feeds: Feeds, *, threads: int = 1, options: SessionOptions | None = None
    ) -> None:
        onnxruntime = import_onnxruntime()
        keep_heap()
        options = options or session_options(threads=threads)
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

    def end_profiling(self) -> Path:
        """Return the file that the events of all steps so far were written to."""
        return Path(self._session.end_profiling())


def time_steps(
    model_path: Path,
    feeds: Feeds,
    *,
    repetitions: int,
    warmup: int,
    threads: int,
    note: Callable[[], None],
    energy_of: Callable[[Callable[[], object]], RunEnergy] | None = None,
) -> PlainSteps:
    """Time steps of a model in a session that is closed behind them.

    Args:
        model_path: of the model.
        feeds: an array for every input; accumulators write into theirs.
        repetitions: timed steps.
        warmup: steps before them.
        threads: threads inside an operator.
        note: called before and behind the timed steps, while the processor has been busy.
        energy_of: measures the energy of a step by repeating it.

    Raises:
        InputError: ONNX Runtime cannot load the model.
        CheckFailedError: the meter has stopped.
    """
    runner = StepRunner(model_path, feeds, threads=threads)
    for _ in range(warmup):
        runner.run()
    note()
    steps = tuple(runner.run() for _ in range(repetitions))
    note()
    return PlainSteps(steps, None if energy_of is None else energy_of(runner.run))


def _first_line(error: BaseException) -> str:
    return str(error).strip().partition("\n")[0].rstrip(".")
