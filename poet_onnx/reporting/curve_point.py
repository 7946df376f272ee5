"""A point of the curve of what a step takes for its RAM, and the curve in what `inspect --curve --json` prints."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pydantic

from poet_onnx.errors import InputError
from poet_onnx.record import Record


class CurvePoint(Record):
    """What a step takes with a RAM budget; `rewrite` finds a plan that takes no more, within its gap.

    Attributes:
        process_bytes: the budget.
        stored_tensors: how many live in the store.
        energy_joules, seconds: of a step, predicted.
        read_bytes, written_bytes: from and to the store and the page file in a step, with the commit behind it.
        gap: share of the energy that another plan can save at most, with the same tensors in the store.
    """

    process_bytes: int = pydantic.Field(ge=0)
    stored_tensors: int = pydantic.Field(ge=0)
    energy_joules: float = pydantic.Field(ge=0, allow_inf_nan=False)
    seconds: float = pydantic.Field(ge=0, allow_inf_nan=False)
    read_bytes: int = pydantic.Field(ge=0)
    written_bytes: int = pydantic.Field(ge=0)
    gap: float = pydantic.Field(ge=0, le=1)


def read_curve(path: str | os.PathLike[str], device: str, original_peak_bytes: int) -> tuple[CurvePoint, ...]:
    """Return the curve, smallest budget first, in what `inspect --curve --json` printed of a model for a device.

    Args:
        path: of the file.
        device: for which the model was rewritten.
        original_peak_bytes: transient peak of the model as it was given, which tells the model.

    Raises:
        InputError: if it is no such file, or of another model or device.
    """
    try:
        found = json.loads(Path(path).read_text(encoding="utf-8"))
        owner = (found["device"], found["original"]["transient_peak_bytes"])
        points = [CurvePoint.model_validate(point) for point in found["curve"]]
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error.strerror}.") from error
    except (ValueError, KeyError, TypeError, RecursionError) as error:  # pydantic's and json's are ValueErrors
        raise InputError(f"{path} is not what `poet-onnx inspect --curve --json` prints.") from error
    if owner != (device, original_peak_bytes) or not points:
        raise InputError(
            f"{path} has no curve for {device} of a model whose transient peak is {original_peak_bytes:,} bytes as it "
            "is given: give what `poet-onnx inspect --curve --json` prints of this model and device."
        )
    return tuple(sorted(points, key=lambda point: point.process_bytes))
