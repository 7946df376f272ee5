"""Which parameters of a module are to be trained."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from poet_onnx.errors import InputError
from poet_onnx.gradients.parameters import as_patterns, matches, train_patterns
from poet_onnx.graph.extract import TO_FLOAT

if TYPE_CHECKING:
    from torch import nn


def chosen_parameters(
    module: nn.Module, train: str | Sequence[str] | None, freeze: str | Sequence[str], *, adapted: bool = False
) -> list[str]:
    """Return the names of the parameters that are to be trained.

    Args:
        module: that has them.
        train: patterns of names; None for all that require a gradient, and for none where there are adapters.
        freeze: patterns of names of those that are not.
        adapted: whether low-rank adapters are trained; then any weight may be frozen, which gets none.

    Raises:
        InputError: if a pattern names nothing, nothing is left to train, or it is not float32.
    """
    every = [name for name, _ in module.named_parameters()]
    trainable = [name for name, parameter in module.named_parameters() if parameter.requires_grad]
    only, besides = train_patterns(train)
    everything = () if adapted else ("*",)
    wanted, unwanted = (*(everything if only is None else only), *besides), as_patterns(freeze)
    for patterns, known in ((wanted, trainable), (unwanted, every if adapted else trainable)):
        for pattern in patterns:
            if not any(matches(name, [pattern]) for name in known):
                shown = ", ".join(known[:6]) or "none"
                raise InputError(f"No parameter that requires a gradient is named '{pattern}'; the module has {shown}.")
    found = [name for name in trainable if matches(name, wanted) and not matches(name, unwanted)]
    if not found and not adapted:
        raise InputError("Nothing is left to train: all parameters are frozen.")
    _check_types(module, found)
    return found


def _check_types(module: nn.Module, names: Sequence[str]) -> None:
    import torch

    parameters = dict(module.named_parameters())
    for name in names:
        if parameters[name].dtype != torch.float32:
            kind = str(parameters[name].dtype).removeprefix("torch.")
            raise InputError(f"Parameter '{name}' is {kind}, but only float32 is trained: {TO_FLOAT}, or freeze it.")
