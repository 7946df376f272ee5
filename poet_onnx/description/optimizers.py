"""Optimizers: their settings, and the numbers that their operators need at each step.

Formulas, for a parameter w and its gradient, g = scale * gradient (scale clips and averages); every operation is one
correctly rounded float operation, so the bits are the same on every machine and for every equal gradient:

    SGD     g = g + weight_decay * w;  b = momentum * b + g;  w = w - rate * b
            (with nesterov: w = w - rate * (g + momentum * b); without momentum: w = w - rate * g)
            Source: torch.optim.SGD without dampening.
    Adam    g = g + weight_decay * w;  m = beta1 * m + (1 - beta1) * g;  v = beta2 * v + ((1 - beta2) * g) * g
            w = w - (corrected * m) / (sqrt(v) + root * epsilon)
            with root = sqrt(1 - beta2^t), corrected = rate * root / (1 - beta1^t) at update t = 1, 2, ...
            Source: torch.optim.Adam, which computes rate / (1 - beta1^t) * m / (sqrt(v) / root + epsilon): the same
            number, for numerator and denominator are multiplied by root. Here that costs nothing for each element.
    AdamW   the same without weight_decay in g, but with (1 - rate * weight_decay) * w in the place of w
            Source: torch.optim.AdamW.
    AdamWOrt  as Adam without weight_decay in g, with epsilon alone in the place of root * epsilon, and then
            w = w - (rate * weight_decay) * w
            Source: AdamWComputeMode1 in orttraining/orttraining/training_ops/cpu/optimizer/adamw/adamw.cc of
            github.com/microsoft/onnxruntime, v1.19.2: what the optimizer model of onnxruntime.training.artifacts
            computes, with its default settings. On x86 that kernel approximates the square root; this one does not.

Factors are computed in double and rounded once, as torch does; those of AdamWOrt in float, as ONNX Runtime does.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import ClassVar

import numpy as np
import numpy.typing as npt

from poet_onnx.errors import InputError, shown
from poet_onnx.quantities import is_number

Rates = npt.NDArray[np.float32]

MOST_MISSED = 1024
"""Updates that a page of a stored table may miss before it gets them; ops/parameters/deferred_updates.h has this
number."""

_ONE = np.float32(1)
_LARGEST = float(np.finfo(np.float32).max)


@dataclass(frozen=True)
class SGD:
    """Stochastic gradient descent, with momentum if that is not 0; formula and defaults are those of torch.optim.SGD.

    Attributes:
        learning_rate: step size, where no schedule gives one.
        momentum: part of the last step that the next one keeps, 0 or more and less than 1.
        weight_decay: L2 penalty that is added to the gradient.
        nesterov: look ahead by the momentum.
    """

    learning_rate: float = 1e-3
    momentum: float = 0.0
    weight_decay: float = 0.0
    nesterov: bool = False

    def __post_init__(self) -> None:
        _check_numbers(self)
        _check(self.learning_rate >= 0, "learning_rate", self.learning_rate, "0 or more")
        _check(0 <= self.momentum < 1, "momentum", self.momentum, "0 or more and less than 1")
        _check(self.weight_decay >= 0, "weight_decay", self.weight_decay, "0 or more")
        _check(not self.nesterov or self.momentum > 0, "momentum", self.momentum, "more than 0 for nesterov")

    @property
    def kind(self) -> str:
        """What `rewrite` calls it."""
        return "momentum" if self.momentum else "sgd"

    @property
    def operator(self) -> str:
        """Operator of domain `poet` that makes the update."""
        return "UpdateMomentum" if self.momentum else "UpdateSgd"

    @property
    def slots(self) -> tuple[str, ...]:
        """Names of what is kept for each parameter."""
        return ("momentum",) if self.momentum else ()

    def rates(self, step: int, learning_rate: float, scale: float) -> Rates:
        """Return the operator's second input.

        Args:
            step: number of the update, 1 or more.
            learning_rate: of this update.
            scale: factor of the gradient.
        """
        plain = (scale, learning_rate, self.weight_decay)
        more = (self.momentum, float(self.nesterov)) if self.momentum else ()
        return np.array((*plain, *more), np.float32)


@dataclass(frozen=True)
class Adam:
    """Adam, with its weight decay as an L2 penalty in the gradient; formula and defaults are those of torch.optim.Adam.

    Attributes:
        learning_rate: step size, where no schedule gives one.
        beta1: part of the mean gradient that each step keeps.
        beta2: part of the mean squared gradient that each step keeps.
        epsilon: added to the square root, after its bias is corrected.
        weight_decay: L2 penalty that is added to the gradient.
    """

    learning_rate: float = 1e-3
    beta1: float = 0.9
    beta2: float = 0.999
    epsilon: float = 1e-8
    weight_decay: float = 0.0

    kind: ClassVar[str] = "adam"
    """What `rewrite` calls it."""

    def __post_init__(self) -> None:
        _check_numbers(self)
        _check(self.learning_rate >= 0, "learning_rate", self.learning_rate, "0 or more")
        for name in ("beta1", "beta2"):
            beta = getattr(self, name)
            _check(
                beta >= 0 and float(np.float32(beta)) < 1, name, beta, "0 or more and, in single precision, less than 1"
            )
        _check(bool(np.float32(self.epsilon) > 0), "epsilon", self.epsilon, "more than 0 in single precision")
        _check(self.weight_decay >= 0, "weight_decay", self.weight_decay, "0 or more")

    @property
    def operator(self) -> str:
        """Operator of domain `poet` that makes the update."""
        return "UpdateAdam"

    @property
    def slots(self) -> tuple[str, ...]:
        """Names of what is kept for each parameter."""
        return ("first_moment", "second_moment")

    def rates(self, step: int, learning_rate: float, scale: float) -> Rates:
        """Return the operator's second input.

        Args:
            step: number of the update, 1 or more.
            learning_rate: of this update.
            scale: factor of the gradient.
        """
        rate, beta1, beta2 = float(learning_rate), float(self.beta1), float(self.beta2)
        root = math.sqrt(1 - beta2**step)
        moments = (beta1, 1 - beta1, beta2, 1 - beta2, root * float(self.epsilon))
        keep, l2 = self._decays(rate)
        return np.array((scale, rate * root / (1 - beta1**step), *moments, keep, 0.0, l2), np.float32)

    def _decays(self, rate: float) -> tuple[float, float]:
        """Return what is kept of a parameter, and how much of it is added to its gradient."""
        return 1.0, self.weight_decay


@dataclass(frozen=True)
class AdamW(Adam):
    """Adam with decoupled weight decay; formula and defaults are those of torch.optim.AdamW.

    Attributes:
        learning_rate: step size, where no schedule gives one.
        beta1: part of the mean gradient that each step keeps.
        beta2: part of the mean squared gradient that each step keeps.
        epsilon: added to the square root, after its bias is corrected.
        weight_decay: part of the parameter, times the learning rate, that each step takes away before it moves.
    """

    weight_decay: float = 1e-2

    kind: ClassVar[str] = "adamw"

    def _decays(self, rate: float) -> tuple[float, float]:
        return 1 - rate * float(self.weight_decay), 0.0


@dataclass(frozen=True)
class AdamWOrt(Adam):
    """ONNX Runtime's AdamW; formula and defaults are those of the optimizer model of its training artifacts.

    Attributes:
        learning_rate: step size, where no schedule gives one.
        beta1: part of the mean gradient that each step keeps.
        beta2: part of the mean squared gradient that each step keeps.
        epsilon: added to the square root, after its bias correction moved into the step size.
        weight_decay: part of the parameter, times the learning rate, that each step takes away after it moved.
    """

    epsilon: float = 1e-6

    kind: ClassVar[str] = "adamw-ort"

    def rates(self, step: int, learning_rate: float, scale: float) -> Rates:
        """Return the operator's second input, as `Adam.rates` does."""
        rate, beta1, beta2 = np.float32(learning_rate), np.float32(self.beta1), np.float32(self.beta2)
        # As in ONNX Runtime: the powers in double, all else in float.
        correction1 = _ONE - np.float32(math.pow(float(beta1), step))
        correction2 = _ONE - np.float32(math.pow(float(beta2), step))
        corrected = rate * (np.sqrt(correction2) / correction1)
        moments = (beta1, _ONE - beta1, beta2, _ONE - beta2, self.epsilon)
        decay = rate * np.float32(self.weight_decay)
        return np.array((scale, corrected, *moments, 1.0, decay, 0.0), np.float32)


