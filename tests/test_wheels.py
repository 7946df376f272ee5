"""The wheel on a Raspberry Pi 4's processor, under qemu-user: it plans, trains and resumes there as it does here.

`scripts/release/test_aarch64` makes both environments ready and runs this file; each holds what pip installs with
`poet-onnx[stock]` and nothing else. `board` and `host` in its folder are their Pythons.
"""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import onnx
import pytest

ROOT = Path(__file__).resolve().parent.parent
TRAIN = ROOT / "scripts/release/aarch64/train.py"
EXAMPLE = ROOT / "scripts/release/aarch64/example.py"
LOSS_TOLERANCE = 1e-5  # relative, between processors: their vector units sum in different orders

PEAK_TOLERANCE = 0.002
"""Part of the predicted transient peak that the measured one may lack; onnxruntime adds some bytes to every block."""

pytestmark = pytest.mark.skipif(
    "POET_AARCH64" not in os.environ,
    reason="POET_AARCH64 names no folder that scripts/release/test_aarch64 made",
)


def prepared(*parts: str) -> Path:
    """Return a path in the folder that scripts/release/test_aarch64 made."""
    return Path(os.environ["POET_AARCH64"], *parts)


def python(machine: str, *arguments: str | Path, cwd: Path) -> str:
    """Run Python on "board" or "host" and return what it printed; a failure shows both streams."""
    command = [str(part) for part in (prepared(machine), *arguments)]
    done = subprocess.run(command, cwd=cwd, capture_output=True, text=True, timeout=500, check=False)
    assert done.returncode == 0, f"{machine}: {done.stdout}\n{done.stderr}"
    return done.stdout


def rewrite(machine: str, model: str, rewritten: Path, *options: str | Path) -> None:
    """Run `poet-onnx rewrite` for the stock runtime."""
    command = prepared(f"{machine}-environment", "bin", "poet-onnx")
    arguments = ("rewrite", prepared(model, "training_model.onnx"), rewritten, "--target", "stock", "--device", "a72")
    python(machine, command, *arguments, *options, cwd=rewritten.parent)


def train(machine: str, model: str, rewritten: Path, *options: str | Path) -> dict[str, Any]:
    """Run scripts/release/aarch64/train.py and return what it reports."""
    printed = python(machine, TRAIN, rewritten, prepared(model, "checkpoint"), *options, cwd=rewritten.parent)
    report: dict[str, Any] = json.loads(printed)
    assert report["machine"] == {"board": "aarch64", "host": os.uname().machine}[machine]
    return report


def train_within_the_budget(machine: str, model: str, rewritten: Path, *options: str | Path) -> dict[str, Any]:
    """Train; the measured peaks are the predicted one, within the budget."""
    report = train(machine, model, rewritten, *options)
    plan = json.loads({entry.key: entry.value for entry in onnx.load(rewritten).metadata_props}["poet.plan"])
    assert report["peaks_bytes"][1:]
    for peak_bytes in report["peaks_bytes"][1:]:  # the first step may include what a session allocates once
        predicted_bytes = plan["prediction"]["transient_peak_bytes"]
        assert predicted_bytes * (1 - PEAK_TOLERANCE) <= peak_bytes <= plan["budget_bytes"]
    return report


def train_in_two_parts(machine: str, model: str, rewritten: Path, *, steps: int) -> list[float]:
    """Train within the budget; go on from the checkpoint after the first step in a new process, to the same bits."""
    saved = rewritten.with_suffix(f".{machine}.safetensors")
    whole = train_within_the_budget(machine, model, rewritten, "--steps", str(steps), "--save", saved)
    resumed = train(machine, model, rewritten, "--first", "1", "--steps", str(steps - 1), "--resume", saved)
    assert whole["updates"] == resumed["updates"] == steps
    assert resumed["losses"] == whole["losses"][1:]
    assert resumed["parameters"] == whole["parameters"]
    losses: list[float] = whole["losses"]
    return losses


def test_environments_hold_nothing_but_the_wheel_and_what_it_needs(tmp_path: Path) -> None:
    script = (
        "import importlib.metadata as m, json, platform, onnxruntime\n"
        "import poet_onnx\n"
        "names = sorted(d.name.lower() for d in m.distributions())\n"
        "tags = m.distribution('poet-onnx').read_text('WHEEL').splitlines()\n"
        "session = onnxruntime.SessionOptions()\n"
        "session.register_custom_ops_library(str(poet_onnx.library_path()))\n"
        "print(json.dumps([platform.machine(), names, [t for t in tags if t.startswith('Tag')]]))\n"
    )
    machine, names, tags = json.loads(python("board", "-c", script, cwd=tmp_path))
    assert machine == "aarch64"
    assert tags == [f"Tag: py3-none-manylinux_2_{glibc}_aarch64" for glibc in (27, 28)]
    assert {"onnxruntime", "poet-onnx", "pyscipopt"} <= set(names)
    assert not {"onnxruntime-training", "torch", "pip"} & set(names)


def test_shipped_plan_recomputes_and_pages_on_the_board(tmp_path: Path) -> None:
    planned, shipped, plan = tmp_path / "host.onnx", tmp_path / "board.onnx", tmp_path / "plan.json"
    rewrite("host", "transformer", planned, "--activation-budget", "20%", "--plan-out", plan)
    rewrite("board", "transformer", shipped, "--plan", plan)
    assert shipped.read_bytes() == planned.read_bytes()
    nodes = onnx.load(shipped).graph.node
    assert {"PageOutStart", "PageInStart"} <= {node.op_type for node in nodes if node.domain == "poet"}
    assert [node.name for node in nodes if "/recompute_" in node.name]
    losses = {
        machine: train_within_the_budget(machine, "transformer", rewritten, "--steps", "2")["losses"]
        for machine, rewritten in (("host", planned), ("board", shipped))
    }
    assert losses["board"] == pytest.approx(losses["host"], rel=LOSS_TOLERANCE)


@pytest.mark.deep
def test_vgg16_is_planned_and_trained_on_the_board_as_on_a_workstation(tmp_path: Path) -> None:
    losses = {}
    for machine in ("host", "board"):
        rewritten, report_file = tmp_path / f"{machine}.onnx", tmp_path / f"{machine}.json"
        rewrite(machine, "vgg16", rewritten, "--activation-budget", "40%", "--report-out", report_file)
        report = json.loads(report_file.read_text())
        assert 0 < report["transient_peak_bytes"] <= report["budget_bytes"] < report["ordered"]["transient_peak_bytes"]
        losses[machine] = train_in_two_parts(machine, "vgg16", rewritten, steps=2)
    assert losses["board"] == pytest.approx(losses["host"], rel=LOSS_TOLERANCE)


@pytest.mark.deep
def test_example_runs_on_board_and_workstation(tmp_path: Path) -> None:
    final = {}
    for machine in ("host", "board"):
        folder = tmp_path / machine
        folder.mkdir()
        for name in ("checkpoint", "eval_model.onnx"):
            (folder / name).symlink_to(prepared("vgg16", name))
        rewrite("host", "vgg16", folder / "training_model.poet.onnx", "--ram-budget", "242MiB")
        printed = python(machine, EXAMPLE, cwd=folder)
        final[machine] = float(printed.split()[-1])
        onnx.checker.check_model(onnx.load(folder / "trained.onnx"))
        assert (folder / "training.safetensors").stat().st_size > 0
    assert final["board"] == pytest.approx(final["host"], rel=LOSS_TOLERANCE)
