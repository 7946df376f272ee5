"""A profile of the board at hand, from the command line: refused before anything is measured, or whole."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from cli_runs import Cli, assert_one_sentence

import poet_onnx
from poet_onnx.costing.device import load_device
from poet_onnx.costing.measured import load_measured
from poet_onnx.profiler.timing import StepRunner
from poet_onnx.runtime.feeds import random_feeds


def test_what_cannot_be_asked_for(cli: Cli, model_path: Callable[..., Path], tmp_path: Path) -> None:
    there = tmp_path / "there.toml"
    there.write_text("mine")
    for options, words in (
        ((), ("--device for one that has a profile", "--write-device")),
        (("--device", "host", "--write-device", tmp_path / "board.toml"), ("--device", "--write-device")),
        (("--device", "host", "--like", "pi5"), ("--like needs --write-device",)),
        (("--write-device", tmp_path / "pi5.toml"), ("built-in device 'pi5'",)),
        (("--write-device", tmp_path / "board.json"), ("board.json", ".toml")),
        (("--write-device", tmp_path / "board.toml", "--like", "pi6"), ("Unknown device 'pi6'",)),
        (("--write-device", tmp_path / "board.toml", "--like", "m4"), ("m4 is for planning only",)),
        (("--write-device", there), ("--write-device", "there.toml exists; give --force")),
        (("--write-device", tmp_path / "costs.json"), ("--write-device and --output are the same file",)),
        (("--write-device", tmp_path / "no" / "board.toml"), ("there is no folder",)),
    ):
        result = cli("profile", model_path("mlp-l1"), "-o", tmp_path / "costs.json", *options)
        assert_one_sentence(result, 2, *words)
    assert [path.name for path in tmp_path.iterdir()] == ["there.toml"]
    assert there.read_text() == "mine"


@pytest.mark.deep
@pytest.mark.parametrize(("name", "target"), [("resnet18", "stock"), ("bert-2", "training")])
def test_a_board_of_ones_own_in_two_commands(
    cli: Cli, model_path: Callable[..., Path], tmp_path: Path, name: str, target: str
) -> None:
    """Costs are for the graph of a plan for the new device, which depends on its rates; another run is predicted."""
    model, costs, board = model_path(name), tmp_path / "costs.json", tmp_path / "board.toml"
    step = ("--target", target, "--optimizer", "none")
    written = ("--write-device", board, "-o", costs, "--page-dir", tmp_path)
    profiled = cli("profile", model, *written, *step, "--threads", "2", "--repetitions", "10")
    assert profiled.code == 0, profiled
    assert "compute.all_cores.cores" in profiled.out
    assert f"wrote {board}" in profiled.out
    device, measured = load_device(board), load_measured(costs)
    assert (device.name, measured.device) == ("board", "board")
    assert measured.board is not None
    assert measured.storage is not None
    assert device.storage is not None
    assert device.storage.page_in_bytes_per_second == pytest.approx(measured.storage.page_in_bytes_per_second, rel=1e-5)
    assert device.compute.threads(None) == 2
    for threads in (1, 2):
        result = poet_onnx.rewrite(model, device=board, target=target, optimizer="none", threads=threads)
        result.save(tmp_path / f"{threads}.onnx")
        runner = StepRunner(tmp_path / f"{threads}.onnx", random_feeds(result.graph, 0), threads=threads)
        steps = sorted(runner.run() for _ in range(15))
        taken = min(step.cpu_seconds for step in steps) if threads == 1 else steps[7].wall_seconds
        assert 0.5 < result.rewritten.seconds / taken < 2.0, threads
    planned = cli("rewrite", model, tmp_path / "out.onnx", "--device", board, *step)
    assert planned.code == 0, planned
    with_costs = cli("rewrite", model, tmp_path / "two.onnx", "--device", board, *step, "--costs", costs)
    assert with_costs.code == 0, with_costs
    assert "board" in cli("fit", model, "--device", board, "--target", target).out
