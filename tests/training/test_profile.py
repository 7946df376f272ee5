"""A session's own profile: its last step stands beside the plan in a trace."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import onnx
import pytest
from cli_runs import Cli
from training_batches import digest, train

import poet_onnx
from poet_onnx import TrainingSession
from poet_onnx.errors import InputError


@pytest.mark.deep
def test_the_steps_of_a_session_are_profiled(cli: Cli, model_path: Callable[..., Path], tmp_path: Path) -> None:
    original, model, trace = model_path("transformer"), tmp_path / "out.onnx", tmp_path / "trace.json"
    poet_onnx.rewrite(original, device="a72", activation_budget="90%", optimizer="adamw", gap=0.5).save(model)
    checkpoint = original.with_name("checkpoint")
    session = TrainingSession(model, checkpoint, profile_dir=tmp_path)
    plain = TrainingSession(model, checkpoint)
    assert train(session, 3) == train(plain, 3)
    assert digest(session) == digest(plain)
    profile = session.end_profile()
    assert profile.parent == tmp_path
    done = cli("report", model, "--profiled", profile, "--trace-out", trace)
    assert done.code == 0, done
    events = json.loads(trace.read_text(encoding="utf-8"))["traceEvents"]
    measured = {event["args"]["node"] for event in events if event["ph"] == "X" and event["pid"] == 2}
    assert measured == {node.name for node in onnx.load(model, load_external_data=False).graph.node}
    for each in (session, plain):
        with pytest.raises(InputError, match="not profiled, or not any more: make a session with profile_dir="):
            each.end_profile()
    with pytest.raises(InputError, match=r"The folder .*absent for a profile is not there"):
        TrainingSession(model, checkpoint, profile_dir=tmp_path / "absent")
