"""A module and torch's random state are after a call what they were before it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import nn


@contextmanager
def untouched(module: nn.Module) -> Iterator[None]:
    """Restore all attributes of a module and its children at the end, their hooks, and the values of their buffers.

    A forward pass in training mode moves running statistics, draws random numbers, and may count or cache, and one of
    transformers registers hooks. Parameters are taken to keep their values; what a list or a dictionary of the user's
    holds is not looked at.
    """
    import torch

    own = [name for name, value in torch.nn.Module().__dict__.items() if isinstance(value, dict)]
    modules = list(module.modules())
    attributes = [dict(each.__dict__) for each in modules]
    tables = [{name: dict(each.__dict__[name]) for name in own if name in each.__dict__} for each in modules]
    tensors = {
        id(value): value
        for each, held in zip(attributes, tables, strict=True)
        for value in (*each.values(), *held["_buffers"].values())
        if isinstance(value, torch.Tensor)
    }
    values = [(tensor, tensor.detach().clone()) for tensor in tensors.values()]
    try:
        with torch.random.fork_rng(devices=[]):
            yield
    finally:
        for each, attribute, held in zip(modules, attributes, tables, strict=True):
            each.__dict__.clear()
            each.__dict__.update(attribute)
            for name, table in held.items():
                current = each.__dict__[name]
                current.clear()
                current.update(table)
        with torch.no_grad():
            for tensor, value in values:
                if not torch.equal(tensor, value):
                    tensor.copy_(value)
