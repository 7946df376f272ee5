"""What a training graph computes: steps of a session at any values of its parameters, gradients and updates apart."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from poet_onnx.adapters.lora import Adapters
from poet_onnx.description.groups import ParameterGroup, members, settings_by_group
from poet_onnx.description.metadata import Description
from poet_onnx.description.names import slot_name
from poet_onnx.description.optimizers import KINDS, SGD, Adam, AdamW, AdamWOrt, Optimizer
from poet_onnx.errors import InputError
from poet_onnx.training.session import TrainingSession

if TYPE_CHECKING:
    from poet_onnx.training.parameters import Source
    from poet_onnx.training.prepare import AnyModel

Array = npt.NDArray[Any]

DECOUPLED = (AdamW, AdamWOrt)
"""Optimizers whose weight decay is no part of the gradient."""

_KEPT = 0.5
"""A step keeps this share of a moment. It is a power of two: so two moments tell the gradient without rounding."""

_SMALL, _LARGE = 1e-2, 1e4
"""Rates of Adam's rule, which bounds its steps, and of the others, whose steps then tell the gradient."""

_DECAY = 0.1
"""How large a weight decay is beside the gradient."""


@dataclass(frozen=True)
class TrainedStep:
    """What a step computed.

    Attributes:
        loss: before the update.
        gradients: by parameter.
        before: the parameters.
        after: the parameters after the update; None where the step makes none.
        state: running statistics and the like, after the step.
        resolution: by parameter, how finely the gradient is told.
    """

    loss: float
    gradients: Mapping[str, Array]
    before: Mapping[str, Array]
    after: Mapping[str, Array] | None
    state: Mapping[str, Array]
    resolution: Mapping[str, float]


