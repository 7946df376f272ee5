"""Tensors whose elements are in files beside the model: which files these may be, and how they are read.

A model may come from a stranger, and what is read for it ends in sessions, rewritten models and exports. So a model
refers to regular files of its own folder alone, without a link on the way, and to nothing beyond the declared range.
This module is the only one that reads such files, and it checks at every opening.
"""

from __future__ import annotations

import math
import mmap
import os
from collections.abc import Callable, Iterator, MutableMapping, Sequence
from contextlib import contextmanager
from pathlib import Path, PurePosixPath

import numpy as np
import numpy.typing as npt
import onnx
import onnx_ir as ir

from poet_onnx.errors import InputError
from poet_onnx.files.contained import BelowFolder, chunks_of, external_data_of, location_below
from poet_onnx.files.regular import unchanged

Array = npt.NDArray[np.generic]
Bytes = npt.NDArray[np.uint8]

_NO_NUMBER = 2**62
"""No file has so many bytes."""


class FileTensor(ir.ExternalTensor):
    """A tensor in a file below a folder; everything about it is checked when it is made, the file at each opening.

    What is read of the file is what was there at the first opening.
    """

    def __init__(
        self,
        tensor: ir.ExternalTensor,
        folder: Path,
        location: PurePosixPath,
        offset: int,
        first_look: tuple[int, ...] | None = None,
    ) -> None:
        """Use `hold_external` and `moved`.

        Args:
            tensor: name, element type and shape.
            folder: with all links resolved.
            location: of the file, relative to the folder.
            offset: of the first byte in the file.
            first_look: identity of the file, if it was opened before.
        """
        super().__init__(
            *(location.as_posix(), offset, tensor.nbytes, tensor.dtype),
            shape=tensor.shape,
            name=tensor.name,
            doc_string=tensor.doc_string,
            metadata_props=dict(tensor.metadata_props),
            base_dir=folder,
        )
        self._first_look = first_look

    @property
    def first(self) -> int:
        """Return the offset of its first byte in the file."""
        return self.offset or 0

    def moved(self, folder: Path, location: PurePosixPath, offset: int) -> FileTensor:
        """Return the same tensor in another file."""
        return FileTensor(self, folder, location, offset)

    def seen_as(self, dtype: ir.DataType, shape: Sequence[int], name: str) -> FileTensor:
        """Return its bytes as elements of another type."""
        other = ir.ExternalTensor(
            *(self.location, self.first, self.nbytes, dtype), shape=ir.Shape(shape), name=name, base_dir=self.base_dir
        )
        return FileTensor(other, Path(self.base_dir), PurePosixPath(self.location), self.first, self._first_look)

    def part(self, start: int, shape: Sequence[int], name: str) -> FileTensor:
        """Return some of its elements, which have whole bytes, from one on."""
        size = math.prod(shape)
        if self.dtype.itemsize < 1 or not 0 <= start <= start + size <= self.size:
            raise InputError(f"Tensor '{self.name}' of {self.size} elements has no part of {size} from {start} on.")
        first = self.first + start * int(self.dtype.itemsize)
        other = ir.ExternalTensor(
            *(self.location, first, size * int(self.dtype.itemsize), self.dtype),
            shape=ir.Shape(shape),
            name=name,
            base_dir=self.base_dir,
        )
        return FileTensor(other, Path(self.base_dir), PurePosixPath(self.location), first, self._first_look)

    @contextmanager
    def opened(self) -> Iterator[int]:
        """Open the file for reading.

        Raises:
            InputError: if it may not be read, ends before the tensor does, or was changed since it was opened first.
        """
        below = BelowFolder(self.name or "", Path(self.base_dir), PurePosixPath(self.location), self.first, self.nbytes)
        with below.opened() as descriptor:
            self._first_look = unchanged(descriptor, below.path, self._first_look)
            yield descriptor

    def numpy(self) -> Array:
        """Return the elements, which stay in the file until they are looked at, and are mapped as long as the array."""
        elements = self._bytes()
        if self.dtype.itemsize < 1:  # packed: onnx_ir knows how
            proto = onnx.TensorProto(data_type=self.dtype.value, dims=self.shape.numpy(), raw_data=elements.tobytes())
            return ir.serde.TensorProtoTensor(proto).numpy()
        kind = np.dtype(self.dtype.numpy()).newbyteorder("<")
        return elements.view(kind).reshape(self.shape.numpy())

    def __array__(self, dtype: npt.DTypeLike | None = None, copy: bool | None = None) -> Array:
        """Return the elements."""
        array: Array = np.asarray(self.numpy(), dtype)
        return array.copy() if copy else array

    def chunks(self) -> Iterator[memoryview]:
        """Yield the elements as the file has them, in pieces that are read and not mapped.

        Raises:
            InputError: if it may not be read, or ends before the tensor does.
        """
        with self.opened() as descriptor:
            for chunk in chunks_of(descriptor, self.first, self.first + self.nbytes):
                yield memoryview(chunk)

    def tobytes(self) -> bytes:
        """Return the elements as the file has them."""
        return self._bytes().tobytes()

    def tofile(self, file: object) -> None:
        """Write the elements to a file as they are."""
        file.write(self._bytes().data)  # type: ignore[attr-defined]

    def _bytes(self) -> Bytes:
        start = self.first - self.first % mmap.ALLOCATIONGRANULARITY
        with self.opened() as descriptor:
            pages = mmap.mmap(descriptor, self.first - start + self.nbytes, offset=start, access=mmap.ACCESS_READ)
        return np.frombuffer(pages, np.uint8, self.nbytes, self.first - start)


