"""Make adapters a part of the weights beside which they stand, some rows of a weight at a time."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from poet_onnx.adapters.lora import Adapter, Adapters, Floats
from poet_onnx.description.names import CODES_SUFFIX
from poet_onnx.errors import InputError
from poet_onnx.files.element_types import NUMBERS
from poet_onnx.files.protobuf import Chunk, Piece
from poet_onnx.files.tensor_file import flat
from poet_onnx.files.values import kind_of, pieces_of
from poet_onnx.training.forward_graph import ForwardGraph, Weight
from poet_onnx.training.unplanned import Changes

Array = npt.NDArray[np.generic]

_BLOCK_BYTES, _FLOAT_BYTES = 2**16, 4
_LEAST_ROWS = 2  # of one row BLAS makes a product of a vector, whose sums it adds up in another order


def merge_adapters(forward: ForwardGraph, adapters: Adapters, values: Mapping[str, Array]) -> dict[str, Piece]:
    """Return the elements of merged weights, which are computed while they are written.

    Raises:
        InputError: if a weight is not there, or cannot be merged.
    """
    return {adapter.weight: _merged(forward, adapter, adapters.scale_of(adapter), values) for adapter in adapters.each}


def _merged(forward: ForwardGraph, adapter: Adapter, scale: float, values: Mapping[str, Array]) -> Piece:
    weight, name = forward.weights.get(adapter.weight), adapter.weight
    codes = f"{name}{CODES_SUFFIX}"
    is_quantized = codes in forward.weights or codes in forward.inputs
    if is_quantized or (weight is not None and weight.kind != NUMBERS["float32"]):
        raise InputError(
            f"The adapter of '{adapter.module or name}' cannot be merged into a weight of a few bits, which would lose"
            " it: give merge=False, which keeps adapters as nodes."
        )
    if weight is None and name not in values:
        raise InputError(
            f"The model has no weight '{adapter.weight}', beside which an adapter was trained: give the forward "
            "model that was trained."
        )
    shape = adapter.merged_shape(*(kind_of(values, each).shape for each in (adapter.first, adapter.second)))
    dims = kind_of(values, name).shape if weight is None else weight.dims
    if dims != shape:
        raise InputError(
            f"'{adapter.weight}' has shape {list(dims)} in the forward model, but its adapter is for "
            f"{list(shape)}: give the forward model that was trained."
        )
    read = partial(_cut, values, name) if weight is None else partial(_parts, forward, weight)
    return Piece(math.prod(dims) * _FLOAT_BYTES, partial(_sums, dims, read, partial(_added, adapter, scale, values)))


def _added(adapter: Adapter, scale: float, values: Mapping[str, Array]) -> Callable[[slice], Floats]:
    """Read an adapter, and return what it adds to some rows of its weight."""
    first, second = (np.asarray(values[name], np.float32) for name in (adapter.first, adapter.second))
    return partial(adapter.delta, first, second, scale)


def _sums(
    dims: tuple[int, ...],
    read: Callable[[Iterable[int]], Iterator[bytes]],
    adapter: Callable[[], Callable[[slice], Floats]],
) -> Iterator[Chunk]:
    """Yield the bytes of a weight with what an adapter adds.

    Args:
        dims: sizes of the weight.
        read: yields its bytes from each of some places to the next one.
        adapter: reads the adapter, which is in memory while its weight is written, and returns what it adds to rows.
    """
    delta = adapter()
    row_bytes = math.prod(dims[1:]) * _FLOAT_BYTES
    count = max(1, dims[0] // max(_LEAST_ROWS, _BLOCK_BYTES // max(1, row_bytes)))
    bounds = [dims[0] * index // count for index in range(count + 1)]
    for (start, end), block in zip(pairwise(bounds), read(bound * row_bytes for bound in bounds), strict=True):
        base = np.frombuffer(block, "<f4").reshape(end - start, *dims[1:])
        yield flat(np.ascontiguousarray(base + delta(slice(start, end))))


def _parts(forward: ForwardGraph, weight: Weight, bounds: Iterable[int]) -> Iterator[bytes]:
    """Yield parts of a weight that is in the model."""
    for start, end in pairwise(bounds):
        block = forward.read(weight, start, end - start)
        if weight.kind != 1 or block is None:
            raise InputError(
                f"'{weight.name}' cannot be merged with its adapter, as the model does not keep it as plain float32: "
                "give merge=False, which keeps adapters as nodes."
            )
        yield block


def _cut(values: Mapping[str, Array], name: str, bounds: Iterable[int]) -> Iterator[bytes]:
    """Yield parts of a weight that is a value, of which a piece is in memory at a time."""
    pieces, held = pieces_of(values, name), bytearray()
    for start, end in pairwise(bounds):
        while len(held) < end - start:
            held += next(pieces)
        yield bytes(held[: end - start])
        del held[: end - start]


def is_in_graph(forward: ForwardGraph, adapters: Adapters) -> bool:
    """Return whether a model has the adapters as nodes."""
    return not (forward.inputs.keys() | forward.weights.keys()).isdisjoint(adapters.parameters)


def cut_off(forward: ForwardGraph, adapters: Adapters, plain: Changes) -> Changes:
    """Return what changes besides when adapters go: what stands before one gets the name of the sum behind it.

    Args:
        forward: a model that has the adapters as nodes.
        adapters: that go.
        plain: what changes without that.

    Raises:
        InputError: if an adapter's sum is not there.
    """
    sums = {name: node for node in forward.nodes if node.begin not in plain.gone for name in node.outputs}
    cut, gone = dict[str, str](), set(plain.gone)
    for name in (name for adapter in adapters.each for name in adapter.sums):
        if name not in sums or not sums[name].inputs:
            raise InputError(f"The model has no tensor '{name}', to which an adapter adds: give the evaluation graph.")
        base = sums[name].inputs[0]
        cut[plain.names.get(base, base)] = name
        gone.add(sums[name].begin)
    return Changes(cut | {name: cut.get(other, other) for name, other in plain.names.items()}, gone)
