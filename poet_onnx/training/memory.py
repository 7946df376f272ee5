"""The arrays of a training session: each parameter, gradient, moment and statistic once, in memory of its own."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import numpy as np
import numpy.typing as npt

from poet_onnx.description.metadata import RATES, RUNS, Description, slot_name
from poet_onnx.description.optimizers import Optimizer
from poet_onnx.errors import InputError
from poet_onnx.files.values import copy_value
from poet_onnx.training import kernels
from poet_onnx.training.batch import Wanted
from poet_onnx.training.runner import aligned

Array = npt.NDArray[np.generic]


class Memory:
    """Arrays by the names that they have in the graphs."""

    def __init__(
        self,
        description: Description,
        optimizer: Optimizer,
        values: Mapping[str, Array],
        inputs: Iterable[Wanted],
    ) -> None:
        """Allocate everything and copy the first values, one after the other.

        Args:
            description: of the training graph.
            optimizer: what is kept for each parameter.
            values: of parameters, and of running statistics where they are not to be the model's.
            inputs: what the training graph takes.

        Raises:
            InputError: if a value is missing or does not fit.
        """
        self._description, self._optimizer = description, optimizer
        self.frozen = tuple(name for name in description.data if name in values)
        self.arrays: dict[str, Array] = {}
        taken = {put.name: put for put in inputs}
        for name in description.parameters:
            if name not in values:
                raise InputError(
                    f"The gradient of '{name}' is accumulated, but there is no value in the parameters that were given "
                    "of that name."
                )
        for name in (*description.parameters, *self.frozen):
            self.arrays[name] = aligned(_shape(taken, name), taken[name].dtype)
            copy_value(values, name, self.arrays[name])
        for name, state in description.state.items():
            own = state.array
            self.arrays[name] = aligned(own.shape, own.dtype)
            copy_value(values if name in values else {name: own}, name, self.arrays[name])
        for name in description.parameters:
            shape = self.arrays[name].shape
            for slot in optimizer.slots:
                self.arrays[slot_name(name, slot)] = aligned(shape, np.float32)
            if name in description.buffers:
                self.arrays[description.buffers[name]] = aligned(shape, np.float32)
        self.rates = aligned((optimizer.rates(1, 0.0, 1.0).size,), np.float32)
        self.fresh = aligned((1,), np.bool_)
        """Whether gradient buffers start anew."""
        self.runs = aligned((1,), np.int64)
        """How often the graph has run."""
        self.arrays[RATES] = self.rates
        if description.seeds:
            self.arrays[RUNS] = self.runs
        if description.flag:
            self.arrays[description.flag] = self.fresh

    def sizes_bytes(self) -> dict[str, int]:
        """Return how many bytes of arrays there are of each kind."""
        described = self._description
        kinds = {
            "parameters": (*described.parameters, *self.frozen),
            "gradients": tuple(described.buffers.values()),
            "moments": [slot for name in described.parameters for slot in self._slots(name)],
            "statistics": tuple(described.state),
            "rates": (RATES, *([described.flag] if described.flag else []), *([RUNS] if described.seeds else [])),
        }
        return {kind: sum(self.arrays[name].nbytes for name in names) for kind, names in kinds.items()}

    def values(self) -> dict[str, Array]:
        """Return parameters, those not trained, and running statistics."""
        described = self._description
        return {name: self.arrays[name] for name in (*described.parameters, *self.frozen, *described.state)}

    def moved(self) -> list[str]:
        """Return the names of running statistics that are not those of the model any more."""
        state = self._description.state
        return [name for name, first in state.items() if not np.array_equal(self.arrays[name], first.array)]

    def gradients(self) -> dict[str, Array]:
        """Return the gradients that are kept, by parameter."""
        return {name: self.arrays[buffer] for name, buffer in self._description.buffers.items()}

    def moments(self) -> dict[str, Array]:
        """Return what the optimizer keeps."""
        slots = [slot for name in self._description.parameters for slot in self._slots(name)]
        return {name: self.arrays[name] for name in slots}

    def lasting(self, *, gradients: bool) -> dict[str, Array]:
        """Return all that a checkpoint needs, with or without gradients that are half collected."""
        buffers = self._description.buffers.values() if gradients else ()
        return self.values() | self.moments() | {name: self.arrays[name] for name in buffers}

    def sum_of_squares(self) -> float:
        """Return the sum of the squares of all gradients that are kept."""
        return sum((kernels.sum_of_squares(gradient) for gradient in self.gradients().values()), 0.0)

    def update(self) -> None:
        """Update the parameters whose gradients are kept."""
        for name, gradient in self.gradients().items():
            slots = [self.arrays[slot] for slot in self._slots(name)]
            kernels.update(self._optimizer.operator, gradient, self.rates, self.arrays[name], slots)

    def _slots(self, parameter: str) -> list[str]:
        return [slot_name(parameter, slot) for slot in self._optimizer.slots]


def _shape(inputs: Mapping[str, Wanted], name: str) -> tuple[int, ...]:
    if name not in inputs:
        raise InputError(f"The model has no input '{name}', which its metadata call a parameter: rewrite it again.")
    sizes = inputs[name].shape
    if any(not isinstance(size, int) for size in sizes):
        raise InputError(f"Parameter '{name}' has no fixed shape in the model.")
    return tuple(size for size in sizes if isinstance(size, int))
