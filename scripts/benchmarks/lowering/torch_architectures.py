#!/usr/bin/env python3
"""Train public architectures for five steps on the stock runtime and in torch, and compare every loss.

PYTHONPATH=scripts python scripts/benchmarks/lowering/torch_architectures.py [NAME...] --stock PYTHON
PYTHON is the interpreter of an environment with poet-onnx[stock]; this script runs in one with the extras [training]
and [architectures]. Each model of public_architectures.py is exported, rewritten for the stock runtime and 60 %
of the activation memory (or the least that is found to work), and trained by SGD from the weights and on the batches
that torch gets, in float32 and in float64. Rows go to scripts/results/torch_architectures.csv:

  loss_difference         largest relative difference of a loss between the stock runtime and torch, over the steps
  loss_error              the same between the stock runtime and torch in float64
  torch_loss_error        the same between torch and torch in float64
  gradient_error          norm of the difference of all gradients to those in float64, over their norm: the least of
                          the batches, each from the first weights
  worst_gradient_error    the largest of the batches
  torch_gradient_error, torch_worst_gradient_error    the same for torch's gradients

so that they show which side is off where a loss differs. Deep nets with batch normalization and random weights make
much of rounding, and where it opens a rectifier that is closed in float64, a batch's gradients move by up to some
percent, on either side: their losses part. What is wrong is so in every batch. (Models of transformers compute some
parts in float32 always.) Dropout is 0. A model that cannot be trained has a row with the reason.
"""

from __future__ import annotations

import argparse
import copy
import json
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Mapping, Sequence
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
SCRATCH = Path(__file__).resolve().parents[3] / ".cache"
"""A folder on storage, for models and their pages."""

STEPS, LEARNING_RATE = 5, 1e-3
BUDGET, GAP, TIME_LIMIT_SECONDS = "60%", 0.9, 20.0
MODELS = dict.fromkeys(ARCHITECTURES, (4,))
"""Batch sizes of each model."""

GRADIENT_BOUND, GRADIENT_FACTOR = 1e-5, 4.0
"""Beyond the bound gradients may be this many times as far from float64 as torch's."""

COLUMNS = (
    *("model", "parameters", "batch", "budget_bytes", "ordered_bytes", "recomputed_nodes", "paged_bytes"),
    *("loss_difference", "loss_error", "torch_loss_error", "gradient_error", "worst_gradient_error"),
    *("torch_gradient_error", "torch_worst_gradient_error", "status"),
)

TRAINED = "trained"
Array = npt.NDArray[Any]
Batch = dict[str, Array]


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
        losses = train_elsewhere(stock, folder, batches)
        double = copy.deepcopy(module).double()
        row |= compare_gradients(folder, module, double, batches)
        return row | compare_losses(losses, train(module, batches), train(double, batches)) | {"status": TRAINED}


def rewrite(folder: Path, labels: int) -> dict[str, object]:
    """Write stock.onnx beside a folder's artifacts, and return what its plan does.

    Args:
        folder: of the artifacts.
        labels: how many there are in a batch; the exporter leaves that open where it loses track of shapes.
    """
    original = folder / "training_model.onnx"
    (wanted,) = (value for value in onnx.load(original).graph.input if value.name == "labels")
    dims = {size.dim_param: labels for size in wanted.type.tensor_type.shape.dim if size.dim_param}
    options: dict[str, Any] = {
        "gap": GAP,
        "time_limit_seconds": TIME_LIMIT_SECONDS,
        "target": "stock",
        "dims": dims,
        "optimizer": "none",
    }
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


def train_elsewhere(python: str, folder: Path, batches: Sequence[Batch]) -> list[float]:
    """Train a folder's rewritten model on an interpreter's runtime; write gradients, and return the losses."""
    named = {f"{step}:{name}": array for step, batch in enumerate(batches) for name, array in batch.items()}
    np.savez(folder / "batches.npz", **named)
    command = [python, str(WORKER), str(folder), str(LEARNING_RATE)]
    losses: list[float] = json.loads(subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout)
    return losses


