"""The training graph that a session runs, with what it must know of it."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from poet_onnx.adapters.lora import Adapters
from poet_onnx.choices import AUTO
from poet_onnx.description.energy import PlannedEnergy
from poet_onnx.description.groups import ParameterGroup
from poet_onnx.description.metadata import Description, Updates, as_batches, planned_threads
from poet_onnx.description.names import NETWORK_KEY, PANELS_KEY
from poet_onnx.description.optimizers import AdamWOrt, Optimizer
from poet_onnx.errors import InputError, shown
from poet_onnx.files import model_file
from poet_onnx.graph.input_ranges import RANGES_KEY, Ranges, ranges_from_json

if TYPE_CHECKING:
    import onnx_ir as ir

    from poet_onnx.training.prepare import AnyModel


def as_bool(value: object, name: str) -> bool:
    """Return a value that is true or false.

    Raises:
        InputError: if it is neither.
    """
    if not isinstance(value, (bool, np.bool_)):
        raise InputError(f"{name} is {shown(value)}, but must be True or False.")
    return bool(value)


@dataclass(frozen=True)
class Wishes:
    """What a session was asked for that the graph must allow.

    Attributes:
        optimizer: None for the model's own kind, else ONNX Runtime's AdamW.
        accumulation_steps: batches for one update; None for the model's own number, else 1.
        clip_norm: whether gradients are clipped.
        keep_gradients: whether all gradients are to be seen.
        frozen_batch_norm: as for `rewrite`.
        groups: of parameters; None for those of the model.
        threads: inside an operator; None for those that the model was planned for.
    """

    optimizer: Optimizer | None
    accumulation_steps: int | None
    clip_norm: bool
    keep_gradients: bool
    frozen_batch_norm: str
    groups: tuple[ParameterGroup, ...] | None = None
    threads: int | None = None

    def __post_init__(self) -> None:
        if self.accumulation_steps is not None:
            object.__setattr__(self, "accumulation_steps", as_batches(self.accumulation_steps))
        as_bool(self.keep_gradients, "keep_gradients")

    @property
    def updates(self) -> Updates:
        """What is done with the gradients of a graph that was not rewritten for an optimizer."""
        steps = 1 if self.accumulation_steps is None else self.accumulation_steps
        return Updates((self.optimizer or AdamWOrt()).kind, steps, self.clip_norm, self.groups or ())

    def check(self, description: Description) -> None:
        """Check that a graph that was rewritten for an optimizer allows it.

        Raises:
            InputError: naming what it was not rewritten for.
        """
        made_for = description.updates
        if self.frozen_batch_norm != AUTO:
            raise InputError("The training model is rewritten: say to `rewrite` what is frozen.")
        if self.optimizer is not None and self.optimizer.kind != made_for.optimizer:
            raise InputError(
                f"The model was rewritten for the optimizer {made_for.optimizer!r}, not for {self.optimizer}: give one "
                f"of that kind, or rewrite the original with --optimizer {self.optimizer.kind}."
            )
        if self.groups is not None and _patterns(self.groups) != _patterns(made_for.groups):
            raise InputError(
                f"The model was rewritten for {_named(made_for.groups)}, not for {_named(self.groups)}: give these "
                "patterns in this order, or rewrite the original with --group."
            )
        if self.accumulation_steps not in (None, made_for.accumulation_steps):
            raise InputError(
                f"The model was rewritten for gradients of {made_for.accumulation_steps} batches an update, not for "
                f"{self.accumulation_steps}: rewrite the original with --accumulation-steps {self.accumulation_steps}."
            )
        if self.clip_norm and not made_for.clip_norm:
            raise InputError(
                "The model was rewritten to use each gradient up at once, so that their norm cannot be clipped: "
                "rewrite the original with --clip-norm."
            )
        if self.keep_gradients and set(description.buffers) != set(description.parameters):
            raise InputError(
                "The model was rewritten to use gradients up within the step, so that none are there to be kept: "
                "rewrite the original with --optimizer none, or with --clip-norm."
            )


def _patterns(groups: tuple[ParameterGroup, ...]) -> list[object]:
    return [each.parameters for each in groups]


def _named(groups: tuple[ParameterGroup, ...]) -> str:
    return " and ".join(map(str, groups)) or "no groups of parameters"


@dataclass(frozen=True)
class Prepared:
    """A training graph with the optimizer in its step.

    Attributes:
        description: what its names are for.
        model: its file, or its bytes.
        ranges: what the numbers of its inputs may be.
        adapters: low-rank adapters that it has.
        panels: what compares its products by panels with whole ones, as metadata; empty if there are none.
        threads: inside an operator, for which it was planned; 1 for a graph without a plan.
        energy: of a step, as planned; None for a graph without a plan.
        network: hash of the network that it is of; empty where it does not say that.
    """

    description: Description
    model: str | bytes
    ranges: Ranges
    adapters: Adapters | None
    panels: str = ""
    threads: int = 1
    energy: PlannedEnergy | None = None
    network: str = ""

    @property
    def is_file(self) -> bool:
        """Whether the session runs the file that was given, as it is."""
        return isinstance(self.model, str)

    def constant_bytes(self) -> int:
        """Return the bytes of the graph's initializers."""
        data = self.model if isinstance(self.model, bytes) else model_file.opened(self.model)
        return model_file.constant_bytes(data)


def open_model(
    model: AnyModel,
    wishes: Wishes,
    forward: Callable[[], ir.Model | None],
) -> Prepared:
    """Return a training graph as a session runs it: a file that was rewritten for an optimizer as it is.

    Args:
        model: the training graph.
        wishes: what the session was asked for.
        forward: returns the evaluation graph, if one was given.

    Raises:
        InputError: if the model cannot be used, or not in the way that is wished.
    """
    if isinstance(model, (str, os.PathLike)):
        metadata = model_file.read_metadata(model)
        description = Description.of_metadata(metadata)
        if description is not None:
            wishes.check(description)
            ranges = ranges_from_json(metadata.get(RANGES_KEY, "{}"))
            adapters, panels = Adapters.of_metadata(metadata), metadata.get(PANELS_KEY, "")
            threads, energy = planned_threads(metadata), PlannedEnergy.of_metadata(metadata)
            network = metadata.get(NETWORK_KEY, "")
            return Prepared(description, os.fspath(model), ranges, adapters, panels, threads, energy, network)
    from poet_onnx.training.prepare import prepare

    return prepare(model, wishes, forward)
