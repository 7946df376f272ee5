"""The forms that a model may be planned in: weight gradients whole or in parts, and how it is lowered."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import onnx_ir as ir

from poet_onnx.costing.device import DeviceProfile
from poet_onnx.errors import InputError
from poet_onnx.passes.lowering import choose_expansions, lower
from poet_onnx.passes.normalize import Normalization
from poet_onnx.passes.split import SplitWeightGradients
from poet_onnx.passes.updates import WriteUpdates
from poet_onnx.training.description import Updates

PART_BYTES = (1 << 20, 128 << 10)
"""Sizes of parts that large weight gradients are split into where whole ones do not fit."""


@dataclass(frozen=True)
class Form:
    """A model as it would be planned.

    Attributes:
        part_bytes: size of parts that large weight gradients are computed in; None for whole ones.
        expansions: as for `LowerTraining`; None for the training runtime.
        model: the model in this form.
    """

    part_bytes: int | None
    expansions: str | None
    model: ir.Model


def forms(
    model: ir.Model, device: DeviceProfile, target: str, *, split: bool = True, updates: Updates | None = None
) -> Iterator[Form]:
    """Yield the forms of a model for a target, what costs the least time first.

    Whole weight gradients come before those in parts, coarse parts before fine ones; and of each the expansions that
    are the quickest on the device before those that need the least memory.

    Args:
        model: normalized for the target (`normalize_for`); it is not changed, and for the training runtime without an
            optimizer it is itself the first form.
        device: what expansions are chosen for.
        target: runtime that will run the model, "training" or "stock".
        split: also yield forms with gradients in parts.
        updates: what the optimizer in the step does; None for none.

    Raises:
        InputError: if the model cannot be trained by the optimizer.
    """
    whole = []
    for form in _lowered(model, device, target):
        whole.append(form)
        yield _updating(form, updates)
    for part_bytes in PART_BYTES if split else ():
        for form in whole:
            parts = form.model.clone()
            if SplitWeightGradients(part_bytes)(parts).modified:
                yield _updating(Form(part_bytes, form.expansions, parts), updates)


def take_form(
    model: ir.Model, target: str, part_bytes: int | None, expansions: str | None, updates: Updates | None = None
) -> None:
    """Bring a normalized model itself into a form.

    Raises:
        InputError: if the model has no such form.
    """
    if part_bytes is not None and part_bytes < 1:
        raise InputError(
            f"The plan asks for weight gradients in parts of {part_bytes} bytes, below 1 byte; plan again."
        )
    lower(model, target, expansions)
    if part_bytes is not None and not SplitWeightGradients(part_bytes)(model).modified:
        raise InputError(
            f"The plan computes weight gradients of more than {part_bytes:,} bytes in parts, and this graph has none; "
            "plan again for this model."
        )
    if updates is not None:
        Normalization(WriteUpdates(updates))(model)


def _updating(form: Form, updates: Updates | None) -> Form:
    """Return a form with the optimizer in its step."""
    if updates is None:
        return form
    model = form.model.clone()
    Normalization(WriteUpdates(updates))(model)
    return Form(form.part_bytes, form.expansions, model)


def _lowered(model: ir.Model, device: DeviceProfile, target: str) -> Iterator[Form]:
    if target == "training":
        yield Form(None, None, model)
        return
    known: set[str] = set()
    for thrifty in (False, True):
        expansions = choose_expansions(model, device, thrifty=thrifty)
        if expansions not in known:
            known.add(expansions)
            lowered = model.clone()
            lower(lowered, target, expansions)
            yield Form(None, expansions, lowered)
