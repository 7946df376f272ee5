"""The graph variants that a model may be planned in: weight gradients whole or in parts, and how it is lowered."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache, partial
from typing import TypeAlias

import onnx_ir as ir

from poet_onnx.costing.device import HOST, DeviceProfile
from poet_onnx.description.metadata import Description, Updates
from poet_onnx.description.names import handle_name
from poet_onnx.errors import InputError
from poet_onnx.graph import TrainingGraph
from poet_onnx.graph.extract import extract
from poet_onnx.passes.lowering import lower
from poet_onnx.passes.normalize import Normalization
from poet_onnx.passes.panel_comparison import AnyComparison, comparing_model
from poet_onnx.passes.quantized.panels import UseQuantizedPanels, has_blocks
from poet_onnx.passes.roles import find_roles
from poet_onnx.passes.split import SplitWeightGradients
from poet_onnx.passes.stored import StoreChoice, StreamParameters
from poet_onnx.passes.stored_panels import UseStoredPanels, writes_panels
from poet_onnx.passes.updates import WriteUpdates
from poet_onnx.runtime.panels import differing_products

PART_BYTES = {"training": (4 << 20, 1 << 20, 128 << 10), "stock": (1 << 20, 128 << 10)}
"""Sizes of parts that large weight gradients are split into where whole ones do not fit, by target. For each part
ConvGrad of the training runtime lays the whole image out again: there a few large parts are quicker."""

VariantOptions: TypeAlias = tuple[int | None, tuple[str, ...]]
"""The `part_bytes` and `stored` that distinguish a variant from others of its model."""


@dataclass(frozen=True)
class GraphVariant:
    """A model as it may be planned, and carried out where its plan is the best one.

    Attributes:
        part_bytes: size of parts that large weight gradients are computed in; None for whole ones.
        model: lowered, split, and with the optimizer's updates.
        graph: extracted from the model.
        stored: names of what lives in a store on disk; None where nothing may.
    """

    part_bytes: int | None
    model: ir.Model
    graph: TrainingGraph
    stored: tuple[str, ...] | None = None

    @property
    def options(self) -> VariantOptions:
        """Return what distinguishes it from the other variants of its model."""
        return self.part_bytes, self.stored or ()


def variants(
    model: ir.Model,
    device: DeviceProfile,
    target: str,
    *,
    split: bool = True,
    updates: Updates | None = None,
    stored: StoreChoice | None = None,
    threads: int = 1,
) -> Iterator[GraphVariant]:
    """Yield the variants of a model for a target, what costs the least time first.

    Whole weight gradients come before those in parts, coarse parts before fine ones.

    Args:
        model: normalized for the target (`normalize_for`); it is not changed, and for the training runtime without an
            optimizer it is itself the model of the first variant.
        device: that will run it: products by panels can be compared with whole ones on this machine alone.
        target: runtime that will run the model, "training" or "stock".
        split: also yield variants with gradients in parts.
        updates: what the optimizer in the step does; None for none.
        stored: what lives in a store on disk; None where all is in RAM.
        threads: inside an operator, with which products by panels are compared with whole ones.

    Raises:
        InputError: if the model cannot be trained by the optimizer.
    """
    panels = panels_on(device, threads)
    lowered = _lowered(model, target, threads)
    whole = _variant(None, lowered if updates is None else lowered.clone(), updates, stored, panels=panels)
    in_panels = _in_panels(whole, lowered)
    yield whole
    seen = set[str]()
    for part_bytes in PART_BYTES[target] if split else ():
        parts = lowered.clone()
        if SplitWeightGradients(part_bytes, threads=threads, spared=in_panels)(parts).modified:
            variant = _variant(part_bytes, parts, updates, stored, panels=panels)
            if variant.graph.fingerprint not in seen:  # an embedding's gradient is the same for parts of any size
                seen.add(variant.graph.fingerprint)
                yield variant


def variant_of(
    model: ir.Model,
    target: str,
    options: VariantOptions,
    updates: Updates | None = None,
    stored: StoreChoice | None = None,
    *,
    panels: UseStoredPanels | None = None,
    threads: int = 1,
) -> GraphVariant:
    """Return the variant of a normalized model that a plan was made for; the model is not changed.

    The arguments are those of `variants`, but the variant's options, and what `panels_on` returns for the device: None
    where nothing is stored.

    Raises:
        InputError: if the model has no such variant.
    """
    part_bytes, _ = options
    if part_bytes is not None and part_bytes < 1:
        raise InputError(
            f"The plan asks for weight gradients in parts of {part_bytes} bytes, below 1 byte; plan again."
        )
    model = model.clone()
    lower(model, target)
    Normalization(quantized_panels(threads))(model)
    in_panels = frozenset[str]()
    if part_bytes is not None and stored is not None:
        in_panels = _in_panels(_variant(None, model.clone(), updates, stored, panels=panels), model)
    if part_bytes is not None:
        split = SplitWeightGradients(part_bytes, threads=threads, spared=in_panels)
        if not split(model).modified:
            raise InputError(
                f"The plan computes weight gradients of more than {part_bytes:,} bytes in parts, and this graph has "
                "none; plan again for this model."
            )
    return _variant(part_bytes, model, updates, stored, panels=panels)


def _in_panels(variant: GraphVariant, model: ir.Model) -> frozenset[str]:
    """Return the buffers of a model's gradients that are never whole in a variant with whole ones."""
    handles = {value.name for node in variant.model.graph if writes_panels(node) for value in node.inputs if value}
    if not handles:
        return frozenset()
    return frozenset(buffer for name, buffer in find_roles(model).buffers.items() if handle_name(name) in handles)


