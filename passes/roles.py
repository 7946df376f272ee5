"""What the inputs, outputs and initializers of a training graph are for."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import onnx_ir as ir

from poet_onnx.description.metadata import BUFFER_SUFFIX
from poet_onnx.errors import InputError
from poet_onnx.graph.extract.build import plain_attributes
from poet_onnx.graph.operators import spec_of
from poet_onnx.passes.frozen_batch_norm import frozen_statistics


@dataclass(frozen=True)
class Roles:
    """The names in a training graph by what they are for, each in the order of the file.

    Attributes:
        data: inputs that a batch fills, and parameters that are not trained.
        parameters: inputs that are trained.
        buffers: input that collects the gradient, by parameter.
        flag: input that says whether gradients start anew; empty if nothing is accumulated.
        state: what the graph itself updates in place, such as running statistics, and those that are frozen.
        loss: output that is minimised.
    """

    data: tuple[str, ...]
    parameters: tuple[str, ...]
    buffers: dict[str, str]
    flag: str
    state: tuple[str, ...]
    loss: str


def is_accumulator(node: ir.Node) -> bool:
    """Return whether a node adds a gradient, or a part of one, to its buffer; running statistics are no gradients."""
    if spec_of(node.domain, node.op_type).reset_input is None or not node.inputs:
        return False
    buffer = node.inputs[0]
    return buffer is not None and buffer.is_graph_input()


def flag_of(node: ir.Node) -> ir.Value | None:
    """Return the input of an accumulator that says whether to start anew."""
    place = spec_of(node.domain, node.op_type).reset_input
    return node.inputs[place] if place is not None and place < len(node.inputs) else None


def find_roles(model: ir.Model) -> Roles:
    """Return what the names in a training graph are for.

    Args:
        model: a training graph, as generated or rewritten.

    Raises:
        InputError: if it is no training graph, or has no parameter that a gradient is of.
    """
    graph = model.graph
    inputs = [value.name or "" for value in graph.inputs]
    accumulators = [node for node in graph if is_accumulator(node)]
    _check_accumulators(accumulators)
    buffers = {_parameter_of(node): node.inputs[0].name or "" for node in accumulators if node.inputs[0] is not None}
    flags = {value.name or "" for node in accumulators if (value := flag_of(node)) is not None}
    if not buffers:
        raise InputError(
            "The model accumulates no gradients: give the training_model.onnx that onnxruntime.training.artifacts "
            "generates, or what poet-onnx made of it."
        )
    if len(flags) > 1:
        raise InputError(f"The model has {len(flags)} flags that reset gradients, {sorted(flags)}, but must have one.")
    for parameter in buffers:
        if parameter not in inputs:
            raise InputError(
                f"The gradient of '{parameter}' is accumulated, but there is no input of the model of that name."
            )
    made = {value.name or "" for node in accumulators for value in node.outputs}
    losses = [value.name or "" for value in graph.outputs if value.name not in made]
    if not losses:
        raise InputError("The model has no output besides its accumulated gradients: it needs the loss.")
    taken = {*buffers, *buffers.values(), *flags}
    return Roles(
        data=tuple(name for name in inputs if name not in taken),
        parameters=tuple(name for name in inputs if name in buffers),
        buffers={name: buffers[name] for name in inputs if name in buffers},
        flag=next(iter(flags), ""),
        state=tuple(dict.fromkeys((*_written_initializers(graph), *frozen_statistics(model)))),
        loss=losses[0],
    )


def _check_accumulators(nodes: Sequence[ir.Node]) -> None:
    """Check that accumulators have what their operator needs, and that the model returns that each buffer is filled."""
    accumulators = set(nodes)
    returned = {node.inputs[0] for node in nodes if node.outputs[0].is_graph_output()}
    for node in nodes:
        flag = flag_of(node)
        if flag is None or not flag.is_graph_input() or node.inputs[1] is None:
            raise InputError(f"The accumulator '{node.name}' lacks a gradient, or a flag that is a graph input.")
        buffer = node.inputs[0]
        if buffer is not None and any(reader not in accumulators or place for reader, place in buffer.uses()):
            raise InputError(f"'{buffer.name}' is read by more than the accumulators that fill it: export it again.")
        if buffer not in returned:
            raise InputError(f"No output of the model says that the accumulator '{node.name}' ran: export it again.")


def _parameter_of(node: ir.Node) -> str:
    buffer = node.inputs[0]
    name = "" if buffer is None else buffer.name or ""
    if not name.endswith(BUFFER_SUFFIX):
        raise InputError(
            f"The accumulator '{node.name}' adds to '{name}', but the input must be named after its parameter, "
            f"'<parameter>{BUFFER_SUFFIX}'."
        )
    return name.removesuffix(BUFFER_SUFFIX)


def _written_initializers(graph: ir.Graph) -> Iterator[str]:
    """Yield the names of initializers that a node updates in place."""
    for node in graph:
        for place in spec_of(node.domain, node.op_type, plain_attributes(node)).writes:
            value = node.inputs[place] if place < len(node.inputs) else None
            if value is not None and value.is_initializer() and value.name:
                yield value.name
