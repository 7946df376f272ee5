"""Which calls of torch drop numbers at random: with which probability, of how many tensors, and in which module."""

from __future__ import annotations

import functools
import inspect
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from types import FrameType
from typing import TYPE_CHECKING, Any

from poet_onnx.errors import listed
from poet_onnx.torch.modes import answered

if TYPE_CHECKING:
    from torch import nn

LAYERS = ("lstm", "gru", "rnn_tanh", "rnn_relu")
"""torch's functions of recurrent layers, which drop numbers between them."""

PLAIN = ("dropout", "dropout_")
CHANNELS = ("feature_dropout", "feature_dropout_")
SHIFTED = ("alpha_dropout", "alpha_dropout_", "feature_alpha_dropout", "feature_alpha_dropout_")
"""Operators of torch that drop numbers, whole channels, and numbers to which the others are fitted."""

_SHOWN = 3
"""Calls that a sentence names."""

_PRODUCT = ("query", "key", "value", "attn_mask", "dropout_p", "is_causal", "scale", "enable_gqa")


@dataclass(frozen=True)
class Drop:
    """A call that drops.

    Attributes:
        name: of the part of the module that makes it; empty for the module itself.
        kind: class of that part.
        ratio: its probability.
        times: of how many tensors it drops numbers.
    """

    name: str
    kind: str
    ratio: float
    times: int

    def __str__(self) -> str:
        """Name who makes it."""
        return f"'{self.name}' ({self.kind})" if self.name else self.kind


def drop_of(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any], module: nn.Module) -> Drop | None:
    """Return what a call of torch drops; None if it drops nothing.

    Args:
        func: torch's function.
        args: that it is given.
        kwargs: that it is given.
        module: whose parts make the call.
    """
    read = _known().get(func)
    if read is None:
        return None
    ratio, times = read(given(func, args, kwargs))
    return Drop(*_caller(module), ratio, times) if ratio > 0 and times else None


@contextmanager
def recorded_drops(module: nn.Module, drops: list[Drop]) -> Iterator[None]:
    """Note in a list, which is emptied first, what the calls in this context drop.

    Args:
        module: whose parts make the calls.
        drops: the list.
    """

    def record(func: Any, args: Any, kwargs: Any) -> Any:
        drop = drop_of(func, args, kwargs, module)
        if drop is not None:
            drops.append(drop)
        return func(*args, **kwargs)

    drops.clear()
    with answered(record):
        yield


def dropped_in_evaluation(name: str, drops: Sequence[Drop]) -> str:
    """Return a sentence about what a module of this name drops in eval mode; an empty one if it drops nothing."""
    if not drops:
        return ""
    calls = listed(dict.fromkeys(f"p={each.ratio:g} in {each}" for each in drops), _SHOWN)
    return (
        f"{name} drops numbers in eval mode, too ({calls}). It trains as in torch, but `session.eval()` and exported"
        " models drop nothing. If torch is to drop nothing there, too, give F.dropout `training=self.training`, and"
        " attention a `dropout_p` of 0 in eval mode."
    )


def given(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments of one of the functions that may drop numbers, by name."""
    if inspect.isfunction(func):
        bound = inspect.signature(func).bind(*args, **kwargs)
        bound.apply_defaults()
        return dict(bound.arguments)
    name = func.__name__
    if name in LAYERS:
        # Of packed sequences a function takes the size of the batch at each time, too.
        packed = len(args) > 3 and isinstance(args[3], (list, tuple))
        names = ("input", *(("batch_sizes",) if packed else ()), "hx", "params", "has_biases", "num_layers")
        names = (*names, "dropout", "train", "bidirectional", "batch_first")
    else:
        names = _PRODUCT if name == "scaled_dot_product_attention" else ("input", "p", "train")
    return {**dict(zip(names, args, strict=False)), **kwargs}


@functools.cache
def _known() -> Mapping[Any, Callable[[Mapping[str, Any]], tuple[float, int]]]:
    """Return what tells of the arguments of each function how much it drops, and of how many tensors."""
    import torch
    from torch.nn import functional

    operators = [getattr(torch, name) for name in (*PLAIN, *CHANNELS, *SHIFTED)]
    names = ("dropout", "dropout1d", "dropout2d", "dropout3d", "alpha_dropout", "feature_alpha_dropout")
    functions = [getattr(functional, name) for name in names]
    layers = [getattr(torch, name) for name in LAYERS]
    return {
        **dict.fromkeys(operators, lambda given: (given["p"] if given["train"] else 0.0, 1)),
        **dict.fromkeys(functions, lambda given: (given["p"] if given["training"] else 0.0, 1)),
        **dict.fromkeys(layers, lambda given: (given["dropout"] if given["train"] else 0.0, given["num_layers"] - 1)),
        functional.multi_head_attention_forward: lambda given: (given["dropout_p"] if given["training"] else 0.0, 1),
        functional.scaled_dot_product_attention: lambda given: (given.get("dropout_p", 0.0), 1),
    }


def _caller(module: nn.Module) -> tuple[str, str]:
    """Return the name and the class of the part of a module whose code is running."""
    from torch import nn

    frame: FrameType | None = sys._getframe(1)
    found: Any = None
    while frame is not None and not isinstance(found, nn.Module):
        names = frame.f_code.co_varnames if frame.f_code.co_name == "forward" else ()
        found = frame.f_locals.get(names[0]) if names else None
        frame = frame.f_back
    found = found if isinstance(found, nn.Module) else module
    return next((name for name, each in module.named_modules() if each is found), ""), type(found).__name__
