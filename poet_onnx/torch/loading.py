"""Trained parameters and running statistics go back into the torch module."""

from __future__ import annotations

from typing import TYPE_CHECKING

from poet_onnx.adapters.lora import ADAPTER_NAMES
from poet_onnx.errors import InputError
from poet_onnx.files.values import kind_of
from poet_onnx.torch.naming import named_tensors
from poet_onnx.training.parameters import Source, read_parameters
from poet_onnx.training.session import TrainingSession

if TYPE_CHECKING:
    from torch import Tensor, nn


def load_trained(module: nn.Module, source: TrainingSession | Source) -> None:
    """Copy trained parameters and running statistics into a module, in place: tied weights stay tied.

    Args:
        module: of the kind that was exported.
        source: the session that trained it, a checkpoint of one, or arrays by name.

    Raises:
        InputError: if a name or a shape is not the module's, or there is nothing; the module has not changed then.
    """
    import torch

    values = source.parameters if isinstance(source, TrainingSession) else read_parameters(source)
    tensors = named_tensors(module)
    targets: dict[str, Tensor] = {}
    if not values:
        raise InputError("There is nothing that was trained: give a session, or a checkpoint of one.")
    for name in values:
        if name not in tensors and name.rpartition(".")[2] in ADAPTER_NAMES:
            raise InputError(
                f"{type(module).__name__} has no adapter '{name}': write adapters with export_adapter, which PEFT puts"
                " beside the module's weights."
            )
        if name not in tensors:
            raise InputError(f"{type(module).__name__} has no '{name}', which was trained: give the module exported.")
        targets[name] = tensors[name]
        found, wanted = list(kind_of(values, name).shape), list(targets[name].shape)
        if found != wanted:
            raise InputError(f"'{name}' has shape {found}, but {wanted} in {type(module).__name__}: give its module.")
    with torch.no_grad():
        for name, tensor in targets.items():
            tensor.copy_(torch.from_numpy(values[name]))
