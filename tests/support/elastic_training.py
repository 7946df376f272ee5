"""A net with plans for three RAM budgets, and a process that trains it while its budget changes.

As a program it trains, changes as it is told, and prints a line of JSON for each step: what it lost, which budget it
had, and the most that the process had in memory since the step began.
"""

from __future__ import annotations

import json
import random
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from poet_onnx import TrainingSession

if TYPE_CHECKING:
    from torch import nn

SHARES = (0.6, 0.8)
"""Parts of the step's memory that are in the smaller budgets; the largest has all of it."""

OWN_BYTES = 2**19
"""What this program takes besides a loop that only trains, in the largest budget: 40 KB were measured (Python 3.11)."""

BATCH, SIDE, CLASSES = 4, 64, 30


def write_elastic_net(path: Path) -> Path:
    """Export a net without a loss whose activations are most of what it takes, and return its path."""
    import torch
    from torch import nn

    torch.manual_seed(0)
    layers: list[nn.Module] = []
    for width in (3, 12, 12, 12):
        layers += [nn.Conv2d(width, 12, 3, padding=1), nn.BatchNorm2d(12), nn.ReLU()]
    head = (nn.AdaptiveAvgPool2d(8), nn.Flatten(), nn.Linear(12 * 64, 200), nn.Dropout(0.3), nn.Linear(200, CLASSES))
    return _exported([*layers, *head], path)


def _exported(layers: Sequence[nn.Module], path: Path) -> Path:
    import onnx
    import torch
    from export_models import export_forward, quiet

    with quiet():
        onnx.save(export_forward(torch.nn.Sequential(*layers), {"x": torch.zeros(BATCH, 3, SIDE, SIDE)}), path)
    return path


STEP: dict[str, Any] = {"device": "tx2", "target": "stock", "loss": "cross-entropy", "gap": 0.5, "store": "never"}


def budgets_for(net: Path, **options: Any) -> tuple[int, ...]:
    """Return three RAM budgets, of which the largest bears the step as it is."""
    import poet_onnx

    whole = poet_onnx.rewrite(net, **STEP | options)
    most, step = whole.process.peak_bytes, whole.rewritten.transient_peak_bytes
    return (*(int(most - (1 - share) * step) for share in SHARES), most + OWN_BYTES)


def write_plans(net: Path, path: Path, **options: Any) -> None:
    """Rewrite a net for three RAM budgets, and write all plans."""
    import poet_onnx

    poet_onnx.rewrite(net, ram_budgets=budgets_for(net, **options), **STEP | options).save(path)


def session_of(path: Path, **options: Any) -> TrainingSession:
    """Return a session of plans that were written."""
    parameters, evaluation = path.with_suffix(".safetensors"), path.with_name(f"{path.stem}.eval.onnx")
    return TrainingSession(path, parameters, eval_model=evaluation, **options)


def feeds(step: int) -> tuple[Any, Any]:
    """Return the batch of a step."""
    generator = np.random.default_rng(step)
    return generator.standard_normal((BATCH, 3, SIDE, SIDE), "float32"), generator.integers(0, CLASSES, BATCH)


def changes(budgets: tuple[int, ...], steps: int, count: int, seed: int = 0) -> dict[int, int]:
    """Return budgets by the steps before which they begin, each another one than the last."""
    generator = random.Random(seed)
    found, last = {}, budgets[-1]
    for step in sorted(generator.sample(range(steps), count)):
        last = found[step] = generator.choice([each for each in budgets if each != last])
    return found


def peak_bytes() -> int:
    """Return the most that this process had in memory since it was asked last."""
    status = Path("/proc/self/status").read_text(encoding="ascii", errors="replace")
    most = next(int(line.split()[1]) << 10 for line in status.splitlines() if line.startswith("VmHWM:"))
    Path("/proc/self/clear_refs").write_text("5", encoding="ascii")
    return most


def main(path: str, steps: int, count: int, *, follows: bool) -> None:
    """Train."""
    session = session_of(Path(path), **({"follow_memory": True} if follows else {"budget": sys.maxsize // 2**20}))
    told = changes(session.budgets, steps, count) if count else {}
    for step in range(steps):
        change_bytes = 0
        if step in told:
            session.use_budget(told[step])
            change_bytes = peak_bytes()
        loss = session.step(*feeds(step))
        line = {"loss": loss, "budget": session.budget, "change": change_bytes, "peak": peak_bytes()}
        sys.stdout.write(json.dumps(line) + "\n")
        sys.stdout.flush()
        if follows and sys.stdin.readline() == "":
            break


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), follows=sys.argv[4:] == ["--follow"])
