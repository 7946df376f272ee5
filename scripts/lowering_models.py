"""What the lowering scripts share: a model's three forms, its feeds, and workers that run them."""

from __future__ import annotations

import argparse
import csv
import json
import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx_ir as ir
from export_models import export, quiet
from models import RECIPES

from poet_onnx.extract import extract, load_model
from poet_onnx.feeds import random_feeds
from poet_onnx.passes.lowering import LowerTraining, prepare
from poet_onnx.passes.normalize import WriteShapes, normalize

WORKER = Path(__file__).with_name("lowering_worker.py")


@dataclass(frozen=True)
class Prepared:
    """A model's files.

    Attributes:
        training: for onnxruntime-training.
        stock: lowered, with the operators of poet-onnx's library.
        plain: lowered to operators of the runtime alone.
        feeds: of all three.
    """

    training: Path
    stock: Path
    plain: Path
    feeds: Path


DECIDING = {"Relu": 0, "LeakyRelu": 0, "Clip": 0, "MaxPool": 1}
"""Operators whose gradients jump where their inputs change a little, and the output that shows what they chose."""


def prepare_model(name: str, batch: int, folder: Path, *, seed: int = 0, show_decisions: bool = False) -> Prepared:
    """Export a model and write its forms into a folder.

    Args:
        name: of a model of scripts/models.py.
        batch: its batch size.
        folder: where the files go; what was exported there before is used again.
        seed: of the feeds.
        show_decisions: make what DECIDING names outputs of the forward pass outputs of the model.
    """
    source = folder / "training_model.onnx"
    if not source.exists():
        with quiet():
            export(RECIPES[name], folder, batch=batch)
    files = Prepared(*(folder / part for part in ("training.onnx", "stock.onnx", "plain.onnx", "feeds.npz")))
    for target, path in (("training", files.training), ("stock", files.stock)):
        model = load_model(source)
        prepare(target=target)(model)
        if target == "training":
            feeds = random_feeds(extract(model), seed)
            # Every gradient overwrites its buffer.
            fed = {key: np.ones_like(array) if array.dtype == np.bool_ else array for key, array in feeds.items()}
            np.savez(files.feeds, **fed)
            decisions = [
                node.outputs[DECIDING[node.op_type]].name
                for node in model.graph
                if node.op_type in DECIDING and DECIDING[node.op_type] < len(node.outputs)
            ]
        if show_decisions:
            made = {value.name: value for node in model.graph for value in node.outputs}
            model.graph.outputs.extend(made[decision] for decision in decisions)
        ir.save(model, path)
    model = load_model(source)
    normalize()(model)
    LowerTraining(kernels=False)(model)
    WriteShapes()(model)
    ir.save(model, files.plain)
    return files


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


def arguments(description: str | None, models: dict[str, int], results: str) -> argparse.Namespace:
    """Read the command line: which models, where the stock runtime is, where the table goes."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"default: {' '.join(models)}")
    parser.add_argument(
        "--stock",
        default=os.environ.get("POET_STOCK_PYTHON"),
        help="interpreter of an environment with poet-onnx[stock] (default: POET_STOCK_PYTHON)",
    )
    default = Path(__file__).parent / "results" / results
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
    models: dict[str, int],
    columns: Sequence[str],
    options: argparse.Namespace,
) -> list[dict[str, object]]:
    """Examine the chosen models one after the other, print and write a row for each, and return the rows."""
    rows = []
    for name in options.names:
        rows.append(examine(name, models[name], options))
        print(", ".join(f"{key} {value}" for key, value in rows[-1].items()), flush=True)
    options.output.parent.mkdir(parents=True, exist_ok=True)
    with options.output.open("w", newline="") as file:
        writer = csv.DictWriter(file, columns, lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
    return rows
