"""Times a parameter store in a directory: how long tensors take to and from it, and until they are there for good."""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from poet_onnx.costing.measured import StoreMeasurement
from poet_onnx.files.values import Kind
from poet_onnx.profiler.fitting import fit_latency_and_rate
from poet_onnx.training.store_file import PAGE_BYTES, Stored, StoreFile, make_store

SIZES_BYTES = (128 << 10, 1 << 20, 8 << 20)
"""Sizes of the tensors that are timed, from one page on."""

STEP_BYTES = 32 << 20
"""That a step moves each way, as many tensors of a size: one tensor by itself waits for what a step reads ahead."""

_LEAST_SHARE = 0.1
"""Of an update that writing takes, whatever the noise of a clock says."""

_TENSORS_EACH = 3
"""Of a parameter: Adam has two moments."""

_COMMITTED: Mapping[str, object] = {"step": 0}


class StepTimes(NamedTuple):
    """What a step took to read its tensors, to read and write them again in an update, and for the commit behind it."""

    read_seconds: float
    update_seconds: float
    commit_seconds: float


def measure_store(
    directory: Path, *, page_cache: bool, repetitions: int = 5, step_bytes: int = STEP_BYTES
) -> StoreMeasurement:
    """Measure how a store in a directory moves tensors, checksums included, as a step on it does.

    Args:
        directory: existing, on storage.
        page_cache: whether the store is in it; otherwise transfers go past it, reads ahead in the order of the last
            step and writes behind the step.
        repetitions: of every size; the median counts.
        step_bytes: moved each way in a step, but one parameter of the second size at least.

    Raises:
        InputError: the store cannot be made there.
    """
    least_bytes = SIZES_BYTES[1] * _TENSORS_EACH
    parameters = {size: max(step_bytes, least_bytes) // (size * _TENSORS_EACH) for size in SIZES_BYTES}
    steps = {size: count * _TENSORS_EACH for size, count in parameters.items() if count}
    with tempfile.TemporaryDirectory(prefix="poet-profile-", dir=directory) as folder:
        tensors = {
            _name(size, number): Stored(Kind("float32", (size // 4,)), changes=True)
            for size, count in steps.items()
            for number in range(count)
        }
        access = "cached" if page_cache else "direct"
        # In the page cache nothing waits, and other work on the machine does not change the processor's time.
        clock = time.thread_time if page_cache else _own_seconds
        store = make_store(folder, tensors, {}, _COMMITTED, access=access)
        try:
            commit_seconds = _taken(store, 0, 0, repetitions, clock).commit_seconds
            taken = [_taken(store, size, count, repetitions, clock) for size, count in steps.items()]
        finally:
            store.close()
    return fit_store(steps, taken, commit_seconds, page_cache=page_cache)


def fit_store(
    steps: Mapping[int, int], taken: Sequence[StepTimes], commit_seconds: float, *, page_cache: bool
) -> StoreMeasurement:
    """Fit latencies and rates to what steps took.

    Args:
        steps: how many tensors of each size in bytes a step moved.
        taken: by each of them. An update reads a parameter and its moments page by page, and so in small transfers;
            what it takes longer than reading each in one go counts as writing.
        commit_seconds: of a step that moved none.
        page_cache: whether the store was in it. What it has alone, a commit waits for, byte by byte; a disk's own cache
            is small, and a commit waits as long for it however much a step wrote.
    """
    counts = list(steps.values())
    read_seconds = [each.read_seconds / count for each, count in zip(taken, counts, strict=True)]
    read_latency, read_rate = fit_latency_and_rate(list(steps), read_seconds)
    moved_bytes = sum(size * count for size, count in steps.items())
    waited_seconds = max(0.0, sum(each.commit_seconds - commit_seconds for each in taken))
    updated_seconds = sum(each.update_seconds for each in taken)
    write_seconds = [
        max(each.update_seconds - each.read_seconds, _LEAST_SHARE * each.update_seconds) / count
        for each, count in zip(taken, counts, strict=True)
    ]
    write_latency, write_rate = fit_latency_and_rate(list(steps), write_seconds)
    return StoreMeasurement(
        latency_seconds=(read_latency + write_latency) / 2,
        read_bytes_per_second=read_rate,
        write_bytes_per_second=write_rate,
        commit_seconds=commit_seconds + (0.0 if page_cache else waited_seconds / len(taken)),
        # The page cache gives what is written to the storage at once.
        commit_bytes_per_second=moved_bytes / (updated_seconds + waited_seconds) if page_cache else None,
    )


def _taken(store: StoreFile, size_bytes: int, count: int, repetitions: int, clock: Callable[[], float]) -> StepTimes:
    """Return the medians of what a step takes; two turns before them fill both copies of its tensors.

    Args:
        store: that has the tensors.
        size_bytes: of each tensor.
        count: of the tensors.
        repetitions: of the step.
        clock: of reads and updates. A commit waits for the disk.
    """
    names, array = [_name(size_bytes, number) for number in range(count)], np.arange(size_bytes // 4, dtype=np.float32)
    turns = []
    for _ in range(repetitions + 2):
        store.begin_step()
        read_seconds = _seconds(lambda: _read(store, names, array), clock)
        update_seconds = _seconds(lambda: _update(store, names), clock)
        turns.append((read_seconds, update_seconds, _seconds(lambda: store.commit(_COMMITTED), _own_seconds)))
    return StepTimes(*(statistics.median(column) for column in zip(*turns[2:], strict=True)))


def _read(store: StoreFile, names: Sequence[str], array: npt.NDArray[np.float32]) -> None:
    for name in names:
        store.read_into(name, array)


def _update(store: StoreFile, names: Sequence[str]) -> None:
    """Read and write tensors page by page, a parameter and its moments at a time."""
    for first in range(0, len(names), _TENSORS_EACH):
        group = names[first : first + _TENSORS_EACH]
        for page, pieces in enumerate(zip(*map(store.pieces, group), strict=True)):
            for name, piece in zip(group, pieces, strict=True):
                store.write_piece(name, page * PAGE_BYTES, piece)


def _name(size_bytes: int, number: int) -> str:
    return f"{size_bytes}/{number}"


def _own_seconds() -> float:
    """Return a clock that stands while others have the processor for which this thread waits.

    The kernel's schedstats tell that; where it keeps none, the clock always runs.
    """
    try:
        queued_nanoseconds = int(Path("/proc/thread-self/schedstat").read_text(encoding="ascii").split()[1])
    except (OSError, IndexError, ValueError):
        queued_nanoseconds = 0
    return time.perf_counter() - queued_nanoseconds * 1e-9


def _seconds(call: Callable[[], Any], clock: Callable[[], float]) -> float:
    begin = clock()
    call()
    return clock() - begin