def panels_on(device: DeviceProfile, threads: int) -> UseStoredPanels | None:
    """Return the pass with which layers work on panels of what is stored; None for other machines than this one.

    There, nobody knows whether panels keep the bits: ONNX Runtime adds up in other ways on other processors.
    """
    return panels_here(threads) if device.name == HOST else None


def panels_here(threads: int) -> UseStoredPanels:
    """Return the pass with which layers work on panels of what is stored, where these keep the bits on this machine."""
    return UseStoredPanels(partial(_keeps_bits, threads=threads))


def quantized_panels(threads: int) -> UseQuantizedPanels:
    """Return the pass with which products work on panels of weights of few bits.

    It is for machines of any kind: floats of whole weights would not fit where weights of few bits are for. The machine
    that trains repeats the comparisons.
    """
    return UseQuantizedPanels(partial(_keeps_bits, threads=threads))


@cache
def _keeps_bits(comparison: AnyComparison, *, threads: int) -> bool:
    """Return whether products by panels have the bits of whole ones on this machine."""
    return not differing_products(comparing_model([comparison]), threads=threads)


def _variant(
    part_bytes: int | None,
    model: ir.Model,
    updates: Updates | None,
    stored: StoreChoice | None,
    *,
    panels: UseStoredPanels | None,
) -> GraphVariant:
    """Return a variant of a model that has all but the optimizer, which is written into it."""
    if updates is not None:
        Normalization(WriteUpdates(updates))(model)
    if stored is None:
        return GraphVariant(part_bytes, model, extract(model))
    Normalization(StreamParameters(stored))(model)
    if panels is not None:
        Normalization(panels)(model)
    description = Description.of_metadata(model.metadata_props)
    names = () if description is None else (*description.stored, *description.constants)
    return GraphVariant(part_bytes, model, extract(model), names)


def _lowered(model: ir.Model, target: str, threads: int) -> ir.Model:
    """Return a model lowered for its target; for the training runtime it may be the model itself."""
    own = model.clone() if target != "training" or has_blocks(model.graph) else model
    lower(own, target)
    Normalization(quantized_panels(threads))(own)
    return own
