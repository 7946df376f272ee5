"""Models for generation, which have a cache: what is made of them before their training graph, and what is refused."""

from __future__ import annotations

from collections.abc import Mapping

import onnx_ir as ir

from poet_onnx.adapters.lora import Lora
from poet_onnx.adapters.reading import as_lora
from poet_onnx.errors import InputError
from poet_onnx.gradients.registry import gradient
from poet_onnx.graph.operators import MICROSOFT_DOMAIN
from poet_onnx.graph.shapes.inference import has_rule
from poet_onnx.passes.generation.forward_only import ChooseBranches, ForwardOnly
from poet_onnx.passes.lowering.builder import list_nodes
from poet_onnx.passes.normalize import FixDims, Normalization
from poet_onnx.passes.raise_opset import RaiseOpset


def fix_lengths(model: ir.Model, dims: Mapping[str, int] | None) -> None:
    """Give a model for generation the sizes of its batch, and what depends on them; changes it.

    Args:
        model: for generation.
        dims: sizes of its named dimensions; those of the cache need none.

    Raises:
        InputError: if a dimension of its tokens has no size.
    """
    Normalization(*([FixDims(dims)] if dims else []), ChooseBranches())(model)


def make_forward_only(model: ir.Model, lora: Lora | str | None) -> None:
    """Make a plain forward pass of a model for generation; changes it.

    Args:
        model: without functions, with the sizes of its batch.
        lora: adapters that it is to have.

    Raises:
        InputError: naming a node that cannot be trained.
    """
    Normalization(RaiseOpset(), ForwardOnly(() if lora is None else as_lora(lora).patterns))(model)


def refuse_for_generation(graph: ir.Graph) -> None:
    """Refuse operators of ONNX Runtime that are neither known nor declared to make something, such as fused ones.

    Raises:
        InputError: naming them and their nodes.
    """
    found: dict[str, list[str]] = {}
    for node in graph:
        is_known = not node.domain.startswith(MICROSOFT_DOMAIN) or has_rule(node) or gradient(node) is not None
        if not is_known and any(value.name and value.shape is None for value in node.outputs):
            found.setdefault(node.op_type, []).append(node.name or "")
    if found:
        raise InputError(
            f"These operators of ONNX Runtime cannot be trained: {list_nodes(found)}. Tools that optimize for inference"
            " write them: give the model as it was before. Models for generation have them, too: give the model as"
            " torch exports it, without a cache of keys and values, and quantize it by --quantize 4bit."
        )
