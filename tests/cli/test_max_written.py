"""The limit on what a step writes, from the command line and from Python, on a real model."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from cli_runs import Cli

import poet_onnx
from poet_onnx.costing.device import load_device
from poet_onnx.plan.serialization import from_json, to_json
from poet_onnx.quantities import parse_lifetime
from poet_onnx.reporting.report import Report


@pytest.mark.deep
def test_a_plan_keeps_the_limit_and_computes_the_same_bits(model: Path, tmp_path: Path) -> None:
    paged = poet_onnx.rewrite(model, device="a72", activation_budget="80%", recompute=False)
    written = paged.rewritten.page_out_bytes
    limit = written // 2
    limited = poet_onnx.rewrite(model, device="a72", activation_budget="80%", max_written=limit)
    assert limited.rewritten.page_out_bytes <= limit < written
    assert limited.plan.limits.max_written_bytes == limit
    report = Report.of_rewrite(limited, model=str(model), output=None)
    assert (report.max_written_bytes, report.page_out_bytes) == (limit, limited.rewritten.page_out_bytes)
    assert poet_onnx.verify(model, limited.model, feeds=1, page_dir=tmp_path).passed
    text = to_json(limited.plan, limited.graph)
    assert from_json(text, limited.graph) == limited.plan

    # A plan from elsewhere is held against the limit, too; what is known counts only where it keeps it.
    with pytest.raises(poet_onnx.InputError, match=f"writes {written:,} bytes to storage but may write {limit:,}"):
        poet_onnx.rewrite(model, device="a72", plan=paged.plan, max_written=limit)
    again = poet_onnx.rewrite(
        model, device="a72", activation_budget="80%", max_written=limit, known_plans=(paged.plan, limited.plan)
    )
    assert again.rewritten.page_out_bytes <= limit
    assert again.rewritten.energy_joules <= limited.rewritten.energy_joules * (1 + 1e-9)
    damaged = {**json.loads(to_json(paged.plan, paged.graph)), "limits": {"max_written_bytes": limit}}
    with pytest.raises(poet_onnx.InputError, match=f"it writes {written:,} bytes to storage but may write {limit:,}"):
        from_json(json.dumps(damaged), paged.graph)


def test_the_command_line_shows_the_limit(cli: Cli, model: Path) -> None:
    result = cli("rewrite", model, "--device", "a72", "--activation-budget", "80%", "--max-written", "64KiB")
    assert result.code == 0, result
    assert "written a step: at most " in result.out, result.out


def test_a_lifetime_is_a_share_of_what_the_storage_endures(cli: Cli, model: Path) -> None:
    storage = load_device("a72").storage
    assert storage is not None
    assert storage.endurance_bytes is not None
    arguments = ["--activation-budget", "80%", "--lifetime", "1000000000steps", "--json"]
    result = cli("rewrite", model, "--device", "a72", *arguments)
    assert result.code == 0, result
    figures = json.loads(result.out)
    assert figures["max_written_bytes"] == storage.endurance_bytes // 10**9
    assert figures["page_out_bytes"] * 10**9 <= storage.endurance_bytes


def test_a_refusal_names_the_limit(cli: Cli, model: Path) -> None:
    arguments = ["--activation-budget", "80%", "--max-written", "1B", "--no-recompute"]
    result = cli("rewrite", model, "--device", "a72", *arguments)
    assert result.code == 3, result
    assert "that writes at most 1 bytes a step" in result.err, result.err
    assert "bytes a step is known" in result.err, result.err


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (["--device", "a72", "--max-written", "1MiB", "--lifetime", "5steps"], "not both"),
        (["--device", "a72", "--max-written", "50%"], "cannot be a percentage"),
        (["--device", "a72", "--max-written", "0"], "out of range"),
        (["--device", "a72", "--lifetime", "2years"], "whole number of steps"),
        (["--device", "a72", "--lifetime", "0steps"], "out of range"),
        (["--device", "tx2", "--lifetime", "100steps"], "does not say what its storage endures"),
        (["--device", "a72", "--plan", "plan.json", "--store", "never"], "leave out --store"),
    ],
)
def test_what_cannot_be_meant_is_refused(cli: Cli, model: Path, arguments: list[str], reason: str) -> None:
    result = cli("rewrite", model, *arguments)
    assert result.code == 2, result
    assert reason in result.err, result.err


def test_a_device_without_storage_has_nothing_to_limit(model: Path) -> None:
    bare = load_device("a72").model_copy(update={"storage": None})
    for limit in ({"max_written": "1MiB"}, {"lifetime": 1000}):
        with pytest.raises(poet_onnx.InputError, match="has no storage"):
            poet_onnx.rewrite(model, device=bare, **limit)  # type: ignore[arg-type]


def test_steps_are_read_as_people_write_them() -> None:
    for value, steps in ((7, 7), (np.int64(7), 7), ("7", 7), ("7steps", 7), ("1 step", 1), ("1e5 steps", 100_000)):
        assert parse_lifetime(value, name="lifetime") == steps
    for value in ("1.5steps", "steps", "7 hours", "1e400", True):
        with pytest.raises(poet_onnx.InputError):
            parse_lifetime(value, name="lifetime")
