"""The arrays of a training session: each parameter, gradient, moment and statistic once, in memory of its own."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from poet_onnx.errors import InputError
from poet_onnx.training.contents import constant_array
from poet_onnx.training.optimizers import Optimizer
from poet_onnx.training.roles import Roles
from poet_onnx.training.runner import aligned
from poet_onnx.training.updates import RATES, TOTAL, slot_name
from poet_onnx.training.values import copy_value

Array = npt.NDArray[np.generic]


class Memory:
    """Arrays by the names that they have in the graphs."""

    def __init__(
        self,
        model: ir.Model,
        roles: Roles,
        optimizer: Optimizer,
        values: Mapping[str, Array],
        deferred: frozenset[str],
    ) -> None:
        """Allocate everything and copy the first values.

        Args:
            model: the training graph as it was loaded.
            roles: of its names.
            optimizer: what is kept for each parameter.
            values: of parameters, and of running statistics where they are not to be the model's.
            deferred: parameters that have gradient buffers.

        Raises:
            InputError: if a value does not fit.
        """
        self._roles, self._optimizer, self._deferred = roles, optimizer, deferred
        self.arrays: dict[str, Array] = {}
        inputs = {value.name: value for value in model.graph.inputs}
        for name in (*roles.parameters, *roles.frozen):
            self.arrays[name] = aligned(_shape(inputs[name]), _dtype(inputs[name]))
            copy_value(values, name, self.arrays[name])
        for name in roles.parameters:
            if self.arrays[name].dtype != np.float32:
                raise InputError(
                    f"Parameter '{name}' has elements of type {self.arrays[name].dtype}: only float32 can be trained."
                )
        for name in roles.state:
            own = constant_array(name, model.graph.initializers[name].const_value)
            self.arrays[name] = aligned(own.shape, own.dtype)
            copy_value(values if name in values else {name: own}, name, self.arrays[name])
        for name in roles.parameters:
            shape = self.arrays[name].shape
            for slot in optimizer.slots:
                self.arrays[slot_name(name, slot)] = aligned(shape, np.float32)
            if name in deferred:
                self.arrays[roles.buffers[name]] = aligned(shape, np.float32)
        self.rates = aligned((optimizer.rates(1, 0.0, 1.0).size,), np.float32)
        self.total = aligned((1,), np.float64)
        self.fresh = aligned((1,), np.bool_)
        """Whether gradient buffers start anew."""
        self.arrays |= {RATES: self.rates, TOTAL: self.total}
        if roles.flag:
            self.arrays[roles.flag] = self.fresh

    def sizes_bytes(self) -> dict[str, int]:
        """Return how many bytes of arrays there are of each kind."""
        roles = self._roles
        slots = [slot_name(name, slot) for name in roles.parameters for slot in self._optimizer.slots]
        kinds = {
            "parameters": (*roles.parameters, *roles.frozen),
            "gradients": [roles.buffers[name] for name in self.gradients()],
            "moments": slots,
            "statistics": roles.state,
        }
        return {kind: sum(self.arrays[name].nbytes for name in names) for kind, names in kinds.items()}

    def values(self) -> dict[str, Array]:
        """Return parameters, those not trained, and running statistics."""
        roles = self._roles
        return {name: self.arrays[name] for name in (*roles.parameters, *roles.frozen, *roles.state)}

    def gradients(self) -> dict[str, Array]:
        """Return the gradients that are kept, by parameter."""
        return {name: self.arrays[self._roles.buffers[name]] for name in self._roles.buffers if name in self._deferred}

    def lasting(self, *, gradients: bool) -> dict[str, Array]:
        """Return all that a checkpoint needs, with or without gradients that are half collected."""
        slots = [slot_name(name, slot) for name in self._roles.parameters for slot in self._optimizer.slots]
        buffers = [self._roles.buffers[name] for name in self.gradients()] if gradients else []
        return self.values() | {name: self.arrays[name] for name in (*slots, *buffers)}


def _shape(value: ir.Value) -> tuple[int, ...]:
    sizes = tuple(value.shape or ())
    if value.shape is None or any(not isinstance(size, int) for size in sizes):
        raise InputError(f"Parameter '{value.name}' has no fixed shape in the model.")
    return tuple(size for size in sizes if isinstance(size, int))


def _dtype(value: ir.Value) -> np.dtype[np.generic]:
    try:
        return (value.dtype or ir.DataType.UNDEFINED).numpy()
    except TypeError as error:
        raise InputError(f"Parameter '{value.name}' has no element type in the model.") from error
