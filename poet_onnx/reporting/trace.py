"""The plan of a step in Chrome's trace format, which Perfetto (ui.perfetto.dev) and chrome://tracing open.

Format: "Trace Event Format", Google. Times are microseconds. Lanes are threads of one process; bytes are a counter.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from itertools import pairwise
from typing import Any

from poet_onnx.plan import Action
from poet_onnx.reporting.layers import ACTIONS, Layer
from poet_onnx.reporting.picture import StepPicture

_COMPUTE, _STORAGE = 1, 2
_MICRO = 1e6
_MOVES = {Action.PAGE_OUT_START: "page out", Action.PAGE_IN_START: "page in", Action.COMPUTE: "store of"}


def trace_of(picture: StepPicture) -> str:
    """Return the rewritten step as JSON: what computing thread and storage do, and the bytes that it holds."""
    layer = picture.layers[-1]
    lanes = [*_one_by_one(_computing(picture, layer)), *_one_by_one(_moving(picture, layer))]
    events = [*_names(picture), *lanes, *_memory(layer)]
    events.sort(key=lambda event: event.get("ts", 0.0))  # stable: names come first
    about = {"model": picture.model, "device": picture.device, "origin": "plan"}
    return (
        json.dumps({"displayTimeUnit": "ms", "otherData": about, "traceEvents": events}, separators=(",", ":")) + "\n"
    )


def _names(picture: StepPicture) -> Iterator[dict[str, Any]]:
    yield _name("process_name", 0, f"training step of {picture.model}")
    yield _name("thread_name", _COMPUTE, "compute")
    yield _name("thread_name", _STORAGE, "storage")


def _name(what: str, lane: int, name: str) -> dict[str, Any]:
    return {"name": what, "ph": "M", "pid": 1, "tid": lane, "args": {"name": name}}


def _span(name: str, category: str, lane: int, times: tuple[float, float], args: dict[str, Any]) -> dict[str, Any]:
    start, end = times
    return {
        "name": name,
        "cat": category,
        "ph": "X",
        "pid": 1,
        "tid": lane,
        "ts": _micro(start),
        "dur": round(max(0.0, _micro(end) - _micro(start)), 3),
        "args": args,
    }


def _micro(seconds: float) -> float:
    return round(seconds * _MICRO, 3)


def _one_by_one(spans: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the spans of a lane, none of which lasts into the next one by what rounding adds."""
    found = sorted(spans, key=lambda span: span["ts"])
    for span, following in pairwise(found):
        span["dur"] = min(span["dur"], round(following["ts"] - span["ts"], 3))
    return found


def _computing(picture: StepPicture, layer: Layer) -> Iterator[dict[str, Any]]:
    nodes, steps = picture.nodes, layer.steps
    for step, action in enumerate(steps.actions):
        if ACTIONS[action] is not Action.COMPUTE:
            continue
        node, copy = steps.subjects[step], steps.copies[step]
        start = steps.starts[step] + nodes.wait_seconds[node]
        args = {"step": step, "node": nodes.names[node], "joules": nodes.joules[node], "run": copy + 1}
        category = "recompute" if copy else nodes.phases[node].value
        end = steps.starts[step] + nodes.seconds[node]
        yield _span(nodes.operators[node], category, _COMPUTE, (start, end), args)


def _moving(picture: StepPicture, layer: Layer) -> Iterator[dict[str, Any]]:
    moves = zip(layer.transfers.steps, layer.transfers.starts, layer.transfers.ends, strict=True)
    for step, start, end in moves:
        action, subject = ACTIONS[layer.steps.actions[step]], layer.steps.subjects[step]
        if action is Action.COMPUTE:
            name = picture.nodes.names[subject]
            moved = {"read_bytes": picture.nodes.read_bytes[subject]}
            moved["written_bytes"] = picture.nodes.written_bytes[subject]
        else:
            name, moved = picture.tensors.names[subject], {"size_bytes": picture.tensors.sizes[subject]}
        yield _span(f"{_MOVES[action]} {name}", "transfer", _STORAGE, (start, end), {"step": step, **moved})


def _memory(layer: Layer) -> Iterator[dict[str, Any]]:
    for start, size_bytes in zip(layer.steps.starts, layer.steps.live_bytes, strict=True):
        args = {"bytes": size_bytes}
        yield {"name": "transient bytes", "ph": "C", "pid": 1, "tid": 0, "ts": _micro(start), "args": args}
    args = {"bytes": 0}
    yield {"name": "transient bytes", "ph": "C", "pid": 1, "tid": 0, "ts": _micro(layer.seconds), "args": args}
