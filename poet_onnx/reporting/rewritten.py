"""A rewritten model, read back: the graph that was planned, its costs, the plan, and the addresses."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterator
from dataclasses import asdict, astuple, dataclass, replace

import onnx_ir as ir
import pydantic

from poet_onnx.addresses import false_addresses
from poet_onnx.addresses.region import Region
from poet_onnx.costing.costs import Channel, CostTable, NodeCost, TransferCost
from poet_onnx.description.energy import COSTS_KEY
from poet_onnx.errors import CheckFailedError, InputError, PoetError
from poet_onnx.graph import TrainingGraph
from poet_onnx.graph.extract import check_wellformed, extract
from poet_onnx.graph.loading import as_model
from poet_onnx.passes.annotate import COST_KEY
from poet_onnx.passes.arena import read_region
from poet_onnx.passes.metadata import BEFORE_KEY, PLAN_KEY, Settings, read_json, read_settings
from poet_onnx.passes.undo import UndoPlan
from poet_onnx.plan import Plan, Prediction, serialization
from poet_onnx.plan.figures import same
from poet_onnx.plan.problem import ScheduleProblem
from poet_onnx.quantities import is_number
from poet_onnx.rewriting.given_plan import false_figures
from poet_onnx.simulate import Replay, replay

_MOST = 2.0**63
_ORDERS = ("original", "ordered")
_AGAIN = "rewrite the original again with this version"


@dataclass(frozen=True)
class RewrittenStep:
    """The training step of a rewritten model.

    Attributes:
        problem: the graph that was planned, and its costs.
        plan: that the model carries out.
        replayed: the plan, step by step.
        region: where its blocks lie; None where the model has no addresses.
        settings: with which it was rewritten.
        original, ordered: what the model needs as it was given, and after ordering alone.
        nodes: of the model.
        time_measured: the nodes' seconds come from a profile.
    """

    problem: ScheduleProblem
    plan: Plan
    replayed: Replay
    region: Region | None
    settings: Settings
    original: Prediction
    ordered: Prediction
    nodes: int
    time_measured: bool


def read_rewritten(model_or_path: str | os.PathLike[str] | ir.Model) -> RewrittenStep:
    """Read the step of a rewritten model from the model alone, and replay its plan.

    Args:
        model_or_path: what poet-onnx made; it is not changed.

    Raises:
        InputError: if it was not rewritten, or by another version, or does not do what its plan says.
    """
    model = as_model(model_or_path)
    text = model.metadata_props.get(PLAN_KEY)
    if text is None:
        raise InputError(
            "The model holds no plan: give one that `poet-onnx rewrite` made, such as training_model.poet.onnx."
        )
    settings, nodes = read_settings(model), len(model.graph)
    try:
        region = read_region(model)
        undone = model.clone()
        UndoPlan()(undone)
        check_wellformed(undone)
        plan, graph = _planned(text, extract(undone, dims=settings.dims or None))
        costs, time_measured = _costs(undone, graph, plan.device)
        problem = ScheduleProblem(graph, costs)
        replayed = replay(problem, plan.steps)
        original, ordered = _before(model)
        false = [*false_figures(plan, replayed.prediction), *_other_costs(plan.prediction, replayed.prediction)]
        if region is not None:
            false += false_addresses(problem, plan.steps, region)
    except InputError:
        raise
    except (PoetError, ir.passes.PassError) as error:
        raise InputError(f"The model does not carry its plan out ({error}): {_AGAIN}.") from error
    if false:
        raise InputError(f"The model does not do what its plan says ({false[0].rstrip('.')}): {_AGAIN}.")
    return RewrittenStep(problem, plan, replayed, region, settings, original, ordered, nodes, time_measured)


def _other_costs(said: Prediction, here: Prediction) -> Iterator[str]:
    """Yield what a plan says of energy and time that the model's own costs do not make."""
    for name, unit in (("energy_joules", "J"), ("seconds", "s")):
        if not same(getattr(said, name), getattr(here, name)):
            yield f"it says {getattr(said, name):.6g} {unit}, but its nodes take {getattr(here, name):.6g} {unit}"


