"""Compare methods on a training graph, and write down what was found."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, SupportsIndex

from poet_onnx.choices import AUTO, BEST, METHODS
from poet_onnx.comparison.cache import Cache
from poet_onnx.comparison.cell import CellResult
from poet_onnx.comparison.plots import draw_all
from poet_onnx.comparison.running import PROCESSES, SweepProgress, fill, opened
from poet_onnx.comparison.steps import Model, prepared_steps
from poet_onnx.comparison.sweep import DEFAULT_BUDGETS, Device, Sweep
from poet_onnx.comparison.table import csv_text, markdown_text
from poet_onnx.errors import InputError
from poet_onnx.files.atomic import write_text
from poet_onnx.passes.batch_norm_modes import warn_user

CELLS = "cells"
"""Folder of the filled cells, in that of the results."""


@dataclass(frozen=True)
class Comparison:
    """What a sweep found.

    Attributes:
        results: a filled cell each, by device, budget, deadline and method.
        is_whole: no cell was left out by an interrupt.
    """

    results: tuple[CellResult, ...]
    is_whole: bool

    def save(self, folder: str | os.PathLike[str], *, command: Sequence[str] = ()) -> tuple[Path, ...]:
        """Write compare.csv, compare.md and, where matplotlib is installed, the pictures; return the files.

        Args:
            folder: made if it is not there; files of these names are replaced.
            command: written into the first line of the CSV file.

        Raises:
            InputError: if they cannot be written.
        """
        target = Path(folder)
        _make(target)
        table, text = target / "compare.csv", target / "compare.md"
        write_text(table, csv_text(self.results, command))
        write_text(text, markdown_text(self.results))
        try:
            return table, text, *draw_all(self.results, target)
        except ImportError:
            warn_user("There are no pictures, for matplotlib is not installed: pip install 'poet-onnx[plots]'.")
            return table, text


def compare(
    model_or_path: Model,
    *,
    device: Device | Sequence[Device],
    budgets: Sequence[SupportsIndex | str] = DEFAULT_BUDGETS,
    deadlines: Sequence[float | str | None] = (None,),
    methods: Sequence[str] = METHODS,
    order: str = BEST,
    parts: SupportsIndex | str = AUTO,
    executor: Executor | str = PROCESSES,
    time_limit_seconds: float = 60.0,
    output: str | os.PathLike[str] | None = None,
    name: str | None = None,
    progress: Callable[[SweepProgress], None] | None = None,
    **options: Any,
) -> Comparison:
    """Plan one training graph with every method, budget, deadline and device.

    All methods get the same problem: a graph, its costs on the device, and an order of its nodes. The simulator says
    what each plan takes. Where a method has no plan, fails or does not end, that is its result. An interrupt ends the
    sweep early; what was found by then is returned.

    Args:
        model_or_path: a training graph; with `loss`, a forward model. It is not changed.
        device: one or several, as for `rewrite`.
        budgets: of the transient peak, in bytes or in percent of what the step needs after ordering.
        deadlines: of the step, as for `rewrite`; None for none.
        methods: by name.
        order: of the nodes: "best" is the memory-aware one, of which a method may look for a better one; "memory-aware"
            that one for every method, and "file" that of the file.
        parts: "auto" takes for each budget the first graph variant in which anything fits, as `rewrite` does; "whole"
            has whole weight gradients in all cells, and a number of bytes computes larger ones in parts in all cells.
        executor: "processes", "processes:4", "dask:tcp://host:8786", or any `concurrent.futures.Executor`.
        time_limit_seconds: of each method on each problem.
        output: folder in which filled cells are kept and found again; default none.
        name: of the model in tables; default that of its file.
        progress: told of each filled cell.
        options: what `rewrite` takes besides: target, optimizer, accumulation_steps, clip_norm, threads, dims,
            frozen_batch_norm, loss, train, freeze, ignore_index, lora, label_smoothing,
            class_weights.

    Raises:
        InputError: if an argument or the model cannot be used.
    """
    several = isinstance(device, Sequence) and not isinstance(device, str)
    sweep = Sweep.read(
        devices=device if several else [device],  # type: ignore[arg-type, list-item]
        budgets=budgets,
        deadlines=deadlines,
        methods=methods,
        order=order,
        parts=parts,
        time_limit_seconds=time_limit_seconds,
    )
    cells = None
    if output is not None:
        _make(Path(output))
        cells = Path(output) / CELLS
    with opened(executor) as workers:
        limits = [budget for _, budget in sweep.budgets]
        steps = prepared_steps(model_or_path, sweep.devices, limits, part_bytes=sweep.part_bytes, name=name, **options)
        jobs = list(sweep.jobs(steps))
        results, is_whole = fill(jobs, workers, Cache(cells, warn_user), progress)
    return Comparison(tuple(results), is_whole)


def _make(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"The folder {folder} cannot be made: {error.strerror}.") from error
