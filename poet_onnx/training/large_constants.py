"""Large constants of models, such as frozen weights: arrays that sessions borrow, one for training and evaluation.

ONNX Runtime holds a model's file while it copies constants from it, so that loading would take the largest one twice;
and each session would have a copy of its own. What `SessionOptions.add_initializer` is given is neither copied nor
read. So a session gets the model without these bytes: as external data, which are where they were, in the model's file.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from poet_onnx.description.names import SHARED_BYTES
from poet_onnx.files.element_types import NAMES
from poet_onnx.files.model_file import opened
from poet_onnx.files.onnx_messages import GRAPH, INITIALIZER, RAW_DATA, file_fields, head_fields, tensor_head
from poet_onnx.files.protobuf import Field, FileBytes, fields, whole
from poet_onnx.files.tensor_file import flat
from poet_onnx.training.runner import aligned

Array = npt.NDArray[np.generic]


class _Constant(NamedTuple):
    """A constant in a file.

    Attributes:
        kind: element type, as TensorProto.DataType numbers them.
        dims: sizes.
        message: where it is.
        elements: where its elements are.
    """

    kind: int
    dims: tuple[int, ...]
    message: Field
    elements: Field


class LargeConstants:
    """The large constants of a model's file, as arrays, and which of them another file has, byte for byte."""

    def __init__(self, first: str, second: str | None = None) -> None:
        """Read those of the first file, and compare those of the second with them.

        Raises:
            InputError: if a file cannot be read, or is no model.
        """
        self._arrays: dict[str, Array] = {}
        data = opened(first)
        mine = _large_constants(data)
        for name, constant in mine.items():
            self._arrays[name] = aligned(constant.dims, NAMES[constant.kind])
            _copy(data, constant.elements, self._arrays[name])
        self._of = {first: self._arrays}
        if second is not None:
            self._of[second] = self._found_in(second, mine)

    def _found_in(self, path: str, mine: Mapping[str, _Constant]) -> dict[str, Array]:
        data = opened(path)
        found = {}
        for name, its in _large_constants(data).items():
            own = mine.get(name)
            if own is not None and (own.kind, own.dims) == (its.kind, its.dims):
                array = self._arrays[name]
                if _has(data, its.elements, array):
                    found[name] = array
        return found

    def of(self, path: str) -> Mapping[str, Array]:
        """Return those that a session of a file takes from arrays, by name."""
        return self._of.get(path, {})

    def references(self, path: str) -> Mapping[int, bytes]:
        """Return messages that say where in a file those of its constants are, by where their own messages begin."""
        names, file = self.of(path), os.fsencode(Path(path).resolve().name)
        return {
            its.message.begin: head_fields(name, its.kind, its.dims)
            + file_fields(file, its.elements.content, _size(its.elements))
            for name, its in _large_constants(opened(path)).items()
            if name in names
        }


def _large_constants(data: FileBytes) -> Mapping[str, _Constant]:
    """Return the initializers that are worth an array of their own, by name."""
    found = {}
    for graph in fields(data, whole(data)):
        for field in fields(data, graph) if graph.number == GRAPH else ():
            if field.number != INITIALIZER or field.end - field.content < SHARED_BYTES:
                continue
            name, kind, dims, parts = tensor_head(data, field)
            elements = parts.get(RAW_DATA, ())
            if len(elements) != 1 or _size(elements[0]) < SHARED_BYTES or kind not in NAMES:
                continue
            if np.dtype(NAMES[kind]).itemsize * int(np.prod(dims, dtype=object)) == _size(elements[0]):
                found[name] = _Constant(kind, dims, field, elements[0])
    return found


def _size(field: Field) -> int:
    return field.end - field.content


def _copy(data: FileBytes, elements: Field, array: Array) -> None:
    place, target = 0, flat(array)
    for chunk in data.chunks(elements.content, elements.end):
        target[place : place + len(chunk)] = chunk
        place += len(chunk)


def _has(data: FileBytes, elements: Field, array: Array) -> bool:
    place, expected = 0, flat(array)
    for chunk in data.chunks(elements.content, elements.end):
        if chunk != expected[place : place + len(chunk)]:
            return False
        place += len(chunk)
    return True