def _planned(text: str, graph: TrainingGraph) -> tuple[Plan, TrainingGraph]:
    """Return the plan, and the graph with its nodes in the order of the file that was planned.

    Views are where the rewritten file has them, and so its fingerprint is not the graph's: that of the plan stands for
    it, and the replay tells whether they belong together.
    """
    file = serialization.parse(text)
    computed = [node for node in graph.nodes if not node.view]
    order = serialization.file_order(file.steps, len(computed))
    if sorted(order) != list(range(len(computed))):
        raise CheckFailedError(f"The file has {len(computed)} nodes to compute, and its plan {len(order)}.")
    place = {node.name: number for node, number in zip(computed, order, strict=True)}
    nodes = sorted(graph.nodes, key=lambda node: place.get(node.name, math.inf))
    planned = replace(graph, nodes=tuple(nodes), fingerprint=file.fingerprint)
    return serialization.from_json(text, planned), planned


def _before(model: ir.Model) -> tuple[Prediction, Prediction]:
    """Return the figures of the model as given, and after ordering alone."""
    figures = read_json(model, BEFORE_KEY, None)
    try:
        original, ordered = (pydantic.TypeAdapter(Prediction).validate_python(figures[name]) for name in _ORDERS)
        for value in (*astuple(original), *astuple(ordered)):
            _figure(abs(value))  # rounding may bring a difference below zero
    except (KeyError, TypeError, ValueError) as error:
        raise CheckFailedError(f"{BEFORE_KEY} has no figures") from error
    return original, ordered


def _costs(model: ir.Model, graph: TrainingGraph, device: str) -> tuple[CostTable, bool]:
    """Return the costs that the model was planned with, and whether its times were measured."""
    shared = read_json(model, COSTS_KEY, None)
    if not isinstance(shared, dict):
        raise CheckFailedError(f"it has no {COSTS_KEY}")
    try:
        channel = None if shared["channel"] is None else _channel(shared["channel"])
        nodes = {}
        for node, source in zip(graph.nodes, _in_order(model, graph), strict=True):
            cost = json.loads(source.metadata_props[COST_KEY])
            nodes[node.name] = NodeCost(
                _figure(cost["seconds"]),
                _figure(cost["joules"]),
                int(_figure(cost["workspace_bytes"])),
                bool(shared["time_measured"]),
                _figure(cost.get("storage_seconds", 0.0)),
                _figure(cost.get("storage_joules", 0.0)),
            )
        pageable = [] if channel is None else [tensor for tensor in graph.tensors.values() if tensor.may_move]
        table = CostTable(
            device=device,
            nodes=nodes,
            page_out={each.name: channel.page_out(each.size_bytes) for each in pageable if channel is not None},
            page_in={each.name: channel.page_in(each.size_bytes) for each in pageable if channel is not None},
            asynchronous=bool(shared["asynchronous"]),
            idle_watts=_figure(shared["idle_watts"]),
            energy_measured=bool(shared["energy_measured"]),
            channel=channel,
            commit=TransferCost(0.0, 0.0) if channel is None else channel.commit(graph, nodes),
            wake_seconds=_figure(shared["wake_seconds"]),
            hand_over_seconds=_figure(shared["hand_over_seconds"]),
        )
    except (KeyError, TypeError, ValueError, ArithmeticError) as error:
        raise CheckFailedError(f"{COSTS_KEY} or {COST_KEY} has no figures") from error
    return table, bool(shared["time_measured"])


def _channel(figures: dict[str, object]) -> Channel:
    channel = Channel(**{name: _figure(value) for name, value in figures.items()})
    rates = [rate for name, rate in asdict(channel).items() if name.endswith("_bytes_per_second")]
    if not min(rates) > 0:
        raise ValueError("nothing moves")
    return channel


def _figure(value: object) -> float:
    """Return a number that can be one of seconds, joules or bytes."""
    if not is_number(value) or not 0 <= value <= _MOST:  # type: ignore[operator]
        raise ValueError(f"{value!r} is no figure")
    return float(value)  # type: ignore[arg-type]


def _in_order(model: ir.Model, graph: TrainingGraph) -> list[ir.Node]:
    sources = {node.name: node for node in model.graph}
    return [sources[node.name] for node in graph.nodes]
