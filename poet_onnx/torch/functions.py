"""Functions with a backward of their own (`autograd.Function`): an export keeps what their forward computes alone."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from poet_onnx.torch.reference import RAISED

if TYPE_CHECKING:
    from torch import Tensor

_SCALES = 1.0, 16.0, 1 / 16
"""Inputs of a function are tried so many times as large: a backward may cut off what its example does not reach."""

_AWAY, _LARGE, _LINEAR = 0.02, 1e4, 1e-6
"""How far inputs are moved away from kinks, a gradient that few clip to less, and how exactly they are followed."""

_CALLS = 3
"""Calls of a function that are tried."""


@dataclass(frozen=True)
class FunctionCall:
    """A call of a function.

    Attributes:
        function: the subclass of `autograd.Function`.
        arguments: of its forward, cut off from what they were computed of.
        keywords: of its forward.
        places: of the arguments for which it gives a gradient.
    """

    function: Any
    arguments: Sequence[Any]
    keywords: Mapping[str, Any]
    places: Sequence[int]

    @property
    def name(self) -> str:
        """Name the function."""
        return str(self.function.__name__)

    def has_own_gradient(self) -> bool | None:
        """Return whether its backward is another than its forward's derivative; None if that cannot be tried.

        Both are compared in double precision (`torch.autograd.gradcheck`) near the arguments and at others that are
        larger and smaller; the backward has to follow large gradients, too.
        """
        decided = None
        for number, scale in enumerate(_SCALES):
            try:
                follows = self._follows(number, scale)
            except RAISED:  # it may take no double precision
                continue
            if follows is False:
                return True
            decided = False if follows else decided
        return decided

    def _follows(self, seed: int, scale: float) -> bool | None:
        """Return whether the backward is the derivative at a place; None where the forward has no finite numbers."""
        import torch

        inputs = [_moved(self.arguments[place], scale, seed) for place in self.places]
        outputs = _differentiable(self._apply(*inputs))
        if not outputs or not all(bool(each.isfinite().all()) for each in outputs):
            return None
        generator = torch.Generator().manual_seed(seed)
        asked = [torch.randn(each.shape, generator=generator, dtype=each.dtype) for each in outputs]
        small = torch.autograd.grad(outputs, inputs, asked, allow_unused=True)
        again = _differentiable(self._apply(*inputs))
        large = torch.autograd.grad(again, inputs, [_LARGE * each for each in asked], allow_unused=True)
        for one, other in zip(small, large, strict=True):
            if one is not None and other is not None:
                width = _LARGE * float(one.abs().max()) if one.numel() else 0.0
                if not torch.allclose(other, _LARGE * one, rtol=_LINEAR, atol=_LINEAR * width):
                    return False
        return torch.autograd.gradcheck(
            self._apply, inputs, fast_mode=True, raise_exception=False, check_undefined_grad=False
        )

    def _apply(self, *tensors: Tensor) -> Any:
        arguments = list(self.arguments)
        for place, tensor in zip(self.places, tensors, strict=True):
            arguments[place] = tensor
        return self.function.apply(*arguments, **self.keywords)


def look_at(calls: Sequence[FunctionCall]) -> tuple[dict[str, str], dict[str, str]]:
    """Return a sentence about each function whose backward is not its forward's derivative, and about the others.

    Forwards are what is exported, and differentiated again.
    """
    answers: dict[str, list[bool | None]] = {}
    for call in calls:
        answers.setdefault(f"{call.name} (autograd.Function)", []).append(call.has_own_gradient())
    problems, others = {}, {}
    for name, every in answers.items():
        if True in every:
            problems[name] = (
                f"The backward of {name}, which an export leaves out, is not the derivative of its forward."
            )
        else:
            where = "wherever it was tried" if False in every else "in the gradients of this batch"
            others[name] = (
                f"In place of the backward of {name}, which an export leaves out, its forward is differentiated:"
                f" {where} that is the same."
            )
    return problems, others


@contextmanager
def recorded() -> Iterator[list[FunctionCall]]:
    """Record the first calls of each function that may give a gradient; recompute by torch's checkpoints is none."""
    import torch
    from torch.utils.checkpoint import CheckpointFunction

    calls: list[FunctionCall] = []

    def record(function: Any, run: Callable[[], Any], arguments: Sequence[Any], keywords: Mapping[str, Any]) -> Any:
        places = [
            place
            for place, each in enumerate(arguments)
            if isinstance(each, torch.Tensor) and each.requires_grad and each.is_floating_point()
        ]
        others = sum(each.function is function for each in calls)
        if torch.is_grad_enabled() and places and others < _CALLS and function is not CheckpointFunction:
            calls.append(FunctionCall(function, [_kept(each) for each in arguments], dict(keywords), places))
        return run()

    with around_functions(record):
        yield calls


@contextmanager
def around_functions(
    meet: Callable[[Any, Callable[[], Any], Sequence[Any], Mapping[str, Any]], Any],
) -> Iterator[None]:
    """Let calls of all functions go through one that is given the function, how to run it, and its arguments."""
    from torch.autograd import function

    base: Any = function._SingleLevelFunction

    def met(cls: Any, *arguments: Any, **keywords: Any) -> Any:
        return meet(cls, lambda: super(base, cls).apply(*arguments, **keywords), arguments, keywords)

    before = base.__dict__.get("apply")
    base.apply = classmethod(met)  # `Function.apply` calls it, however a module kept that
    try:
        yield
    finally:
        if before is None:
            del base.apply
        else:
            base.apply = before


def _differentiable(outputs: Any) -> list[Tensor]:
    import torch

    every = outputs if isinstance(outputs, (tuple, list)) else (outputs,)
    return [each for each in every if isinstance(each, torch.Tensor) and each.requires_grad]


def _kept(argument: Any) -> Any:
    import torch

    return argument.detach().clone() if isinstance(argument, torch.Tensor) else argument


def _moved(tensor: Tensor, scale: float, seed: int) -> Tensor:
    """Return an input nearby, with the same signs and hardly larger, in double precision."""
    import torch

    wide = tensor.double()
    noise = torch.rand(wide.shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    width = float(wide.square().mean().sqrt()) if wide.numel() else 0.0
    near = torch.where(wide == 0, _AWAY * width * noise, wide * (1 - _AWAY * noise))
    return (scale * near).requires_grad_()
