"""What exporters forget of a call of torch: where it stops gradients (`detach`, `no_grad`), and its layout."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import onnx_ir as ir

from poet_onnx.description.names import STOPS_GRADIENT
from poet_onnx.gradients.torch_arguments import CALL
from poet_onnx.gradients.torch_calls import is_detach
from poet_onnx.torch.functions import around_functions
from poet_onnx.torch.modes import answered

if TYPE_CHECKING:
    from torch import Tensor

DOMAIN, OPERATOR = "poet_onnx", "stop_gradient"
"""The operator that stands in a trace where a tensor is to have no gradient."""


@contextmanager
def marked() -> Iterator[None]:
    """Let a tensor that torch gives no gradient go through the operator of this module, in this context.

    The forward of an `autograd.Function` runs without gradients, and has one all the same: it is not marked.
    """
    import torch
    from torch.utils import _pytree as pytree

    stop = operator()
    detaching = {torch.Tensor.detach, torch.detach, torch.Tensor.data.__get__}  # type: ignore[attr-defined]

    running: list[Any] = []

    def mark(func: Any, args: Any, kwargs: Any) -> Any:
        """Mark the result of a call that cuts it off from what it is computed of."""
        found = func(*args, **kwargs)
        if func is torch.nn.functional.embedding:
            return _padded(found, *args, **kwargs)
        if func is torch.nn.functional.scaled_dot_product_attention:
            return _laid_out(found, *args, **kwargs)
        if running or (func not in detaching and torch.is_grad_enabled()):
            return found
        if not isinstance(found, torch.Tensor) or not found.is_floating_point() or found.requires_grad:
            return found
        given = pytree.tree_leaves((args, kwargs))
        if any(isinstance(each, torch.Tensor) and each.requires_grad for each in given):
            return stop(found)
        return found

    def unmarked(function: Any, run: Callable[[], Any], *_: Any) -> Any:
        running.append(function)
        try:
            return run()
        finally:
            running.pop()

    with around_functions(unmarked), answered(mark):
        yield


def _padded(found: Tensor, input: Tensor, weight: Tensor, padding_idx: int | None = None, *_: Any, **__: Any) -> Tensor:
    """Return embeddings of which those of the padding have no gradient, as in torch's backward."""
    import torch

    if padding_idx is None or not found.requires_grad:
        return found
    row = padding_idx if padding_idx >= 0 else weight.shape[0] + padding_idx
    return torch.where((input == row).unsqueeze(-1), operator()(found.detach()), found)


def _laid_out(
    found: Tensor, query: Tensor, key: Tensor, value: Tensor, attn_mask: Tensor | None = None, *_: Any, **__: Any
) -> Tensor:
    """Return what attention gives in the usual layout.

    Beside a mask that is trained, such as a position bias, torch traces another layout than it exports, and then ends
    with "Cannot view a tensor" (torch 2.13.0).
    """
    import torch

    is_trained = attn_mask is not None and attn_mask.requires_grad
    return found.clone(memory_format=torch.contiguous_format) if is_trained else found


@functools.cache
def operator() -> Any:
    """Return the operator, registered with torch: its result is its input."""
    import torch

    @torch.library.custom_op(f"{DOMAIN}::{OPERATOR}", mutates_args=(), schema="(Tensor x) -> Tensor")
    def stop_gradient(x: torch.Tensor) -> torch.Tensor:
        return x.clone()

    @stop_gradient.register_fake
    def _(x: Tensor) -> Tensor:
        return torch.empty_like(x)

    return stop_gradient


def legacy_symbol() -> None:
    """Tell torch's legacy exporter how the operator is written."""
    import torch

    def write(graph: Any, x: Any) -> Any:
        return graph.op(f"{DOMAIN}::{OPERATOR}", x).setType(x.type())

    torch.onnx.register_custom_op_symbolic(  # type: ignore[attr-defined]
        f"{DOMAIN}::{OPERATOR}", write, 1
    )


def dynamo_table() -> dict[Any, Any]:
    """Return for torch's dynamo exporter how the operator is written."""
    import torch
    from onnxscript import opset18

    def write(x: Any) -> Any:
        return opset18.Identity(x)

    operator()
    return {getattr(getattr(torch.ops, DOMAIN), OPERATOR).default: write}


def mark_stops(model: ir.Model) -> None:
    """Make the operator's nodes an Identity through which no gradient flows; changes the model.

    Nodes of `detach` go by no call any more: those that cut gradients off have such an operator behind them, and others
    are inside of an `autograd.Function`.
    """
    for node in model.graph:
        if is_detach(node):
            del node.metadata_props[CALL]
        origin = node.metadata_props.get(CALL, "")
        if node.domain == DOMAIN:
            node.domain, node.op_type = "", "Identity"
        elif f"target=torch.ops.{DOMAIN}.{OPERATOR}." not in origin:
            continue
        node.metadata_props[STOPS_GRADIENT] = "1"
    model.opset_imports.pop(DOMAIN, None)