def train(module: nn.Module, batches: Sequence[Batch]) -> list[float]:
    """Train a module in torch, eagerly, in the precision that its parameters have, and return its losses."""
    optimizer = torch.optim.SGD(module.parameters(), LEARNING_RATE)
    losses = []
    for batch in batches:
        losses.append(backward(module, batch))
        optimizer.step()
    return losses


def backward(module: nn.Module, batch: Batch) -> float:
    """Compute a module's gradients for a batch and return its loss."""
    values = {name: torch.from_numpy(array) for name, array in batch.items()}
    labels = values.pop("labels")
    dtype = next(module.parameters()).dtype
    inputs = [value.to(dtype) if value.is_floating_point() else value for value in values.values()]
    module.zero_grad()
    loss = nn.functional.cross_entropy(module(*inputs), labels)
    loss.backward()
    return loss.item()


def compare_losses(ours: Sequence[float], single: Sequence[float], double: Sequence[float]) -> dict[str, object]:
    """Return how far the losses of the steps are from each other, in the worst of them."""

    def worst(found: Sequence[float], right: Sequence[float]) -> str:
        return f"{max(abs(a - b) / abs(b) for a, b in zip(found, right, strict=True)):.1e}"

    return {
        "loss_difference": worst(ours, single),
        "loss_error": worst(ours, double),
        "torch_loss_error": worst(single, double),
    }


def compare_gradients(
    folder: Path, module: nn.Module, double: nn.Module, batches: Sequence[Batch]
) -> dict[str, object]:
    """Return how far the worker's gradients and torch's are from those in float64, in the best and the worst batch."""
    ours, single = [], []
    for step, batch in enumerate(batches):
        for part in (module, double):
            backward(part, batch)
        exact = gradients(double)
        with np.load(folder / f"gradients-{step}.npz") as found:
            ours.append(gradient_error(found, exact))
        single.append(gradient_error(gradients(module), exact))
    return {
        "gradient_error": f"{min(ours):.1e}",
        "worst_gradient_error": f"{max(ours):.1e}",
        "torch_gradient_error": f"{min(single):.1e}",
        "torch_worst_gradient_error": f"{max(single):.1e}",
    }


def gradients(module: nn.Module) -> dict[str, Array]:
    """Return a module's gradients by parameter."""
    return {name: each.grad.numpy() for name, each in module.named_parameters() if each.grad is not None}


def gradient_error(found: Mapping[str, Array], exact: Mapping[str, Array]) -> float:
    """Return the norm of the difference of all gradients together, over their norm; one that is not there is 0."""
    error = norm(array - (found.get(name, 0.0)) for name, array in exact.items())
    return error / norm(exact.values())


def norm(arrays: Iterable[Array]) -> float:
    """Return the Euclidean norm of arrays together."""
    return float(np.sqrt(sum(float(np.square(array, dtype=np.float64).sum()) for array in arrays)))


def is_off(row: dict[str, object]) -> bool:
    """Return whether poet-onnx could not rewrite a model, or is off where torch is not."""
    if row["status"] != TRAINED:
        return "not rewritten" in str(row["status"])
    ours, single = (float(str(row[column])) for column in ("gradient_error", "torch_gradient_error"))
    return not ours <= max(GRADIENT_BOUND, GRADIENT_FACTOR * single)


def main() -> int:
    """Fill the table; return 1 if a row is off."""
    options = arguments(__doc__, MODELS, "torch_architectures.csv")
    torch.set_num_threads(1)

    def row(name: str, batch: int, options: argparse.Namespace) -> dict[str, object]:
        return examine(name, ARCHITECTURES[name], batch, options.stock)

    off = [row["model"] for row in table(row, MODELS, COLUMNS, options) if is_off(row)]
    if off:
        print(f"error: not rewritten, or off by more than torch: {off}", file=sys.stderr)
    return bool(off)


if __name__ == "__main__":
    sys.exit(main())
