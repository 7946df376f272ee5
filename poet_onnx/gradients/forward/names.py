"""Names that gradients take: a tensor inside of the model gives way; an input, parameter or constant is refused."""

from __future__ import annotations

import re
from collections.abc import Sequence

import onnx_ir as ir

from poet_onnx.errors import InputError
from poet_onnx.graph.extract.artifacts import GRADIENT_SUFFIX

_OF_GRADIENT = re.compile(rf"(.+){re.escape(GRADIENT_SUFFIX)}(_[0-9]+)?")


def free_gradient_names(graph: ir.Graph, trained: Sequence[ir.Value]) -> None:
    """Rename tensors inside of a forward graph that are named as the gradient of another one will be.

    Args:
        graph: whose outputs are the loss alone.
        trained: parameters, which are inputs of the graph.

    Raises:
        InputError: a parameter, an input or a constant has the name of a parameter's gradient.
    """
    made = [value for node in graph for value in node.outputs if value.name]
    given = {value.name or "" for value in graph.inputs} | set(graph.initializers)
    for value in trained:
        if f"{value.name}{GRADIENT_SUFFIX}" in given:
            raise InputError(
                f"The gradient of '{value.name}' is named '{value.name}{GRADIENT_SUFFIX}', as another parameter,"
                " input or constant of the model is: rename that one."
            )
    taken = given | {value.name or "" for value in made}
    for value in made:
        found = _OF_GRADIENT.fullmatch(value.name or "")
        if found is None or found[1] not in taken or value.is_graph_output():
            continue
        number, name = 1, f"{value.name}/forward"
        while name in taken:
            number += 1
            name = f"{value.name}/forward_{number}"
        value.name = name
        taken.add(name)
