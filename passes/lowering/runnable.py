"""What onnxruntime-training runs: a training graph may hold operators that its CPU has no working kernel for."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

import onnx_ir as ir
from onnx_ir.passes import InPlacePass, PassResult

from poet_onnx.errors import InputError
from poet_onnx.graph.operators import MICROSOFT_DOMAIN, spec_of
from poet_onnx.graph.operators.windows import follows_size
from poet_onnx.passes.lowering.builder import list_nodes

IMAGE_RANK = 4
"""Dimensions of a tensor of 2-D images: batch, channels and two of the image."""


def shares_averages(rank: int, dilations: Iterable[int]) -> bool:
    """Return whether onnxruntime-training's AveragePoolGrad of such a tensor shares out what AveragePool averages."""
    return rank <= IMAGE_RANK and all(step == 1 for step in dilations)


class RefuseWithoutKernel(InPlacePass):
    """Refuse a model that onnxruntime-training 1.19.2 cannot run on the CPU; changes nothing."""

    def __init__(self, lowered: Collection[str]) -> None:
        """Set the operators that can be lowered for the stock runtime."""
        super().__init__()
        self._lowered = lowered

    def call(self, model: ir.Model) -> PassResult:
        """Look at every node.

        Raises:
            InputError: naming every operator that has no kernel, and its nodes.
        """
        lowered: dict[str, list[str]] = {}
        stuck: dict[str, list[str]] = {}
        for node in model.graph:
            reason = _reason(node)
            if reason is not None:
                found = lowered if node.op_type in self._lowered else stuck
                found.setdefault(f"{node.op_type} ({reason})", []).append(node.name or "")
        if stuck:
            raise _refusal(stuck, "and poet-onnx has no expansion: replace these operators.")
        if lowered:
            raise _refusal(lowered, "give `--target stock`, for which they are lowered to standard operators.")
        return PassResult(model, modified=False)


def _refusal(found: Mapping[str, list[str]], advice: str) -> InputError:
    return InputError(f"onnxruntime-training cannot run {list_nodes(found)}; {advice}")


def _reason(node: ir.Node) -> str | None:
    """Return why a node cannot run, or not to its numbers; None if it can."""
    if node.op_type in ("AveragePoolGrad", "ConvGrad") and follows_size(node.attributes.get_string("auto_pad", "")):
        return "its kernel takes auto_pad for no padding"
    rank = 0 if node.outputs[0].shape is None else len(node.outputs[0].shape)
    if node.op_type == "AveragePoolGrad" and not shares_averages(rank, node.attributes.get_ints("dilations", ())):
        return "its kernel knows neither a third dimension nor dilations"
    if node.domain != MICROSOFT_DOMAIN:
        return None
    if not spec_of(node.domain, node.op_type).cpu_kernel:
        return "it has no CPU kernel"
    if node.op_type == "ConvGrad" and _writes_past_its_output(node):
        return "with groups, its kernel writes past its output unless images are 2-D"
    return None


def _writes_past_its_output(node: ir.Node) -> bool:
    """Return whether a ConvGrad corrupts memory.

    For each group of images that are not 2-D the kernel clears as many elements of dX as all groups have, from where
    the group's begin (orttraining/orttraining/training_ops/cpu/nn/conv_grad.cc, call of Col2imNdPar).
    """
    weight = node.inputs[2]
    flat = weight is not None and weight.shape is not None and len(weight.shape) == IMAGE_RANK
    return bool(node.outputs[0].name) and node.attributes.get_int("group", 1) > 1 and not flat
