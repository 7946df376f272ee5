"""Frozen batch normalization: training with the running statistics, and without moving them.

torch does so where a layer is in eval mode. ONNX Runtime's artifact generator makes BatchNormInternal of every batch
normalization, which takes the batch's statistics whatever the forward model says.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from fnmatch import fnmatchcase

import numpy as np
import onnx_ir as ir
from onnx_ir.passes import InPlacePass, PassResult

from poet_onnx.errors import InputError
from poet_onnx.graph.operators import MICROSOFT_DOMAIN
from poet_onnx.graph.shapes import Inferred
from poet_onnx.passes.lowering.builder import LoweringBuilder
from poet_onnx.passes.metadata import read_json
from poet_onnx.passes.normalize import InlineFunctions, NameNodes

FROZEN_KEY = "poet.frozen_batch_norm"

STATISTICS = (3, 4)
"""Inputs of a batch normalization that are running statistics: mean and variance."""

_AXES_ARE_INPUTS = 13
"""Version of ONNX's operators from which on ReduceSum reads its axes from an input."""


class FreezeBatchNorm(InPlacePass):
    """Let batch normalizations use their running statistics, and never move them.

    Rules:
        F1. BatchNormInternal becomes BatchNormalization; what it made keeps its name.
        F2. dX = dY scale / deviation is a BatchNormalization, too, of a mean and a bias of 0; dScale is the sum of
            dY (X - mean) / deviation, dBias that of dY. A gradient that nobody reads is not computed.
        F3. `poet.frozen_batch_norm` in the model's metadata lists what the frozen ones make, so that the same can be
            done to the model that a rewritten one was made from.

    Requires a model that is not rewritten. Where nothing is frozen, nothing changes.
    """

    def __init__(self, frozen: Iterable[str]) -> None:
        """Set which: the names of what they make."""
        super().__init__()
        self._frozen = tuple(frozen)

    def call(self, model: ir.Model) -> PassResult:
        """Replace the nodes and those of their gradients.

        Raises:
            InputError: naming a node that is not there or cannot be frozen.
        """
        if not self._frozen:
            return PassResult(model, modified=False)
        InlineFunctions()(model)
        NameNodes()(model)
        nodes = {node.outputs[0].name: node for node in batch_norms(model)}
        for name in self._frozen:
            if name not in nodes:
                raise InputError(
                    f"The model has no batch normalization in training that makes '{name}': give the model that the "
                    "other one was made from."
                )
            _freeze(model, nodes[name])
        model.metadata_props[FROZEN_KEY] = json.dumps(self._frozen)
        return PassResult(model, modified=True)


def batch_norms(model: ir.Model) -> Iterator[ir.Node]:
    """Yield the batch normalizations of a training graph that take the batch's statistics."""
    for node in model.graph:
        if node.domain == MICROSOFT_DOMAIN and node.op_type == "BatchNormInternal":
            yield node


def named(nodes: Iterable[ir.Node], patterns: str, kind: str) -> list[ir.Node]:
    """Return the nodes of a kind that patterns name, by their own names or those of parameters or statistics.

    Raises:
        InputError: a pattern without a match.
    """
    names = {
        node: [node.name or "", *(value.name or "" for value in node.inputs[1:5] if value is not None)]
        for node in nodes
    }
    found: dict[ir.Node, None] = {}
    for pattern in map(str.strip, patterns.split(",")):
        matches = [node for node in names if any(fnmatchcase(name, pattern) for name in names[node])]
        if not matches:
            raise InputError(
                f"No {kind}, nor a parameter of one, is named {pattern!r}: give auto, all, none, or patterns such as "
                "'layer1.*', with commas between them."
            )
        found |= dict.fromkeys(matches)
    return list(found)


