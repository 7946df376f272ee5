"""Make adapters a part of the weights beside which they stand, some rows of a weight at a time."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from poet_onnx.adapters.lora import Adapter, Adapters, Floats
from poet_onnx.errors import InputError
from poet_onnx.files.protobuf import Chunk, Piece
from poet_onnx.files.tensor_file import flat
from poet_onnx.training.forward_graph import ForwardGraph, Weight
from poet_onnx.training.unplanned import Changes

Array = npt.NDArray[np.generic]

_BLOCK_BYTES = 2**16
_LEAST_ROWS = 2  # of one row BLAS makes a product of a vector, whose sums it adds up in another order


def merge_adapters(forward: ForwardGraph, adapters: Adapters, values: Mapping[str, Array]) -> dict[str, Piece]:
    """Return the elements of merged weights, which are computed while they are written.

    Args:
        forward: a model that has the weights.
        adapters: beside its weights.
        values: parameters by name.

    Raises:
        InputError: if a weight is not there, or cannot be merged.
    """
    return {adapter.weight: _merged(forward, adapter, adapters.scale_of(adapter), values) for adapter in adapters.each}


def _merged(forward: ForwardGraph, adapter: Adapter, scale: float, values: Mapping[str, Array]) -> Piece:
    weight = forward.weights.get(adapter.weight)
    if weight is None:
        raise InputError(
            f"The model has no weight '{adapter.weight}', beside which an adapter was trained: give the forward "
            "model that was trained."
        )
    first, second = (np.asarray(values[name], np.float32) for name in (adapter.first, adapter.second))
    shape = adapter.merged_shape(first, second)
    if weight.dims != shape:
        raise InputError(
            f"'{adapter.weight}' has shape {list(weight.dims)} in the forward model, but its adapter is for "
            f"{list(shape)}: give the forward model that was trained."
        )
    delta = partial(adapter.delta, first, second, scale)
    return Piece(weight.size_bytes, partial(_sums, forward, weight, delta))


def _sums(forward: ForwardGraph, weight: Weight, delta: Callable[[slice], Floats]) -> Iterator[Chunk]:
    """Yield the bytes of a weight with what an adapter adds."""
    row_bytes = weight.size_bytes // max(1, weight.dims[0])
    count = max(1, weight.dims[0] // max(_LEAST_ROWS, _BLOCK_BYTES // max(1, row_bytes)))
    bounds = [weight.dims[0] * index // count for index in range(count + 1)]
    for start, end in pairwise(bounds):
        block = forward.read(weight, start * row_bytes, (end - start) * row_bytes)
        if weight.kind != 1 or block is None:
            raise InputError(
                f"'{weight.name}' cannot be merged with its adapter, as the model does not keep it as plain float32: "
                "give merge=False, which keeps adapters as nodes."
            )
        base = np.frombuffer(block, "<f4").reshape(end - start, *weight.dims[1:])
        yield flat(np.ascontiguousarray(base + delta(slice(start, end))))


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
