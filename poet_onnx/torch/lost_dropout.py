"""Dropout that an exporter loses: what torch drops in a step, beside the nodes of the graph that drop.

The comparison of a training graph with torch runs both without dropout, so it cannot see that.
"""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import onnx_ir as ir

from poet_onnx.errors import InputError, PoetWarning, listed
from poet_onnx.gradients.forward.patterns import is_op
from poet_onnx.gradients.module_names import is_call_of, module_of
from poet_onnx.passes.fused.reading import number_in
from poet_onnx.torch.calls import wrap
from poet_onnx.torch.drops import Drop, drop_of
from poet_onnx.torch.modes import answered
from poet_onnx.torch.reference import RAISED
from poet_onnx.torch.untouched import untouched

if TYPE_CHECKING:
    from torch import Tensor, nn

_SHOWN = 3
"""Modules that a sentence names."""

_DIGITS = 5
"""Decimal digits by which probabilities are told apart: those of a graph are in single precision."""


def check_drops(model: ir.Model, drops: Sequence[Drop], module: nn.Module, example_inputs: Any) -> None:
    """Compare the graph of a module with what the calls of torch dropped in the trace that it was made of.

    Raises:
        InputError: if the graph drops less, and that changes what the module returns.
    """
    nodes = list(_dropping(model)) if drops else []
    found = Counter(ratio for ratio, _ in nodes)
    wanted = _counted(drops)
    short = [ratio for ratio, count in wanted.items() if count > found[ratio]]
    if not short:
        return
    leading = _counted(_leading(module, example_inputs))
    for ratio in short:
        lost = _lost([each for each in drops if _key(each.ratio) == ratio], nodes)
        is_certain = leading[ratio] > found[ratio]
        sentence = (
            f"Dropout with p={ratio:g} {'is' if is_certain else 'may be'} lost: torch has {wanted[ratio]} in a step of"
            f" {type(module).__name__}, and the exported graph {found[ratio]}. torch's exporter leaves out that of"
            f" {lost}."
        )
        if is_certain:
            raise InputError(
                f"{sentence} Write it as nn.Dropout between plain layers, not in place, try the other exporter, or"
                " train without it (p=0)."
            )
        warnings.warn(
            f"{sentence} It could not be told whether anything that is trained depends on it.",
            PoetWarning,
            stacklevel=4,
        )


def _counted(drops: Sequence[Drop]) -> Counter[float]:
    """Return of how many tensors numbers are dropped, by probability."""
    found: Counter[float] = Counter()
    for each in drops:
        found[_key(each.ratio)] += each.times
    return found


def _dropping(model: ir.Model) -> Iterator[tuple[float, str]]:
    """Yield for each node that drops its probability, and the module in which it is."""
    for graph in (model.graph, *(function.graph for function in model.functions.values())):
        for node in graph.all_nodes():
            if not is_op(node, "Dropout"):
                continue
            ratio, training = (*map(number_in, node.inputs[1:]), None, None)[:2]
            if ratio and training:
                yield _key(ratio), module_of(node)


def _key(ratio: float) -> float:
    return round(ratio, _DIGITS)


def _lost(drops: Sequence[Drop], nodes: Sequence[tuple[float, str]]) -> str:
    """Name the calls for which there is no node in their module; all of them where nobody says that."""
    left = [scope for ratio, scope in nodes if ratio in {_key(each.ratio) for each in drops}]
    missing: list[Drop] = []
    for each in drops:
        own = [scope for scope in left if is_call_of(scope, each.name)][: each.times]
        for scope in own:
            left.remove(scope)
        missing += [each] if len(own) < each.times else []
    return listed(dict.fromkeys(map(str, missing or drops)), _SHOWN)


def _leading(module: nn.Module, example_inputs: Any) -> list[Drop]:
    """Return the calls on which something that the module returns depends, by torch's gradients."""
    import torch

    marks: list[tuple[Drop, Tensor]] = []
    call = wrap(module, example_inputs, lambda: _marking(module, marks))
    try:
        with untouched(module), torch.enable_grad(), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            outputs = call.wrapper(*call.inputs.values())
            total = sum(each.sum() for each in outputs if each.requires_grad)
            if not isinstance(total, torch.Tensor):
                return []
            gradients = torch.autograd.grad(total, [mark for _, mark in marks], allow_unused=True)
    except RAISED:
        return []
    return [drop for (drop, _), gradient in zip(marks, gradients, strict=True) if gradient is not None]


@contextmanager
def _marking(module: nn.Module, marks: list[tuple[Drop, Tensor]]) -> Iterator[None]:
    """Add a zero of its own to the results of each call that drops, in this context."""
    import torch
    from torch.utils import _pytree as pytree

    def mark(func: Any, args: Any, kwargs: Any) -> Any:
        found = func(*args, **kwargs)
        drop = drop_of(func, args, kwargs, module)
        if drop is None:
            return found
        zero = torch.zeros((), requires_grad=True)
        marks.append((drop, zero))
        in_place = any(each is found for each in (*args, *kwargs.values()))

        def add(each: Any) -> Any:
            if not isinstance(each, torch.Tensor) or not each.is_floating_point():
                return each
            return each.add_(zero) if in_place else each + zero

        return pytree.tree_map(add, found)

    with answered(mark):
        yield
