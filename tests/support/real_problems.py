"""Scheduling problems of real models."""

from __future__ import annotations

from pathlib import Path

import onnx_ir as ir

from poet_onnx.costing.costs import cost_table
from poet_onnx.costing.device import load_device
from poet_onnx.graph.extract import extract, load_model
from poet_onnx.passes.normalize import normalize
from poet_onnx.plan.problem import ScheduleProblem


def real_problem(path: Path, device: str) -> ScheduleProblem:
    """Return the problem of a training graph on a device, without limits."""
    return prepare(path, device)[1]


def prepare(path: Path, device: str = "a72") -> tuple[ir.Model, ScheduleProblem]:
    """Return a training graph as it is planned, and its problem."""
    model = load_model(path)
    normalize()(model)
    graph = extract(model)
    return model, ScheduleProblem(graph, cost_table(graph, load_device(device)))