Optimizer = SGD | Adam
"""Settings of any optimizer; `AdamW` and `AdamWOrt` are `Adam`s."""

_CLASSES: dict[str, type[SGD] | type[Adam]] = {each.__name__: each for each in (SGD, Adam, AdamW, AdamWOrt)}


def of_rows(operator: str) -> str:
    """Return the operator that updates a table as another one does, where the gradient comes as rows."""
    return operator.replace("Update", "UpdateRows")


def settings(optimizer: Optimizer) -> dict[str, float | bool | str]:
    """Return an optimizer's settings as plain values, for a file."""
    return {"kind": type(optimizer).__name__, **asdict(optimizer)}


def from_settings(values: Mapping[str, object]) -> Optimizer:
    """Return the optimizer that `settings` described.

    Raises:
        InputError: if no optimizer is described.
    """
    named = values.get("kind")
    kind = _CLASSES.get(named) if isinstance(named, str) else None
    if kind is None:
        raise InputError(f"There is no such optimizer: use one of {', '.join(_CLASSES)}.")
    defaults = {field.name: field.default for field in fields(kind)}
    if {"kind", *defaults} != set(values) or not all(_like(values[name], defaults[name]) for name in defaults):
        raise InputError(
            f"These are no settings of {kind.__name__}: it has {', '.join(defaults)}, all of them numbers."
        )
    return kind(**{name: values[name] for name in defaults})  # type: ignore[arg-type]


