"""What the paging scripts share: exported models, plans for a storage of any speed, sessions, and their tables."""

from __future__ import annotations

import contextlib
import csv
import ctypes
import functools
import os
import shlex
import statistics
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from poet_onnx.costing.device import DeviceProfile, StorageProfile, load_device
from poet_onnx.costing.measured import MeasuredCosts
from poet_onnx.profiler.timing import StepTime, keep_heap
from poet_onnx.runtime import PagingOptions, Throttle, session_options

Feeds = Mapping[str, npt.NDArray[np.generic]]

UNLIMITED_BYTES_PER_SECOND = 1e12


def exported(name: str, folder: Path, *, batch: int = 1) -> Path:
    """Export a model of scripts/models.py into a folder, unless it is there, and return its training graph."""
    folder = folder / f"batch-{batch}"
    path = folder / name / "training_model.onnx"
    if not path.exists():
        script = Path(__file__).resolve().parents[2] / "export_models.py"
        command = [sys.executable, str(script), name, "--batch", str(batch), "-o", str(folder)]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    return path


def throttled_device(throttle: Throttle) -> DeviceProfile:
    """Return the profile of this machine with a storage that is as slow as a throttle."""
    host = load_device("host")
    if host.storage is None:
        raise ValueError("the profile of this machine has no storage")
    figures = _figures(throttle)
    sources = {**host.storage.sources, **dict.fromkeys(figures, "the throttle of this run")}
    storage = StorageProfile.model_validate({**host.storage.model_dump(), **figures, "sources": sources})
    return host.model_copy(update={"storage": storage})


def throttled_costs(measured: MeasuredCosts, throttle: Throttle) -> MeasuredCosts:
    """Return measured costs with a storage as slow as a throttle; handing transfers over takes what was measured."""
    if measured.storage is None:
        raise ValueError("no storage was measured")
    storage = measured.storage.model_copy(update={**_figures(throttle), "method": "device"})
    return measured.model_copy(update={"storage": storage})


def _figures(throttle: Throttle) -> dict[str, float]:
    return {
        "page_out_bytes_per_second": throttle.page_out_bytes_per_second or UNLIMITED_BYTES_PER_SECOND,
        "page_in_bytes_per_second": throttle.page_in_bytes_per_second or UNLIMITED_BYTES_PER_SECOND,
        "page_out_latency_seconds": throttle.page_out_latency_seconds,
        "page_in_latency_seconds": throttle.page_in_latency_seconds,
    }


class Stepper:
    """A session of a training graph with its feeds bound; the process keeps freed memory from then on."""

    def __init__(
        self,
        path: Path,
        feeds: Feeds,
        *,
        threads: int = 1,
        page_dir: Path | None = None,
        paging: PagingOptions | None = None,
    ) -> None:
        import onnxruntime

        keep_heap()
        options = session_options(threads=threads, page_dir=page_dir, paging=paging)
        options.log_severity_level = 3
        self.session: Any = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
        self.feeds = feeds

    def bind(self) -> Any:
        """Return a step's inputs and outputs, so that running it allocates nothing but what the step needs."""
        binding = self.session.io_binding()
        for wanted in self.session.get_inputs():
            binding.bind_cpu_input(wanted.name, self.feeds[wanted.name])
        for output in self.session.get_outputs():
            binding.bind_output(output.name)
        return binding

    def run(self) -> StepTime:
        """Run one step and return the time it took."""
        binding = self.bind()
        begun, cpu_begun = time.perf_counter(), time.thread_time()
        self.session.run_with_iobinding(binding)
        return StepTime(time.perf_counter() - begun, time.thread_time() - cpu_begun)


def interleaved_medians(steppers: Sequence[Stepper], *, steps: int) -> list[StepTime]:
    """Run steps of several sessions in turns and return the medians of each session's times."""
    taken: list[list[StepTime]] = [[] for _ in steppers]
    for _ in range(steps):
        for stepper, times in zip(steppers, taken, strict=True):
            times.append(stepper.run())
    return [StepTime(*(statistics.median(column) for column in zip(*times, strict=True))) for times in taken]


def write_table(path: Path | None, rows: Sequence[Mapping[str, object]]) -> None:
    """Write rows as CSV below the command that made them; nothing without a path."""
    if path is None or not rows:
        return
    fields = list(dict.fromkeys(field for row in rows for field in row))
    arguments = [Path(sys.argv[0]).name, *sys.argv[1:]]
    with path.open("w", newline="", encoding="utf-8") as file:
        file.write(f"# python scripts/{shlex.join(arguments)}\n")
        writer = csv.DictWriter(file, fields)
        writer.writeheader()
        writer.writerows(rows)


def show(row: Mapping[str, object]) -> None:
    """Print a row as it comes."""
    print("  ".join(f"{name}={value}" for name, value in row.items()), flush=True)


def open_descriptors() -> int:
    """Return how many files this process has open."""
    return sum(1 for _ in Path("/proc/self/fd").iterdir())


class _HeapFigures(ctypes.Structure):
    """What mallinfo2(3) returns."""

    _fields_: ClassVar = [
        (name, ctypes.c_size_t)
        for name in (
            *("arena", "ordblks", "smblks", "hblks", "hblkhd"),
            *("usmblks", "fsmblks", "uordblks", "fordblks", "keepcost"),
        )
    ]


@functools.cache
def _malloc() -> ctypes.CDLL:
    """Return the process's own library, opened once: each opening leaves objects on the heap that is measured."""
    library = ctypes.CDLL(None)
    library.mallinfo2.restype = _HeapFigures
    return library


def heap_bytes() -> int:
    """Return what malloc has handed out and not got back, exactly (glibc 2.33 or later)."""
    figures = _malloc().mallinfo2()
    return int(figures.uordblks + figures.hblkhd)


def page_files(directory: Path) -> list[Path]:
    """Return this process's page files in a directory, which have no name any more, as others can open them."""
    found = []
    for entry in Path(f"/proc/{os.getpid()}/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):  # the descriptor of the listing itself
            target = str(entry.readlink())
            if target.startswith(f"{directory}/") and target.endswith("(deleted)"):
                found.append(entry)
    return found


def page_file_bytes(directory: Path) -> int:
    """Return the room that this process's page files in a directory take."""
    return sum(file.stat().st_size for file in page_files(directory))
