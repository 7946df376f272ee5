"""What the lowering scripts share: a model's three forms, its feeds, and workers that run them."""

from __future__ import annotations

import argparse
import csv
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import onnx_ir as ir
from export_models import export, quiet
from models import RECIPES

from poet_onnx.graph.extract import extract, load_model
from poet_onnx.passes.lowering import LowerTraining, prepare
from poet_onnx.passes.normalize import WriteShapes, normalize
from poet_onnx.runtime.feeds import random_feeds

WORKER = Path(__file__).resolve().with_name("lowering_worker.py")


@dataclass(frozen=True)
class Prepared:
    """A model's files.

    Attributes:
        training: for onnxruntime-training.
        stock: lowered, with the operators of poet-onnx's library.
        plain: lowered to operators of the runtime alone.
        feeds: of all three.
        told: lowered, but told what DECIDING decides; None unless decisions are shown.
        decisions: what DECIDING decides: outputs of `training` and `stock`, inputs of `told`, if they are shown.
    """

    training: Path
    stock: Path
    plain: Path
    feeds: Path
    told: Path | None = None
    decisions: tuple[str, ...] = ()


DECIDING = {"Relu": 0, "LeakyRelu": 0, "MaxPool": 1, "LessOrEqual": 0, "GreaterOrEqual": 0, "Less": 0, "Greater": 0}
"""Operators by which gradients jump where their inputs change a little, and the output that shows what was chosen."""


def prepare_model(name: str, batch: int, folder: Path, *, seed: int = 0, show_decisions: bool = False) -> Prepared:
    """Export a model and write its forms into a folder.

    Args:
        name: of a model of scripts/models.py.
        batch: its batch size.
        folder: where the files go; what was exported there before is used again.
        seed: of the feeds.
        show_decisions: make what DECIDING decides outputs of the models, and write the form that is told.
    """
    source = folder / "training_model.onnx"
    if not source.exists():
        with quiet():
            export(RECIPES[name], folder, batch=batch)
    files = Prepared(*(folder / part for part in ("training.onnx", "stock.onnx", "plain.onnx", "feeds.npz")))
    training, stock, plain = (load_model(source) for _ in range(3))
    prepare(target="training")(training)
    feeds = random_feeds(extract(training), seed)
    # Every gradient overwrites its buffer.
    fed = {key: np.ones_like(array) if array.dtype == np.bool_ else array for key, array in feeds.items()}
    np.savez(files.feeds, **fed)
    prepare(target="stock")(stock)
    if show_decisions:
        told = stock.clone()
        files = replace(files, told=folder / "told.onnx", decisions=_decisions(training))
        for model in (training, stock):
            made = {value.name: value for node in model.graph for value in node.outputs}
            model.graph.outputs.extend(made[decision] for decision in files.decisions)
        _tell(told, files.decisions)
        ir.save(told, folder / "told.onnx")
    ir.save(training, files.training)
    ir.save(stock, files.stock)
    normalize()(plain)
    LowerTraining(kernels=False)(plain)
    WriteShapes()(plain)
    ir.save(plain, files.plain)
    return files


def _decisions(model: ir.Model) -> tuple[str, ...]:
    """Return what DECIDING decides in a model."""
    places = [(node, DECIDING[node.op_type]) for node in model.graph if node.op_type in DECIDING]
    return tuple(node.outputs[place].name or "" for node, place in places if place < len(node.outputs))


def _tell(model: ir.Model, decisions: Sequence[str]) -> None:
    """Make inputs of a lowered model's decisions, for those of its nodes that only ask what was decided.

    Of a rectifier's output these are the gradients that take its sign; all others read what the model itself computes.
    """
    made = {value.name: value for node in model.graph for value in node.outputs}
    for decision in decisions:
        value = made[decision]
        maker = value.producer()
        assert maker is not None
        told = ir.Value(name=f"told:{decision}", type=value.type, shape=value.shape)
        model.graph.inputs.append(told)
        for reader, index in list(value.uses()):
            if not maker.op_type.endswith("Relu") or reader.op_type == "RectifierGradient":
                reader.replace_input_with(index, told)


class Worker:
    """A process that runs steps."""

    def __init__(self, python: str, *arguments: str) -> None:
        self._process = subprocess.Popen(
            [python, str(WORKER), *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"},
        )
        if self._line() != "ready":
            raise SystemExit(f"error: {WORKER.name} {' '.join(arguments)} did not start")

    def run(self, steps: int) -> list[float]:
        """Run some steps and return the processor seconds of each."""
        assert self._process.stdin is not None
        self._process.stdin.write(f"{steps}\n")
        self._process.stdin.flush()
        return [float(seconds) for seconds in json.loads(self._line())]

    def close(self) -> None:
        """End the process."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait(60)

    def _line(self) -> str:
        assert self._process.stdout is not None
        return self._process.stdout.readline().strip()


def arguments(description: str | None, models: Iterable[str], results: str) -> argparse.Namespace:
    """Read the command line: which models, where the stock runtime is, where the table goes."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"default: {' '.join(models)}")
    parser.add_argument(
        "--stock",
        default=os.environ.get("POET_STOCK_PYTHON"),
        help="interpreter of an environment with poet-onnx[stock] (default: POET_STOCK_PYTHON)",
    )
    default = Path(__file__).resolve().parents[2] / "results" / results
    parser.add_argument("-o", "--output", type=Path, default=default, help=f"default {default.name}")
    options = parser.parse_args()
    if options.stock is None:
        parser.error("name the stock runtime's interpreter with --stock or POET_STOCK_PYTHON")
    for name in options.names:
        if name not in models:
            parser.error(f"unknown model {name}; there are {' '.join(models)}")
    options.names = options.names or list(models)
    options.python = sys.executable
    return options


def table(
    examine: Callable[[str, int, argparse.Namespace], dict[str, object]],
    models: Mapping[str, Sequence[int]],
    columns: Sequence[str],
    options: argparse.Namespace,
) -> list[dict[str, object]]:
    """Examine the chosen models at their batch sizes, one after the other, print a row for each, and return the rows.

    Each is written at once; rows of other models that the file has already stay.
    """
    found = []
    for name in options.names:
        for batch in models[name]:
            found.append(examine(name, batch, options))
            print(", ".join(f"{key} {value}" for key, value in found[-1].items()), flush=True)
            _write_row(options.output, found[-1], models, columns)
    return found


def _write_row(path: Path, row: dict[str, object], models: Mapping[str, Sequence[int]], columns: Sequence[str]) -> None:
    rows: dict[tuple[str, str], dict[str, object]] = {}
    if path.exists():
        lines = [line for line in path.read_text(encoding="utf-8").splitlines() if not line.startswith("#")]
        rows = {(old["model"], old["batch"]): dict(old) for old in csv.DictReader(lines) if set(old) == set(columns)}
    rows[str(row["model"]), str(row["batch"])] = row
    program = Path(sys.argv[0]).resolve().relative_to(WORKER.parents[3])
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", newline="", encoding="utf-8") as file:
        file.write(f"# python {program} NAME... --stock PYTHON, for every model\n")
        writer = csv.DictWriter(file, columns, lineterminator="\n")
        writer.writeheader()
        order = [(name, str(batch)) for name in models for batch in models[name]]
        writer.writerows(rows[key] for key in order if key in rows)
