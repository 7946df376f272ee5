"""The batch of an exported model: as it was trained with, or any, where `rewrite` found that samples are kept apart."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from poet_onnx.description.names import BATCH_KEY
from poet_onnx.errors import InputError, shown
from poet_onnx.files.onnx_messages import VALUE
from poet_onnx.files.protobuf import Field, Piece, number_field, text_field, texts, written
from poet_onnx.files.tensor_file import parse_json
from poet_onnx.training.forward_graph import ForwardGraph

BATCHES = ("dynamic", "fixed")
_NAME = "batch"
_TYPE, _TENSOR_TYPE, _ELEMENT, _SHAPE, _DIMENSION, _SIZE, _SYMBOL = 2, 1, 1, 2, 1, 1, 2


@dataclass(frozen=True)
class FreeBatch:
    """Types with any number of samples.

    Attributes:
        forward: graph that has the types.
        axes: along which axes the samples lie, by names of inputs and outputs.
    """

    forward: ForwardGraph
    axes: Mapping[str, int]

    def typed(self, name: str, value: Field) -> list[Piece]:
        """Return what is said of an input or an output, which has no shape where it is not known."""
        kind = self.forward.element_type(value)
        tensor = number_field(_ELEMENT, kind)
        shape, axis = self.forward.shape(value), self.axes.get(name)
        if shape is not None and axis is not None:
            sizes = [
                text_field(_SYMBOL, _NAME) if index == axis else number_field(_SIZE, size) if size >= 0 else b""
                for index, size in enumerate(shape)
            ]
            tensor += text_field(_SHAPE, b"".join(text_field(_DIMENSION, size) for size in sizes))
        return [written(text_field(1, name) + text_field(_TYPE, text_field(_TENSOR_TYPE, tensor)))]


def free_batch_of(forward: ForwardGraph, asked: str | None) -> FreeBatch | None:
    """Return how the graph takes any number of samples; None if its types stay as they are.

    Args:
        forward: graph, whose metadata tell.
        asked: "dynamic", "fixed", or None for "dynamic" where the graph allows it.

    Raises:
        InputError: if it is to be dynamic, and is not.
    """
    if asked not in (None, *BATCHES):
        raise InputError(f"batch is {shown(asked)}: give 'dynamic' or 'fixed'.")
    said = next((texts(forward.data, field, VALUE) for key, field in forward.metadata if key == BATCH_KEY), None)
    if asked == "fixed" or (said is None and asked is None):
        return None
    try:
        found = parse_json("".join(said[-1:])) if said else {}
    except ValueError:
        found = {}
    axes = found.get("axes") if isinstance(found, dict) else None
    if isinstance(axes, dict) and all(type(axis) is int and axis >= 0 for axis in axes.values()):
        return FreeBatch(forward, axes)
    if asked is None:
        return None
    why = found.get("fixed") if isinstance(found, dict) else None
    raise InputError(
        f"The exported model takes batches of one size only: {why}. Take batch='fixed'."
        if isinstance(why, str)
        else "The forward model does not tell where its samples are: rewrite it again, or give a forward model of one "
        "batch size, model=."
    )
