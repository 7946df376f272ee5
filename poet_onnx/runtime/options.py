"""Session options with which a session keeps to its plan, and how its pages are moved."""

from __future__ import annotations

import importlib
import os
from collections.abc import Iterator
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any, Literal, get_args

from poet_onnx.description.names import TRAINING_KEY
from poet_onnx.errors import InputError, shown
from poet_onnx.files.model_file import check_external_data, read_metadata
from poet_onnx.ops import library_path
from poet_onnx.quantities import MOST_THREADS, is_whole
from poet_onnx.runtime.directories import page_directory
from poet_onnx.runtime.installed import import_onnxruntime, installed_runtime

if TYPE_CHECKING:
    from onnxruntime import SessionOptions
    from onnxruntime.training.api import Module

# Session configuration entries that the operator library reads when it is registered.
_PAGE_DIR_ENTRY = "poet.page_dir"
_THREADS_ENTRY = "poet.threads"
_PAGE_DIR_VARIABLE = "POET_PAGE_DIR"

Backend = Literal["auto", "cached", "uncached", "direct"]
BACKENDS: tuple[Backend, ...] = get_args(Backend)
"""Ways to move pages between memory and the page file."""
CIPHERS = ("aes-256-gcm", "chacha20-poly1305")
"""Ways to encrypt pages."""


@dataclass(frozen=True, kw_only=True)
class Throttle:
    """Makes a session's paging as slow as a storage with these figures; the names are those of a storage profile.

    A transfer takes at least its latency plus its bytes by the rate, and transfers follow one another. None: unlimited.

    Raises:
        InputError: a rate below 1 byte per second or a negative latency.
    """

    page_out_bytes_per_second: float | None = None
    page_in_bytes_per_second: float | None = None
    page_out_latency_seconds: float = 0.0
    page_in_latency_seconds: float = 0.0

    def __post_init__(self) -> None:
        for rate in (self.page_out_bytes_per_second, self.page_in_bytes_per_second):
            if rate is not None and not 1.0 <= rate < 2.0**63:
                raise InputError(f"A paging rate of {rate} bytes per second cannot be kept: give 1 or more, or None.")
        for latency in (self.page_out_latency_seconds, self.page_in_latency_seconds):
            if not 0.0 <= latency <= 3600.0:
                raise InputError(f"A paging latency of {latency} seconds cannot be kept: give 0 to 3600.")


@dataclass(frozen=True, kw_only=True)
class PagingOptions:
    """How a session moves its pages.

    Attributes:
        backend: "cached" goes through the page cache; "uncached" does so too and drops each page from it when the next
            one comes; "direct" goes past it (O_DIRECT), with several requests under way. "auto" is "cached" for a page
            file that takes little of the free memory, else "direct" where the file system can do that, or "uncached".
            `describe_store` tells the choice.
        checksum: whether each page is known again by a 64-bit checksum when it is read.
        cipher: encrypts pages with a key that is only in memory, and authenticates them: "aes-256-gcm" (fast where the
            processor has instructions for it) or "chacha20-poly1305". Needs OpenSSL's libcrypto 3 or 1.1.
        throttle: makes the storage slower, for tests and to try a plan for another device.
        allow_ram: the page directory may be in RAM (tmpfs, ramfs, zram), where paging saves nothing; the environment
            variable POET_PAGE_IN_RAM=1 says the same.
        most_bytes: a model whose page file would be larger is refused; None: it may fill the storage.

    Raises:
        InputError: an unknown back end or cipher, or a page file of less than 1 byte.
    """

    backend: Backend = "auto"
    checksum: bool = True
    cipher: Literal["aes-256-gcm", "chacha20-poly1305"] | None = None
    throttle: Throttle = Throttle()
    allow_ram: bool = False
    most_bytes: int | None = None

    def __post_init__(self) -> None:
        if self.most_bytes is not None and not 1 <= self.most_bytes < 2**63:
            raise InputError(f"A page file of at most {self.most_bytes} bytes cannot be kept: give 1 or more, or None.")
        if self.backend not in BACKENDS:
            raise InputError(f"There is no paging back end {self.backend!r}: give one of {', '.join(BACKENDS)}.")
        if self.cipher is not None and self.cipher not in CIPHERS:
            raise InputError(f"There is no page cipher {self.cipher!r}: give one of {', '.join(CIPHERS)}, or None.")

    def _entries(self) -> Iterator[tuple[str, str]]:
        """Yield the session configuration entries that say the same."""
        yield "poet.page_backend", self.backend
        yield "poet.page_checksum", "1" if self.checksum else "0"
        yield "poet.page_cipher", self.cipher or "none"
        if self.allow_ram:
            yield "poet.page_in_ram", "1"
        if self.most_bytes is not None:
            yield "poet.page_most_bytes", str(self.most_bytes)
        for field in fields(self.throttle):
            value = getattr(self.throttle, field.name)
            if value and field.name.endswith("_seconds"):
                yield f"poet.{field.name.removesuffix('_seconds')}_nanoseconds", str(round(value * 1e9))
            elif value:
                yield f"poet.{field.name}", str(round(value))