def frozen_outputs(model: ir.Model) -> tuple[str, ...]:
    """Return what a model's frozen batch normalizations make, by its metadata.

    Raises:
        InputError: if the metadata is damaged.
    """
    names = read_json(model, FROZEN_KEY, [])
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise InputError(f"The model's metadata '{FROZEN_KEY}' is damaged: rewrite the original again.")
    return tuple(names)


def frozen_statistics(model: ir.Model) -> Iterator[str]:
    """Yield the names of the initializers that frozen batch normalizations read as running statistics."""
    frozen = set(frozen_outputs(model))
    for node in model.graph:
        if node.op_type == "BatchNormalization" and node.outputs[0].name in frozen:
            for index in STATISTICS:
                value = node.inputs[index]
                if value is not None and value.is_initializer() and value.name:
                    yield value.name


def _freeze(model: ir.Model, node: ir.Node) -> None:
    for index in STATISTICS:
        value = node.inputs[index]
        if value is None or _is_computed(value):
            raise InputError(
                f"The running statistics of batch normalization '{node.name}' are computed within the step, so it "
                "cannot be frozen."
            )
    for output in node.outputs[1:]:
        for reader, _ in output.uses():
            if reader.op_type != "BatchNormalizationGrad":
                raise InputError(
                    f"Node '{reader.name}' reads '{output.name}', a statistic of batch normalization '{node.name}', "
                    "which has none of its own if it is frozen."
                )
    gradients = {reader for output in node.outputs[1:] for reader, _ in output.uses()}
    for gradient in gradients:
        _write_gradient(
            LoweringBuilder(model.graph, gradient, Inferred(), kernels=False), node, model.opset_imports[""]
        )
    builder = LoweringBuilder(model.graph, node, Inferred(), kernels=False)
    builder.give(0, builder.op("BatchNormalization", *node.inputs[:5], epsilon=_epsilon(node)))
    builder.finish()


def _is_computed(value: ir.Value) -> bool:
    maker = value.producer()
    while maker is not None and maker.op_type == "Identity" and maker.inputs[0] is not None:
        maker = maker.inputs[0].producer()
    return maker is not None and maker.op_type != "Constant"


def _write_gradient(builder: LoweringBuilder, forward: ir.Node, opset: int) -> None:
    d_y, x, scale = (builder.input(index) for index in range(3))
    mean, variance = (forward.inputs[index] for index in STATISTICS)
    assert mean is not None
    kind, kind_of_mean = scale.dtype, mean.dtype
    channels = [size for size in scale.shape or () if isinstance(size, int)]
    if x.shape is None or kind is None or kind_of_mean is None or len(channels) != 1:
        raise InputError(
            f"The model does not tell the shapes of what batch normalization '{forward.name}' reads, so it cannot be "
            "frozen: run ONNX's shape inference on the model."
        )
    axes = [axis for axis in range(len(x.shape)) if axis != 1]
    zeros, ones = (builder.constant(np.full(channels, number, kind.numpy())) for number in (0, 1))

    def normalize(value: ir.Value, by: ir.Value, about: ir.Value) -> ir.Value:
        return builder.op("BatchNormalization", value, by, zeros, about, variance, epsilon=_epsilon(forward))

    def wide(value: ir.Value) -> ir.Value:
        return value if x.dtype == kind else builder.op("Cast", value, to=int(kind))

    def total(value: ir.Value) -> ir.Value:
        if opset < _AXES_ARE_INPUTS:
            return builder.op("ReduceSum", value, axes=axes, keepdims=0)
        return builder.sum(value, *axes, keep=False)

    if builder.wants(0):
        builder.give(0, normalize(d_y, scale, builder.constant(np.zeros(channels, kind_of_mean.numpy()))))
    if builder.wants(1):
        builder.give(1, total(builder.op("Mul", wide(d_y), normalize(wide(x), ones, mean))))
    if builder.wants(2):
        builder.give(2, total(wide(d_y)))
    builder.finish()


def _epsilon(node: ir.Node) -> float:
    return float(node.attributes.get_float("epsilon", 1e-5))
