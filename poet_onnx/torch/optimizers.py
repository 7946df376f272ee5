"""torch's own optimizers, with the settings of ours."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from poet_onnx.description.optimizers import SGD, Adam, AdamW, Optimizer

if TYPE_CHECKING:
    import torch

Array = npt.NDArray[Any]


class TorchUpdates:
    """Updates of torch's optimizer in double precision, by gradients that it is given."""

    def __init__(self, rules: Mapping[str, tuple[Optimizer, float]], parameters: Mapping[str, Array]) -> None:
        """Start.

        Args:
            rules: by parameter, settings of an optimizer that torch has, too (see `has`), and a factor of the learning
                rate. Parameters with equal ones are a parameter group of torch's.
            parameters: by name.
        """
        import torch

        self._tensors = {name: torch.from_numpy(each.astype(np.float64)) for name, each in parameters.items()}
        grouped: dict[tuple[Optimizer, float], list[torch.Tensor]] = {}
        for name, tensor in self._tensors.items():
            grouped.setdefault(rules[name], []).append(tensor)
        self._optimizer = _optimizer(grouped)

    @property
    def names(self) -> Collection[str]:
        """Return the names of the parameters."""
        return self._tensors.keys()

    @staticmethod
    def has(settings: Optimizer) -> bool:
        """Return whether torch has such an optimizer."""
        return type(settings) in (SGD, Adam, AdamW)

    def step(self, before: Mapping[str, Array], gradients: Mapping[str, Array]) -> dict[str, Array]:
        """Return parameters after an update.

        Args:
            before: what they are before it.
            gradients: of all of them.
        """
        import torch

        with torch.no_grad():
            for name, tensor in self._tensors.items():
                tensor.copy_(torch.from_numpy(before[name]))
                tensor.grad = torch.from_numpy(np.array(gradients[name], np.float64))
        self._optimizer.step()
        return {name: tensor.numpy().copy() for name, tensor in self._tensors.items()}


def _optimizer(grouped: Mapping[tuple[Optimizer, float], list[torch.Tensor]]) -> torch.optim.Optimizer:
    """Return torch's optimizer of parameters, by their settings, which differ in weight decay alone, and factor."""
    import torch

    tensors = [
        {"params": each, "lr": lr_scale * settings.learning_rate, "weight_decay": settings.weight_decay}
        for (settings, lr_scale), each in grouped.items()
    ]
    settings = next(iter(grouped))[0]
    if isinstance(settings, SGD):
        return torch.optim.SGD(
            tensors, lr=settings.learning_rate, momentum=settings.momentum, nesterov=settings.nesterov
        )
    made = torch.optim.AdamW if isinstance(settings, AdamW) else torch.optim.Adam
    return made(tensors, betas=(settings.beta1, settings.beta2), eps=settings.epsilon)
