"""Times a parameter store in a directory: how long tensors take to and from it, and until they are there for good."""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from poet_onnx.costing.measured import StoreMeasurement
from poet_onnx.files.values import Kind
from poet_onnx.profiler.fitting import fit_latency_and_rate
from poet_onnx.training.store_file import Stored, StoreFile, make_store

SIZES_BYTES = (256 << 10, 1 << 20, 4 << 20, 16 << 20, 64 << 20)
"""Sizes of the tensors that are timed: the largest are beyond what is written behind a step."""

_MOST_TIMES_READ = 10.0
"""No storage writes so many times as quickly as it reads: where it seems so, other work stopped the smaller write."""

_COMMITTED: Mapping[str, object] = {"step": 0}


class _Taken(NamedTuple):
    """What reading a tensor took, writing it, and the commit behind that."""

    read_seconds: float
    write_seconds: float
    commit_seconds: float


def measure_store(
    directory: Path, *, page_cache: bool, repetitions: int = 5, sizes_bytes: Sequence[int] = SIZES_BYTES
) -> StoreMeasurement:
    """Measure how a store in a directory moves tensors, checksums included, as a step on it does.

    Args:
        directory: existing, on storage.
        page_cache: whether the store is in it; otherwise transfers go past it, reads ahead in the order of the last
            step and writes behind the step.
        repetitions: of every size; the median counts.
        sizes_bytes: of the tensors, at least two, multiples of 4, smallest first.

    Raises:
        InputError: the store cannot be made there.
    """
    with tempfile.TemporaryDirectory(prefix="poet-profile-", dir=directory) as folder:
        tensors = {str(size): Stored(Kind("float32", (size // 4,)), changes=True) for size in sizes_bytes}
        access = "cached" if page_cache else "direct"
        # In the page cache nothing waits, and other work on the machine does not change the processor's time.
        clock = time.thread_time if page_cache else _own_seconds
        store = make_store(folder, tensors, {}, _COMMITTED, access=access)
        try:
            taken = [_taken(store, size, repetitions, clock) for size in sizes_bytes]
        finally:
            store.close()
    read_latency, read_rate = fit_latency_and_rate(sizes_bytes, [each.read_seconds for each in taken])
    commit_seconds = min(each.commit_seconds for each in taken)
    # Of a step most bytes are written in large tensors, and disks are quickest with many at once.
    more_bytes = sizes_bytes[-1] - sizes_bytes[-2]
    least_seconds = more_bytes / read_rate / _MOST_TIMES_READ
    if not page_cache:  # a commit waits for what is on its way, which is less than the largest tensors
        more_seconds = sum(taken[-1][1:]) - sum(taken[-2][1:])
        return StoreMeasurement(
            latency_seconds=read_latency,
            read_bytes_per_second=read_rate,
            write_bytes_per_second=more_bytes / max(more_seconds, least_seconds),
            commit_seconds=commit_seconds,
        )
    write_latency, write_rate = fit_latency_and_rate(sizes_bytes, [each.write_seconds for each in taken])
    more_seconds = taken[-1].commit_seconds - taken[-2].commit_seconds
    return StoreMeasurement(
        latency_seconds=(read_latency + write_latency) / 2,
        read_bytes_per_second=read_rate,
        write_bytes_per_second=write_rate,
        commit_seconds=commit_seconds,
        commit_bytes_per_second=more_bytes / max(more_seconds, least_seconds),
    )


def _taken(store: StoreFile, size_bytes: int, repetitions: int, clock: Callable[[], float]) -> _Taken:
    """Return the medians of what one tensor takes; two turns before them fill both of its copies.

    Args:
        store: that has a tensor of this size.
        size_bytes: of the tensor.
        repetitions: of each.
        clock: of reads and writes. A commit waits for the disk.
    """
    name, array = str(size_bytes), np.arange(size_bytes // 4, dtype=np.float32)
    turns = []
    for number in range(repetitions + 2):
        store.begin_step()
        read_seconds = _seconds(lambda: store.read_into(name, array), clock)
        write_seconds = _seconds(lambda: store.write(name, array), clock)
        turns.append((read_seconds, write_seconds, _seconds(lambda: store.commit(_COMMITTED), _own_seconds)))
        if number == 1:
            turns.clear()
    return _Taken(*(statistics.median(column) for column in zip(*turns, strict=True)))


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
