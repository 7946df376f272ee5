"""Parameters and buffers of a traced model get the names and values that they have in the module's `state_dict`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import ml_dtypes
import numpy as np
import onnx_ir as ir

from poet_onnx.torch.calls import CHILD

if TYPE_CHECKING:
    from torch import Tensor, nn


def canonical_names(module: nn.Module) -> dict[str, str]:
    """Return the name of each parameter and buffer by all of its names: of a tied one the first."""
    tensors = named_tensors(module)
    first: dict[int, str] = {}
    for name, tensor in tensors.items():
        first.setdefault(id(tensor), name)
    return {name: first[id(tensor)] for name, tensor in tensors.items()}


def restore_state(model: ir.Model, module: nn.Module) -> None:
    """Give initializers the names and values of the module's tensors; tied ones become one. Changes the model.

    Args:
        model: what an exporter made of a wrapper that holds the module.
        module: as it is to be trained.
    """
    graph = model.graph
    tensors, names = named_tensors(module), canonical_names(module)
    _make_room(graph, set(tensors))
    found: dict[str, ir.Value] = {}
    for value in list(graph.initializers.values()):
        own = (value.name or "").removeprefix(f"{CHILD}.")
        if not (value.name or "").startswith(f"{CHILD}.") or own not in names:
            continue
        graph.initializers.pop(value.name or "")
        name = names[own]
        if name in found:
            value.replace_all_uses_with(found[name], replace_graph_outputs=True)
            continue
        value.name = name
        value.const_value = ir.tensor(_array(tensors[name]), name=name)
        graph.register_initializer(value)
        found[name] = value


def _array(tensor: Tensor) -> np.ndarray[Any, np.dtype[Any]]:
    import torch

    if tensor.dtype == torch.bfloat16:  # torch gives numpy none
        return np.array(tensor.view(torch.int16).numpy(force=True)).view(ml_dtypes.bfloat16)
    return np.array(tensor.numpy(force=True))


def keep_input_names(model: ir.Model) -> None:
    """Rename what a model computes under names of inputs, as torch's dynamo exporter lets it; changes the model."""
    _make_room(model.graph, {value.name or "" for value in model.graph.inputs})


def rename_outputs(model: ir.Model, names: tuple[str, ...]) -> None:
    """Give the outputs of a model their names; changes the model.

    A tensor that has a name already, as an input, a parameter or another output, keeps that, and is copied.
    """
    graph = model.graph
    _make_room(graph, set(names))
    for place, (output, name) in enumerate(zip(list(graph.outputs), names, strict=True)):
        if output.producer() is None or output in graph.outputs[:place]:
            copy = ir.Node("", "Identity", [output], name=f"{name}/copy")
            copy.outputs[0].type, copy.outputs[0].shape = output.type, output.shape
            graph.append(copy)
            graph.outputs[place] = copy.outputs[0]
        graph.outputs[place].name = name


def named_tensors(module: nn.Module) -> dict[str, Tensor]:
    """Return parameters and buffers by all of their names."""
    return {
        **dict(module.named_parameters(remove_duplicate=False)),
        **dict(module.named_buffers(remove_duplicate=False)),
    }


def _make_room(graph: ir.Graph, names: set[str]) -> None:
    """Rename what nodes compute under names that others are to have."""
    for node in graph:
        for value in node.outputs:
            if value.name in names:
                value.name = f"{value.name}/computed"
