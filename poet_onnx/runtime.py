"""ONNX Runtime sessions in which the measured peak is the plan's, and the counter that measures it."""

from __future__ import annotations

import ctypes
import importlib
import importlib.metadata
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from poet_onnx.errors import InputError
from poet_onnx.ops import library_path

if TYPE_CHECKING:
    from onnxruntime import SessionOptions
    from onnxruntime.training.api import Module

__all__ = [
    "AllocationCounter",
    "InstalledRuntime",
    "count_allocations",
    "installed_runtime",
    "session_options",
    "training_module",
]

_PAGE_DIR_ENTRY = "poet.page_dir"  # session configuration entry that the operator library reads when it is registered
_PAGE_DIR_VARIABLE = "POET_PAGE_DIR"
_LONGEST_ENTRY_BYTES = 1024  # of a configuration entry's value in ONNX Runtime 1.19
_DISTRIBUTIONS = (
    "onnxruntime-training",
    "onnxruntime",
    "onnxruntime-gpu",
    "onnxruntime-openvino",
    "onnxruntime-directml",
    "onnxruntime-qnn",
)


class InstalledRuntime(NamedTuple):
    """The ONNX Runtime of this environment."""

    distribution: str
    version: str

    @property
    def has_training(self) -> bool:
        """Whether it has gradient kernels and `onnxruntime.training`."""
        return self.distribution == "onnxruntime-training"


def installed_runtime() -> InstalledRuntime:
    """Return which ONNX Runtime this environment has.

    Raises:
        InputError: there is none, or several that overwrite each other's files.
    """
    found = []
    for name in _DISTRIBUTIONS:
        try:
            found.append(InstalledRuntime(name, importlib.metadata.version(name)))
        except importlib.metadata.PackageNotFoundError:
            continue
    if not found:
        raise InputError(
            "No ONNX Runtime is installed: `pip install poet-onnx[training]` (x86_64, Python 3.11 at most) or "
            "`pip install poet-onnx[stock]` adds one."
        )
    if len(found) > 1:
        names = " and ".join(f"{runtime.distribution} {runtime.version}" for runtime in found)
        raise InputError(
            f"{names} are both installed and overwrite each other's files: make a new environment with one of them."
        )
    return found[0]


def session_options(*, threads: int = 1, page_dir: str | os.PathLike[str] | None = None) -> SessionOptions:
    """Return session options with which a session's allocator peak is the liveness of the file's order.

    Args:
        threads: threads inside an operator.
        page_dir: existing directory for the page file; default the environment variable POET_PAGE_DIR, then the
            system's directory for temporary files.

    Raises:
        InputError: no usable ONNX Runtime, operator library or page directory, or fewer than one thread.
    """
    if threads < 1:
        raise InputError(f"{threads} threads cannot run a session: give 1 or more.")
    onnxruntime = _onnxruntime()
    options = onnxruntime.SessionOptions()
    # No fusion, elimination or layout change: the nodes that were planned are the nodes that run.
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    # File order is the plan's order; the default order is another one.
    options.execution_order = onnxruntime.ExecutionOrder.PRIORITY_BASED
    # One node at a time: two at once would need the memory of both.
    options.execution_mode = onnxruntime.ExecutionMode.ORT_SEQUENTIAL
    options.inter_op_num_threads = 1
    options.intra_op_num_threads = threads
    # An arena keeps what was freed and rounds up: the plan's peak would not be the allocator's.
    options.enable_cpu_mem_arena = False
    # A memory pattern allocates one block for the whole step.
    options.enable_mem_pattern = False
    # Reuse keeps a dead tensor's larger buffer alive under a smaller tensor.
    options.enable_mem_reuse = False
    # Prepacking makes second copies of constant weights.
    options.add_session_config_entry("session.disable_prepacking", "1")
    directory = page_dir or os.environ.get(_PAGE_DIR_VARIABLE)
    if directory:
        options.add_session_config_entry(_PAGE_DIR_ENTRY, _checked_page_dir(directory))
    options.register_custom_ops_library(str(library_path()))
    return options


def training_module(
    training_model: str | os.PathLike[str],
    checkpoint: Any,
    *,
    eval_model: str | os.PathLike[str] | None = None,
    threads: int = 1,
    page_dir: str | os.PathLike[str] | None = None,
) -> Module:
    """Return an `onnxruntime.training.api.Module` of a training graph, with the options of `session_options`.

    Args:
        training_model: the training graph, rewritten or as generated.
        checkpoint: an `onnxruntime.training.api.CheckpointState`.
        eval_model: the evaluation graph, if `eval()` is to be used.
        threads: threads inside an operator.
        page_dir: as in `session_options`.

    Raises:
        InputError: this environment has no onnxruntime-training, or what `session_options` raises.
    """
    runtime = installed_runtime()
    if not runtime.has_training:
        raise InputError(
            f"onnxruntime.training.api needs onnxruntime-training, and this environment has {runtime.distribution} "
            f"{runtime.version}: use `pip install poet-onnx[training]` in a new environment."
        )
    options = session_options(threads=threads, page_dir=page_dir)
    try:
        api = importlib.import_module("onnxruntime.training.api")
    except ImportError as error:
        raise InputError(
            f"onnxruntime.training cannot be imported ({error}): `pip install poet-onnx[training]` adds what it needs."
        ) from error
    evaluation = None if eval_model is None else os.fspath(eval_model)
    return api.Module(os.fspath(training_model), checkpoint, evaluation, device="cpu", session_options=options)


