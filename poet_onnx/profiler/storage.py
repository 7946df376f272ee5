"""Times the page directory: how long tensors of several sizes take to storage and back."""

from __future__ import annotations

import os
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import numpy as np

from poet_onnx.errors import InputError
from poet_onnx.measured import StorageMeasurement

SIZES_BYTES = (64 << 10, 256 << 10, 1 << 20, 4 << 20, 16 << 20)
"""Sizes of the transfers that are timed."""

_FASTEST_BYTES_PER_SECOND = 1e12


def measure_storage(
    page_dir: str | os.PathLike[str],
    *,
    page_cache: bool = False,
    repetitions: int = 7,
    sizes_bytes: Sequence[int] = SIZES_BYTES,
) -> StorageMeasurement:
    """Measure write and read rate and latency of a directory's storage.

    Args:
        page_dir: an existing directory.
        page_cache: time transfers between RAM and the page cache; otherwise a write waits until the storage has the
            data, and a read comes after the cache has dropped them.
        repetitions: of every size; the median counts.
        sizes_bytes: transfer sizes, at least two.

    Raises:
        InputError: the directory does not exist, cannot be written, or is full.
    """
    directory = Path(page_dir)
    if not directory.is_dir():
        raise InputError(f"The page directory {directory} does not exist or is no directory: make it, or give another.")
    try:
        with tempfile.TemporaryFile(dir=directory, buffering=0) as file:
            descriptor = file.fileno()
            os.posix_fallocate(descriptor, 0, max(sizes_bytes))
            writes, reads = _time_transfers(descriptor, sizes_bytes, repetitions, page_cache=page_cache)
    except OSError as error:
        raise InputError(
            f"The page directory {directory} cannot be measured: {error.strerror or error} "
            f"({max(sizes_bytes)} bytes are needed)."
        ) from error
    out_latency, out_rate = fit_latency_and_rate(sizes_bytes, writes)
    in_latency, in_rate = fit_latency_and_rate(sizes_bytes, reads)
    return StorageMeasurement(
        page_out_bytes_per_second=out_rate,
        page_in_bytes_per_second=in_rate,
        page_out_latency_seconds=out_latency,
        page_in_latency_seconds=in_latency,
        method="page_cache" if page_cache else "device",
    )


def _time_transfers(
    descriptor: int, sizes_bytes: Sequence[int], repetitions: int, *, page_cache: bool
) -> tuple[list[float], list[float]]:
    """Return median seconds of writing and of reading each size; one round before the timed ones warms up."""
    data = {size: np.random.default_rng(size).bytes(size) for size in sizes_bytes}
    target = bytearray(max(sizes_bytes))
    writes: dict[int, list[float]] = {size: [] for size in sizes_bytes}
    reads: dict[int, list[float]] = {size: [] for size in sizes_bytes}
    for _ in range(repetitions + 1):
        for size in sizes_bytes:
            writes[size].append(_seconds_of(partial(_write, descriptor, data[size], wait=not page_cache)))
            if not page_cache:
                os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
            reads[size].append(_seconds_of(partial(_read, descriptor, memoryview(target)[:size])))
    return (
        [statistics.median(writes[size][1:]) for size in sizes_bytes],
        [statistics.median(reads[size][1:]) for size in sizes_bytes],
    )


def _seconds_of(action: Callable[[], None]) -> float:
    start = time.perf_counter()
    action()
    return time.perf_counter() - start


def _write(descriptor: int, data: bytes, *, wait: bool) -> None:
    view, offset = memoryview(data), 0
    while offset < len(data):
        offset += os.pwrite(descriptor, view[offset:], offset)
    if wait:
        os.fdatasync(descriptor)


def _read(descriptor: int, view: memoryview) -> None:
    offset = 0
    while offset < len(view):
        count = os.preadv(descriptor, [view[offset:]], offset)
        if count == 0:
            raise OSError(f"only {offset} of {len(view)} bytes could be read back")
        offset += count


def fit_latency_and_rate(sizes_bytes: Sequence[int], seconds: Sequence[float]) -> tuple[float, float]:
    """Fit seconds = latency + bytes / rate to relative errors, with latency >= 0, and return latency and rate.

    Args:
        sizes_bytes: of the transfers, at least two different ones.
        seconds: that they took.
    """
    size, took = np.asarray(sizes_bytes, float), np.asarray(seconds, float)
    slope, latency = np.polyfit(size, took, 1, w=1.0 / took)
    if latency < 0.0 or slope <= 0.0:
        latency, slope = 0.0, float(np.average(took / size))
    return float(latency), min(1.0 / float(slope), _FASTEST_BYTES_PER_SECOND)
