"""Trained parameters and running statistics go back into the torch module."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy.typing as npt

from poet_onnx.adapters.lora import ADAPTER_NAMES
from poet_onnx.errors import InputError
from poet_onnx.files.values import kind_of
from poet_onnx.gradients.module_names import ANONYMOUS
from poet_onnx.torch.naming import named_tensors
from poet_onnx.training.parameters import Source, read_parameters
from poet_onnx.training.session import TrainingSession

if TYPE_CHECKING:
    from torch import Tensor, nn


def load_trained(module: nn.Module, source: TrainingSession | Source) -> None:
    """Copy trained parameters and running statistics into a module, in place: tied weights stay tied.

    Adapters of a session become a part of the weights beside which they stand.

    Args:
        module: of the kind that was exported.
        source: the session that trained it, a checkpoint of one, or arrays by name.

    Raises:
        InputError: if a name or a shape is not the module's, or there is nothing; the module has not changed then.
    """
    import torch

    values = _merged(source) if isinstance(source, TrainingSession) else read_parameters(source)
    tensors = named_tensors(module)
    targets: dict[str, Tensor] = {}
    if not values:
        raise InputError("There is nothing that was trained: give a session, or a checkpoint of one.")
    for name in values:
        if name not in tensors and _is_adapters(name):
            raise InputError(
                f"{type(module).__name__} has no adapter '{name}': give the session that trained it, which adds it to"
                " its weight, or write them with export_adapter for PEFT."
            )
        if name not in tensors and name.startswith(ANONYMOUS):
            raise InputError(
                f"'{name}' is a weight that torch's exporter turned and named itself, so that nothing says which one of"
                f" {type(module).__name__} it is: export the module by poet_onnx.torch.export, or with optimize=False"
                " (dynamo) or do_constant_folding=False (legacy)."
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


def _merged(session: TrainingSession) -> Mapping[str, npt.NDArray[Any]]:
    """Return what a session trained, with adapters as a part of the weights."""
    weights = session.merged_weights()
    if not weights:
        return session.parameters
    trained = {name: array for name, array in session.parameters.items() if not _is_adapters(name)}
    return {**trained, **weights}


def _is_adapters(name: str) -> bool:
    return name.rpartition(".")[2] in ADAPTER_NAMES