class AllocationCounter:
    """Exact bytes of the blocks that ONNX Runtime's CPU allocator holds: what `count_allocations` yields.

    Blocks that were allocated before the operator library was first registered in the process are not counted.
    """

    def __init__(self, library: ctypes.CDLL) -> None:
        self._library = library
        self._highest_bytes = 0
        self.level_bytes = 0
        """Bytes held when the context was entered or `reset_peak` was last called."""

    @property
    def current_bytes(self) -> int:
        """Bytes held now."""
        return int(self._library.poet_current_bytes())

    @property
    def peak_bytes(self) -> int:
        """Most bytes held at one moment since the context was entered or `reset_peak` was last called."""
        return max(self._highest_bytes, int(self._library.poet_peak_bytes()))

    @property
    def transient_peak_bytes(self) -> int:
        """`peak_bytes` above `level_bytes`: the transient peak of what ran since."""
        return self.peak_bytes - self.level_bytes

    @property
    def allocation_count(self) -> int:
        """Allocations made since the operator library was registered in this process."""
        return int(self._library.poet_allocation_count())

    def reset_peak(self) -> None:
        """Restart the peak from the bytes held now, which become `level_bytes`."""
        _fold_peaks(self._library)
        self._highest_bytes = self.level_bytes = self.current_bytes

    def start_events(self, capacity: int = 1 << 20) -> None:
        """Start a new log of at most `capacity` allocations and releases; it ends with the outermost context.

        Raises:
            InputError: `capacity` is no positive number that fits into memory.
        """
        if capacity < 1 or self._library.poet_start_events(capacity) != 0:
            raise InputError(f"An event log of {capacity} events cannot be kept: give a positive number that fits.")

    def events(self) -> list[int]:
        """Return what was logged since `start_events`: +bytes of an allocation, -bytes of a release, in order.

        Raises:
            InputError: more events happened than the log's capacity.
        """
        dropped = ctypes.c_uint64(0)
        count = int(self._library.poet_events(None, 0, ctypes.byref(dropped)))
        if dropped.value != 0:
            raise InputError(f"{dropped.value} events did not fit into the log of {count}: start it with more room.")
        log = (ctypes.c_int64 * max(count, 0))()
        self._library.poet_events(log, count, ctypes.byref(dropped))
        return list(log)


_active: list[AllocationCounter] = []
_active_lock = threading.RLock()


@contextmanager
def count_allocations() -> Iterator[AllocationCounter]:
    """Count ONNX Runtime's allocations, of existing sessions and new ones; contexts may nest.

    Raises:
        InputError: no usable ONNX Runtime or operator library, or a runtime whose allocator cannot be watched.
    """
    library = _tracked_library()
    counter = AllocationCounter(library)
    with _active_lock:
        _active.append(counter)
        counter.reset_peak()
    try:
        yield counter
    finally:
        with _active_lock:
            _fold_peaks(library)
            _active.remove(counter)
            if not _active:
                library.poet_start_events(0)


def _fold_peaks(library: ctypes.CDLL) -> None:
    """Save the library's one peak in every open counter, then restart it."""
    with _active_lock:
        peak_bytes = int(library.poet_peak_bytes())
        for counter in _active:
            counter._highest_bytes = max(counter._highest_bytes, peak_bytes)
        library.poet_reset_peak()


@lru_cache(maxsize=1)
def _tracked_library() -> ctypes.CDLL:
    """Load the operator library and let ONNX Runtime register it, which starts the tracking."""
    path = str(library_path())
    _onnxruntime().SessionOptions().register_custom_ops_library(path)
    library = ctypes.CDLL(path)
    library.poet_tracked_imports.argtypes = []
    library.poet_tracked_imports.restype = ctypes.c_uint64
    if library.poet_tracked_imports() == 0:
        runtime = installed_runtime()
        raise InputError(
            f"The allocations of {runtime.distribution} {runtime.version} cannot be counted: no import of its library "
            "could be redirected; use a released wheel of onnxruntime-training 1.19.2 or onnxruntime 1.31."
        )
    for name in ("poet_current_bytes", "poet_peak_bytes", "poet_allocation_count"):
        getattr(library, name).argtypes = []
        getattr(library, name).restype = ctypes.c_int64
    library.poet_reset_peak.argtypes = []
    library.poet_reset_peak.restype = None
    library.poet_start_events.argtypes = [ctypes.c_uint64]
    library.poet_start_events.restype = ctypes.c_int
    library.poet_events.argtypes = [ctypes.POINTER(ctypes.c_int64), ctypes.c_uint64, ctypes.POINTER(ctypes.c_uint64)]
    library.poet_events.restype = ctypes.c_int64
    return library


def _onnxruntime() -> Any:
    runtime = installed_runtime()
    try:
        return importlib.import_module("onnxruntime")
    except ImportError as error:
        raise InputError(f"{runtime.distribution} {runtime.version} cannot be imported: {error}.") from error


def _checked_page_dir(page_dir: str | os.PathLike[str]) -> str:
    """Return the absolute path of a page directory that exists and can be written."""
    path = Path(page_dir).absolute()
    if not path.is_dir():
        raise InputError(f"The page directory {path} does not exist or is no directory: make it, or give another one.")
    if not os.access(path, os.W_OK | os.X_OK):
        raise InputError(f"The page directory {path} cannot be written: change its permissions, or give another one.")
    if len(os.fsencode(path)) > _LONGEST_ENTRY_BYTES:
        raise InputError(f"The page directory's path has more than {_LONGEST_ENTRY_BYTES} bytes: give a shorter one.")
    return str(path)
