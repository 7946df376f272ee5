"""torch's own optimizers, with the settings of ours."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from poet_onnx.description.optimizers import SGD, Adam, AdamW, Optimizer

if TYPE_CHECKING:
    import torch

Array = npt.NDArray[Any]

_UPDATE, _LAST_BITS = 1e-4, 2.0**-22
"""A change may be off by these shares of the update, and of the parameter, which is rounded."""


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

    def first_problem(
        self, before: Mapping[str, Array], after: Mapping[str, Array], gradients: Mapping[str, Array]
    ) -> str | None:
        """Return a sentence on the first parameter that an update moved otherwise than torch does; None without one.

        Args:
            before: parameters of a training graph before the update.
            after: the same ones after it.
            gradients: of the update; those of parameters that torch's optimizer does not have are left out.
        """
        known = [name for name in gradients if name in self._tensors]
        exact = {name: before[name].astype(np.float64) for name in known}
        theirs = self.step(exact, {name: gradients[name] for name in known})
        problems = (_problem(name, exact[name], after[name].astype(np.float64), theirs[name]) for name in known)
        return next(filter(None, problems), None)


def _problem(name: str, before: Array, after: Array, theirs: Array) -> str | None:
    """Return a sentence on the number of a parameter that is farthest from torch's, if it is too far."""
    moved = theirs - before
    allowed = _UPDATE * np.abs(moved) + _LAST_BITS * np.maximum(np.abs(before), np.abs(after))
    finite = np.isfinite(moved)
    allowed += _LAST_BITS * float(np.abs(moved[finite]).max(initial=0.0))  # a gradient and its decay may cancel
    off = np.where(np.isnan(after) & ~finite, 0.0, np.abs(after - theirs) - allowed)
    if not off.size or float(off.max()) <= 0.0:
        return None
    place = np.unravel_index(int(off.argmax()), off.shape)
    at = f"{name}{[int(index) for index in place] if place else ''}"
    return (
        f"The optimizer moves '{at}' by {float((after - before)[place]):.6g} in the training graph and by"
        f" {float(moved[place]):.6g} in torch, for the same gradient."
    )


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
