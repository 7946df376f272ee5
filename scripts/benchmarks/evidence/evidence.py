#!/usr/bin/env python3
"""Run the sweeps behind the paper's figures and tables, and write a CSV file and a picture for each.

python scripts/benchmarks/evidence/evidence.py [fig3-resnet18 fig5 table1 ...] -o scripts/results/evidence
Without names, all of them. Needs the extras [training] and [plots]. What was run before is not run again.
"""

from __future__ import annotations

import argparse
import math
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

from executed import EXECUTED, write_executed
from figures import PARTS, Figure, figures

from poet_onnx import compare
from poet_onnx.comparison.cell import CellResult
from poet_onnx.comparison.compare import Comparison
from poet_onnx.comparison.options import CompareOptions
from poet_onnx.comparison.running import SweepProgress
from poet_onnx.comparison.steps import prepared_steps
from poet_onnx.costing.device import load_device
from poet_onnx.quantities import Budget, parse_budget

ROOT = Path(__file__).resolve().parents[3]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run and write."""
    begin, every = time.monotonic(), figures()
    names = (*every, EXECUTED)
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(names)} (default: all)")
    parser.add_argument("--places", metavar="F,...", help="of the budgets, from 0 (smallest) to 1 (ordered peak)")
    parser.add_argument("--devices", metavar="NAME,...", help="of those that a figure has")
    parser.add_argument("--time-limit", type=float, metavar="SECONDS", help="of each cell (default: the figure's)")
    parser.add_argument("--executor", default="processes:2", help="as for `poet-onnx compare` (default processes:2)")
    parser.add_argument("--reduced", action="store_true", help="one model and device, and fewer budgets")
    parser.add_argument("--cache", type=Path, default=ROOT / ".cache" / "evidence", metavar="DIR", help="models, cells")
    parser.add_argument("-o", "--output", type=Path, required=True, metavar="DIR", help="where the files go")
    options = parser.parse_args(arguments)
    unknown = [name for name in options.names if name not in names]
    if unknown:
        parser.error(f"there is no {unknown[0]}; give some of {', '.join(names)}")
    for name in options.names or names:
        if name == EXECUTED:
            file = options.output / f"{name}.csv"
            write_executed(partial(_exported, cache=options.cache), file, _command(name, options))
            print(f"wrote {file}", flush=True)
            continue
        figure = every[name].reduced() if options.reduced else every[name]
        if options.places:
            figure = replace(figure, places=tuple(map(float, options.places.split(","))))
        if options.time_limit:
            figure = replace(figure, time_limit_seconds=options.time_limit)
        if options.devices:
            chosen = options.devices.split(",")
            figure = replace(figure, devices=tuple(each for each in figure.devices if each.name in chosen))
        results = [result for model, batch in figure.models for result in _results(figure, model, batch, options)]
        found = Comparison(tuple(results), is_whole=True)
        for file in _saved(found, figure, options.output / name, command=_command(name, options)):
            print(f"wrote {file}", flush=True)
    print(f"done in {time.monotonic() - begin:.0f} s")
    return 0


def _saved(found: Comparison, figure: Figure, stem: Path, *, command: Sequence[str]) -> Iterator[Path]:
    """Write the CSV file of a figure, and its picture where it has one; yield the files."""
    stem.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        for file in found.save(folder):
            if file.stem == figure.picture:
                yield Path(shutil.copy(file, stem.with_suffix(file.suffix)))
            elif file.suffix == ".csv":
                table = stem.with_suffix(".csv")
                table.write_text(f"# {shlex.join(command)}\n{file.read_text(encoding='utf-8')}", encoding="utf-8")
                yield table


def _command(name: str, options: argparse.Namespace) -> list[str]:
    """Return what makes a figure again, wherever its files are to go."""
    command = ["python", "scripts/benchmarks/evidence/evidence.py", name]
    for option in ("places", "devices", "time_limit"):
        if getattr(options, option):
            command += [f"--{option.replace('_', '-')}", f"{getattr(options, option)}"]
    reduced = ["--reduced"] if options.reduced else []
    return [*command, *reduced, "-o", "scripts/results/evidence"]


def _exported(model: str, batch: int, cache: Path) -> Path:
    """Return the file of a training model; export it if it is not there."""
    folder = cache / "models" / f"batch-{batch}"
    path = folder / model / "training_model.onnx"
    if not path.exists():
        folder.mkdir(parents=True, exist_ok=True)
        command = [sys.executable, str(ROOT / "scripts" / "export_models.py"), model, f"--batch={batch}"]
        subprocess.run([*command, "-o", str(folder)], check=True)
    return path


def _results(figure: Figure, model: str, batch: int, options: argparse.Namespace) -> Iterator[CellResult]:
    """Fill a figure's cells for one model, and yield them; an interrupt ends the program."""
    path = _exported(model, batch, options.cache)
    name = model if batch == 1 else f"{model}-batch-{batch}"

    def say(progress: SweepProgress) -> None:
        latest = progress.latest
        print(f"{name} {progress.done}/{progress.cells} {latest.cell}: {latest.outcome.status}", flush=True)

    budgets = list(_budgets(figure, path))
    for order in figure.orders:
        found = compare(
            path,
            device=figure.devices,
            budgets=budgets,
            deadlines=figure.deadlines,
            methods=figure.methods,
            order=order,
            parts=PARTS,
            executor=options.executor,
            time_limit_seconds=figure.time_limit_seconds,
            output=options.cache,
            name=name,
            progress=say,
        )
        if not found.is_whole:
            raise KeyboardInterrupt
        yield from found.results


def _budgets(figure: Figure, path: Path) -> Iterator[str]:
    """Yield budgets on the ladder, in percent of the ordered peak, rounded up so that the smallest one works."""
    part_bytes = parse_budget(PARTS, name="parts").size_bytes
    device = figure.devices[0]
    options = CompareOptions(device=device)
    (step,) = prepared_steps(path, options, [load_device(device)], [Budget(share=1.0)], part_bytes=part_bytes)
    least = step.variants[0].smallest_bytes / step.budget_bytes(Budget(share=1.0))
    for place in figure.places:
        yield f"{math.ceil(1000 * (least + place * (1 - least))) / 10:.1f}%"


if __name__ == "__main__":
    sys.exit(main())
