"""What is verified of a model with a store: the tensors there, held against those that the original has in RAM."""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Collection, Mapping

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from poet_onnx.description.metadata import Description
from poet_onnx.description.names import handle_name
from poet_onnx.errors import InputError
from poet_onnx.files.hashes import hash_of
from poet_onnx.files.values import Kind
from poet_onnx.graph.extract import constant_array
from poet_onnx.passes.quantized.blocks import BITS, bytes_of
from poet_onnx.passes.stored_constants import StoredConstants
from poet_onnx.training.store_file import Stored, make_store
from poet_onnx.training.stored import kept_for

Array = npt.NDArray[np.generic]


def constants_in(model: ir.Model, description: Description) -> dict[str, Array]:
    """Return the constants that a description has in a store, by name, found in a graph by what is in them.

    Raises:
        InputError: if one is not there.
    """
    wanted = {(each.shape, each.digest): name for name, each in description.constants.items()}
    shapes = {shape for shape, _ in wanted}
    found: dict[str, Array] = {}
    for value in model.graph.initializers.values():
        tensor = value.const_value
        if tensor is None or tensor.dtype not in (ir.DataType.FLOAT, *BITS):
            continue
        if tensor.dtype in BITS:  # which nodes read as bytes
            tensor = bytes_of(value.name or "", tensor)
        array = constant_array(value.name or "", tensor)
        for each in (array, array.T) if array.ndim == 2 else (array,):
            name = wanted.get((each.shape, _hash(each))) if each.shape in shapes else None
            if name is not None:
                found[name] = np.ascontiguousarray(each)
    for name in wanted.values():
        if name not in found:
            raise InputError(
                f"The first model has no constant with the numbers of '{name}', which the second one reads."
            )
    return found


def as_constants(arrays: Mapping[str, Array]) -> StoredConstants:
    """Return arrays as what may live in a store."""
    return StoredConstants(ir.Value(name=name, const_value=ir.tensor(array)) for name, array in arrays.items())


def _hash(array: Array) -> str:
    return hash_of([np.ascontiguousarray(array).data])


class StoredTensors:
    """A store for one session: parameters with what the optimizer keeps for them, gradients, and constants."""

    def __init__(self, description: Description, constants: Mapping[str, Array], folder: str | None) -> None:
        """Make it.

        Args:
            description: of the training graph.
            constants: that are only read, by name.
            folder: in which it is made, and removed at the end; None for the default.

        Raises:
            InputError: if there is no room for it.
        """
        self._trained: dict[str, Stored] = {}
        for name in description.stored:
            self._trained |= kept_for(name, description)
        only_read = {name: Stored(Kind(each.dtype.name, each.shape), False) for name, each in constants.items()}
        with contextlib.ExitStack() as resources:
            place = resources.enter_context(tempfile.TemporaryDirectory(prefix="poet-onnx-", dir=folder))
            self._file = make_store(place, self._trained | only_read, {}, {})
            resources.callback(self._file.close)
            for name, array in constants.items():
                self._file.write(name, array)
            self._resources = resources.pop_all()
        names = (*description.stored, *constants)
        self.handles: Mapping[str, Array] = {handle_name(name): np.array([self._file.handle(name)]) for name in names}
        """What stands for the tensors among a graph's inputs."""

    def take(self, arrays: Mapping[str, Array]) -> None:
        """Write those of some arrays that are trained here."""
        for name in self._trained.keys() & arrays.keys():
            self._file.write(name, arrays[name])

    def arrays(self, names: Collection[str]) -> dict[str, Array]:
        """Return those that have some names."""
        values = self._file.values()
        return {name: values[name] for name in self._trained if name in names}

    def __contains__(self, name: str) -> bool:
        """Return whether a tensor is trained here."""
        return name in self._trained

    def close(self) -> None:
        """Remove it."""
        self._resources.close()
