"""The plan of a step in Chrome's trace format, which Perfetto (ui.perfetto.dev) and chrome://tracing open.

Format: "Trace Event Format", Google. Times are microseconds. Lanes are threads of one process; bytes are a counter. A
measured step is another process beside the plan.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from itertools import pairwise
from typing import Any

from poet_onnx.description.names import RECOMPUTED
from poet_onnx.plan import Action
from poet_onnx.reporting.layers import ACTIONS, Layer
from poet_onnx.reporting.picture import StepPicture
from poet_onnx.reporting.recording import Recording

_PLAN, _RUN = 1, 2
_COMPUTE, _STORAGE = 1, 2
_PAGES = ("PageOut", "PageIn")
"""How operators begin that move values to storage and back."""
_MICRO = 1e6
_MOVES = {Action.PAGE_OUT_START: "page out", Action.PAGE_IN_START: "page in", Action.COMPUTE: "store of"}


def trace_of(picture: StepPicture, recording: Recording | None = None) -> str:
    """Return the rewritten step as JSON: what computing thread and storage do, and the bytes that it holds.

    Args:
        picture: of the step.
        recording: the same step, measured; None without one.
    """
    layer = picture.layers[-1]
    lanes = [*_one_by_one(_computing(picture, layer)), *_one_by_one(_moving(picture, layer))]
    events = [*_names(_PLAN, f"plan of a training step of {picture.model}"), *lanes, *_memory(layer)]
    about = {"model": picture.model, "device": picture.device, "origin": "plan"}
    if recording is not None:
        events += [*_names(_RUN, f"measured step of {picture.model}"), *_recorded(picture, recording)]
        about["origin"] = "plan and measured step"
    events.sort(key=lambda event: event.get("ts", 0.0))  # stable: names come first
    return (
        json.dumps({"displayTimeUnit": "ms", "otherData": about, "traceEvents": events}, separators=(",", ":")) + "\n"
    )


def _names(process: int, name: str) -> Iterator[dict[str, Any]]:
    yield _name("process_name", process, 0, name)
    yield _name("thread_name", process, _COMPUTE, "compute")
    yield _name("thread_name", process, _STORAGE, "storage" if process == _PLAN else "waiting for storage")


def _name(what: str, process: int, lane: int, name: str) -> dict[str, Any]:
    return {"name": what, "ph": "M", "pid": process, "tid": lane, "args": {"name": name}}


def _span(name: str, category: str, lane: int, times: tuple[float, float], args: dict[str, Any]) -> dict[str, Any]:
    start, end = times
    return {
        "name": name,
        "cat": category,
        "ph": "X",
        "pid": _PLAN,
        "tid": lane,
        "ts": _micro(start),
        "dur": round(max(0.0, _micro(end) - _micro(start)), 3),
        "args": args,
    }


def _recorded(picture: StepPicture, recording: Recording) -> list[dict[str, Any]]:
    """Return the nodes of a measured step; those that move bytes to or from storage have a lane of their own."""
    nodes = picture.nodes
    places = {name: place for place, name in enumerate(nodes.names)}
    lanes: dict[int, list[dict[str, Any]]] = {_COMPUTE: [], _STORAGE: []}
    for ran in recording.nodes:
        own, _, copy = ran.name.partition(RECOMPUTED)
        place = places.get(own)
        moves = place is not None and nodes.read_bytes[place] + nodes.written_bytes[place] > 0
        lane = _STORAGE if moves or ran.operator.startswith(_PAGES) else _COMPUTE
        phase = "transfer" if place is None else nodes.phases[place].value
        times = (ran.start_seconds, ran.start_seconds + ran.seconds)
        category = "recompute" if copy else phase
        lanes[lane].append(_span(ran.operator, category, lane, times, {"node": ran.name}) | {"pid": _RUN})
    return [span for spans in lanes.values() for span in _one_by_one(spans)]


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
        yield {"name": "transient bytes", "ph": "C", "pid": _PLAN, "tid": 0, "ts": _micro(start), "args": args}
    args = {"bytes": 0}
    yield {"name": "transient bytes", "ph": "C", "pid": _PLAN, "tid": 0, "ts": _micro(layer.seconds), "args": args}
