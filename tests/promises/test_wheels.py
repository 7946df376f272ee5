"""The wheels on a Raspberry Pi 4's processor, under qemu-user, and here on the newest Python: both take the whole way.

`scripts/release/test_wheels` makes both environments ready and runs this file; each holds what pip installs with
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
from folders import ROOT
from resnet18 import resnet18
from training_alone import training_alone

import poet_onnx
from poet_onnx.passes.metadata import read_settings
from poet_onnx.verification.process import train as train_process
from poet_onnx.verification.process import training_job, write_random_parameters

TRAIN = ROOT / "scripts/release/machines/train.py"
EXAMPLE = ROOT / "scripts/release/machines/example.py"
MACHINES = {"board": ("aarch64", "3.11"), "host": ("x86_64", "3.14")}
"""Processor and Python of each."""

LOSS_TOLERANCE = 1e-5  # relative, between processors: their vector units sum in different orders

PEAK_TOLERANCE = 0.002
"""Part of the predicted transient peak that the measured one may lack; onnxruntime adds some bytes to every block."""

pytestmark = pytest.mark.skipif(
    "POET_MACHINES" not in os.environ,
    reason="POET_MACHINES names no folder that scripts/release/test_wheels made",
)


def prepared(*parts: str) -> Path:
    """Return a path in the folder that scripts/release/test_wheels made."""
    return Path(os.environ["POET_MACHINES"], *parts)


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


def train(machine: str, parameters: Path, rewritten: Path, *options: str | Path) -> dict[str, Any]:
    """Run scripts/release/machines/train.py and return what it reports."""
    printed = python(machine, TRAIN, rewritten, parameters, *options, cwd=rewritten.parent)
    report: dict[str, Any] = json.loads(printed)
    assert report["machine"] == MACHINES[machine][0]
    return report


def train_within_the_budget(machine: str, parameters: Path, rewritten: Path, *options: str | Path) -> dict[str, Any]:
    """Train; the measured peaks are the predicted one, within the budget."""
    report = train(machine, parameters, rewritten, *options)
    plan = json.loads({entry.key: entry.value for entry in onnx.load(rewritten).metadata_props}["poet.plan"])
    assert report["peaks_bytes"][1:]
    for peak_bytes in report["peaks_bytes"][1:]:  # the first step may include what a session allocates once
        predicted_bytes = plan["prediction"]["transient_peak_bytes"]
        assert predicted_bytes * (1 - PEAK_TOLERANCE) <= peak_bytes <= plan["limits"]["budget_bytes"]
    return report


def train_in_two_parts(machine: str, model: str, rewritten: Path, *, steps: int) -> list[float]:
    """Train within the budget; go on from the checkpoint after the first step in a new process, to the same bits."""
    saved, first = rewritten.with_suffix(f".{machine}.safetensors"), prepared(model, "checkpoint")
    whole = train_within_the_budget(machine, first, rewritten, "--steps", str(steps), "--save", saved)
    resumed = train(machine, first, rewritten, "--first", "1", "--steps", str(steps - 1), "--resume", saved)
    assert whole["updates"] == resumed["updates"] == steps
    assert resumed["losses"] == whole["losses"][1:]
    assert resumed["parameters"] == whole["parameters"]
    losses: list[float] = whole["losses"]
    return losses


@pytest.mark.parametrize("machine", MACHINES)
def test_environments_hold_nothing_but_the_wheel_and_what_it_needs(machine: str, tmp_path: Path) -> None:
    script = (
        "import importlib.metadata as m, json, platform, onnxruntime\n"
        "import poet_onnx\n"
        "names = sorted(d.name.lower() for d in m.distributions())\n"
        "tags = m.distribution('poet-onnx').read_text('WHEEL').splitlines()\n"
        "session = onnxruntime.SessionOptions()\n"
        "session.register_custom_ops_library(str(poet_onnx.library_path()))\n"
        "version = '.'.join(platform.python_version_tuple()[:2])\n"
        "print(json.dumps([platform.machine(), version, names, [t for t in tags if t.startswith('Tag')]]))\n"
    )
    processor, version, names, tags = json.loads(python(machine, "-c", script, cwd=tmp_path))
    assert (processor, version) == MACHINES[machine]
    assert tags == [f"Tag: py3-none-manylinux_2_{glibc}_{processor}" for glibc in (27, 28)]
    assert {"onnxruntime", "poet-onnx", "pyscipopt"} <= set(names)
    assert not {"onnxruntime-training", "torch", "pip"} & set(names)


@pytest.fixture(scope="module")
def host_training(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    """Return the folder in which the host went the whole way, and what its training reported."""
    folder = tmp_path_factory.mktemp("host")
    return folder, forward_to_inference("host", folder)


def test_a_forward_model_becomes_a_trained_one_on_the_newest_python(
    host_training: tuple[Path, dict[str, Any]],
) -> None:
    _, report = host_training
    assert report["losses"][-1] < report["losses"][0]
    assert len(report["outputs"]) == 4 * 10


def test_a_process_on_the_newest_python_takes_what_is_predicted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The figures of the built-in devices hold there, once Python has its bytecode as a usual install has."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPYCACHEPREFIX", str(tmp_path / "bytecode"))
    monkeypatch.delenv("PYTHONDONTWRITEBYTECODE", raising=False)
    planned, parameters = tmp_path / "planned.onnx", tmp_path / "parameters.safetensors"
    model = prepared("vgg16", "training_model.onnx")
    result = poet_onnx.rewrite(model, device="host", target="stock", optimizer="adamw", python="3.14")
    result.save(planned)
    write_random_parameters(result.graph, parameters)
    settings = read_settings(result.model)
    job = training_job(result.model, settings, planned, parameters, steps=2, threads=None, page_dir=None)
    for _ in range(2):  # the first one writes the bytecode
        trial = train_process(job, None, str(prepared("host")))
    assert trial.figures is not None, trial.ending
    predicted_bytes = training_alone(result.process).peak_bytes
    assert 0 <= predicted_bytes - trial.figures["peak_bytes"] <= 2 << 20


@pytest.mark.deep
def test_a_forward_model_becomes_the_same_one_on_the_board(
    tmp_path: Path, host_training: tuple[Path, dict[str, Any]]
) -> None:
    folder, expected = host_training
    report = forward_to_inference("board", tmp_path)
    for name in ("training_model.onnx", "eval_model.onnx", "parameters.safetensors"):
        assert (tmp_path / "training" / name).read_bytes() == (folder / "training" / name).read_bytes(), name
    assert report["losses"] == pytest.approx(expected["losses"], rel=LOSS_TOLERANCE)
    # Scores are sums, which differ in the last digits of their largest terms: each is near as the largest one is near.
    most = max(map(abs, expected["outputs"]))
    assert report["outputs"] == pytest.approx(expected["outputs"], rel=0, abs=LOSS_TOLERANCE * most)


def forward_to_inference(machine: str, folder: Path) -> dict[str, Any]:
    """Take a narrow ResNet-18 the whole way on one machine, and return what the training reports."""
    command = prepared(f"{machine}-environment", "bin", "poet-onnx")
    onnx.save(resnet18(batch=4, width=8), folder / "net.onnx")
    python(machine, command, "train-graph", "net.onnx", "-o", "training", cwd=folder)
    options = ("--target", "stock", "--device", "a72", "--loss", "cross-entropy", "--gap", "0.05", "--check", "1")
    limits = ("--activation-budget", "60%", "--report-out", "report.json")
    python(machine, command, "rewrite", "net.onnx", *options, *limits, cwd=folder)
    figures = json.loads((folder / "report.json").read_text())
    assert 0 < figures["transient_peak_bytes"] <= figures["budget_bytes"] < figures["ordered"]["transient_peak_bytes"]
    parameters, rewritten = folder / "net.poet.safetensors", folder / "net.poet.onnx"
    exported = ("--evaluation", folder / "net.poet.eval.onnx", "--export", folder / "trained.onnx")
    return train_within_the_budget(machine, parameters, rewritten, "--steps", "3", *exported)


@pytest.mark.deep
def test_a_plan_makes_the_same_bytes_on_the_board(tmp_path: Path) -> None:
    planned, shipped, plan = tmp_path / "host.onnx", tmp_path / "board.onnx", tmp_path / "plan.json"
    rewrite("host", "transformer", planned, "--activation-budget", "30%", "--plan-out", plan)
    rewrite("board", "transformer", shipped, "--plan", plan)
    assert shipped.read_bytes() == planned.read_bytes()


def test_shipped_plan_recomputes_and_pages_on_the_board(tmp_path: Path) -> None:
    shipped = tmp_path / "shipped.onnx"
    rewrite("host", "transformer", shipped, "--activation-budget", "30%")
    nodes = onnx.load(shipped).graph.node
    assert {"PageOutStart", "PageInStart"} <= {node.op_type for node in nodes if node.domain == "poet"}
    assert [node.name for node in nodes if "/recompute_" in node.name]
    first = prepared("transformer", "checkpoint")
    losses = {
        machine: train_within_the_budget(machine, first, shipped, "--steps", "2")["losses"] for machine in MACHINES
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
