"""Times the page directory: how long tensors of several sizes take to storage and back, through a real page store."""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from onnx import ModelProto

from poet_onnx.costing.measured import StorageMeasurement, StoreMeasurement
from poet_onnx.errors import InputError
from poet_onnx.profiler.fitting import fit_latency_and_rate
from poet_onnx.profiler.store import STEP_BYTES, measure_store
from poet_onnx.profiler.timing import keep_heap
from poet_onnx.profiler.transfer_graph import Transfers, transfer_feeds, transfer_graph
from poet_onnx.runtime import Backend, PagingOptions, Throttle, count_paging, page_directory, session_options
from poet_onnx.runtime.installed import import_onnxruntime

SIZES_BYTES = (64 << 10, 256 << 10, 1 << 20, 4 << 20, 16 << 20)
"""Sizes of the transfers that are timed."""

_HIDDEN_BYTES = 64 << 10
_HIDDEN_TENSORS = 8
_HIDDEN_REPETITIONS = 25


class _Taken(NamedTuple):
    """What one transfer of a size took each way, and how much longer a node waited for it on average."""

    page_out_seconds: float
    page_in_seconds: float
    beside_seconds: float


def measure_storage(
    page_dir: str | os.PathLike[str] | None,
    *,
    page_cache: bool = False,
    asynchronous: bool = True,
    repetitions: int = 7,
    sizes_bytes: Sequence[int] = SIZES_BYTES,
    throttle: Throttle | None = None,
    most_bytes: int | None = None,
) -> StorageMeasurement:
    """Measure write and read rate and latency of a directory's storage, as sessions that page there will see them.

    A parameter store there is measured besides, where nothing makes the storage slower.

    Args:
        page_dir: an existing directory; default as in `session_options`.
        page_cache: time transfers between RAM and the page cache, instead of past it to the storage itself.
        asynchronous: transfers are handed over to the I/O thread: what that takes is measured, too.
        repetitions: of every size; the median counts.
        sizes_bytes: transfer sizes, at least two, multiples of 4.
        throttle: makes the storage slower.
        most_bytes: larger transfers are left out, but for the second size; and no step on the store moves more.

    Raises:
        InputError: the directory does not exist, cannot be written, is in RAM, or is full.
    """
    directory = page_directory(page_dir)
    sizes_bytes = _no_larger(sizes_bytes, most_bytes)
    taken = []
    for size in sizes_bytes:
        model = transfer_graph(size, 1, Transfers.AWAITED if asynchronous else Transfers.WHOLE)
        session = _session(model, directory, throttle, page_cache=page_cache, most_bytes=max(sizes_bytes))
        taken.append(_median(list(_times(session, size, repetitions))))
    beside = max(0.0, statistics.median(each.beside_seconds for each in taken))
    out_latency, out_rate = fit_latency_and_rate(sizes_bytes, [each.page_out_seconds for each in taken])
    in_latency, in_rate = fit_latency_and_rate(sizes_bytes, [each.page_in_seconds for each in taken])
    return StorageMeasurement(
        page_out_bytes_per_second=out_rate,
        page_in_bytes_per_second=in_rate,
        page_out_latency_seconds=out_latency if asynchronous else out_latency + beside,
        page_in_latency_seconds=in_latency if asynchronous else in_latency + beside,
        wake_seconds=beside if asynchronous else 0.0,
        hand_over_seconds=_hand_over_seconds(directory) if asynchronous else 0.0,
        method="page_cache" if page_cache else "device",
        store=None if throttle is not None else _store(directory, most_bytes, page_cache=page_cache),
    )


def _store(directory: Path, most_bytes: int | None, *, page_cache: bool) -> StoreMeasurement:
    """Measure a store as asked for; what a file system cannot write past the page cache is measured in it."""
    step_bytes = STEP_BYTES if most_bytes is None else min(STEP_BYTES, most_bytes)
    try:
        return measure_store(directory, page_cache=page_cache, step_bytes=step_bytes)
    except InputError:
        if page_cache:
            raise
        return measure_store(directory, page_cache=True, step_bytes=step_bytes)


def _no_larger(sizes_bytes: Sequence[int], most_bytes: int | None) -> Sequence[int]:
    fitting = [size for size in sizes_bytes if most_bytes is None or size <= most_bytes]
    return fitting if len(fitting) > 1 else sizes_bytes[:2]


def _session(
    model: ModelProto, directory: Path, throttle: Throttle | None, *, page_cache: bool, most_bytes: int
) -> Any:
    """Return a session that pages as asked for; what a file system cannot write past the page cache is dropped from it.

    Raises:
        InputError: there is no room for `most_bytes`, or no page file.
    """

    def paging_by(backend: Backend) -> Any:
        onnxruntime = import_onnxruntime()
        options = session_options(
            page_dir=directory, paging=PagingOptions(backend=backend, throttle=throttle or Throttle())
        )
        options.log_severity_level = 4  # a failure is told here
        try:
            return onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
        except Exception as error:  # ONNX Runtime's exceptions have no common base
            reason = str(error).strip().splitlines()[-1].rpartition("initialization: ")[2].rstrip(".")
            raise InputError(
                f"The page directory {directory} cannot be measured: {reason} ({most_bytes} bytes are needed)."
            ) from error

    if page_cache:
        return paging_by("cached")
    try:
        return paging_by("direct")
    except InputError:
        return paging_by("uncached")


def transfer_session(model: ModelProto, directory: Path, *, page_cache: bool) -> Any:
    """Return a session of a graph of `transfer_graph`, which pages to a directory.

    Raises:
        InputError: there is no room, or no page file.
    """
    return _session(model, directory, None, page_cache=page_cache, most_bytes=max(SIZES_BYTES))


def _times(session: Any, size_bytes: int, repetitions: int) -> Iterator[_Taken]:
    """Yield what each run's transfers took; one run before them warms up."""
    feeds = transfer_feeds(size_bytes)
    for number in range(repetitions + 1):
        with count_paging() as paging:
            session.run(None, feeds)
            moved = paging.statistics
        if number:
            beside = (moved.waited_seconds - moved.transfer_seconds) / (moved.page_outs + moved.page_ins)
            yield _Taken(moved.page_out_seconds, moved.page_in_seconds, beside)


def _hand_over_seconds(directory: Path) -> float:
    """Return how much longer the computing thread takes for each transfer that the I/O thread makes beside it."""
    keep_heap()
    feeds = transfer_feeds(_HIDDEN_BYTES)
    alone, beside = (
        _session(
            transfer_graph(_HIDDEN_BYTES, _HIDDEN_TENSORS, transfers),
            directory,
            None,
            page_cache=True,
            most_bytes=_HIDDEN_TENSORS * _HIDDEN_BYTES,
        )
        for transfers in (Transfers.NONE, Transfers.HIDDEN)
    )
    longer = []
    for number in range(_HIDDEN_REPETITIONS + 1):
        before = time.perf_counter()
        alone.run(None, feeds)
        between = time.perf_counter()
        with count_paging() as paging:
            beside.run(None, feeds)
            waited = paging.statistics.waited_seconds
        after = time.perf_counter()
        if number:
            longer.append((after - between) - waited - (between - before))
    return max(0.0, statistics.median(longer) / (2 * _HIDDEN_TENSORS))


def _median(taken: Sequence[_Taken]) -> _Taken:
    return _Taken(*(statistics.median(column) for column in zip(*taken, strict=True)))
