"""How a module is called by its example inputs: what tensors it takes and returns, and their names."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from poet_onnx.errors import InputError

if TYPE_CHECKING:
    from torch import Tensor, nn

CHILD = "module"
"""Under which name the wrapper holds the module: exporters put it before the names of parameters."""

OUTPUT = "output"
"""Name of what a module returns, where it gives none."""


@dataclass
class Call:
    """A module's call as a module of its own, which takes and returns nothing but tensors.

    Attributes:
        wrapper: is in training mode, so that no exporter merges parameters of equal values; the module keeps its own.
        inputs: the example tensors by name, in the order in which the wrapper takes them.
        outputs: names of the tensors that the wrapper returned when it was last called.
        wanted: names that the module itself gave them.
    """

    wrapper: nn.Module
    inputs: dict[str, Tensor]
    outputs: tuple[str, ...] = ()
    wanted: tuple[str, ...] = ()


def wrap(
    module: nn.Module, example_inputs: Any, within: Callable[[], AbstractContextManager[Any]] = nullcontext
) -> Call:
    """Return the call of a module by its example inputs.

    Args:
        module: what is called.
        example_inputs: a tensor, a sequence of arguments, or a mapping of keyword arguments. Tensors in them may be
            nested; whatever else they hold is taken as it is in every step.
        within: makes the context in which the module is called.

    Raises:
        InputError: if the module does not take them, or there is no tensor among them.
    """
    import torch
    from torch.utils import _pytree as pytree

    leaves, structure = pytree.tree_flatten(_arguments(example_inputs))
    for place, leaf in enumerate(leaves):  # a tensor that is given twice is one input to torch's exporters
        if isinstance(leaf, torch.Tensor) and any(leaf is earlier for earlier in leaves[:place]):
            leaves[place] = leaf.clone()
    arguments, keywords = pytree.tree_unflatten(leaves, structure)
    try:
        bound = inspect.signature(module.forward).bind(*arguments, **keywords).arguments
    except TypeError as error:
        raise InputError(f"{type(module).__name__} does not take these example inputs: {error}.") from error
    by_path = _tensors(dict(bound))
    places = [index for index, leaf in enumerate(leaves) if isinstance(leaf, torch.Tensor)]
    if not places:
        raise InputError("There is no tensor among the example inputs: give one batch, of the size to train with.")
    flat = [leaves[index] for index in places]
    names = [_name(next(path for path, leaf in by_path if leaf is wanted), "input") for wanted in flat]
    taken = {name for name, _ in (*module.named_parameters(), *module.named_buffers())}
    inputs = dict(zip(_distinct(names, taken), flat, strict=True))

    class Wrapper(torch.nn.Module):
        """Calls the module."""

        def forward(self, *given: Tensor) -> tuple[Tensor, ...]:
            """Return all tensors that the module returns."""
            filled = list(leaves)
            for place, tensor in zip(places, given, strict=True):
                filled[place] = tensor
            positional, by_name = pytree.tree_unflatten(filled, structure)
            with within():
                found = _tensors(getattr(self, CHILD)(*positional, **by_name))
            call.wanted = tuple(_name(path, OUTPUT) for path, _ in found)
            call.outputs = tuple(_distinct(call.wanted, {*taken, *inputs}))
            return tuple(tensor for _, tensor in found)

    wrapper = Wrapper()
    wrapper.training = True  # of the wrapper alone: `train()` would change the module
    wrapper.add_module(CHILD, module)
    call = Call(wrapper, inputs)
    return call


def _arguments(example_inputs: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Return positional and keyword arguments."""
    if isinstance(example_inputs, Mapping):
        return (), dict(example_inputs)
    if isinstance(example_inputs, Sequence):
        return tuple(example_inputs), {}
    return (example_inputs,), {}


def _tensors(tree: Any) -> list[tuple[tuple[Any, ...], Tensor]]:
    """Return the tensors of a nested value and the way to each."""
    import torch
    from torch.utils import _pytree as pytree

    pairs, _ = pytree.tree_flatten_with_path(tree)
    return [(path, leaf) for path, leaf in pairs if isinstance(leaf, torch.Tensor)]


def _name(path: Iterable[Any], base: str) -> str:
    """Return the name of a tensor: keys and numbers on the way to it, with a base before them where they begin so."""
    keys = (getattr(key, "key", getattr(key, "idx", getattr(key, "name", ""))) for key in path)
    words = [re.sub(r"\W", "_", str(key)) for key in keys]
    return "_".join(words if words and not words[0][:1].isdigit() else [base, *words])


def _distinct(names: Sequence[str], taken: Collection[str]) -> list[str]:
    """Return the names, changed where one is taken or there twice."""
    found: list[str] = []
    for name in names:
        number, free = 1, name
        while free in taken or free in found:
            number += 1
            free = f"{name}_{number}"
        found.append(free)
    return found
