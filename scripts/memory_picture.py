#!/usr/bin/env python3
"""Draw the memory of one training step: as exported, in a better order, and rewritten for a budget.

python scripts/memory_picture.py TRAINING_MODEL.onnx --device a72 --budget 35% -o docs/step_memory.svg
Every number in it is the simulator's. Needs the extra [plots].
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from poet_onnx import rewrite
from poet_onnx.costing.costs import CostTable
from poet_onnx.graph import TrainingGraph
from poet_onnx.plan import Action, Step
from poet_onnx.plan.problem import ScheduleProblem
from poet_onnx.scheduling import ordered_steps
from poet_onnx.simulate import replay

MIB = 2**20


@dataclass(frozen=True)
class Curve:
    """The memory of one version of a step.

    Attributes:
        label: what the version is called.
        ends_seconds: when each step of the schedule ends, computing time alone; transfers take none.
        transient_bytes: activations, gradients and workspace while it runs.
    """

    label: str
    ends_seconds: tuple[float, ...]
    transient_bytes: tuple[int, ...]


def curves(model: Path, device: str, budget: str) -> tuple[Curve, Curve, Curve]:
    """Return the memory of a model's step in the order of its file, in a better order, and rewritten.

    Args:
        model: a training graph.
        device: what it is planned for.
        budget: for the rewritten one, as `--activation-budget` takes it.

    Raises:
        PoetError: as `poet_onnx.rewrite`.
    """
    ordered = rewrite(model, device=device, activation_budget="100%")
    rewritten = rewrite(model, device=device, activation_budget=budget)
    as_exported = ordered_steps([node.name for node in ordered.graph.nodes if not node.view])
    return (
        _curve("as exported", ordered.graph, ordered.costs, as_exported),
        _curve("in a better order", ordered.graph, ordered.costs, ordered.plan.steps),
        _curve(f"rewritten for {budget} of that", rewritten.graph, rewritten.costs, rewritten.plan.steps),
    )


def _curve(label: str, graph: TrainingGraph, costs: CostTable, steps: Sequence[Step]) -> Curve:
    """Replay steps and put their memory on a scale of time."""
    ends, now = [], 0.0
    for step in steps:
        now += costs.nodes[step.subject].seconds if step.action is Action.COMPUTE else 0.0
        ends.append(now)
    return Curve(label, tuple(ends), replay(ScheduleProblem(graph, costs), steps).step_bytes)


def draw(path: Path, title: str, drawn: Sequence[Curve]) -> None:
    """Draw the curves over the computing time of the step."""
    import matplotlib as mpl

    mpl.use("svg")
    mpl.rcParams["svg.hashsalt"] = title  # the same curves give the same file
    mpl.rcParams["svg.fonttype"] = "none"  # text stays text
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(8.0, 3.6), layout="constrained")
    for curve, color in zip(drawn, ("silver", "tab:blue", "tab:red"), strict=True):
        peak = max(curve.transient_bytes) / MIB
        edges = [0.0, *(1e3 * end for end in curve.ends_seconds)]
        levels = [size_bytes / MIB for size_bytes in curve.transient_bytes]
        label = f"{curve.label}: at most {peak:.1f} MiB"
        axes.stairs(levels, edges, label=label, fill=True, color=color, alpha=0.6)
    axes.set(xlabel="computing time of one training step [ms]", ylabel="activations, gradients, workspace [MiB]")
    axes.set_title(title, fontsize="medium")
    axes.set_xlim(0.0)
    axes.set_ylim(0.0)
    axes.legend(loc="upper left", frameon=False)
    figure.savefig(path, metadata={"Date": None})


def main(arguments: Sequence[str] | None = None) -> int:
    """Plan, replay, draw."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path, metavar="TRAINING_MODEL.onnx")
    parser.add_argument("--device", default="a72", help="default a72")
    parser.add_argument("--budget", default="35%", help="of the rewritten step (default 35%% of the ordered one)")
    parser.add_argument("--title", default="", help="of the picture")
    parser.add_argument("-o", "--output", type=Path, required=True, metavar="PICTURE.svg")
    options = parser.parse_args(arguments)
    drawn = curves(options.model, options.device, options.budget)
    draw(options.output, options.title or options.model.stem, drawn)
    return 0


if __name__ == "__main__":
    sys.exit(main())