def _like(value: object, default: object) -> bool:
    """Return whether a value can be a setting with that default: true or false, or a number that is not too large."""
    if isinstance(default, bool):
        return isinstance(value, bool)
    return isinstance(value, (int, float)) and not isinstance(value, bool) and abs(value) <= _LARGEST


def as_number(value: object) -> float | None:
    """Return a number that single precision can hold; None if a value is no number, or not such a one."""
    if not is_number(value) or not abs(value) <= _LARGEST:  # type: ignore[arg-type]
        return None
    return float(value)  # type: ignore[arg-type]


def as_norm(value: object) -> float:
    """Return a bound on the norm of gradients.

    Raises:
        InputError: if it is no number above 0 that single precision can hold.
    """
    norm = as_number(value)
    if norm is None or not np.float32(norm) > 0:
        raise InputError(
            f"Gradients cannot be clipped to a norm of {shown(value)}: give a number above 0 of single precision."
        )
    return norm


def _check_numbers(optimizer: Optimizer) -> None:
    """Check that all settings are numbers that single precision can hold, and make plain ones of numpy's."""
    for each in fields(optimizer):
        value = getattr(optimizer, each.name)
        if isinstance(each.default, bool):
            _check(isinstance(value, (bool, np.bool_)), each.name, value, "True or False")
            object.__setattr__(optimizer, each.name, bool(value))
            continue
        number = as_number(value)
        if number is None:
            raise InputError(
                f"The optimizer's {each.name} is {shown(value)}, but must be a number of single precision."
            )
        object.__setattr__(optimizer, each.name, number)


def _check(holds: bool, name: str, value: object, must_be: str) -> None:
    if not holds:
        raise InputError(f"The optimizer's {name} is {shown(value)}, but must be {must_be}.")


KINDS: Mapping[str, Optimizer] = {
    optimizer.kind: optimizer for optimizer in (SGD(), SGD(momentum=0.9), Adam(), AdamW(), AdamWOrt())
}
"""One optimizer of each kind that a model may be rewritten for, with its default settings."""
