"""ONNX Runtime sessions in which the measured peak is the plan's, and the counters that measure them."""

from __future__ import annotations

from poet_onnx.runtime.allocations import AllocationCounter, count_allocations
from poet_onnx.runtime.arena import ArenaCounter, ArenaStatistics, arena_statistics, count_arena, open_arenas
from poet_onnx.runtime.directories import page_directory
from poet_onnx.runtime.installed import InstalledRuntime, installed_runtime
from poet_onnx.runtime.options import Backend, PagingOptions, Throttle, session_options, training_module
from poet_onnx.runtime.statistics import (
    PagingCounter,
    PagingStatistics,
    StoreDescription,
    count_paging,
    describe_store,
    open_stores,
    paging_statistics,
)

__all__ = [
    "AllocationCounter",
    "ArenaCounter",
    "ArenaStatistics",
    "Backend",
    "InstalledRuntime",
    "PagingCounter",
    "PagingOptions",
    "PagingStatistics",
    "StoreDescription",
    "Throttle",
    "arena_statistics",
    "count_allocations",
    "count_arena",
    "count_paging",
    "describe_store",
    "installed_runtime",
    "open_arenas",
    "open_stores",
    "page_directory",
    "paging_statistics",
    "session_options",
    "training_module",
]
