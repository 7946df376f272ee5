"""The pass that lowers a training graph for the stock ONNX Runtime."""

from __future__ import annotations

from collections.abc import Mapping

import onnx_ir as ir
from onnx_ir.passes import InPlacePass, PassResult, PostconditionError

from poet_onnx.description.names import POET_DOMAIN, POET_VERSION
from poet_onnx.errors import InputError
from poet_onnx.graph.operators import MICROSOFT_DOMAIN, ONNX_DOMAINS
from poet_onnx.graph.shapes import infer
from poet_onnx.graph.shapes.declared import fitting
from poet_onnx.passes.fused.plain import DropCopies
from poet_onnx.passes.gathers import AddGatheredRows, SumGathersInOrder
from poet_onnx.passes.lowering import (
    accumulation,
    activation,
    convolution,
    elementwise,
    indexing,
    loss,
    normalization,
    pooling,
    resizing,
)
from poet_onnx.passes.lowering.accumulation import rows_to_accumulate
from poet_onnx.passes.lowering.builder import LoweringBuilder, Rule, UnsupportedError, list_nodes
from poet_onnx.passes.lowering.half import ComputeHalfInFloat
from poet_onnx.passes.lowering.opset import DeclareKnownOpset
from poet_onnx.passes.lowering.runnable import RefuseWithoutKernel
from poet_onnx.passes.normalize import FixDims, InlineFunctions, Normalization, WriteShapes, normalize
from poet_onnx.passes.structured import StructuredPass
from poet_onnx.passes.transposed import ReadTransposed

OLDEST_OPSET, OPSET = 13, 17
"""The oldest version of ONNX's operators whose nodes mean the same in version 17, and the one that is written."""

STOCK_KERNELS = frozenset(
    word
    for line in (
        "Attention BiasGelu BifurcationDetector CDist ConvTransposeWithDynamicPads CropAndResize",
        "DecoderMaskedMultiHeadAttention DequantizeLinear DynamicQuantizeLSTM DynamicQuantizeMatMul",
        "EmbedLayerNormalization ExpandDims FastGelu FusedConv FusedGemm FusedMatMul GatherBlockQuantized Gelu",
        "GridSample GroupQueryAttention Inverse MatMulBnb4 MatMulFpQ4 MatMulInteger16 MatMulIntegerToFloat",
        "MatMulNBits MaxpoolWithMask MoE MultiHeadAttention MurmurHash3 NGramRepeatBlock QAttention",
        "QEmbedLayerNormalization QGemm QLinearAdd QLinearAveragePool QLinearConcat QLinearConv",
        "QLinearGlobalAveragePool QLinearLeakyRelu QLinearMul QLinearSigmoid QLinearSoftmax QLinearWhere QMoE",
        "QuantizeLinear QuickGelu RotaryEmbedding SkipLayerNormalization SkipSimplifiedLayerNormalization",
        "SparseAttention SparseToDenseMatMul TransposeMatMul Trilu UnfoldTensor Unique WordConvEmbedding",
    )
    for word in line.split()
)
"""Operators of ONNX Runtime's own domain that the stock wheel runs on the CPU."""

TRAINING_ONLY = frozenset(("ConvGrad", "MaxPoolGrad", "AveragePoolGrad", "SinGrad", "SoftmaxCrossEntropyLoss"))
"""Operators that ONNX Runtime's training wheel adds to ONNX's domain, or that the stock wheel has no kernel for."""

RULES: dict[str, Rule] = {
    **accumulation.RULES,
    **activation.RULES,
    **convolution.RULES,
    **elementwise.RULES,
    **indexing.RULES,
    **loss.RULES,
    **normalization.RULES,
    **pooling.RULES,
    **resizing.RULES,
}


