"""Packed projections come apart, and weights get the names that transformers has."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import onnxruntime
import pytest
from forward_models import random
from onnx import TensorProto, helper, numpy_helper
from quantized_models import Weight, model_of

from poet_onnx.passes.generation.projections import give_torch_names, part_projections, torch_name

LAYER = "model.layers.0"
PACKED = Weight(48, 32, size=16, has_zeros=True)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        (f"{LAYER}.attn.q_proj.MatMul.weight_Q4", f"{LAYER}.self_attn.q_proj.weight_Q4"),
        (f"{LAYER}.attn.qkv_proj.Add.bias", f"{LAYER}.self_attn.qkv_proj.bias"),
        (f"{LAYER}.mlp.down_proj.MatMul.weight", f"{LAYER}.mlp.down_proj.weight"),
        ("lm_head.MatMul.weight_scales", "lm_head.weight_scales"),
        (f"{LAYER}.input_layernorm.weight", f"{LAYER}.input_layernorm.weight"),
        ("onnx::MatMul_31", "onnx::MatMul_31"),
    ],
)
def test_names_are_those_of_transformers(name: str, expected: str) -> None:
    assert torch_name(name) == expected


def packed(*, floats: bool, equal: bool) -> ir.Model:
    """Return a packed gate and what it gates, with a bias, in two outputs."""
    weight = f"{LAYER}.mlp.gate_up_proj.MatMul.weight"
    if floats:
        node = helper.make_node("MatMul", ["x", weight], ["p"], "/model/layers.0/mlp/gate_up_proj/MatMul")
        initializers = [numpy_helper.from_array(random(32, 48), weight)]
    else:
        node, initializers = PACKED.matmul_nbits("x", "p", weight)
    bias = f"{LAYER}.mlp.gate_up_proj.Add.bias"
    initializers += [
        numpy_helper.from_array(random(48), bias),
        numpy_helper.from_array(np.array([24, 24]), "sizes"),
    ]
    how = {"num_outputs": 2} if equal else {}
    nodes = [
        node,
        helper.make_node("Add", ["p", bias], ["b"], "/model/layers.0/mlp/gate_up_proj/Add"),
        helper.make_node("Split", ["b", *([] if equal else ["sizes"])], ["gate", "up"], "split", axis=-1, **how),
        helper.make_node("Concat", ["up", "gate"], ["y"], "y", axis=-1),
    ]
    return ir.from_proto(model_of(nodes, initializers, ("x", TensorProto.FLOAT, (2, 32)), ("y", (2, 48)), 21))


def run(model: ir.Model) -> np.ndarray:
    x = np.random.default_rng(0).standard_normal((2, 32)).astype(np.float32)
    (made,) = onnxruntime.InferenceSession(ir.to_proto(model).SerializeToString()).run(None, {"x": x})
    return np.asarray(made)


@pytest.mark.parametrize("floats", [False, True])
@pytest.mark.parametrize("equal", [False, True])
def test_parts_make_what_the_whole_made(floats: bool, equal: bool) -> None:
    model = packed(floats=floats, equal=equal)
    expected = run(model)
    part_projections(model.graph, ())
    give_torch_names(model.graph)
    operators = [node.op_type for node in model.graph]
    assert "Split" not in operators
    assert operators.count("MatMul" if floats else "MatMulNBits") == operators.count("Add") == 2
    ending = "weight" if floats else "weight_Q4"
    names = {f"{LAYER}.mlp.{part}_proj.{what}" for part in ("gate", "up") for what in (ending, "bias")}
    assert names <= set(model.graph.initializers)
    np.testing.assert_allclose(run(model), expected, rtol=1e-5, atol=1e-6)


def test_what_others_read_stays_whole() -> None:
    model = packed(floats=True, equal=True)
    value = next(node for node in model.graph if node.op_type == "Add").outputs[0]
    model.graph.append(ir.Node("", "Neg", [value], num_outputs=1, name="other"))
    part_projections(model.graph, ())
    assert "Split" in {node.op_type for node in model.graph}


@pytest.mark.parametrize(("targets", "count"), [(["*gate_up_proj*"], 1), (["*_proj*"], 2), (["*gate_proj*"], 2)])
def test_targets_of_the_whole_alone_keep_it(targets: list[str], count: int) -> None:
    model = packed(floats=False, equal=True)
    part_projections(model.graph, targets)
    assert [node.op_type for node in model.graph].count("MatMulNBits") == count


def test_the_output_layer_of_attention_in_phi_is_called_dense() -> None:
    name = f"{LAYER}.attn.o_proj.MatMul.weight"
    nodes = [
        helper.make_node("MatMul", ["x", name], ["h"], "o"),
        helper.make_node("Add", ["h", "x"], ["y"], "/model/layers.0/residual_add/Add"),
    ]
    weight = numpy_helper.from_array(random(32, 32), name)
    model = ir.from_proto(model_of(nodes, [weight], ("x", TensorProto.FLOAT, (2, 32)), ("y", (2, 32))))
    give_torch_names(model.graph)
    assert set(model.graph.initializers) == {f"{LAYER}.self_attn.dense.weight"}


def test_a_name_that_is_taken_is_given_to_nothing_else() -> None:
    names = ["lm_head.MatMul.weight", "lm_head.weight"]
    nodes = [
        helper.make_node("MatMul", ["x", names[0]], ["h"], "first"),
        helper.make_node("MatMul", ["h", names[1]], ["y"], "second"),
    ]
    arrays = [numpy_helper.from_array(random(32, 32), name) for name in names]
    model = ir.from_proto(model_of(nodes, arrays, ("x", TensorProto.FLOAT, (2, 32)), ("y", (2, 32))))
    give_torch_names(model.graph)
    assert set(model.graph.initializers) == set(names)
