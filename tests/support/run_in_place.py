"""Runs of a graph that changes arrays of the caller's in place."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy.typing as npt


def run_in_place(session: Any, held: Mapping[str, npt.NDArray[Any]]) -> dict[str, Any]:
    """Run on arrays themselves, and return the outputs, as `OrtValue`s by name."""
    import onnxruntime

    # An OrtValue only borrows its array's memory.
    values = {name: onnxruntime.OrtValue.ortvalue_from_numpy(array) for name, array in held.items()}
    binding = session.io_binding()
    for name, value in values.items():
        binding.bind_ortvalue_input(name, value)
    outputs = [output.name for output in session.get_outputs()]
    for name in outputs:
        binding.bind_output(name)
    session.run_with_iobinding(binding)
    return dict(zip(outputs, binding.get_outputs(), strict=True))