class LowerTraining(StructuredPass):
    """Replace every operator that the stock ONNX Runtime lacks by nodes that it has.

    Rules:
        W1. An operator is replaced where it stands; what it made keeps its name, new nodes are named after it.
        W2. Operators of poet-onnx's own library accumulate gradients and move running statistics in place, and stand
            for batch normalization, the gradients of layer normalization, GELU and softmax and the weight gradients of
            depthwise convolutions, which plain nodes compute in many passes. Without `kernels` there are plain nodes
            only, whose results are new tensors.
        W3. A half of a gradient that nobody reads is not computed.
        W4. The model imports version 17 of ONNX's operators or a later one.

    Requires a normalized model; ensures that no operator is left that the stock runtime lacks.
    """

    def __init__(self, *, kernels: bool = True) -> None:
        super().__init__()
        self._kernels = kernels

    def call(self, model: ir.Model) -> PassResult:
        """Lower all nodes.

        Raises:
            InputError: naming every operator that cannot be lowered, and its nodes.
        """
        graph = model.graph
        nodes = [node for node in graph if is_training_only(node)]
        inferred = infer(model)
        refused: dict[str, list[str]] = {}
        taken_over = [node for node in nodes if self._kernels and rows_to_accumulate(node) is not None]
        for node in nodes:
            if node in taken_over:
                continue
            builder = LoweringBuilder(graph, node, inferred, kernels=self._kernels)
            try:
                rule = RULES.get(node.op_type)
                if rule is None:
                    raise UnsupportedError("")
                with fitting(node):
                    rule(builder)
            except UnsupportedError as reason:
                what = f"{node.op_type} ({reason})" if str(reason) else node.op_type
                refused.setdefault(what, []).append(node.name or "")
                continue
            builder.finish()
        if refused:
            raise InputError(
                f"The stock ONNX Runtime has no kernels for {list_nodes(refused)}, and poet-onnx has no expansion: "
                "use the target 'training', or replace these operators."
            )
        for node in taken_over:
            _remove_with_readers(graph, node)
        self._import(model)
        return PassResult(model, modified=bool(nodes))

    def ensures(self, model: ir.Model) -> None:
        """No operator is left that the stock runtime lacks."""
        left = [node.op_type for node in model.graph if is_training_only(node)]
        if left:
            raise PostconditionError(f"{left[0]} is left")

    @staticmethod
    def _import(model: ir.Model) -> None:
        version = model.opset_imports.get("", OPSET)
        if version < OLDEST_OPSET:
            raise InputError(
                f"The model's operators are of ONNX opset {version}: export it with opset {OLDEST_OPSET} or later."
            )
        model.opset_imports[""] = max(version, OPSET)
        model.opset_imports[MICROSOFT_DOMAIN] = 1
        if any(node.domain == POET_DOMAIN for node in model.graph):
            model.opset_imports[POET_DOMAIN] = POET_VERSION


def prepare(*, target: str, dims: Mapping[str, int] | None = None, threads: int = 1) -> Normalization:
    """Return the passes that make of a training graph what is planned: normalized, and lowered for its target.

    Args:
        target: runtime that will run the model, "training" or "stock".
        dims: sizes of named dynamic dimensions.
        threads: inside an operator.
    """
    before = normalize_for(target, dims, threads=threads)
    return before if target == "training" else Normalization(before, *_second_half())


def normalize_for(target: str, dims: Mapping[str, int] | None = None, *, threads: int = 1) -> Normalization:
    """Return the first half of `prepare`: what comes before a graph is lowered."""
    fix = [FixDims(dims)] if dims else []
    first = (InlineFunctions(), *fix, DeclareKnownOpset(target), normalize())
    if target != "training":
        return Normalization(*first, ComputeHalfInFloat())
    repeatable = [SumGathersInOrder()] if threads > 1 else []
    return Normalization(*first, RefuseWithoutKernel(RULES), *repeatable)


def lower(model: ir.Model, target: str) -> None:
    """Do the second half of `prepare`."""
    if target != "training":
        Normalization(*_second_half())(model)


def _second_half() -> tuple[InPlacePass, ...]:
    return LowerTraining(), WriteShapes(), DropCopies(("Identity",)), ReadTransposed(), AddGatheredRows()


def is_training_only(node: ir.Node) -> bool:
    """Return whether the stock runtime lacks a node's operator."""
    if node.domain in ONNX_DOMAINS:
        return node.op_type in TRAINING_ONLY
    return node.domain == MICROSOFT_DOMAIN and node.op_type not in STOCK_KERNELS


def _remove_with_readers(graph: ir.Graph, node: ir.Node) -> None:
    """Remove a node, and before it those that only hand its output on to nobody."""
    chain = [node]
    while chain[-1].outputs[0].uses():
        chain.append(next(iter(chain[-1].outputs[0].uses())).node)
    graph.remove(list(reversed(chain)), safe=True)
