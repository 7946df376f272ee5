#!/usr/bin/env python3
"""Train on both runtimes, from rewritten graphs and from those they were made of, and compare every loss.

python scripts/benchmarks/training/training_curves.py --stock PYTHON -o scripts/results
PYTHON is the interpreter of an environment with poet-onnx[stock]; this script runs in one with poet-onnx[training].
Checks that on one runtime all losses are equal to the last bit, that those of the two runtimes agree, and that they
fall; writes a CSV file and, with matplotlib (extra [plots]), an SVG file for each model.
"""

from __future__ import annotations

import argparse
import csv
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import numpy as np

import poet_onnx

ROOT = Path(__file__).resolve().parents[3]
AGREEMENT = 1e-3
"""Largest relative difference of a loss between the runtimes."""

BUDGET = "75%"
Array = np.ndarray
Batch = dict[str, Array]


@dataclass(frozen=True)
class Task:
    """A model and the data it learns.

    Attributes:
        name: of the model, in scripts/models.py.
        batch: examples in a step.
        learning_rate: of AdamW.
        batches: yields batches without end, always the same.
    """

    name: str
    batch: int
    learning_rate: float
    batches: Callable[[int], Iterator[Batch]]


def pictures(batch: int) -> Iterator[Batch]:
    """Yield noisy pictures, one of every class in turn: each class has a coarse pattern of its own."""
    random = np.random.default_rng(0)
    coarse = random.standard_normal((batch, 3, 4, 4), dtype=np.float32)
    patterns = coarse.repeat(8, axis=2).repeat(8, axis=3)
    while True:
        noise = random.standard_normal((batch, 3, 32, 32), dtype=np.float32)
        yield {"input": patterns + np.float32(0.5) * noise, "labels": np.arange(batch)}


def sentences(batch: int) -> Iterator[Batch]:
    """Yield sequences of tokens; those of class 1 have more tokens out of the second half of the vocabulary."""
    random = np.random.default_rng(0)
    while True:
        labels = random.integers(0, 2, batch)
        upper = random.random((batch, 128)) < np.where(labels, 0.75, 0.25)[:, None]
        tokens = random.integers(0, 200, (batch, 128)) + 200 * upper
        yield {"input_ids": tokens, "attention_mask": np.ones((batch, 128), np.int64), "labels": labels}


# Runtimes round differently, and a ReLU whose input is nearly zero then opens on one and not on the other: in the first
# step of ResNet-18 one of the 65,536 inputs behind block 8 does, which moves the gradients in front of it by 8e-4. The
# small learning rate keeps such differences from growing faster than the loss falls.
TASKS = (
    Task("resnet18", 4, 1.5e-6, pictures),
    Task("bert-2", 4, 5e-4, sentences),
)


def train(task: Task, model: Path, checkpoint: Path, steps: int) -> list[float]:
    """Return the loss of every step on the runtime of this interpreter."""
    optimizer = poet_onnx.AdamWOrt(task.learning_rate)  # the formula of the training build
    session = poet_onnx.TrainingSession(model, checkpoint, optimizer=optimizer)
    return [session.step(batch) for batch, _ in zip(task.batches(task.batch), range(steps), strict=False)]


def train_elsewhere(python: str, task: Task, model: Path, checkpoint: Path, steps: int) -> list[float]:
    """Return the loss of every step on the runtime of an interpreter."""
    command = [python, __file__, "--steps", str(steps), "--one", task.name, str(model), str(checkpoint)]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    losses: list[float] = json.loads(done.stdout)
    return losses


def curves(task: Task, folder: Path, stock: str, steps: int) -> dict[str, list[float]]:
    """Train in every way, two at a time, and return the losses of each."""
    original = folder / task.name / "training_model.onnx"
    if not original.exists():
        export = [str(ROOT / "scripts" / "export_models.py"), task.name, "--batch", str(task.batch), "-o", str(folder)]
        subprocess.run([sys.executable, *export], check=True)

    def rewritten(target: str, budget: str) -> Path:
        model = original.with_name(f"{target}-{budget[:-1]}.onnx")
        options = {"device": "a72", "optimizer": "adamw-ort", "gap": 0.1}
        poet_onnx.rewrite(original, activation_budget=budget, target=target, **options).save(model)
        return model

    ways = {
        "training build, as generated": (sys.executable, original),
        "training build, rewritten": (sys.executable, rewritten("training", BUDGET)),
        "stock runtime, lowered and ordered": (stock, rewritten("stock", "100%")),
        "stock runtime, rewritten": (stock, rewritten("stock", BUDGET)),
    }
    with ThreadPoolExecutor(2) as pool:
        running = {
            name: pool.submit(train_elsewhere, python, task, model, original.with_name("checkpoint"), steps)
            for name, (python, model) in ways.items()
        }
        return {name: future.result() for name, future in running.items()}


