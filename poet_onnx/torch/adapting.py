"""Low-rank adapters in torch: what a module computes whose weights have something added to them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from poet_onnx.adapters.lora import CONVOLUTION, LINEAR, WEIGHT, Adapter, Adapters

if TYPE_CHECKING:
    from torch import Tensor, nn


@dataclass(frozen=True)
class PlacedAdapter:
    """An adapter beside a tensor of a module.

    Attributes:
        adapter: as the training graph has it.
        scale: what its product is multiplied by.
        tensor: name of the module's tensor.
        turned: whether that is the transposed of what stands in the graph.
        padding: row of A that stands still, as in PEFT beside an embedding with `padding_idx`; None for none.
    """

    adapter: Adapter
    scale: float
    tensor: str
    turned: bool
    padding: int | None

    def added(self, first: Tensor, second: Tensor) -> Tensor:
        """Return what is added to the module's tensor, by A and B as they stand in the graph."""
        if self.padding is not None:
            first = first.clone()
            first[self.padding] = first[self.padding].detach()
        if self.adapter.kind == CONVOLUTION:
            product = (second.flatten(1) @ first.flatten(1)).reshape(len(second), *first.shape[1:])
        else:
            product = first @ second
        turned = self.turned != self.adapter.transposed
        return self.scale * (product.T if turned else product)


def place(
    adapters: Adapters, module: nn.Module, tensors: Mapping[str, Tensor], values: Mapping[str, Any]
) -> tuple[list[PlacedAdapter], list[str]]:
    """Find the tensors of a module beside which adapters stand; embeddings among them lose their `padding_idx`.

    In PEFT it is A's: what B learns from the padding would be lost where a whole weight has it.

    Args:
        adapters: of a training graph.
        module: that it was made of.
        tensors: of the module, by name.
        values: arrays A and B, by their names in the graph.

    Returns:
        The adapters, and a sentence about each that has no such tensor.
    """
    placed: list[PlacedAdapter] = []
    left_out: list[str] = []
    for adapter in adapters.each:
        shapes = values[adapter.first].shape, values[adapter.second].shape
        found = _find(adapter, module, tensors, *shapes)
        padded = [] if isinstance(found, str) else list(_padded(module, tensors[found[0]]))
        if padded and (adapter.tied or adapter.alike):
            found = "its embedding has padding_idx, and others share its weight"
        if isinstance(found, str):
            left_out.append(f"The adapter beside '{adapter.weight}' was not compared: {found}.")
        else:
            row = padded[0].padding_idx if padded else None
            for layer in padded:
                layer.padding_idx = None
            placed.append(PlacedAdapter(adapter, adapters.scale_of(adapter), *found, row))
    return placed, left_out


def _padded(module: nn.Module, weight: Tensor) -> Iterator[nn.Embedding]:
    """Yield the embeddings with a row for padding that have a weight."""
    from torch import nn

    for layer in module.modules():
        if isinstance(layer, nn.Embedding) and layer.weight is weight and layer.padding_idx is not None:
            yield layer


def _find(
    adapter: Adapter, module: nn.Module, tensors: Mapping[str, Tensor], first: Sequence[int], second: Sequence[int]
) -> tuple[str, bool] | str:
    """Return the name of a tensor and whether it is transposed there, or why there is none."""
    from torch import nn

    name = adapter.weight if adapter.weight in tensors else f"{adapter.module}{WEIGHT}"
    if name not in tensors:
        return "the module has no such tensor"
    if adapter.groups > 1:
        return f"the convolution has {adapter.groups} groups"
    if adapter.kind == CONVOLUTION:
        stored: tuple[int, ...] = (second[0], *first[1:])
    else:
        stored = (second[1], first[0]) if adapter.transposed else (first[0], second[1])
    fits = [turned for turned in (False, True) if tuple(tensors[name].shape) == (stored[::-1] if turned else stored)]
    if len(fits) == 2 and name != adapter.weight and adapter.kind == LINEAR:
        # A square weight that the exporter named anew: torch's linear layers have a row for each output.
        is_linear = isinstance(module.get_submodule(adapter.module), nn.Linear)
        return (name, not adapter.transposed) if is_linear else "the exporter may have transposed it"
    return (name, fits[0]) if fits else "its shape is another one"
