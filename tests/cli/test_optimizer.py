"""The optimizer on the command line: what is planned with it, and what does not go together."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import onnx
import pytest
from cli_runs import Cli, assert_one_sentence

from poet_onnx import Adam, AdamW, AdamWOrt, TrainingSession
from poet_onnx.description.metadata import Description
from poet_onnx.description.names import TRAINING_KEY
from poet_onnx.description.optimizers import settings
from poet_onnx.files.checkpoint import open_checkpoint

QUICK = ("--device", "a72", "--activation-budget", "80%", "--gap", "0.9")


def metadata(path: Path) -> dict[str, str]:
    return {entry.key: entry.value for entry in onnx.load(path, load_external_data=False).metadata_props}


@pytest.mark.deep
def test_the_optimizer_is_in_the_model_and_in_the_report(cli: Cli, model: Path) -> None:
    resident = {}
    for kind in ("none", "sgd", "adam"):
        out = model.with_name(f"{kind}.onnx")
        result = cli("rewrite", model, out, *QUICK, "--optimizer", kind, "--json")
        assert result.code == 0, result
        report = json.loads(result.out)
        assert report["optimizer"] == kind
        resident[kind] = report["resident_bytes"]
        assert (TRAINING_KEY in metadata(out)) is (kind != "none")
    parameters_bytes = resident["none"] - resident["sgd"] + 3 * 4 - 1  # rates came, and the flag went
    assert resident["adam"] - resident["sgd"] == 2 * parameters_bytes + (10 - 3) * 4
    result = cli("verify", model, model.with_name("adam.onnx"), "--feeds", "2")
    assert result.code == 0, result
    result = cli("verify", model, model.with_name("adam.onnx"), "--optimized")
    assert_one_sentence(result, 2, "optimizer in its step")


@pytest.mark.parametrize(
    ("kind", "expected"), [("adamw", AdamW()), ("adamw-ort", AdamWOrt())], ids=["torch's", "ONNX Runtime's"]
)
def test_each_adamw_is_named_from_the_command_line_to_the_checkpoint(
    cli: Cli, model_path: Callable[..., Path], tmp_path: Path, kind: str, expected: Adam
) -> None:
    model, out, saved = model_path("mlp-mse"), tmp_path / "out.onnx", tmp_path / "saved.safetensors"
    result = cli("rewrite", model, out, "--device", "a72", "--activation-budget", "100%", "--optimizer", kind, "-v")
    assert f"optimizer: {kind}, in the step" in result.out
    assert Description.from_json(metadata(out)[TRAINING_KEY]).updates.optimizer == kind
    session = TrainingSession(out, model.with_name("checkpoint"))
    session.save_checkpoint(saved)
    assert open_checkpoint(saved).progress()["optimizer"] == settings(expected)


@pytest.mark.parametrize(("target", "expected"), [("training", "none"), ("stock", "adamw")])
def test_the_default_depends_on_the_target(cli: Cli, model: Path, target: str, expected: str) -> None:
    result = cli("rewrite", model, "--device", "a72", "--target", target, "--json")
    assert json.loads(result.out)["optimizer"] == expected


def test_accumulation_and_clipping_are_told_to_the_session(cli: Cli, model: Path) -> None:
    asked = ("--optimizer", "adamw", "--accumulation-steps", "4", "--clip-norm")
    result = cli("rewrite", model, *QUICK, *asked, "-v")
    assert "optimizer: adamw, 4 batches an update, clipped, in the step" in result.out
    described = Description.from_json(metadata(model.with_suffix(".poet.onnx"))[TRAINING_KEY])
    assert (described.updates.accumulation_steps, described.updates.clip_norm) == (4, True)
    assert set(described.buffers) == set(described.parameters)


@pytest.mark.deep
def test_a_plan_is_for_one_optimizer(cli: Cli, model: Path, tmp_path: Path) -> None:
    plan, out = tmp_path / "plan.json", tmp_path / "out.onnx"
    assert cli("rewrite", model, *QUICK, "--optimizer", "adam", "--plan-out", plan).code == 0
    for other in ("sgd", "adamw", "adamw-ort", "none"):
        result = cli("rewrite", model, out, "--device", "a72", "--plan", plan, "--optimizer", other)
        assert_one_sentence(result, 2, "'adam'", f"'{other}'", "--optimizer")
        result = cli("rewrite", model, out, *QUICK, "--known-plan", plan, "--optimizer", other)
        assert_one_sentence(result, 2, "'adam'", f"'{other}'")
    assert not out.exists()
    assert cli("rewrite", model, out, "--device", "a72", "--plan", plan, "--optimizer", "adam").code == 0
    first, second = onnx.load(model.with_suffix(".poet.onnx")), onnx.load(out)
    assert [node.name for node in first.graph.node] == [node.name for node in second.graph.node]


def test_what_does_not_go_together_is_refused(cli: Cli, model: Path) -> None:
    for asked in (("--clip-norm",), ("--accumulation-steps", "2"), ("--optimizer", "none", "--clip-norm")):
        assert_one_sentence(cli("rewrite", model, *QUICK, *asked), 2, "give an optimizer")
    assert cli("rewrite", model, *QUICK, "--optimizer", "lion").code == 2


def test_inspect_counts_the_moments(cli: Cli, model_path: Callable[..., Path]) -> None:
    found = {}
    for kind in ("sgd", "adamw"):
        result = cli("inspect", model_path("mlp-mse"), "--device", "a72", "--optimizer", kind, "--json")
        found[kind] = json.loads(result.out)["resident_bytes"]
    assert found["adamw"] > 1.9 * found["sgd"]


@pytest.mark.deep
def test_costs_are_measured_for_an_optimizer(cli: Cli, model_path: Callable[..., Path], tmp_path: Path) -> None:
    model, out, costs = model_path("mlp-mse"), tmp_path / "out.onnx", tmp_path / "costs.json"
    measuring = ("--device", "host", "-o", costs, "--repetitions", "2", "--page-dir", tmp_path, "--optimizer", "adam")
    result = cli("profile", model, *measuring)
    assert result.code == 0, result
    planning = ("--device", "host", "--activation-budget", "100%", "--costs", costs)
    result = cli("rewrite", model, out, *planning, "--optimizer", "adam", "--json")
    assert result.code == 0, result
    assert json.loads(result.out)["time_origin"] == "measured"
    other = cli("rewrite", model, tmp_path / "other.onnx", *planning, "--optimizer", "sgd")
    assert_one_sentence(other, 2, "measured costs are of another graph", "for the same optimizer")
