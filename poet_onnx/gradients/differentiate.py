"""Reverse-mode differentiation of a forward model, in the dialect of ONNX Runtime's own gradient builder."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import onnx_ir as ir

from poet_onnx.errors import CheckFailedError, InputError
from poet_onnx.gradients import rules
from poet_onnx.gradients.builder import GradientBuilder, NoGradientError
from poet_onnx.gradients.forward import prepare_forward
from poet_onnx.gradients.order import Numbers
from poet_onnx.gradients.paths import REAL, Paths, find_paths, sources
from poet_onnx.gradients.registry import gradient
from poet_onnx.graph import Role
from poet_onnx.graph.extract.artifacts import BUFFER_SUFFIX, GRADIENT_SUFFIX, RESET
from poet_onnx.graph.extract.roles import is_said, say_role
from poet_onnx.graph.operators import MICROSOFT_DOMAIN
from poet_onnx.graph.rewrites import in_torch
from poet_onnx.graph.shapes import Inferred, infer
from poet_onnx.graph.shapes.declared import fitting
from poet_onnx.passes.lowering.builder import list_nodes
from poet_onnx.passes.node_builder import initializer
from poet_onnx.passes.normalize import NameNodes, Normalization, WriteShapes

__all__ = ["differentiate", "rules"]

ADDED_LAST = frozenset(("LayerNormalization", "Relu"))
"""Operators whose partial gradients ONNX Runtime adds after all others (`INVERTIBLE_OPS` in its gradient_config.h)."""


def differentiate(model: ir.Model, loss: str, parameters: Sequence[str]) -> ir.Model:
    """Return a training model: it computes the loss, and adds the gradient of each parameter to a buffer.

    The parameters become inputs, as do their buffers and a switch `lazy_reset_grad` that overwrites the buffers
    instead. The loss is the first output. The model given stays as it is.

    Args:
        model: computes the loss; its dimensions are fixed.
        loss: name of a tensor of one number that the model computes.
        parameters: names of initializers, or of inputs, in the order in which the result takes them.

    Raises:
        InputError: a name that is not there, a parameter that does not lead to the loss, or operators without a
            gradient.
    """
    model = model.clone()
    graph = model.graph
    trained = take_parameters(graph, parameters)
    graph.outputs[:] = [_loss(graph, loss)]
    numbers = prepare_forward(model, trained)
    inferred = infer(model)
    seed = _loss(graph, loss)
    if seed.producer() is None or inferred.types[loss].dtype not in REAL or inferred.types[loss].elements != 1:
        raise InputError(f"The loss '{loss}' is no single real number that the model computes: reduce it to its mean.")
    paths = find_paths(graph, seed, trained, inferred.types)
    _check(paths, trained, seed)
    sweep = _Sweep(graph, inferred, numbers, paths, trained)
    sweep.run(seed)
    model.opset_imports.setdefault(MICROSOFT_DOMAIN, 1)
    Normalization(NameNodes(), WriteShapes())(model)
    return model


def take_parameters(graph: ir.Graph, names: Sequence[str]) -> list[ir.Value]:
    """Return the parameters, made inputs of the graph where they were initializers; their numbers are not looked at.

    Raises:
        InputError: a name that is not there.
    """
    inputs = {value.name: value for value in graph.inputs}
    missing = [name for name in names if name not in graph.initializers and name not in inputs]
    if missing:
        raise InputError(f"The model has no parameter {', '.join(map(repr, missing))}: name initializers of the model.")
    trained = []
    for name in dict.fromkeys(names):
        value = inputs.get(name)
        if value is None:
            value = graph.initializers[name]
            graph.inputs.append(value)
        tensor = graph.initializers.pop(name).const_value if name in graph.initializers else None
        if tensor is not None:
            value.type, value.shape, value.const_value = (
                ir.TensorType(tensor.dtype),
                ir.Shape(tensor.shape.numpy()),
                None,
            )
        trained.append(value)
    return trained


def _loss(graph: ir.Graph, name: str) -> ir.Value:
    """Return the tensor of that name."""
    for node in reversed(graph):
        for output in node.outputs:
            if output.name == name:
                return output
    raise InputError(f"The model computes no tensor '{name}': name one of its outputs as the loss.")


def _check(paths: Paths, trained: Sequence[ir.Value], loss: ir.Value) -> None:
    """Check that every parameter leads to the loss, and that every operator on the way has a gradient."""
    found: dict[str, list[str]] = {}
    for node in paths.nodes:
        known = gradient(node)
        if known is None or known.rule is None:
            where = f" of {node.domain}" if node.domain else ""
            found.setdefault(f"{node.op_type}{where}", []).append(node.name or "")
    for node in paths.lost:
        found.setdefault(f"{node.op_type} (an operand that trains)", []).append(node.name or "")
    if found:
        raise _refusal(found)
    astray = [value.name or "" for value in trained if value not in paths.values]
    if astray:
        raise InputError(
            f"No gradient of '{loss.name}' leads to {', '.join(map(repr, astray))}:"
            " name only parameters that the loss depends on."
        )


def _refusal(found: Mapping[str, Sequence[str]]) -> InputError:
    return InputError(
        f"The gradient of these operators is not known: {list_nodes(found)}."
        f" Freeze the parameters before them, or export the model with other operators.{in_torch(found)}"
    )


@dataclass(frozen=True)
class _Partial:
    """One of the terms whose sum is a gradient.

    Attributes:
        place: by which terms are ordered.
        value: the term.
    """

    place: tuple[bool, int, int]
    value: ir.Value


@dataclass
class _Sweep:
    """Walks the forward nodes backwards and writes the gradient of each."""

    graph: ir.Graph
    inferred: Inferred
    numbers: Numbers
    paths: Paths
    trained: Sequence[ir.Value]
    gradients: dict[ir.Value, ir.Value] = field(default_factory=dict)
    partials: dict[ir.Value, list[_Partial]] = field(default_factory=dict)
    named: set[ir.Value] = field(default_factory=set)

    def run(self, loss: ir.Value) -> None:
        """Write all gradients, and the accumulators of the parameters' right behind them."""
        kind = self.inferred.types[loss.name or ""]
        ones = np.ones(kind.shape, kind.dtype.numpy())
        self.gradients[loss] = initializer(self.graph, f"{loss.name}{GRADIENT_SUFFIX}", ones)
        for value in self.graph.inputs:
            if not is_said(value, Role.LABEL):
                say_role(value, Role.BATCH)
        buffers = [self._buffer(value) for value in self.trained]
        reset = ir.Value(name=RESET, type=ir.TensorType(ir.DataType.BOOL), shape=ir.Shape([1]))
        say_role(reset, Role.FLAG)
        self.graph.inputs.extend([*buffers, reset])
        accumulated: dict[ir.Value, ir.Value] = {}
        first = self._first_readers()
        refused: dict[str, list[str]] = {}
        for node in reversed(self.paths.nodes):
            for output in node.outputs:
                if output in self.partials:
                    self.gradients[output] = self._total(output)
            try:
                self._write(node)
            except NoGradientError as problem:
                refused.setdefault(f"{node.op_type} ({problem})", []).append(node.name or "")
                for value in sources(node):  # anything will do: what else is refused is wanted, and nothing more
                    self.partials.setdefault(value, []).append(_Partial((False, 0, 0), self.gradients[loss]))
                continue
            for value in () if refused else first.get(node, ()):
                number = self.trained.index(value)
                total = self._named(self._total(value), value)
                accumulated[value] = self._accumulate(number, buffers[number], total, reset)
        if refused:
            raise _refusal(refused)
        self.graph.outputs.extend(accumulated[value] for value in self.trained)

    def _first_readers(self) -> dict[ir.Node, list[ir.Value]]:
        """Return the parameters by the node of whose gradient's nodes their last term is."""
        first: dict[ir.Node, list[ir.Value]] = {}
        for value in self.trained:
            readers = {use.node for use in value.uses()}
            node = next(node for node in self.paths.nodes if node in readers and value in sources(node))
            first.setdefault(node, []).append(value)
        return first

    def _write(self, node: ir.Node) -> None:
        """Write the nodes of one node's gradient."""
        found = gradient(node)
        if found is None or found.rule is None:
            raise NoGradientError("it has none")
        builder = GradientBuilder(self.graph, node, self.inferred, gradients=self.gradients, wanted=self.paths.values)
        with fitting(node):
            found.rule(builder)
        builder.check_all_read()
        given = {value for value, _ in builder.sent}
        forgotten = [value.name for value in sources(node) if value in self.paths.values and value not in given]
        if forgotten:
            raise CheckFailedError(f"The gradient of {node.op_type} leaves out {forgotten[0]!r}, which must have one.")
        for emitted, (value, partial) in enumerate(builder.sent):
            partial.type, partial.shape = value.type, value.shape
            place = node.op_type in ADDED_LAST, self.numbers[node], emitted
            self.partials.setdefault(value, []).append(_Partial(place, partial))

    def _total(self, value: ir.Value) -> ir.Value:
        """Return the gradient of a tensor, whose terms are all written."""
        name = f"{value.name}{GRADIENT_SUFFIX}"
        parts = sorted(self.partials.pop(value), key=lambda part: part.place)
        if len(parts) == 1:
            return self._name(parts[0].value, name)
        for number, part in enumerate(parts):
            self._name(part.value, f"{name}_{number}")
        total = ir.Node("", "Sum", [part.value for part in parts], num_outputs=1, name=f"AccumulateGrad_{name}")
        total.outputs[0].name, total.outputs[0].type, total.outputs[0].shape = name, value.type, value.shape
        self.graph.append(total)
        self.named.add(total.outputs[0])
        return total.outputs[0]

    def _name(self, value: ir.Value, name: str) -> ir.Value:
        """Give a value that a rule wrote its name, if it is not some other tensor's gradient already."""
        if value.producer() is not None and value not in self.named:
            value.name = name
            self.named.add(value)
        return value

    def _named(self, total: ir.Value, parameter: ir.Value) -> ir.Value:
        """Return a parameter's gradient under the name that belongs to it."""
        name = f"{parameter.name}{GRADIENT_SUFFIX}"
        if total.name == name:
            return total
        copy = ir.Node("", "Identity", [total], num_outputs=1, name=f"{name}/Identity")
        copy.outputs[0].name = name
        self.graph.append(copy)
        return copy.outputs[0]

    def _accumulate(self, number: int, buffer: ir.Value, total: ir.Value, reset: ir.Value) -> ir.Value:
        node = ir.Node(
            MICROSOFT_DOMAIN,
            "InPlaceAccumulatorV2",
            [buffer, total, reset],
            num_outputs=1,
            name=f"GradientAccumulator{number + 1}",
        )
        done = node.outputs[0]
        done.name = f"{total.name}.accumulation.out"
        done.type, done.shape = ir.TensorType(ir.DataType.BOOL), ir.Shape([1])
        self.graph.append(node)
        return done

    def _buffer(self, parameter: ir.Value) -> ir.Value:
        """Return the input that collects a parameter's gradient, and let both say what they are."""
        name = parameter.name or ""
        kind = self.inferred.types[name]
        buffer = ir.Value(name=f"{name}{BUFFER_SUFFIX}", type=ir.TensorType(kind.dtype), shape=ir.Shape(kind.shape))
        say_role(parameter, Role.PARAMETER)
        say_role(buffer, Role.GRADIENT_BUFFER, name)
        return buffer