class Trained:
    """A session of a training graph.

    Attributes:
        optimizer: settings that show every part of the update; the kind is the model's.
        rules: by parameter, these settings with the weight decay of its group, and its factor of the learning rate.
        names: of what is trained, adapters included.
        adapters: low-rank adapters that it has; None if it has none.
        evaluates: whether it has an evaluation graph.
    """

    def __init__(
        self,
        model: AnyModel,
        metadata: Mapping[str, str],
        parameters: Source,
        *,
        kind: str,
        scales: tuple[float, float],
        groups: Sequence[ParameterGroup] = (),
        adapters: Adapters | None = None,
        page_dir: str | None = None,
        evaluation: AnyModel | None = None,
    ) -> None:
        """Load a training graph.

        Args:
            model: the graph.
            metadata: of the model.
            parameters: as for a session.
            kind: of the optimizer, where the model does not tell.
            scales: a usual number in a gradient, and one in a parameter.
            groups: of parameters, where the model does not tell.
            adapters: that it has, where its metadata do not tell.
            page_dir: as for a session.
            evaluation: the graph that evaluates; None to look at none.

        Raises:
            InputError: if the runtime that is installed cannot run it.
        """
        described = Description.of_metadata(metadata)
        updates = None if described is None else described.updates
        self.optimizer = _settings(kind if updates is None else updates.optimizer, *scales)
        self._batches_an_update = 1 if updates is None else updates.accumulation_steps
        self._runs = 0
        groups = tuple(groups) if updates is None else updates.groups
        if not (described is None or self.optimizer.slots):  # what stands still would not tell its gradient
            groups = tuple(replace(each, lr_scale=each.lr_scale or 1.0) for each in groups)
        self._session = TrainingSession(
            model,
            parameters,
            optimizer=self.optimizer,
            groups=groups,
            keep_gradients=described is None,
            page_dir=page_dir,
            eval_model=evaluation,
        )
        self.evaluates = evaluation is not None
        self.adapters = adapters or Adapters.of_metadata(metadata)
        self.names = tuple(self._session.trained)
        by_group = settings_by_group(self.optimizer, groups)
        own = members(groups, {name: self._session.parameters[name].ndim for name in self.names})
        self.rules = {name: by_group[own.get(name, 0)] for name in self.names}
        drops = self.adapters is not None and self.adapters.lora.dropout > 0
        if drops or (described is not None and (described.seeds or described.unresumable)):
            raise InputError(
                "The step draws random numbers, as for dropout, which torch draws otherwise: make the files again with"
                " a dropout of 0 to verify them; `export` checks itself without."
            )

    @property
    def values(self) -> dict[str, Array]:
        """Parameters, those not trained, and running statistics, as they are now."""
        return dict(self._session.parameters)

    @property
    def inputs(self) -> tuple[tuple[str, tuple[Any, ...]], ...]:
        """Name and shape of what a batch fills."""
        return tuple((wanted.name, wanted.shape) for wanted in self._session.data_inputs)

    def evaluated_loss(self, batch: Mapping[str, Array]) -> float:
        """Return the loss of a batch in the evaluation graph, with the parameters of now."""
        self._session.eval()
        try:
            return self._session.step(batch)
        finally:
            self._session.train()

    def step(self, values: Mapping[str, Array], batch: Mapping[str, Array]) -> TrainedStep:
        """Train on a batch from given values of the parameters."""
        session = self._session
        for name, array in values.items():
            session.parameters[name][...] = array
        before = {name: session.parameters[name].copy() for name in self.names}
        moments = {name: each.copy() for name, each in session.moments.items()}
        kept = {name: each.astype(np.float64) for name, each in session.gradients.items()}
        loss = session.step(batch)
        collected = session.gradients
        fresh = self._runs % self._batches_an_update == 0
        self._runs += 1
        gradients, resolution = {}, {}
        for name in self.names:
            if name in collected:
                gradients[name] = collected[name].astype(np.float64) - (0.0 if fresh else kept[name])
                resolution[name] = 0.0
            else:
                gradients[name] = self._told(name, before[name].astype(np.float64), moments)
                resolution[name] = self._resolution(name, before[name], gradients[name])
        state = {name: each.copy() for name, each in session.parameters.items() if name not in session.trained}
        after = {name: session.parameters[name].copy() for name in self.names}
        updated = after if self._batches_an_update == 1 else None
        return TrainedStep(loss, gradients, before, updated, state, resolution)

    def _told(self, name: str, before: Array, moments: Mapping[str, Array]) -> Array:
        """Return a gradient that was used up within the step, as what the optimizer keeps tells it."""
        (settings, lr_scale), session = self.rules[name], self._session
        slots = settings.slots
        if not slots:
            assert isinstance(settings, SGD)
            moved: Array = (before - session.parameters[name]) / (lr_scale * settings.learning_rate)
            return moved - settings.weight_decay * before
        slot = slot_name(name, slots[0])
        new, old = session.moments[slot].astype(np.float64), moments[slot].astype(np.float64)
        if isinstance(settings, SGD):
            return new - settings.momentum * old - settings.weight_decay * before
        told: Array = (new - settings.beta1 * old) / (1 - settings.beta1)
        return told if isinstance(settings, DECOUPLED) else np.asarray(told - settings.weight_decay * before)

    def _resolution(self, name: str, before: Array, gradient: Array) -> float:
        settings, lr_scale = self.rules[name]
        largest, parameter = (float(np.abs(each).max(initial=0.0)) for each in (gradient, before))
        told_by = settings.weight_decay if settings.slots else settings.weight_decay + _rounded_by(settings, lr_scale)
        return 2.0**-22 * (largest + told_by * parameter)


def _rounded_by(settings: Optimizer, lr_scale: float) -> float:
    """Return how large a parameter's own rounding is in the gradient that its change tells."""
    return 1.0 / (lr_scale * settings.learning_rate)


def usual(arrays: Sequence[Array]) -> float:
    """Return the root mean square of all numbers, 1 if all are 0."""
    count = sum(each.size for each in arrays)
    total = float(sum(np.square(each, dtype=np.float64).sum() for each in arrays))
    return float(np.sqrt(total / count)) if count and total > 0 else 1.0


def _settings(kind: str, gradient_scale: float, parameter_scale: float) -> Optimizer:
    """Return settings with which every part of an update makes a difference."""
    known = KINDS[kind]
    decay = _DECAY * gradient_scale / parameter_scale
    if isinstance(known, Adam):
        given = {"learning_rate": _SMALL, "beta1": _KEPT, "beta2": 0.75, "epsilon": _DECAY * gradient_scale}
        return replace(known, weight_decay=_DECAY if isinstance(known, DECOUPLED) else decay, **given)
    momentum = _KEPT if known.momentum else 0.0
    return replace(known, learning_rate=_LARGE / gradient_scale, momentum=momentum, weight_decay=decay)
