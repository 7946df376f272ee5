"""Whether a model fits a board: what `fit` says of boards is what `rewrite` does for them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from cli_runs import Cli
from stored_nets import write_net

import poet_onnx
from poet_onnx.costing.device import DeviceProfile, device_names, load_device
from poet_onnx.errors import InfeasibleError, InputError, LimitReachedError
from poet_onnx.reporting.inspection import inspect

STEP: dict[str, Any] = {"loss": "cross-entropy", "target": "stock"}


def wide_net(path: Path) -> Path:
    """Export a net with 2.4 million parameters, of which a process takes 29 MB for all in RAM."""
    import onnx
    import torch
    from export_models import export_forward, quiet
    from torch import nn

    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(64, 1500), nn.ReLU(), nn.Linear(1500, 1500), nn.ReLU(), nn.Linear(1500, 10))
    with quiet():
        onnx.save(export_forward(net, {"x": torch.zeros(64, 64)}), path)
    return path


@pytest.fixture(scope="module")
def net(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return wide_net(tmp_path_factory.mktemp("fit") / "wide.onnx")


def board(name: str, ram_bytes: int) -> DeviceProfile:
    return load_device("pi4").model_copy(update={"name": name, "ram_bytes": ram_bytes})


@pytest.mark.deep
def test_what_is_said_of_a_board_is_what_rewrite_does(net: Path) -> None:
    needed = inspect(net, device="pi4", **STEP)
    whole = board("whole", needed.ordered.process_peak_bytes + 2**17)
    tight = board("tight", needed.smallest_process_bytes)
    stored = board("stored", needed.smallest_process_bytes - 2**20)
    tiny = board("tiny", 2**25)
    boards = [whole, tight, stored, tiny]
    found = poet_onnx.fit(net, device=boards, **STEP)
    assert [each.verdict for each in found.boards] == ["ordered", "restored", "store", "none"]
    assert found == poet_onnx.fit(net, device=boards, **STEP), "the same answer each time"
    for device, said in zip(boards[:3], found.boards[:3], strict=True):
        made = poet_onnx.rewrite(net, device=device, **STEP)
        assert made.process.peak_bytes <= device.ram_bytes
        assert said.process_bytes <= device.ram_bytes
        assert bool(made.plan.stored) == (said.verdict == "store")
        assert said.seconds is not None
        if said.verdict != "store":  # of a store rewrite keeps parts in RAM, too, and looks for the least energy
            assert made.rewritten.seconds <= said.seconds
            assert (said.times == 1.0) == (said.verdict == "ordered")
    none = found.boards[3]
    assert (none.excess_bytes, none.seconds) == (none.process_bytes - tiny.ram_bytes, None)
    with pytest.raises((InfeasibleError, LimitReachedError)) as refused:
        poet_onnx.rewrite(net, device=tiny, **STEP)
    assert refused.value.smallest_budget_bytes == none.process_bytes


def test_convolutions_that_boards_expand_differently(tmp_path: Path) -> None:
    image = write_net("image", tmp_path / "image.onnx")
    boards = [load_device("pi4"), load_device("rock5b"), board("tiny", 2**25)]
    found = poet_onnx.fit(image, device=boards, **STEP)
    assert [each.verdict for each in found.boards] == ["ordered", "ordered", "none"]
    for device, said in zip(boards[:2], found.boards[:2], strict=True):
        made = poet_onnx.rewrite(image, device=device, **STEP)
        assert (made.rewritten.seconds, made.rewritten.recomputed_nodes) == (said.seconds, 0)
        assert made.process.peak_bytes <= said.process_bytes


def test_the_command_has_a_line_for_every_board(cli: Cli, net: Path) -> None:
    step = ("--loss", "cross-entropy", "--target", "stock")
    found = json.loads(cli("fit", net, *step, "--json").out)["boards"]
    boards = {name for name in device_names() if not name.endswith("-paper")} - {"host", "m0", "m4"}
    assert {each["device"] for each in found} == boards
    assert [each["ram_bytes"] for each in found] == sorted(each["ram_bytes"] for each in found)
    printed = cli("fit", net, *step, "--device", "zero2w,pi5").out
    assert printed.count(" fits") == 2
    assert "pi4" not in printed


def test_boards_that_cannot_be_asked_for(net: Path) -> None:
    for device, message in (([], "There is no device"), (["pi4", "pi4"], "same name"), ("pi9", "Unknown device 'pi9'")):
        with pytest.raises(InputError, match=message):
            poet_onnx.fit(net, device=device, **STEP)