def session_options(
    *,
    threads: int = 1,
    page_dir: str | os.PathLike[str] | None = None,
    paging: PagingOptions | None = None,
    spins: bool = True,
) -> SessionOptions:
    """Return session options with which a session's allocator peak is the liveness of the file's order.

    Args:
        threads: threads inside an operator.
        page_dir: existing directory for the page file, on storage; default the environment variable POET_PAGE_DIR,
            else the first on storage of the system's directory for temporary files and /var/tmp.
        paging: how pages are moved; default `PagingOptions()`.
        spins: whether threads without work keep their cores for a while, which is quicker where nobody else has any.

    Raises:
        InputError: no usable ONNX Runtime, operator library or page directory, or no number of threads from 1 to 1024.
    """
    if not is_whole(threads) or not 1 <= threads <= MOST_THREADS:
        raise InputError(f"{shown(threads)} threads cannot run a session: give 1 to {MOST_THREADS}.")
    onnxruntime = import_onnxruntime()
    options = onnxruntime.SessionOptions()
    # No fusion, elimination or layout change: the nodes that were planned are the nodes that run.
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    # File order is the plan's order; the default order is another one.
    options.execution_order = onnxruntime.ExecutionOrder.PRIORITY_BASED
    # One node at a time: two at once would need the memory of both.
    options.execution_mode = onnxruntime.ExecutionMode.ORT_SEQUENTIAL
    options.inter_op_num_threads = 1
    options.intra_op_num_threads = threads
    options.add_session_config_entry(_THREADS_ENTRY, str(threads))
    if not spins:
        options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    # An arena keeps what was freed and rounds up: the plan's peak would not be the allocator's.
    options.enable_cpu_mem_arena = False
    # A memory pattern allocates one block for the whole step.
    options.enable_mem_pattern = False
    # Reuse keeps a dead tensor's larger buffer alive under a smaller tensor.
    options.enable_mem_reuse = False
    # Prepacking makes second copies of constant weights.
    options.add_session_config_entry("session.disable_prepacking", "1")
    paging = paging or PagingOptions()
    directory = page_dir or os.environ.get(_PAGE_DIR_VARIABLE)
    if directory:
        checked = page_directory(directory, allow_ram=paging.allow_ram)
        options.add_session_config_entry(_PAGE_DIR_ENTRY, str(checked))
    for entry, value in paging._entries():
        options.add_session_config_entry(entry, value)
    options.register_custom_ops_library(str(library_path()))
    return options


def training_module(
    training_model: str | os.PathLike[str],
    checkpoint: Any,
    *,
    eval_model: str | os.PathLike[str] | None = None,
    threads: int = 1,
    page_dir: str | os.PathLike[str] | None = None,
    paging: PagingOptions | None = None,
) -> Module:
    """Return an `onnxruntime.training.api.Module` of a training graph, with the options of `session_options`.

    Args:
        training_model: the training graph, rewritten or as generated.
        checkpoint: an `onnxruntime.training.api.CheckpointState`.
        eval_model: the evaluation graph, if `eval()` is to be used.
        threads: threads inside an operator.
        page_dir: as in `session_options`.
        paging: as in `session_options`.

    Raises:
        InputError: this environment has no onnxruntime-training, or the graph an optimizer of its own, or it refers to
            files outside of its folder, or what `session_options` raises.
    """
    runtime = installed_runtime()
    if not runtime.has_training:
        raise InputError(
            f"onnxruntime.training.api needs onnxruntime-training, and this environment has {runtime.distribution} "
            f"{runtime.version}: use `pip install poet-onnx[training]` in a new environment."
        )
    if TRAINING_KEY in read_metadata(training_model):
        raise InputError(
            f"{os.fspath(training_model)} was rewritten with an optimizer in its step, beside which there is no place "
            "for another: train it with poet_onnx.TrainingSession, or rewrite the original with --optimizer none."
        )
    for path in (training_model, *(() if eval_model is None else (eval_model,))):
        check_external_data(path)
    options = session_options(threads=threads, page_dir=page_dir, paging=paging)
    try:
        api = importlib.import_module("onnxruntime.training.api")
    except ImportError as error:
        raise InputError(
            f"onnxruntime.training cannot be imported ({error}): `pip install poet-onnx[training]` adds what it needs."
        ) from error
    evaluation = None if eval_model is None else os.fspath(eval_model)
    return api.Module(os.fspath(training_model), checkpoint, evaluation, device="cpu", session_options=options)
