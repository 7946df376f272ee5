"""Copies that an exporter made of parameters, transposed or of some rows or columns, read their originals."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from poet_onnx.gradients.folded import is_of_a_node
from poet_onnx.gradients.module_names import ANONYMOUS
from poet_onnx.gradients.paths import REAL
from poet_onnx.gradients.torch_words import folded_from, is_moved
from poet_onnx.passes.node_builder import initializer

Array = npt.NDArray[np.generic]

_BY_TF2ONNX = re.compile(r"const_fold_opt__\d+|(?:.*/)?transpose(?:_\d+)?:\d+")
"""How tf2onnx and TensorFlow name what they turned."""


def tie_copies(graph: ir.Graph, own: Collection[str]) -> Iterator[tuple[str, str]]:
    """Let what an exporter copied read its original, where that is in the model as well.

    Without it a tied weight, as the `weight[1:]` by which a model of sequences scores items, were two.

    Args:
        graph: changed in place.
        own: names of what is no copy, whatever it looks like.

    Yields:
        The names of a copy, which is gone, and of its original.
    """
    matrices = [value for value in graph.initializers.values() if value.uses() and _is_matrix(value)]
    originals = [value for value in matrices if not _is_made(value)]
    for copy in matrices:
        if not originals or not _is_made(copy) or copy.name in own:
            continue
        part = _array(copy)
        if (part == part.flat[0]).all():
            continue
        for original in originals:
            if nodes := _nodes(graph, original, copy, part):
                copy.replace_all_uses_with(nodes[-1].outputs[0])
                graph.initializers.pop(copy.name or "")
                graph.insert_before(graph[0], nodes)
                yield copy.name or "", original.name or ""
                break


def _is_matrix(value: ir.Value) -> bool:
    tensor = value.const_value
    return tensor is not None and len(tensor.shape) == 2 and tensor.dtype in REAL and tensor.size > 0


def _is_made(value: ir.Value) -> bool:
    """Return whether an exporter named a value, or it is computed, as the names or the exporter say."""
    name = value.name or ""
    is_named = name.startswith(ANONYMOUS) or is_of_a_node(name) or is_moved(name) or _BY_TF2ONNX.fullmatch(name)
    return bool(is_named or folded_from(value))


def _array(value: ir.Value) -> Array:
    assert value.const_value is not None
    return np.asarray(value.const_value.numpy())


def _nodes(graph: ir.Graph, original: ir.Value, copy: ir.Value, part: Array) -> list[ir.Node]:
    """Return the nodes that make a copy of its original; none where it is no copy of that."""
    assert original.const_value is not None
    shape = original.const_value.shape.numpy()
    for perm in ([1, 0], [0, 1]):
        block = part.transpose(perm)
        for axis in (0, 1):
            fits = block.shape[axis] <= shape[axis] and block.shape[1 - axis] == shape[1 - axis]
            if not fits or (block.shape == shape and perm == [0, 1]):
                continue
            start = _start(np.moveaxis(_array(original), axis, 0), np.moveaxis(block, axis, 0))
            if start is None:
                continue
            nodes, source = list[ir.Node](), original
            if block.shape != shape:
                bounds = {"starts": start, "ends": start + block.shape[axis], "axes": axis}
                given = [initializer(graph, f"{copy.name}/{name}", np.array([at])) for name, at in bounds.items()]
                nodes.append(ir.Node("", "Slice", [source, *given], name=f"{copy.name}/Slice"))
                source = nodes[-1].outputs[0]
                source.name, source.type, source.shape = f"{copy.name}/part", copy.type, ir.Shape(block.shape)
            if perm == [1, 0]:
                turn = ir.AttrInt64s("perm", perm)
                nodes.append(ir.Node("", "Transpose", [source], [turn], name=f"{copy.name}/Transpose"))
                source = nodes[-1].outputs[0]
                source.name, source.type, source.shape = f"{copy.name}/transposed", copy.type, copy.shape
            return nodes
    return []


def _start(whole: Array, part: Array) -> int | None:
    """Return from which row on a matrix has the rows of another one, which is as wide and no longer."""
    firsts = np.flatnonzero(whole[: len(whole) - len(part) + 1, 0] == part[0, 0])
    return next((int(at) for at in firsts if np.array_equal(whole[at : at + len(part)], part)), None)
