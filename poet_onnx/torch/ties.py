"""Nodes of the legacy exporter are told for which call of torch they stand, where calls differ at bounds and ties.

The result of such a call goes through an operator that names it. In the exported model the node behind takes the name.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import onnx_ir as ir

from poet_onnx.description.names import TORCH_CALL
from poet_onnx.gradients.forward.patterns import is_op
from poet_onnx.torch.modes import answered
from poet_onnx.torch.stops import DOMAIN

_OPERATOR = "result_of"

_WRITTEN = ("Clip", "Max", "Min", "ReduceMax", "ReduceMin")
"""The operators that the exporter writes the calls as."""


@contextmanager
def with_named_calls() -> Iterator[None]:
    """Let results of the calls go through the operator of this module, in this context."""
    import torch

    named = _named()

    def name(func: Any, args: Any, kwargs: Any) -> Any:
        found = func(*args, **kwargs)
        kind = named.get(func, "")
        if kind in ("max", "min"):
            if isinstance(found, tuple):  # of a dimension: extremes, and where they are
                return type(found)((_operator()(found[0], f"{kind}.dim"), *found[1:]))
            others = *args[1:], *kwargs.values()
            kind = f"{kind}.other" if any(isinstance(each, torch.Tensor) for each in others) else ""
        return _operator()(found, kind) if kind and found.is_floating_point() else found

    with answered(name):
        yield


def legacy_names() -> None:
    """Tell torch's legacy exporter how the operator is written."""
    import torch
    from torch.onnx import symbolic_helper

    @symbolic_helper.parse_args("v", "s")
    def write(graph: Any, x: Any, kind: str) -> Any:
        return graph.op(f"{DOMAIN}::{_OPERATOR}", x, kind_s=kind).setType(x.type())

    _operator()
    torch.onnx.register_custom_op_symbolic(f"{DOMAIN}::{_OPERATOR}", write, 1)  # type: ignore[attr-defined]


def name_calls(model: ir.Model) -> None:
    """Write the names into the metadata of the nodes behind the operator, which goes; changes the model."""
    for node in [each for each in model.graph if (each.domain, each.op_type) == (DOMAIN, _OPERATOR)]:
        source = node.inputs[0]
        assert source is not None
        _tell(source.producer(), node.attributes.get_string("kind", ""))
        node.outputs[0].replace_all_uses_with(source, replace_graph_outputs=True)
        model.graph.remove(node, safe=True)


def _tell(node: ir.Node | None, kind: str) -> None:
    if node is None or not is_op(node, *_WRITTEN):
        return
    node.metadata_props[TORCH_CALL] = kind
    below = node.inputs[0]
    if kind == "clamp" and is_op(node, "Min") and below is not None and is_op(below.producer(), "Max"):
        _tell(below.producer(), kind)  # bounds on both sides that are tensors


@functools.cache
def _named() -> Mapping[Any, str]:
    """Return the names of the functions; for `max` and `min` the arguments decide."""
    import torch
    from torch.nn import functional

    kinds = {
        "clamp": ("clamp", "clamp_", "clip", "clip_", "clamp_min", "clamp_min_", "clamp_max", "clamp_max_"),
        "maximum.default": ("maximum",),
        "minimum.default": ("minimum",),
        "max": ("max",),
        "min": ("min",),
    }
    found: dict[Any, str] = {functional.hardtanh: "hardtanh"}  # Clip of 0 and 6 is relu6 without a name
    for kind, names in kinds.items():
        for place in (torch, torch.Tensor):
            found |= {getattr(place, each): kind for each in names if hasattr(place, each)}
    return found


@functools.cache
def _operator() -> Any:
    """Return the operator, registered with torch: its result is its input."""
    import torch

    @torch.library.custom_op(f"{DOMAIN}::{_OPERATOR}", mutates_args=(), schema="(Tensor x, str kind) -> Tensor")
    def result_of(x: torch.Tensor, kind: str) -> torch.Tensor:
        return x.clone()

    result_of.register_autograd(lambda _, gradient: (gradient, None))
    return result_of
