"""The forward part of a training graph in double precision, and its loss where one tensor is moved."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import onnx_ir as ir

from poet_onnx.errors import InputError
from poet_onnx.files.external_data import embed
from poet_onnx.verification.double_operators import OPERATORS
from poet_onnx.verification.pieces import PIECES, Piece

Array = npt.NDArray[Any]

_FLOATS = {onnx.TensorProto.FLOAT, onnx.TensorProto.FLOAT16, onnx.TensorProto.BFLOAT16}
_RANDOM = ("Random", "Bernoulli", "Multinomial", "BitmaskDropout", "BitmaskBiasDropout", "BiasDropout")


@dataclass(frozen=True)
class _Step:
    """A node, what computes its outputs from its inputs, and what does so on one side of its kinks."""

    node: onnx.NodeProto
    attributes: dict[str, Any]
    run: Callable[[list[Array | None]], tuple[Array, ...]]
    piece: Piece | None


def forward_nodes(model: ir.Model, loss: str) -> list[ir.Node]:
    """Return the nodes that lead to a value, in file order."""
    pending = [value for value in model.graph.outputs if value.name == loss]
    found: set[ir.Node] = set()
    while pending:
        node = pending.pop().producer()
        if node is not None and node not in found:
            found.add(node)
            pending.extend(value for value in node.inputs if value is not None)
    return [node for node in model.graph if node in found]


def dropout_masks(nodes: list[ir.Node]) -> list[str]:
    """Return the names of the masks of nodes that drop values.

    Raises:
        InputError: a node's random numbers are not to be seen.
    """
    masks: list[str] = []
    for node in nodes:
        drops = node.op_type == "Dropout" and len(node.inputs) > 2 and node.inputs[2] is not None
        mask = node.outputs[1].name if len(node.outputs) > 1 else None
        if node.op_type.startswith(_RANDOM) or (drops and not mask):
            raise InputError(
                f"Node '{node.name}' ({node.op_type}) draws random numbers that it does not return: make the training"
                " graph without it, as with a dropout of 0, to check its gradients."
            )
        if drops and mask:
            masks.append(mask)
    return masks


class DoubleForward:
    """The nodes that lead to the loss, evaluated in double precision; all values are kept."""

    def __init__(self, model: ir.Model, loss: str, given: Mapping[str, Array]) -> None:
        """Evaluate once.

        Args:
            model: a training graph; it is not changed.
            loss: name of the number.
            given: values of the inputs and of the masks of dropout.

        Raises:
            InputError: an operator cannot be evaluated.
        """
        self._loss = loss
        names = {output.name for node in forward_nodes(model, loss) for output in node.outputs}
        clone = model.clone()
        embed(clone)
        proto = ir.to_proto(clone)
        self._opsets = {each.domain: each.version for each in proto.opset_import}
        self.values: dict[str, Array] = {name: _double(array) for name, array in given.items()}
        for tensor in proto.graph.initializer:
            self.values.setdefault(tensor.name, _double(onnx.numpy_helper.to_array(tensor)))
        self._steps = [self._step(node) for node in proto.graph.node if names.intersection(node.output)]
        for step in self._steps:
            self.values |= self._outputs(step, self.values, given)

    @property
    def loss(self) -> float:
        """Return the loss."""
        return float(self.values[self._loss])

    @cached_property
    def tied(self) -> bool:
        """Tell whether a number is so near to a kink that single precision may have it on either side."""
        return any(self._is_tied(step) for step in self._steps if step.piece is not None)

    def loss_with(self, name: str, array: Array, side: float) -> float:
        """Return the loss with another value of a tensor, held to its piece: only nodes behind it are evaluated again.

        Args:
            name: of the tensor.
            array: its other value.
            side: of kinks, 1.0 or -1.0, that numbers are on which are that near.
        """
        moved = {name: array}
        for step in self._steps:
            if any(each in moved for each in step.node.input) and name not in step.node.output:
                known = {each: moved.get(each, self.values.get(each)) for each in (*step.node.input, *step.node.output)}
                moved |= self._outputs(step, known, {}, side)
        return float(moved.get(self._loss, self.values[self._loss]))

    def _is_tied(self, step: _Step) -> bool:
        generator = np.random.default_rng(0)
        names = [name for name in step.node.input if name]
        near = {name: self.values[name] for name in names}
        for name, array in near.items():
            if array.dtype == np.float64:  # others say where, such as axes
                near[name] = array * (1 + generator.uniform(-0.1, 0.1, array.shape))
        one, other = (self._outputs(step, near, {}, side) for side in (1.0, -1.0))
        return any(not np.array_equal(array, other[name]) for name, array in one.items())

    def _outputs(
        self, step: _Step, values: Mapping[str, Array | None], given: Mapping[str, Array], side: float = 0.0
    ) -> dict[str, Array]:
        """Return what a node makes, on the piece that its values in the trial are on."""
        node = step.node
        try:
            with np.errstate(all="ignore"):
                if node.op_type == "Dropout":
                    made = _drop(node, values)
                else:
                    inputs = [values[name] if name else None for name in node.input]
                    point = [self.values[name] if name else None for name in node.input]
                    if step.piece is not None and point[0] is not None and point[0].dtype == np.float64:
                        made = (step.piece(inputs, point, step.attributes, side),)
                    else:
                        made = step.run(inputs)
        except (ValueError, TypeError, KeyError, IndexError, RuntimeError) as error:
            raise _not_evaluated(node, error) from error
        pairs = zip(node.output, made, strict=False)
        return {name: _double(np.asarray(array)) for name, array in pairs if name and name not in given}

    def _step(self, node: onnx.NodeProto) -> _Step:
        own = OPERATORS.get((node.domain, node.op_type))
        attributes = {each.name: _plain(onnx.helper.get_attribute_value(each)) for each in node.attribute}
        piece = PIECES.get((node.domain, node.op_type))
        if own is not None:
            if node.op_type == "BatchNormInternal":
                attributes["training_mode"] = 1
            return _Step(node, attributes, lambda inputs: own(inputs, attributes), piece)
        if node.op_type == "Dropout":
            return _Step(node, attributes, lambda _: (), None)
        try:
            evaluate = _reference(node, self._opsets)
        except (RuntimeError, TypeError, ValueError, KeyError) as error:
            raise _not_evaluated(node, error) from error
        return _Step(node, attributes, evaluate, piece)


def _reference(node: onnx.NodeProto, opsets: Mapping[str, int]) -> Callable[[list[Array | None]], tuple[Array, ...]]:
    """Return ONNX's reference implementation of a node; what it makes of constants is double."""
    from onnx.reference import ReferenceEvaluator

    copied = onnx.NodeProto()
    copied.CopyFrom(node)
    for attribute in copied.attribute:
        if attribute.name == "to" and attribute.i in _FLOATS:
            attribute.i = onnx.TensorProto.DOUBLE
        if attribute.type == onnx.AttributeProto.TENSOR and attribute.t.data_type in _FLOATS:
            array = onnx.numpy_helper.to_array(attribute.t).astype(np.float64)
            attribute.t.CopyFrom(onnx.numpy_helper.from_array(array))
    places = [name for name in dict.fromkeys(copied.input) if name]
    function = onnx.helper.make_function(
        "poet.double",
        "Node",
        places,
        [name for name in copied.output if name],
        [copied],
        [onnx.helper.make_opsetid(domain, version) for domain, version in opsets.items()],
    )
    evaluator = ReferenceEvaluator(function)
    outputs = list(function.output)
    kept = [place for place, name in enumerate(copied.output) if name]

    def run(inputs: list[Array | None]) -> tuple[Array, ...]:
        feeds = {name: array for name, array in zip(copied.input, inputs, strict=True) if name}
        made: list[Any] = [np.empty(0)] * len(copied.output)
        for place, array in zip(kept, evaluator.run(outputs, feeds, attributes={}), strict=True):
            made[place] = array
        return tuple(made)

    return run


def _drop(node: onnx.NodeProto, values: Mapping[str, Array | None]) -> tuple[Array, ...]:
    """Return what a dropout with a known mask passes on."""
    x = values[node.input[0]]
    if x is None:
        raise ValueError("it has no input")
    mode = values[node.input[2]] if len(node.input) > 2 and node.input[2] else None
    if mode is None or not bool(mode):
        return (x,)
    ratio = values[node.input[1]] if node.input[1] else None
    mask = values[node.output[1]]
    return (x * mask / (1.0 - (0.5 if ratio is None else float(ratio))),)


def _double(array: Array) -> Array:
    return array.astype(np.float64) if array.dtype.kind == "f" or array.dtype.name == "bfloat16" else array


def _plain(value: Any) -> Any:
    return value.decode() if isinstance(value, bytes) else value


def _not_evaluated(node: onnx.NodeProto, error: Exception) -> InputError:
    reason = " ".join(str(error).split())[:200].rstrip(".")
    return InputError(
        f"Node '{node.name}' ({node.op_type}) of the forward part cannot be evaluated in double precision: {reason}."
        " Check a model without it."
    )