def judge(found: Mapping[str, Sequence[float]]) -> list[str]:
    """Return what is wrong with the losses, and print what was checked."""
    generated, rewritten, ordered, paged = found.values()
    apart = max(abs(a - b) / abs(a) for a, b in zip(generated, ordered, strict=True))
    part = max(1, len(generated) // 10)
    first, last = np.mean(generated[:part]), np.mean(generated[-part:])
    stock_last = np.mean(ordered[-part:])
    print(f"  loss: first tenth {first:.4f}, last tenth {last:.4f}, on the stock runtime {stock_last:.4f}")
    print(f"  runtimes differ by at most {apart:.1e} of a loss; bound {AGREEMENT:.0e}")
    problems = []
    if list(generated) != list(rewritten):
        problems.append("on the training build the rewritten graph has other losses")
    if list(ordered) != list(paged):
        problems.append("on the stock runtime the rewritten graph has other losses")
    if apart > AGREEMENT:
        problems.append(f"the runtimes' losses differ by {apart:.1e}")
    if max(last, stock_last) > 0.8 * first:
        problems.append("the loss does not fall")
    print("  rewritten and unrewritten: " + ("DIFFERENT" if "other losses" in str(problems) else "equal bits"))
    return problems


def write(path: Path, command: str, found: Mapping[str, Sequence[float]]) -> None:
    """Write the losses, one row for each step."""
    with path.open("w", encoding="utf-8", newline="") as file:
        file.write(f"# {command}\n")
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(["step", *found])
        for step, row in enumerate(zip(*found.values(), strict=True), start=1):
            writer.writerow([step, *(f"{loss:.9g}" for loss in row)])


def draw(path: Path, task: Task, found: Mapping[str, Sequence[float]]) -> None:
    """Draw the losses of both runtimes, each with its mean over ten steps."""
    import matplotlib as mpl

    mpl.use("svg")
    mpl.rcParams["svg.hashsalt"] = task.name  # the same curve gives the same file
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(7.0, 4.0), layout="constrained")
    for name, style in (("training build, as generated", "-"), ("stock runtime, rewritten", "--")):
        losses = np.array(found[name])
        (line,) = axes.plot(range(1, losses.size + 1), losses, linewidth=0.5, alpha=0.5)
        mean = np.convolve(losses, np.full(10, 0.1), "valid")
        axes.plot(range(10, losses.size + 1), mean, style, color=line.get_color(), label=f"{name}, mean of ten")
    axes.set_xlabel(f"AdamW steps, batch {task.batch}, learning rate {task.learning_rate:g}")
    axes.set_ylabel("loss")
    axes.set_title(task.name)
    axes.set_ylim(bottom=0.0)
    axes.legend()
    figure.savefig(path, metadata={"Date": None})
    pyplot.close(figure)


def main(arguments: Sequence[str] | None = None) -> int:
    """Train, compare, write; return 1 if a check fails."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--stock", metavar="PYTHON", default=os.environ.get("POET_STOCK_PYTHON"))
    parser.add_argument("--steps", type=int, default=200, help="default 200")
    parser.add_argument("--models", nargs="+", metavar="NAME", default=[task.name for task in TASKS])
    parser.add_argument("--artifacts", type=Path, default=ROOT / ".cache" / "curves", metavar="DIR")
    parser.add_argument("-o", "--output", type=Path, metavar="DIR", help="where the files go; default nowhere")
    parser.add_argument("--one", nargs=3, metavar=("NAME", "MODEL", "CHECKPOINT"), help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    tasks = {task.name: task for task in TASKS}
    if options.one is not None:
        name, model, checkpoint = options.one
        print(json.dumps(train(tasks[name], Path(model), Path(checkpoint), options.steps)))
        return 0
    if options.stock is None:
        parser.error("--stock is missing: give the interpreter of an environment with poet-onnx[stock]")
    script = "scripts/benchmarks/training/training_curves.py"
    command = f"python {script} --stock PYTHON --steps {options.steps} -o {options.output}"
    problems = []
    for name in options.models:
        print(f"{name}: {options.steps} steps, four times", flush=True)
        found = curves(tasks[name], options.artifacts, options.stock, options.steps)
        problems += [f"{name}: {problem}" for problem in judge(found)]
        if options.output is not None:
            options.output.mkdir(parents=True, exist_ok=True)
            write(options.output / f"training-{name}.csv", command, found)
            draw(options.output / f"training-{name}.svg", tasks[name], found)
    for problem in problems:
        print(f"error: {problem}", file=sys.stderr)
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
