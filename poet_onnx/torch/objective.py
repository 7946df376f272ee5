"""The loss of a training graph in torch's own functions, and labels and targets that it can be tried with."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from poet_onnx.errors import InputError
from poet_onnx.gradients.loss_builder import CAUSAL
from poet_onnx.gradients.losses import CAUSAL_IGNORED, Loss

if TYPE_CHECKING:
    from torch import Generator, Tensor

_IGNORED_SHARE = 0.25
"""This share of the drawn labels is ignored, where the loss has a label to ignore."""


class Objective:
    """What is minimized, of a module's outputs by name.

    Attributes:
        targets: labels and targets of the terms that have one, in their order; drawn from the first outputs unless
            they are given.
    """

    def __init__(self, loss: Loss, given: Tensor | Sequence[Tensor] | None = None) -> None:
        import torch

        self._loss = loss
        self.targets: list[Tensor] = []
        if given is not None:
            self.targets = [given] if isinstance(given, torch.Tensor) else list(given)
            wanted = sum(term.kind != "output" for term in loss.terms)
            if isinstance(given, Mapping) or not all(isinstance(each, torch.Tensor) for each in self.targets):
                raise InputError(
                    "example_labels must be a tensor, or a list of tensors where the loss has several terms with "
                    f"labels, in the order of the terms: this one takes {wanted}."
                )
            if len(self.targets) != wanted:
                raise InputError(f"{len(self.targets)} example labels were given, but the loss takes {wanted}.")
        self._generator = torch.Generator().manual_seed(0)

    def __call__(self, outputs: Mapping[str, Tensor]) -> Tensor:
        """Return the loss.

        Raises:
            InputError: if an output is not there, or labels that were given do not fit it.
        """
        import torch

        is_given = bool(self.targets)
        sources = [self._source(outputs, term.output) for term in self._loss.terms]
        if not self.targets:
            pairs = zip(self._loss.terms, sources, strict=True)
            self.targets = [
                _DRAWN[term.kind](source.detach(), self._loss, self._generator)
                for term, source in pairs
                if term.kind != "output"
            ]
        targets = iter(self.targets)
        total: Tensor | None = None
        for term, source in zip(self._loss.terms, sources, strict=True):
            if term.kind == "output":
                value = source.sum()  # of one number
            else:
                target = next(targets)
                fitting = target.to(source.dtype) if target.is_floating_point() else target
                try:
                    if term.kind in _OF_EQUAL_SHAPES and target.shape != source.shape:
                        raise ValueError("both must have the same shape")  # torch would repeat the smaller one
                    value = _VALUES[term.kind](source, fitting, self._loss)
                except (RuntimeError, ValueError, IndexError) as error:
                    if not is_given:
                        raise
                    raise InputError(
                        f"Example labels of shape {list(target.shape)} and type {target.dtype} do not fit an output"
                        f" of shape {list(source.shape)} in the loss {term.kind}: {str(error).rstrip('.')}."
                    ) from error
            value = value * term.factor
            total = value if total is None else total + value
        assert isinstance(total, torch.Tensor)
        return total

    @staticmethod
    def _source(outputs: Mapping[str, Tensor], name: str | None) -> Tensor:
        wanted = next(iter(outputs)) if name is None else name
        if wanted not in outputs:
            raise InputError(f"The module has no output '{wanted}': its outputs are {', '.join(map(repr, outputs))}.")
        return outputs[wanted]


def _cross_entropy(scores: Tensor, labels: Tensor, loss: Loss) -> Tensor:
    import torch

    weights = None if loss.class_weights is None else torch.tensor(loss.class_weights, dtype=scores.dtype)
    ignored: dict[str, Any] = {} if loss.ignore_index is None else {"ignore_index": loss.ignore_index}
    return torch.nn.functional.cross_entropy(
        scores, labels, weight=weights, label_smoothing=loss.label_smoothing, **ignored
    )


def _cross_entropy_last(scores: Tensor, labels: Tensor, loss: Loss) -> Tensor:
    return _cross_entropy(scores.flatten(0, -2), labels.flatten(), loss)


def _causal(scores: Tensor, labels: Tensor, loss: Loss) -> Tensor:
    ignored = CAUSAL_IGNORED if loss.ignore_index is None else loss.ignore_index
    return _cross_entropy_last(scores[:, :-1], labels[:, 1:], replace(loss, ignore_index=ignored))


def _mean_square(output: Tensor, target: Tensor, _: Loss) -> Tensor:
    import torch

    return torch.nn.functional.mse_loss(output, target)


def _mean_distance(output: Tensor, target: Tensor, _: Loss) -> Tensor:
    import torch

    return torch.nn.functional.l1_loss(output, target)


def _binary_cross_entropy(scores: Tensor, target: Tensor, _: Loss) -> Tensor:
    import torch

    return torch.nn.functional.binary_cross_entropy_with_logits(scores, target)


def _labels(scores: Tensor, loss: Loss, generator: Generator) -> Tensor:
    return _drawn_labels(scores.shape[1], (scores.shape[0], *scores.shape[2:]), loss, generator)


def _labels_last(scores: Tensor, loss: Loss, generator: Generator) -> Tensor:
    return _drawn_labels(scores.shape[-1], scores.shape[:-1], loss, generator)


def _drawn_labels(classes: int, shape: Sequence[int], loss: Loss, generator: Generator) -> Tensor:
    import torch

    labels = torch.randint(classes, tuple(shape), generator=generator)
    if loss.ignore_index is not None:
        ignored = torch.rand(labels.shape, generator=generator) < _IGNORED_SHARE
        ignored.view(-1)[0] = False  # a mean over none is no number
        labels[ignored] = loss.ignore_index
    return labels


def _target(output: Tensor, _: Loss, generator: Generator) -> Tensor:
    """Return numbers like those of an output, as far from it as they are from one another."""
    import torch

    scale = float(output.std()) if output.numel() > 1 else 0.0
    noise = torch.randn(output.shape, generator=generator)
    return output.to(torch.float32) + noise * (scale or 1.0)


def _probabilities(output: Tensor, _: Loss, generator: Generator) -> Tensor:
    import torch

    return torch.rand(output.shape, generator=generator)


_VALUES: Mapping[str, Callable[[Tensor, Tensor, Loss], Tensor]] = {
    "cross-entropy": _cross_entropy,
    "cross-entropy-last": _cross_entropy_last,
    CAUSAL: _causal,
    "mse": _mean_square,
    "l1": _mean_distance,
    "bce-logits": _binary_cross_entropy,
}
_OF_EQUAL_SHAPES = ("mse", "l1", "bce-logits")
_DRAWN: Mapping[str, Callable[[Tensor, Loss, Generator], Tensor]] = {
    "cross-entropy": _labels,
    "cross-entropy-last": _labels_last,
    CAUSAL: _labels_last,
    "mse": _target,
    "l1": _target,
    "bce-logits": _probabilities,
}
