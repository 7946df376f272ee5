"""The arrays of a training session: each parameter, gradient, moment and statistic once, in memory of its own."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import numpy as np
import numpy.typing as npt

from poet_onnx.description.groups import ParameterGroup, settings_by_group
from poet_onnx.description.metadata import Description
from poet_onnx.description.names import RUNS, handle_name, slot_name
from poet_onnx.description.optimizers import Optimizer
from poet_onnx.errors import InputError
from poet_onnx.files.values import copy_value
from poet_onnx.training import kernels
from poet_onnx.training.batch import Wanted
from poet_onnx.training.runner import aligned
from poet_onnx.training.stored import SessionStore

Array = npt.NDArray[np.generic]


class Memory:
    """Arrays by the names that they have in the graphs."""

    def __init__(
        self,
        description: Description,
        optimizer: Optimizer,
        groups: Sequence[ParameterGroup],
        values: Mapping[str, Array],
        inputs: Iterable[Wanted],
    ) -> None:
        """Allocate everything and copy the first values, one after the other.

        Parameters that live in a store have handles alone, which `store` fills.

        Args:
            description: of the training graph.
            optimizer: what is kept for each parameter.
            groups: of parameters with numbers of their own, as many as the description has.
            values: of parameters, and of running statistics where they are not to be the model's.
            inputs: what the training graph takes.

        Raises:
            InputError: if a value is missing or does not fit.
        """
        self._description, self._optimizer = description, optimizer
        self.store: SessionStore | None = None
        """What keeps parameters and moments that are not in RAM."""
        self.frozen = tuple(name for name in description.data if name in values)
        self.arrays: dict[str, Array] = {}
        taken = {put.name: put for put in inputs}
        for name in description.parameters:
            if name not in values:
                raise InputError(
                    f"The gradient of '{name}' is accumulated, but there is no value in the parameters that were given "
                    "of that name: if it was frozen before, add that of the file beside the new model (docs/guide.md)."
                )
        for name in (*description.stored, *description.constants):
            self.arrays[handle_name(name)] = aligned((1,), np.int64)
        resident = tuple(name for name in description.parameters if name not in description.stored)
        for name in (*resident, *self.frozen):
            self.arrays[name] = aligned(_shape(taken, name), taken[name].dtype)
            copy_value(values, name, self.arrays[name])
        for name, state in description.state.items():
            own = state.array
            self.arrays[name] = aligned(own.shape, own.dtype)
            copy_value(values if name in values else {name: own}, name, self.arrays[name])
        for name in resident:
            shape = self.arrays[name].shape
            for slot in optimizer.slots:
                self.arrays[slot_name(name, slot)] = aligned(shape, np.float32)
            if name in description.buffers:
                self.arrays[description.buffers[name]] = aligned(shape, np.float32)
        self._settings = settings_by_group(optimizer, groups)
        size = optimizer.rates(1, 0.0, 1.0).size
        self.arrays |= {name: aligned((size,), np.float32) for name in description.rates}
        self.fresh = aligned((1,), np.bool_)
        """Whether gradient buffers start anew."""
        self.runs = aligned((1,), np.int64)
        """How often the graph has run."""
        if description.seeds:
            self.arrays[RUNS] = self.runs
        if description.flag:
            self.arrays[description.flag] = self.fresh

    def close(self) -> None:
        """Let go of all arrays, so that only who was given one still holds it, and of the store."""
        self.arrays.clear()
        if self.store is not None:
            self.store.file.close()

    def sizes_bytes(self) -> dict[str, int]:
        """Return how many bytes of arrays there are of each kind."""
        described = self._description
        kinds = {
            "parameters": (*described.parameters, *self.frozen),
            "gradients": tuple(described.buffers.values()),
            "moments": [slot for name in described.parameters for slot in self._slots(name)],
            "statistics": tuple(described.state),
            "rates": (
                *described.rates,
                *([described.flag] if described.flag else []),
                *([RUNS] if described.seeds else []),
            ),
        }
        kinds["parameters"] = (*kinds["parameters"], *map(handle_name, (*described.stored, *described.constants)))
        sizes = {name: array.nbytes for name, array in self.arrays.items()}
        return {kind: sum(sizes.get(name, 0) for name in names) for kind, names in kinds.items()}

    def set_rates(self, step: int, learning_rate: float, scale: float) -> None:
        """Set the numbers of the next updates, as an optimizer's `rates` has them; each group has its own."""
        for name, (optimizer, factor) in zip(self._description.rates, self._settings, strict=True):
            self.arrays[name][...] = optimizer.rates(step, learning_rate * factor, scale)

    def values(self, *, constants: bool = False) -> Mapping[str, Array]:
        """Return parameters, those not trained, and running statistics; if asked for, constants of the store, too."""
        described = self._description
        others = described.constants if constants else ()
        return self._named((*described.parameters, *self.frozen, *described.state, *others))

    def _named(self, names: Iterable[str]) -> Mapping[str, Array]:
        return self._called({name: name for name in names})

    def _called(self, names: Mapping[str, str]) -> Mapping[str, Array]:
        """Return arrays, each by what it is called; copies, read when asked for, where some live in a store.

        Raises:
            InputError: if they are gone.
        """
        if not self.arrays:
            raise InputError("The session was closed, and holds no arrays any more: read them before.")
        if self.store is not None:
            return self.store.values(names)
        return {called: self.arrays[name] for called, name in names.items()}

    def moved(self) -> list[str]:
        """Return the names of running statistics that are not those of the model any more."""
        state = self._description.state
        return [name for name, first in state.items() if not np.array_equal(self.arrays[name], first.array)]

    def gradients(self) -> Mapping[str, Array]:
        """Return the gradients that are kept, by parameter."""
        return self._called(self._description.buffers)

    def moments(self) -> Mapping[str, Array]:
        """Return what the optimizer keeps."""
        return self._named([slot for name in self._description.parameters for slot in self._slots(name)])

    def lasting(self, *, gradients: bool) -> Mapping[str, Array]:
        """Return all that a checkpoint needs, with or without gradients that are half collected."""
        buffers = self._description.buffers.values() if gradients else ()
        return self._named([*self.values(), *self.moments(), *buffers])

    def sum_of_squares(self) -> float:
        """Return the sum of the squares of all gradients that are kept."""
        return sum(map(kernels.sum_of_squares, map(self._pieces, self._description.buffers.values())), 0.0)

    def _pieces(self, buffer: str) -> Iterable[Array]:
        return [self.arrays[buffer]] if buffer in self.arrays or self.store is None else self.store.floats(buffer)

    def update(self) -> None:
        """Update the parameters whose gradients are kept."""
        for name, buffer in self._description.buffers.items():
            rates = self.arrays[self._description.rates_of(name)]
            if name in self.arrays or self.store is None:
                slots = [self.arrays[slot] for slot in self._slots(name)]
                kernels.update(self._optimizer.operator, self.arrays[buffer], rates, self.arrays[name], slots)
            else:
                self.store.update(name, buffer, rates)

    def _slots(self, parameter: str) -> list[str]:
        return [slot_name(parameter, slot) for slot in self._optimizer.slots]


def _shape(inputs: Mapping[str, Wanted], name: str) -> tuple[int, ...]:
    if name not in inputs:
        raise InputError(f"The model has no input '{name}', which its metadata call a parameter: rewrite it again.")
    sizes = inputs[name].shape
    if any(not isinstance(size, int) for size in sizes):
        raise InputError(f"Parameter '{name}' has no fixed shape in the model.")
    return tuple(size for size in sizes if isinstance(size, int))
