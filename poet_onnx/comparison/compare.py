"""Compare methods on a training graph, and write down what was found."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from poet_onnx.comparison.cache import Cache
from poet_onnx.comparison.cell import CellResult
from poet_onnx.comparison.options import CompareOptions
from poet_onnx.comparison.plots import draw_all
from poet_onnx.comparison.running import fill, opened
from poet_onnx.comparison.steps import Model, prepared_steps
from poet_onnx.comparison.sweep import Sweep
from poet_onnx.comparison.table import csv_text, markdown_text
from poet_onnx.files.atomic import write_text
from poet_onnx.files.folders import make_folder
from poet_onnx.options import taking
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
            command: written into compare.md.

        Raises:
            InputError: if they cannot be written.
        """
        target = Path(folder)
        make_folder(target)
        table, text = target / "compare.csv", target / "compare.md"
        write_text(table, csv_text(self.results))
        write_text(text, markdown_text(self.results, command))
        try:
            return table, text, *draw_all(self.results, target)
        except ImportError:
            warn_user("There are no pictures, for matplotlib is not installed: pip install 'poet-onnx[plots]'.")
            return table, text


@taking(CompareOptions)
def compare(model_or_path: Model, options: CompareOptions) -> Comparison:
    """Plan one training graph with every method, budget, deadline and device.

    All methods get the same problem: a graph, its costs on the device, and an order of its nodes. The simulator says
    what each plan takes. Where a method has no plan, fails or does not end, that is its result. An interrupt ends the
    sweep early; what was found by then is returned.

    Args:
        model_or_path: a training graph; with `loss`, a forward model. It is not changed.
        options: each field of `CompareOptions` as a keyword argument; `device` is needed.

    Raises:
        InputError: if an argument or the model cannot be used.
    """
    sweep, output = Sweep.read(options), options.output
    cells = None
    with opened(options.executor) as workers:
        limits = [budget for _, budget in sweep.budgets]
        steps = prepared_steps(model_or_path, options, sweep.devices, limits, part_bytes=sweep.part_bytes)
        jobs = list(sweep.jobs(steps))
        if output is not None:
            make_folder(Path(output))
            cells = Path(output) / CELLS
        results, is_whole = fill(jobs, workers, Cache(cells, warn_user), options.progress)
    return Comparison(tuple(results), is_whole)