def hold_external(model: ir.Model, folders: Sequence[Path] = ()) -> None:
    """Check all external data of a model and hold it as `FileTensor`; changes the model.

    Args:
        model: its initializers and the tensors in attributes, in functions and subgraphs too.
        folders: where its data may be, with all links resolved; the first that has a file wins. Default: what the
            tensors themselves say.

    Raises:
        InputError: if something may not be read, or is missing or too short.
    """

    def hold(tensor: ir.TensorProtocol) -> ir.TensorProtocol:
        if not isinstance(tensor, ir.ExternalTensor) or isinstance(tensor, FileTensor):
            return tensor
        location = location_below(os.fsdecode(tensor.location), external_data_of(tensor.name))
        offset = _offset(tensor)
        if not tensor.nbytes:
            return ir.tensor(np.empty(tensor.shape.numpy(), tensor.dtype.numpy()), name=tensor.name)
        places = folders or (Path(tensor.base_dir).resolve(),)
        folder = next((place for place in places if os.path.lexists(place / location)), places[0])
        held = FileTensor(tensor, folder, location, offset)
        with held.opened():
            return held

    replace_tensors(model, hold)


def _offset(tensor: ir.ExternalTensor) -> int:
    """Return the offset after checking it, and that the declared length is what the tensor has."""
    dims, offset = tensor.shape.numpy(), tensor.offset or 0
    no_numbers = tensor.dtype in (ir.DataType.UNDEFINED, ir.DataType.STRING)
    if no_numbers or min(dims, default=0) < 0 or math.prod(max(1, size) for size in dims) > _NO_NUMBER:
        raise InputError(
            f"Tensor '{tensor.name}' of type {tensor.dtype.name} and shape {list(dims)} cannot be external data: "
            "export the model again."
        )
    if not 0 <= offset < _NO_NUMBER or (tensor.length or 0) not in range(_NO_NUMBER):
        raise InputError(
            f"The external data of tensor '{tensor.name}' is said to be where no file has any: export the model again."
        )
    if tensor.length not in (None, tensor.nbytes):
        raise InputError(
            f"The external data of tensor '{tensor.name}' is said to have {tensor.length} bytes, but type "
            f"{tensor.dtype.name} and shape {list(dims)} take {tensor.nbytes}: export the model again."
        )
    return offset


def refuse_external(model: ir.Model, subject: str) -> None:
    """Check that a model has no external data where its folder is not known.

    Raises:
        InputError: if it has.
    """

    def check(tensor: ir.TensorProtocol) -> ir.TensorProtocol:
        if isinstance(tensor, ir.ExternalTensor):
            raise InputError(
                f"Tensor '{tensor.name}' is external data, and {subject} does not say in which folder it is: give the "
                "path of the model's file, or load the data before (onnx.load, load_external_data_for_model)."
            )
        return tensor

    replace_tensors(model, check)


def embed(model: ir.Model) -> None:
    """Take all external data into the model; changes the model."""

    def read(tensor: ir.TensorProtocol) -> ir.TensorProtocol:
        return ir.tensor(tensor.numpy(), name=tensor.name) if isinstance(tensor, FileTensor) else tensor

    replace_tensors(model, read)


def replace_tensors(model: ir.Model, replacement: Callable[[ir.TensorProtocol], ir.TensorProtocol]) -> None:
    """Replace every tensor that a model holds: initializers, and attributes, in subgraphs and functions too."""
    graphs = [*model.graphs()]
    for function in model.functions.values():
        graphs += (function.graph, *function.graph.subgraphs())
        _replace_in(function.attributes, replacement)
    for graph in graphs:
        for value in graph.initializers.values():
            if value.const_value is not None:
                value.const_value = replacement(value.const_value)
        for node in graph:
            _replace_in(node.attributes, replacement)


def _replace_in(
    attributes: MutableMapping[str, ir.Attr], replacement: Callable[[ir.TensorProtocol], ir.TensorProtocol]
) -> None:
    for name, attribute in list(attributes.items()):
        if attribute.is_ref():
            continue
        if attribute.type is ir.AttributeType.TENSOR:
            old = attribute.value  # as_tensor() looks at every property, and fails where a type has no size
            new = replacement(old)
            if new is not old:
                attributes[name] = ir.AttrTensor(name, new, doc_string=attribute.doc_string)
        elif attribute.type is ir.AttributeType.TENSORS:
            tensors = [*attribute.value]
            others = [replacement(each) for each in tensors]
            if any(new is not old for new, old in zip(others, tensors, strict=True)):
                attributes[name] = ir.AttrTensors(name, others, doc_string=attribute.doc_string)
