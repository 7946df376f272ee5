"""Perfetto's own trace processor finds in a trace what was written.

Where it is: the variable POET_TRACE_PROCESSOR names the program, or `trace_processor_shell` is on the PATH. Perfetto's
Python package loads it from elsewhere when it is first used; from Perfetto's sources, `tools/ninja` builds it.
"""

from __future__ import annotations

import csv
import json
import os
import shutil
import subprocess
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from poet_onnx import rewrite
from poet_onnx.reporting.depicting import picture_of
from poet_onnx.reporting.trace import trace_of

PROGRAM = os.environ.get("POET_TRACE_PROCESSOR") or shutil.which("trace_processor_shell")

pytestmark = [
    pytest.mark.deep,
    pytest.mark.skipif(PROGRAM is None, reason="there is no trace_processor_shell of Perfetto's"),
]

SLICES = """select thread.name as lane, count(slice.id) as slices, sum(slice.dur) as nanoseconds, max(depth) as depth
from slice join thread_track on slice.track_id = thread_track.id join thread using (utid) group by thread.name"""
COUNTERS = "select count(*) as count, max(value) as most from counter"
PROBLEMS = "select name, value from stats where severity in ('error', 'data_loss') and value > 0"


def ask(trace: Path, query: str) -> list[dict[str, str]]:
    """Return the rows that the trace processor gives for a query."""
    (file := trace.with_suffix(".sql")).write_text(query)
    done = subprocess.run([str(PROGRAM), "-q", str(file), str(trace)], capture_output=True, text=True, check=True)
    return list(csv.DictReader(line for line in done.stdout.splitlines() if line))


def test_it_finds_every_slice_and_counter_of_the_plan(model_path: Callable[..., Path], tmp_path: Path) -> None:
    options = {"device": "tx2", "activation_budget": "55%", "gap": 0.3, "recompute": False}
    text = trace_of(picture_of(rewrite(model_path("transformer"), **options).model))
    events = json.loads(text)["traceEvents"]
    trace = tmp_path / "plan.json"
    trace.write_text(text)
    assert ask(trace, PROBLEMS) == []

    lanes = {event["tid"]: event["args"]["name"] for event in events if event["name"] == "thread_name"}
    slices, nanoseconds = Counter[str](), Counter[str]()
    for event in events:
        if event["ph"] == "X":
            slices[lanes[event["tid"]]] += 1
            nanoseconds[lanes[event["tid"]]] += event["dur"] * 1000
    found = {row["lane"]: row for row in ask(trace, SLICES)}
    assert set(found) == set(slices) == {"compute", "storage"}
    for lane, row in found.items():
        assert int(row["slices"]) == slices[lane]
        assert int(row["nanoseconds"]) == pytest.approx(nanoseconds[lane], abs=slices[lane])
        assert int(row["depth"]) == 0, "no slice lies within another one"

    counted = [event["args"]["bytes"] for event in events if event["ph"] == "C"]
    (row,) = ask(trace, COUNTERS)
    assert (int(row["count"]), float(row["most"])) == (len(counted), max(counted))
