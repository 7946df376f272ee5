"""poet-onnx as a pass of Olive, which runs in an environment of its own: that of these tests, and olive-ai."""

from __future__ import annotations

import inspect
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import onnx
import pytest
from cli_runs import Cli
from gradient_models import export
from own_environment import OLIVE, make_environment

import poet_onnx
from poet_onnx.errors import InputError
from poet_onnx.olive.parameters import parameters


def test_a_workflow_may_say_whatever_json_can_hold() -> None:
    arguments = set(inspect.signature(poet_onnx.rewrite).parameters)
    known = parameters()
    assert set(known) == arguments - {"model_or_path", "progress"}
    assert [name for name, (_, option) in known.items() if option.is_needed] == ["device"]
    kinds = {name: kind for name, (kind, _) in known.items()}
    some = [kinds[name] for name in ("device", "gap", "clip_norm", "dims", "ram_budget", "train", "known_plans")]
    assert some == [
        *(str, float, bool, dict[str, int]),
        *(int | str, str | list[str], list[str]),
    ]


@pytest.mark.parametrize("program", ["from poet_onnx.olive import PoetOnnx", "poet_onnx.olive.package_config()"])
def test_what_is_missing_is_said(program: str, monkeypatch: pytest.MonkeyPatch) -> None:
    import poet_onnx.olive

    monkeypatch.setitem(sys.modules, "olive", None)
    with pytest.raises(InputError, match=r"needs olive-ai 0\.13 or later"):
        exec(program, {"poet_onnx": poet_onnx})
    with pytest.raises(AttributeError, match="no attribute 'Nothing'"):
        poet_onnx.olive.Nothing  # noqa: B018


@pytest.fixture(scope="module")
def with_olive(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the Python of an environment that has what this one has, and Olive."""
    return make_environment(tmp_path_factory.mktemp("olive"), *OLIVE)


def run(python: Path, folder: Path, model: Path, options: dict[str, Any]) -> subprocess.CompletedProcess[str]:
    """Run a workflow of our pass alone, from its files, as a user would."""
    workflow = {
        "input_model": {"type": "OnnxModel", "model_path": str(model)},
        "systems": {"local": {"type": "LocalSystem", "accelerators": [{"device": "cpu"}]}},
        "target": "local",
        "passes": {"fit": {"type": "PoetOnnx", **options}},
        "output_dir": str(folder / "out"),
        "cache_dir": str(folder / "cache"),
    }
    (folder / "workflow.json").write_text(json.dumps(workflow), encoding="utf-8")
    packages = "import json, poet_onnx.olive; print(json.dumps(poet_onnx.olive.package_config()))"
    environment = {**os.environ, "OLIVE_DISABLE_TELEMETRY": "1", "HOME": str(folder)}
    config = subprocess.run([python, "-c", packages], check=True, capture_output=True, text=True, env=environment)
    (folder / "packages.json").write_text(config.stdout, encoding="utf-8")
    command = [str(python), "-m", "olive", "run", "--config", "workflow.json", "--package-config", "packages.json"]
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)


@pytest.mark.deep
def test_olive_writes_what_the_command_line_writes(
    with_olive: Path, model_path: Callable[..., Path], tmp_path: Path, cli: Cli
) -> None:
    model = model_path("densenet")
    done = run(with_olive, tmp_path, model, {"device": "a72", "activation_budget": "75%", "target": "stock"})
    assert done.returncode == 0, done.stdout + done.stderr
    cli("rewrite", model, tmp_path / "ours.onnx", "--device", "a72", "--activation-budget", "75%", "--target", "stock")
    (theirs,) = (tmp_path / "out").rglob("*.onnx")
    assert theirs.read_bytes() == (tmp_path / "ours.onnx").read_bytes()


@pytest.mark.deep
def test_olive_trains_a_forward_model_and_says_what_is_wrong(with_olive: Path, tmp_path: Path, cli: Cli) -> None:
    forward = tmp_path / "forward.onnx"
    onnx.save(export("densenet")[0], forward)
    options = {"device": "a72", "loss": "cross-entropy", "freeze": ["*.bias"], "ram_budget": "1GiB"}
    done = run(with_olive, tmp_path, forward, {**options, "target": "stock"})
    assert done.returncode == 0, done.stdout + done.stderr
    ours = tmp_path / "ours" / "model.onnx"
    ours.parent.mkdir()
    said = "--device a72 --target stock --ram-budget 1GiB --loss cross-entropy --freeze *.bias"
    cli("rewrite", forward, ours, *said.split())
    expected = {path.name: path.read_bytes() for path in ours.parent.iterdir()}
    found = {path.name: path.read_bytes() for path in (tmp_path / "out").rglob("*") if path.name in expected}
    assert len(expected) == 3
    assert found == expected

    folder = tmp_path / "refused"
    folder.mkdir()
    refused = run(with_olive, folder, forward, {**options, "ram_budget": "2GiBs"})
    assert "2GiBs" in refused.stdout + refused.stderr  # the exit code is 0: Olive says so in its log alone
    assert list(folder.glob("out/**/*.onnx")) == []
