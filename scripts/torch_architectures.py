#!/usr/bin/env python3
"""Train public architectures for five steps on the stock runtime and in torch, and compare every loss.

python scripts/torch_architectures.py [NAME...] --stock PYTHON
PYTHON is the interpreter of an environment with poet-onnx[stock]; this script runs in one with the extras [training]
and [architectures]. Each model of scripts/public_architectures.py is exported, rewritten for the stock runtime and 60 %
of the activation memory (or the least that is found to work), and trained by SGD from the weights and on the batches
that torch gets, in float32 and in float64. Rows go to scripts/results/torch_architectures.csv:

  loss_difference         largest relative difference of a loss between the stock runtime and torch, over the steps
  loss_error              the same between the stock runtime and torch in float64
  torch_loss_error        the same between torch and torch in float64
  gradient_error          norm of the difference of the first step's gradients to those in float64, over their norm
  torch_gradient_error    the same for torch's gradients

so that they show which side is off where a loss differs. (Models of transformers compute some parts in float32 always.)
Dropout is 0. A model that cannot be trained has a row with the reason.
"""

from __future__ import annotations

import argparse
import copy
import json
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import torch
from export_models import export, quiet
from lowering_models import arguments, table
from models import Recipe
from public_architectures import ARCHITECTURES
from torch import nn

import poet_onnx
from poet_onnx.errors import InfeasibleError, PoetError

WORKER = Path(__file__).with_name("architecture_worker.py")
SCRATCH = Path(__file__).resolve().parent.parent / ".cache"
"""A folder on storage, for models and their pages."""

STEPS, LEARNING_RATE = 5, 1e-3
BUDGET, GAP, TIME_LIMIT_SECONDS = "60%", 0.9, 20.0
MODELS = dict.fromkeys(ARCHITECTURES, 4)
"""Batch size of each model."""

LOSS_BOUND, GRADIENT_FACTOR = 1e-5, 4.0
"""Where a loss differs by more, gradients may be this many times as far from float64 as torch's."""

COLUMNS = (
    *("model", "parameters", "batch", "budget_bytes", "ordered_bytes", "recomputed_nodes", "paged_bytes"),
    *("loss_difference", "loss_error", "torch_loss_error", "gradient_error", "torch_gradient_error", "status"),
)

TRAINED = "trained"
Array = npt.NDArray[Any]
Batch = dict[str, Array]


@dataclass(frozen=True)
class Run:
    """What some steps gave.

    Attributes:
        losses: of every step.
        gradients: of the first step, by parameter.
    """

    losses: Sequence[float]
    gradients: dict[str, Array]


def examine(name: str, recipe: Recipe, batch: int, stock: str) -> dict[str, object]:
    """Return a model's row of the table.

    Args:
        name: of the row.
        recipe: of a classifier.
        batch: its batch size.
        stock: interpreter with the stock runtime.
    """
    SCRATCH.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(dir=SCRATCH) as scratch:
        folder = Path(scratch)
        torch.manual_seed(0)
        module = recipe.build()  # as `export` makes it
        row: dict[str, object] = dict.fromkeys(COLUMNS, "")
        row |= {"model": name, "batch": batch, "parameters": sum(each.numel() for each in module.parameters())}
        batches = make_batches(recipe, batch, module)
        with quiet():
            try:
                export(recipe, folder, batch=batch)
            except RuntimeError as error:  # what is wrong stands at the end of the artifact generator's many words
                return row | {"status": f"not exported: {str(error).strip().rpartition(' was false. ')[2]}"}
        try:
            row |= rewrite(folder, batches[0]["labels"].size)
        except PoetError as error:
            return row | {"status": f"not rewritten: {error}"}
        ours = train_elsewhere(stock, folder, batches)
        double = train(copy.deepcopy(module).double(), batches)
        return row | compare(ours, train(module, batches), double) | {"status": TRAINED}


def rewrite(folder: Path, labels: int) -> dict[str, object]:
    """Write stock.onnx beside a folder's artifacts, and return what its plan does.

    Args:
        folder: of the artifacts.
        labels: how many there are in a batch; the exporter leaves that open where it loses track of shapes.
    """
    original = folder / "training_model.onnx"
    (wanted,) = (value for value in onnx.load(original).graph.input if value.name == "labels")
    dims = {size.dim_param: labels for size in wanted.type.tensor_type.shape.dim if size.dim_param}
    options: dict[str, Any] = {"gap": GAP, "time_limit_seconds": TIME_LIMIT_SECONDS, "target": "stock", "dims": dims}
    try:
        result = poet_onnx.rewrite(original, device="a72", activation_budget=BUDGET, **options)
    except InfeasibleError as error:
        if error.smallest_budget_bytes is None:
            raise
        result = poet_onnx.rewrite(original, device="a72", activation_budget=error.smallest_budget_bytes, **options)
    result.save(folder / "stock.onnx")
    return {
        "budget_bytes": result.budget_bytes,
        "ordered_bytes": result.ordered.transient_peak_bytes,
        "recomputed_nodes": result.rewritten.recomputed_nodes,
        "paged_bytes": result.rewritten.page_out_bytes,
    }


