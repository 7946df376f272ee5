"""Which optimizer a rewritten graph has in its step."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import onnx_ir as ir

from poet_onnx.choices import NO_OPTIMIZER
from poet_onnx.description.groups import as_groups
from poet_onnx.description.metadata import Updates
from poet_onnx.description.optimizers import KINDS
from poet_onnx.errors import InputError
from poet_onnx.passes.roles import find_roles
from poet_onnx.passes.updates import check_trainable
from poet_onnx.rewriting.options import StepOptions

_DEFAULTS = {"stock": "adamw", "training": NO_OPTIMIZER}
"""The optimizer by target. A graph for onnxruntime-training stays one that its own optimizer can be used with."""


@dataclass(frozen=True)
class OptimizerChoice:
    """The optimizer that was asked for.

    Attributes:
        updates: what it does; None for no optimizer in the step.
        is_default: nobody asked for it, so that a graph which it cannot train is planned without.
    """

    updates: Updates | None
    is_default: bool

    @classmethod
    def read(cls, options: StepOptions) -> OptimizerChoice:
        """Return the choice that options make.

        Raises:
            InputError: if they contradict each other.
        """
        kind = options.optimizer or _DEFAULTS[options.target]
        asks_more = options.accumulation_steps != 1 or options.clip_norm or options.groups
        if kind == NO_OPTIMIZER and asks_more:
            raise InputError(
                "Without an optimizer the plan accumulates no batches, clips nothing and has no groups: give an "
                f"optimizer too, one of {', '.join(KINDS)}."
            )
        groups = as_groups(options.groups)
        made = Updates(kind, options.accumulation_steps, options.clip_norm, groups) if kind != NO_OPTIMIZER else None
        return cls(made, options.optimizer is None and not asks_more)

    def for_model(self, model: ir.Model, warn: Callable[[str], None] = lambda _: None) -> Updates | None:
        """Return what is done with a normalized model's gradients.

        Args:
            model: the training graph.
            warn: gets to know if the default cannot be used.

        Raises:
            InputError: if the optimizer that was asked for cannot train the graph.
        """
        if self.updates is None:
            return None
        try:
            roles = find_roles(model)
            check_trainable(value for value in model.graph.inputs if value.name in roles.parameters)
        except InputError as error:
            if not self.is_default:
                raise
            reason = str(error).split(": ")[0].rstrip(".")
            warn(
                f"The plan has no optimizer in it, so that its budget holds for the step alone ({reason}): say "
                "--optimizer none, in Python optimizer='none', if that is meant."
            )
            return None
        return self.updates


def in_words(updates: Updates | None) -> str:
    """Return what a plan says of the optimizer in its step."""
    return NO_OPTIMIZER if updates is None else str(updates)
