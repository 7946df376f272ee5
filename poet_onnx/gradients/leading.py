"""Which of the parameters that are to be trained lead to the loss, and what is said of the others."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import onnx_ir as ir

from poet_onnx.adapters.lora import Adapters
from poet_onnx.errors import InputError
from poet_onnx.gradients.parameters import Parameters, refuse_doubts
from poet_onnx.gradients.paths import ends_of, find_paths
from poet_onnx.graph.shapes import infer


def leading(
    model: ir.Model,
    loss: str,
    chosen: Parameters,
    adapters: Adapters | None,
    warn: Callable[[str], None],
    *,
    is_named: bool,
) -> Parameters:
    """Return the parameters without those that do not lead to the loss, which stay as they are.

    Args:
        model: with the loss.
        loss: its name.
        chosen: what is to be trained.
        adapters: that are among it, all of which must lead to the loss.
        warn: called with a sentence about what stays though it was chosen by name, or the loss depends on it.
        is_named: whether it was chosen by name.

    Raises:
        InputError: if nothing leads to the loss, or what does may be a parameter or not.
    """
    graph = model.graph
    target = next((value for node in graph for value in node.outputs if value.name == loss), None)
    candidates = [graph.initializers[name] for name in chosen.trained if name in graph.initializers]
    if target is None:
        raise InputError(f"The model computes no tensor '{loss}': name one of its outputs as the loss.")
    types = infer(model).types
    in_doubt = [graph.initializers[each.name] for each in chosen.doubts if each.name in graph.initializers]
    lead = {value.name for value in find_paths(graph, target, in_doubt, types).values} if in_doubt else set()
    doubts = [each for each in chosen.doubts if each.name in lead or each.name not in graph.initializers]
    if doubts:
        refuse_doubts(chosen, doubts)
    found = find_paths(graph, target, candidates, types).values
    trained = tuple(value.name or "" for value in candidates if value in found)
    astray = tuple(name for name in chosen.trained if name not in trained)
    shown = ", ".join(map(repr, astray[:6])) or "a parameter"
    if not trained:
        raise InputError(f"No gradient of '{loss}' leads to {shown}: train others.")
    if adapters is not None and not set(astray).isdisjoint(adapters.parameters):
        raise InputError(f"No gradient of '{loss}' leads to {shown}: name other targets, or freeze their weights.")
    unreached = [value for value in candidates if value not in found]
    ends = ends_of(graph, target, unreached, types) if unreached else []
    if astray and (is_named or ends):
        warn(f"No gradient of '{loss}' leads to {shown}: not trained.{_reason(ends)}")
    return Parameters(trained, (*chosen.frozen, *astray), chosen.tied)


def _reason(ends: Sequence[ir.Node]) -> str:
    """Return a sentence about nodes at which gradients end; nothing where there are none."""
    if not ends:
        return ""
    return (
        f" That of {ends[0].op_type} '{ends[0].name}' is zero. Where torch has a backward of its own there, no file has"
        " it: poet_onnx.torch.export compares with torch."
    )