def make_batches(recipe: Recipe, batch: int, module: nn.Module) -> list[Batch]:
    """Return random batches with random labels for a classifier."""
    with torch.no_grad():
        scores = copy.deepcopy(module)(*recipe.inputs(batch).values())  # a copy: running statistics move
    batches = []
    for _ in range(STEPS):
        values = recipe.inputs(batch) | {"labels": torch.randint(scores.shape[1], scores.shape[:1])}
        batches.append({name: value.numpy() for name, value in values.items()})
    return batches


def train_elsewhere(python: str, folder: Path, batches: Sequence[Batch]) -> Run:
    """Train the rewritten model of a folder on the runtime of an interpreter."""
    named = {f"{step}:{name}": array for step, batch in enumerate(batches) for name, array in batch.items()}
    np.savez(folder / "batches.npz", **named)
    command = [python, str(WORKER), str(folder), str(LEARNING_RATE)]
    losses = json.loads(subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout)
    with np.load(folder / "gradients.npz") as gradients:
        return Run(losses, dict(gradients))


def train(module: nn.Module, batches: Sequence[Batch]) -> Run:
    """Train a module in torch, eagerly, in the precision that its parameters have."""
    optimizer = torch.optim.SGD(module.parameters(), LEARNING_RATE)
    losses: list[float] = []
    gradients: dict[str, Array] = {}
    for batch in batches:
        values = {name: torch.from_numpy(array) for name, array in batch.items()}
        labels = values.pop("labels")
        dtype = next(module.parameters()).dtype
        inputs = [value.to(dtype) if value.is_floating_point() else value for value in values.values()]
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(module(*inputs), labels)
        loss.backward()
        if not losses:
            named = module.named_parameters()
            gradients = {name: each.grad.numpy().copy() for name, each in named if each.grad is not None}
        losses.append(loss.item())
        optimizer.step()
    return Run(losses, gradients)


def compare(ours: Run, single: Run, double: Run) -> dict[str, object]:
    """Return how far losses and gradients are from each other."""
    figures = {
        "loss_difference": loss_error(ours, single),
        "loss_error": loss_error(ours, double),
        "torch_loss_error": loss_error(single, double),
        "gradient_error": gradient_error(ours, double),
        "torch_gradient_error": gradient_error(single, double),
    }
    return {name: f"{figure:.1e}" for name, figure in figures.items()}


def loss_error(found: Run, right: Run) -> float:
    """Return the largest relative difference of a loss."""
    return max(abs(a - b) / abs(b) for a, b in zip(found.losses, right.losses, strict=True))


def gradient_error(found: Run, right: Run) -> float:
    """Return the norm of the difference of all gradients together, over their norm; one that is not there is 0."""
    differences = [exact - found.gradients.get(name, 0.0) for name, exact in right.gradients.items()]
    return norm(differences) / norm(right.gradients.values())


def norm(arrays: Iterable[Array]) -> float:
    """Return the Euclidean norm of arrays together."""
    return float(np.sqrt(sum(float(np.square(array, dtype=np.float64).sum()) for array in arrays)))


def is_off(row: dict[str, object]) -> bool:
    """Return whether poet-onnx could not rewrite a model, or is off where torch is not."""
    if row["status"] != TRAINED:
        return "not rewritten" in str(row["status"])
    differs = not float(str(row["loss_difference"])) <= LOSS_BOUND
    return differs and not (
        float(str(row["gradient_error"])) <= GRADIENT_FACTOR * float(str(row["torch_gradient_error"]))
    )


def main() -> int:
    """Fill the table; return 1 if a row is off."""
    options = arguments(__doc__, MODELS, "torch_architectures.csv")
    torch.set_num_threads(1)

    def row(name: str, batch: int, options: argparse.Namespace) -> dict[str, object]:
        return examine(name, ARCHITECTURES[name], batch, options.stock)

    off = [row["model"] for row in table(row, MODELS, COLUMNS, options) if is_off(row)]
    if off:
        print(f"error: off by more than torch: {off}", file=sys.stderr)
    return bool(off)


if __name__ == "__main__":
    sys.exit(main())
