"""A measured step beside the plan's: read from what ONNX Runtime writes, and refused where that is something else."""

from __future__ import annotations

import json
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import onnx
import pytest
from cli_runs import Cli, assert_one_sentence

from poet_onnx.errors import InputError
from poet_onnx.reporting.recording import Recording

STEP = {"cat": "Session", "name": "model_run", "ph": "X", "ts": 100, "dur": 50}
NODE = {"cat": "Node", "name": "n_kernel_time", "ph": "X", "ts": 110, "dur": 20, "args": {"op_name": "Relu"}}


def spans(path: Path, process: int) -> list[dict[str, Any]]:
    events = json.loads(path.read_text())["traceEvents"]
    return [event for event in events if event["ph"] == "X" and event["pid"] == process]


def test_a_verified_step_stands_beside_its_plan(cli: Cli, model_path: Callable[..., Path], tmp_path: Path) -> None:
    original, rewritten, trace = model_path("transformer"), tmp_path / "out.onnx", tmp_path / "trace.json"
    limits = ("--activation-budget", "85%", "--no-recompute", "--no-split", "--gap", "0.5")
    assert cli("rewrite", original, rewritten, "--device", "a72", *limits).code == 0
    check = ("verify", original, rewritten, "--feeds", "1", "--page-dir", tmp_path, "--trace-out", trace)
    done = cli(*check)
    assert done.code == 0, done
    nodes = {node.name: node.op_type for node in onnx.load(rewritten, load_external_data=False).graph.node}
    measured = spans(trace, 2)
    assert {span["args"]["node"]: span["name"] for span in measured} == nodes, "each node of the file ran once"
    assert {span["name"] for span in measured if span["tid"] == 2} == {
        kind for kind in nodes.values() if "Page" in kind
    }
    for lane in (1, 2):
        for span, following in pairwise([span for span in measured if span["tid"] == lane]):
            assert span["ts"] + span["dur"] <= following["ts"] + 1e-6
    assert {span["cat"] for span in measured} >= {"forward", "backward", "transfer"}
    planned = tmp_path / "plan.json"
    assert cli("report", rewritten, "--trace-out", planned).code == 0
    assert spans(trace, 1) == spans(planned, 1)
    assert_one_sentence(cli(*check), 2, "--trace-out", "exists")


def test_the_last_step_of_a_profile_is_read(tmp_path: Path) -> None:
    later = [STEP | {"ts": 1000, "dur": 40}, NODE | {"ts": 1005, "name": "m_kernel_time"}]
    (tmp_path / "profile.json").write_text(json.dumps([STEP, NODE, *later]))
    read = Recording.read(tmp_path / "profile.json")
    (ran,) = read.nodes
    assert (ran.name, ran.operator, ran.start_seconds, ran.seconds, read.seconds) == ("m", "Relu", 5e-6, 2e-5, 4e-5)


@pytest.mark.parametrize(
    "text",
    ["", "{}", "[]", "[1]", json.dumps([NODE]), json.dumps([STEP | {"ts": None}]), json.dumps([STEP | {"dur": -9}])],
)
def test_what_is_no_profile_is_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "profile.json"
    path.write_text(text)
    with pytest.raises(InputError, match="is no profile of a step"):
        Recording.read(path)
    with pytest.raises(InputError, match="cannot be read"):
        Recording.read(tmp_path / "absent.json")


def test_a_profile_without_a_trace_is_refused(cli: Cli, tmp_path: Path) -> None:
    refused = cli("report", tmp_path / "m.onnx", "--profiled", tmp_path / "profile.json")
    assert_one_sentence(refused, 2, "--profiled needs --trace-out")
