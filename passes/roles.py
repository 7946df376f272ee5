"""What the inputs, outputs and initializers of a training graph are for."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import onnx_ir as ir

from poet_onnx.errors import InputError
from poet_onnx.graph import Role
from poet_onnx.graph.extract.artifacts import BUFFER_SUFFIX, flag_of, is_accumulator
from poet_onnx.graph.extract.build import plain_attributes
from poet_onnx.graph.extract.roles import InputRole, input_roles
from poet_onnx.graph.operators import spec_of
from poet_onnx.passes.frozen_batch_norm import frozen_statistics

_GIVEN = (Role.BATCH, Role.LABEL, Role.FROZEN)
"""What a session is given from outside, for each step or once."""


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


def find_roles(model: ir.Model) -> Roles:
    """Return what the names in a training graph are for.

    Args:
        model: a training graph, as generated or rewritten.

    Raises:
        InputError: if it is no training graph, or has no parameter that a gradient is of.
    """
    graph, roles = model.graph, input_roles(model.graph)
    accumulators = [node for node in graph if is_accumulator(node)]
    _check_accumulators(accumulators)
    buffers = {_parameter_of(node, roles): node.inputs[0].name or "" for node in accumulators if node.inputs[0]}
    flags = {value.name or "" for node in accumulators if (value := flag_of(node)) is not None}
    if not buffers:
        raise InputError(
            "The model accumulates no gradients: give the training_model.onnx that onnxruntime.training.artifacts "
            "generates, or what poet-onnx made of it."
        )
    if len(flags) > 1:
        raise InputError(f"The model has {len(flags)} flags that reset gradients, {sorted(flags)}, but must have one.")
    for parameter in buffers:
        if parameter not in roles:
            raise InputError(
                f"The gradient of '{parameter}' is accumulated, but there is no input of the model of that name."
            )
    _check_said(roles, buffers, flags)
    made = {value.name or "" for node in accumulators for value in node.outputs}
    losses = [value.name or "" for value in graph.outputs if value.name not in made]
    if not losses:
        raise InputError("The model has no output besides its accumulated gradients: it needs the loss.")
    return Roles(
        data=tuple(name for name, each in roles.items() if each.role in _GIVEN),
        parameters=tuple(name for name in roles if name in buffers),
        buffers={name: buffers[name] for name in roles if name in buffers},
        flag=next(iter(flags), ""),
        state=tuple(dict.fromkeys((*_written_initializers(graph), *frozen_statistics(model)))),
        loss=losses[0],
    )


def _check_said(roles: Mapping[str, InputRole], buffers: Mapping[str, str], flags: Iterable[str]) -> None:
    """Check that inputs are what they say: a file may be damaged, and gradients would be wrong."""
    known = dict.fromkeys(buffers, Role.PARAMETER) | dict.fromkeys(buffers.values(), Role.GRADIENT_BUFFER)
    known |= dict.fromkeys(flags, Role.FLAG)
    for name, (role, _) in roles.items():
        if role not in ((known[name],) if name in known else _GIVEN):
            raise InputError(
                f"The model's input '{name}' says that it is a {role.value}, but the graph does not use it as one: "
                "make the training graph again."
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


def _parameter_of(node: ir.Node, roles: Mapping[str, InputRole]) -> str:
    buffer = node.inputs[0]
    name = "" if buffer is None else buffer.name or ""
    if not roles[name].parameter:
        raise InputError(
            f"The accumulator '{node.name}' adds to '{name}', which says no parameter: the input must be named after "
            f"its parameter, '<parameter>{BUFFER_SUFFIX}'."
        )
    return roles[name].parameter


def _written_initializers(graph: ir.Graph) -> Iterator[str]:
    """Yield the names of initializers that a node updates in place."""
    for node in graph:
        for place in spec_of(node.domain, node.op_type, plain_attributes(node)).writes:
            value = node.inputs[place] if place < len(node.inputs) else None
            if value is not None and value.is_initializer() and value.name:
                yield value.name
