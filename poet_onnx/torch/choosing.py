"""Which parameters of a module are to be trained."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from poet_onnx.errors import InputError
from poet_onnx.gradients.parameters import as_patterns, matches

if TYPE_CHECKING:
    from torch import nn


def chosen_parameters(module: nn.Module, train: str | Sequence[str] | None, freeze: str | Sequence[str]) -> list[str]:
    """Return the names of the parameters that are to be trained."""
    trainable = [name for name, parameter in module.named_parameters() if parameter.requires_grad]
    wanted, unwanted = as_patterns("*" if train is None else train), as_patterns(freeze)
    for pattern in (*wanted, *unwanted):
        if not any(matches(name, [pattern]) for name in trainable):
            shown = ", ".join(trainable[:6]) or "none"
            raise InputError(f"No parameter that requires a gradient is named '{pattern}'; the module has {shown}.")
    found = [name for name in trainable if matches(name, wanted) and not matches(name, unwanted)]
    if not found:
        raise InputError("Nothing is left to train: all parameters are frozen.")
    return found
