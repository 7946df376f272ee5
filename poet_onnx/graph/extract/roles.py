"""What the inputs of a training graph are for: said once, by whoever makes an input, and kept with it in the file.

A graph that says nothing, as that of onnxruntime-training, is translated by its format: `artifacts.py`.
"""

from __future__ import annotations

from typing import NamedTuple

import onnx_ir as ir

from poet_onnx.errors import InputError
from poet_onnx.graph.extract.artifacts import parameter_of, unsaid_roles
from poet_onnx.graph.training_graph import Role

ROLE_KEY, PARAMETER_KEY = "poet.role", "poet.parameter"
"""Keys of the metadata of an input."""


class InputRole(NamedTuple):
    """What an input is for.

    Attributes:
        role: what it is for.
        parameter: of a gradient buffer or a moment, the parameter that it belongs to; empty for others.
    """

    role: Role
    parameter: str = ""


def say_role(value: ir.Value, role: Role, parameter: str = "") -> None:
    """Say what an input is for, and of which parameter it is a gradient buffer or a moment."""
    value.metadata_props[ROLE_KEY] = role.value
    if parameter:
        value.metadata_props[PARAMETER_KEY] = parameter


def is_said(value: ir.Value, role: Role) -> bool:
    """Return whether an input says that it is for this."""
    return value.metadata_props.get(ROLE_KEY) == role.value


def input_roles(graph: ir.Graph) -> dict[str, InputRole]:
    """Return what each input is for, in the order of the graph.

    Raises:
        InputError: naming an input that says what nothing is for.
    """
    unsaid = unsaid_roles(graph)
    return {value.name or "": _role_of(value, unsaid) for value in graph.inputs}


def say_roles(graph: ir.Graph) -> None:
    """Let every input say what it is for, before others than those of its format join."""
    for name, role in input_roles(graph).items():
        say_role(next(value for value in graph.inputs if value.name == name), *role)


def forget_roles(graph: ir.Graph) -> None:
    """Remove what inputs say: the runtime of a session would hold it in memory."""
    for value in graph.inputs:
        for key in (ROLE_KEY, PARAMETER_KEY):
            value.metadata_props.pop(key, None)


def _role_of(value: ir.Value, unsaid: dict[str, Role]) -> InputRole:
    said = value.metadata_props.get(ROLE_KEY)
    if said is None:
        role = unsaid[value.name or ""]
        return InputRole(role, parameter_of(value.name or "") if role is Role.GRADIENT_BUFFER else "")
    if said not in {role.value for role in Role}:
        raise InputError(
            f"The model's input '{value.name}' has the {ROLE_KEY} {said[:40]!r}, which is none: make the training "
            "graph again."
        )
    return InputRole(Role(said), value.metadata_props.get(PARAMETER_KEY, ""))
