"""Tensors whose elements are in files beside the model: which files these may be, and how they are read.

A model may come from a stranger, and what is read for it ends in sessions, rewritten models and exports. So a model
refers to regular files of its own folder alone, without a link on the way, and to nothing beyond the declared range.
This module is the only one that opens such files, and it checks at every opening.
"""

from __future__ import annotations

import math
import mmap
import os
import stat
from collections.abc import Callable, Iterator, MutableMapping, Sequence
from contextlib import contextmanager
from pathlib import Path, PurePosixPath

import numpy as np
import numpy.typing as npt
import onnx
import onnx_ir as ir

from poet_onnx.errors import InputError

Array = npt.NDArray[np.generic]
Bytes = npt.NDArray[np.uint8]

_FLAGS = os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC
_NO_NUMBER = 2**62
"""No file has so many bytes."""
_WAY_OUT = "copy the model and its data into a folder of their own, with what links point to (cp -L)"


class FileTensor(ir.ExternalTensor):
    """A tensor in a file below a folder; everything about it is checked when it is made, the file at each opening."""

    def __init__(self, tensor: ir.ExternalTensor, folder: Path, location: PurePosixPath, offset: int) -> None:
        """Use `hold_external` and `moved`.

        Args:
            tensor: name, element type and shape.
            folder: with all links resolved.
            location: of the file, relative to the folder.
            offset: of the first byte in the file.
        """
        super().__init__(
            *(location.as_posix(), offset, tensor.nbytes, tensor.dtype),
            shape=tensor.shape,
            name=tensor.name,
            doc_string=tensor.doc_string,
            metadata_props=dict(tensor.metadata_props),
            base_dir=folder,
        )
        self._mapped: Array | None = None

    @property
    def first(self) -> int:
        """Return the offset of its first byte in the file."""
        return self.offset or 0

    def moved(self, folder: Path, location: PurePosixPath, offset: int) -> FileTensor:
        """Return the same tensor in another file."""
        return FileTensor(self, folder, location, offset)

    @contextmanager
    def opened(self) -> Iterator[int]:
        """Open the file for reading.

        Raises:
            InputError: if it may not be read, or ends before the tensor does.
        """
        subject = f"The external data of tensor '{self.name}'"
        with open_below(Path(self.base_dir), PurePosixPath(self.location), subject) as descriptor:
            size_bytes, needed_bytes = os.fstat(descriptor).st_size, self.first + self.nbytes
            if size_bytes < needed_bytes:
                raise InputError(
                    f"{self.path} is truncated: it has {size_bytes} bytes, and tensor '{self.name}' needs "
                    f"{needed_bytes}."
                )
            yield descriptor

    def numpy(self) -> Array:
        """Return the elements, which stay in the file until they are looked at."""
        if self._mapped is None:
            elements = self._bytes()
            if self.dtype.itemsize < 1:  # packed: onnx_ir knows how
                proto = onnx.TensorProto(
                    data_type=self.dtype.value, dims=self.shape.numpy(), raw_data=elements.tobytes()
                )
                self._mapped = ir.serde.TensorProtoTensor(proto).numpy()
            else:
                kind = np.dtype(self.dtype.numpy()).newbyteorder("<")
                self._mapped = elements.view(kind).reshape(self.shape.numpy())
        return self._mapped

    def __array__(self, dtype: npt.DTypeLike | None = None, copy: bool | None = None) -> Array:
        """Return the elements."""
        array: Array = np.asarray(self.numpy(), dtype)
        return array.copy() if copy else array

    def tobytes(self) -> bytes:
        """Return the elements as the file has them."""
        return self._bytes().tobytes()

    def tofile(self, file: object) -> None:
        """Write the elements to a file as they are."""
        file.write(self._bytes().data)  # type: ignore[attr-defined]

    def release(self) -> None:
        """Let go of the file."""
        self._mapped = None
        super().release()

    def _bytes(self) -> Bytes:
        start = self.first - self.first % mmap.ALLOCATIONGRANULARITY
        with self.opened() as descriptor:
            pages = mmap.mmap(descriptor, self.first - start + self.nbytes, offset=start, access=mmap.ACCESS_READ)
        return np.frombuffer(pages, np.uint8, self.nbytes, self.first - start)


@contextmanager
def open_below(folder: Path, location: PurePosixPath, subject: str) -> Iterator[int]:
    """Open a regular file below a folder, without following a link on the way from there.

    Args:
        folder: where to start.
        location: relative to the folder, without "..".
        subject: what to call the file in errors.

    Raises:
        InputError: if there is no such file, or it may not be read.
    """
    path = folder / location
    opened: list[int] = []
    try:
        try:
            opened.append(os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC))
            for part in location.parts[:-1]:
                _check_kind(os.stat(part, dir_fd=opened[-1], follow_symlinks=False), path, subject)
                opened.append(os.open(part, _FLAGS | os.O_DIRECTORY, dir_fd=opened[-1]))
            name = location.parts[-1]
            _check_file(os.stat(name, dir_fd=opened[-1], follow_symlinks=False), path, subject)
            # It may have become something else meanwhile: a pipe must not make this wait.
            opened.append(os.open(name, _FLAGS | os.O_NONBLOCK, dir_fd=opened[-1]))
            _check_file(os.fstat(opened[-1]), path, subject)
        except OSError as problem:
            raise InputError(
                f"{subject} cannot be read: {path}: {problem.strerror or problem}; put the data file beside the model."
            ) from problem
        yield opened[-1]
    finally:
        for descriptor in opened:
            os.close(descriptor)


def _check_kind(status: os.stat_result, path: Path, subject: str) -> None:
    if stat.S_ISLNK(status.st_mode):
        raise InputError(f"{subject} cannot be read: {path} is a symbolic link or behind one; {_WAY_OUT}.")


def _check_file(status: os.stat_result, path: Path, subject: str) -> None:
    _check_kind(status, path, subject)
    if not stat.S_ISREG(status.st_mode):
        raise InputError(f"{subject} cannot be read: {path} is no regular file; put the data file beside the model.")
    if status.st_nlink > 1:
        raise InputError(
            f"{subject} cannot be read: {path} is a hard link, one of {status.st_nlink} names of a file that may "
            "belong elsewhere; copy the data file (cp), and put the copy in its place."
        )


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
        location = _location(tensor)
        offset = _offset(tensor)
        if not tensor.nbytes:
            return ir.tensor(np.empty(tensor.shape.numpy(), tensor.dtype.numpy()), name=tensor.name)
        places = folders or (Path(tensor.base_dir).resolve(),)
        folder = next((place for place in places if os.path.lexists(place / location)), places[0])
        held = FileTensor(tensor, folder, location, offset)
        with held.opened():
            return held

    replace_tensors(model, hold)


def _location(tensor: ir.ExternalTensor) -> PurePosixPath:
    location = PurePosixPath(os.fsdecode(tensor.location))
    if location.is_absolute() or ".." in location.parts or not location.parts or "\0" in str(location):
        raise InputError(
            f"The external data of tensor '{tensor.name}' is said to be in '{location}', but a model may only refer to "
            "files below its own folder: put the data file there, and export the model again."
        )
    return location


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
    """Check that a model of which no folder is known has no external data.

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
