"""A plain forward pass has the scores that ONNX Runtime computes of the model for generation itself."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime
import pytest
from generation_models import BATCH, DIMS, EPSILON, IDS, LAYER, MS, TOKENS, Form, decoder, feeds
from onnx import TensorProto, helper, numpy_helper
from stock_environment import stock_python

from poet_onnx.errors import InputError
from poet_onnx.passes.generation.forward_only import ChooseBranches, ForwardOnly, is_for_generation
from poet_onnx.passes.normalize import FixDims, NameNodes, Normalization

ERROR = 2e-6
"""Of all scores, of their norm: both compute in float32."""

FORMS = {
    "packed, rotary inside": Form(),
    "rotary of neighbours": Form(interleaved=True),
    "a part rotated": Form(rotated=16),
    "a window": Form(window=3),
    "a cap": Form(cap=2.0),
    "rotary in nodes": Form(rotary="nodes"),
    "a part rotated, in nodes": Form(rotary="nodes", rotated=16, interleaved=True),
    "queries and keys normalized": Form(norms=True),
    "a tied table": Form(tied=True),
    "many heads": Form(rotary="nodes", operator="MultiHeadAttention"),
}


def with_branches(model: onnx.ModelProto, most: int) -> onnx.ModelProto:
    """Let a model choose other angles for sequences of more than so many tokens."""
    tables = {each.name: each for each in model.graph.initializer if each.name in ("cos_cache", "sin_cache")}
    branches = {}
    for name, factor in (("then_branch", np.float32(0.5)), ("else_branch", np.float32(1))):
        nodes = []
        for table, tensor in tables.items():
            value = numpy_helper.from_array(numpy_helper.to_array(tensor) * factor)
            nodes.append(helper.make_node("Constant", [], [f"{table}_{name}"], value=value))
        outputs = [helper.make_tensor_value_info(node.output[0], TensorProto.FLOAT, None) for node in nodes]
        branches[name] = helper.make_graph(nodes, name, [], outputs)
    length = "/model/attn_mask_reformat/attn_mask_subgraph/Gather/output_0"
    place = next(index for index, node in enumerate(model.graph.node) if node.output[0] == length) + 1
    model.graph.initializer.append(numpy_helper.from_array(np.array([most], np.int64), "most"))
    nodes = [
        helper.make_node("Greater", [length, "most"], ["is_long"], "compare"),
        helper.make_node("If", ["is_long"], list(tables), "choose", **branches),
    ]
    for tensor in tables.values():
        model.graph.initializer.remove(tensor)
    for node in reversed(nodes):
        model.graph.node.insert(place, node)
    return model


MODELS = {name: decoder(form) for name, form in FORMS.items()} | {
    f"tables by length, {name}": with_branches(decoder(), most) for name, most in (("short", TOKENS), ("long", 5))
}
RUN = """
import sys
import numpy as np, onnxruntime
for folder in sys.argv[1:]:
    session = onnxruntime.InferenceSession(f"{folder}/model.onnx")
    (scores,) = session.run(["logits"], dict(np.load(f"{folder}/feeds.npz")))
    np.save(f"{folder}/scores.npy", scores)
"""


@pytest.fixture(scope="module")
def expected(tmp_path_factory: pytest.TempPathFactory) -> dict[str, np.ndarray]:
    """Return the scores that the stock runtime computes of each form."""
    folders = {form: tmp_path_factory.mktemp("form") for form in MODELS}
    for form, folder in folders.items():
        model = MODELS[form]
        onnx.save(model, folder / "model.onnx")
        np.savez(folder / "feeds.npz", **feeds(model))
    command = [stock_python(), "-c", RUN, *map(str, folders.values())]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    return {form: np.load(Path(folder) / "scores.npy") for form, folder in folders.items()}


def plain(model: onnx.ModelProto, *targets: str) -> ir.Model:
    """Return the plain forward pass of a model."""
    made = ir.from_proto(model)
    Normalization(NameNodes(), FixDims(DIMS), ChooseBranches(), ForwardOnly(targets))(made)
    return made


@pytest.mark.parametrize("form", MODELS)
def test_scores_are_those_of_the_model_for_generation(form: str, expected: dict[str, np.ndarray]) -> None:
    made = plain(MODELS[form])
    assert [value.name for value in made.graph.inputs] == ["input_ids"]
    assert [value.name for value in made.graph.outputs] == ["logits"]
    assert {node.op_type for node in made.graph if node.domain == MS} <= {"MatMulNBits"}
    assert not is_for_generation(made.graph)
    (found,) = onnxruntime.InferenceSession(ir.to_proto(made).SerializeToString()).run(None, {"input_ids": IDS})
    assert np.asarray(found).shape == (BATCH, TOKENS, 40)
    assert np.linalg.norm(found - expected[form]) <= ERROR * np.linalg.norm(expected[form])


def test_norms_inside_of_the_attention_are_those_before_it(expected: dict[str, np.ndarray]) -> None:
    """ONNX Runtime has them so on a GPU alone."""
    model = decoder()
    (node,) = (node for node in model.graph.node if node.op_type == "GroupQueryAttention")
    weights = [f"{LAYER}.attn.{each}_norm.layernorm.weight" for each in ("q", "k")]
    node.input.extend([*[""] * (14 - len(node.input)), *weights])
    node.attribute.append(helper.make_attribute("qk_norm_epsilon", EPSILON))
    (found,) = onnxruntime.InferenceSession(ir.to_proto(plain(model)).SerializeToString()).run(None, {"input_ids": IDS})
    exact = expected["queries and keys normalized"]
    assert np.linalg.norm(found - exact) <= ERROR * np.linalg.norm(exact)


LENGTHS = {
    "gathered": "pastshape = Shape(past_key_values_key) pastlength = Gather(pastshape, place)",
    "a part of the shape": """one_size = Shape <start = 2, end = 3> (past_key_values_key)
        pastlength = Squeeze(one_size)""",
    "the last sizes": """last_sizes = Shape <start = -2> (past_key_values_key)
        pastlength = Gather(last_sizes, first)""",
}
"""How exporters ask how many tokens are cached: torch's legacy one, its dynamo one, and a third way."""

CACHED = """<ir_version: 8, opset_import: ["" : 18]>
g (int64[batch_size, sequence_length] input_ids, int64[another, total] attention_mask,
   float[cached, 1, past, 8] past_key_values_key, float[cached, 1, past, 8] past_key_values_value)
=> (float[batch_size, sequence_length, 8] logits, float[batch_size, 1, total, 8] present_key,
    float[batch_size, 1, total, 8] present_value) {
  e = Gather(table, input_ids) k0 = MatMul(e, wk) v0 = MatMul(e, wv)
  q = Unsqueeze(e, heads) k1 = Unsqueeze(k0, heads) v1 = Unsqueeze(v0, heads)
  present_key = Concat <axis = 2> (past_key_values_key, k1)
  present_value = Concat <axis = 2> (past_key_values_value, v1)
  kt = Transpose <perm = [0, 1, 3, 2]> (present_key) s = MatMul(q, kt)
  sizes = Shape(s) last = Slice(sizes, two, four) ones = ConstantOfShape <value = float[1] {1.0}> (last)
  {length} next = Add(pastlength, one)
  cachedsamples = Shape <end = 1> (past_key_values_key) count = Squeeze(cachedsamples)
  samples = Range(first, count, one) picked = Gather(attention_mask, samples) each = Reshape(picked, whole)
  later = Trilu <upper = 1> (ones, next) hidden = Mul(later, low)
  shown = Cast <to = 1> (each)
  row = Unsqueeze(shown, middle) not = Sub(unit, row) pads = Mul(not, low) masked = Add(s, hidden)
  all = Add(masked, pads) p = Softmax(all) a = MatMul(p, present_value) logits = Squeeze(a, heads) }"""


@pytest.mark.parametrize("length", LENGTHS.values(), ids=LENGTHS)
def test_a_cache_that_nodes_grow_is_forgotten(length: str) -> None:
    model = onnx.parser.parse_model(CACHED.replace("{length}", length))
    numbers = np.random.default_rng(0)
    arrays: dict[str, np.ndarray] = {name: numbers.standard_normal((8, 8)) for name in ("wk", "wv")}
    arrays |= {"table": numbers.standard_normal((40, 8)), "low": np.array(-1e9), "unit": np.array(1.0)}
    arrays = {name: array.astype(np.float32) for name, array in arrays.items()}
    arrays |= {"heads": np.array([1]), "two": np.array([2]), "four": np.array([4]), "middle": np.array([1, 2])}
    arrays |= {"place": np.array(2), "one": np.array(1), "first": np.array(0), "whole": np.array([BATCH, TOKENS])}
    model.graph.initializer.extend(numpy_helper.from_array(array, name) for name, array in arrays.items())
    empty = np.zeros((BATCH, 1, 0, 8), np.float32)
    given = {"input_ids": IDS, "attention_mask": np.ones_like(IDS)}
    given |= {f"past_key_values_{name}": empty for name in ("key", "value")}
    (expected,) = onnxruntime.InferenceSession(model.SerializeToString()).run(["logits"], given)
    made = plain(model)
    assert [value.name for value in made.graph.inputs] == ["input_ids"]
    assert [value.name for value in made.graph.outputs] == ["logits"]
    assert not [node.name for node in made.graph if node.op_type == "Concat"]
    (found,) = onnxruntime.InferenceSession(ir.to_proto(made).SerializeToString()).run(None, {"input_ids": IDS})
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)


def test_scores_of_all_tokens_are_kept() -> None:
    model = decoder()
    (head,) = (node for node in model.graph.node if node.output[0] == "logits")
    model.graph.input.append(helper.make_tensor_value_info("num_logits_to_keep", TensorProto.INT64, []))
    nodes = [
        helper.make_node("Neg", ["num_logits_to_keep"], ["before"], "negated"),
        helper.make_node("Unsqueeze", ["before", "axis"], ["start"], "start"),
        helper.make_node("Slice", [head.input[0], "start", "end", "/model/constants/INT64/[1]"], ["last"], "last"),
    ]
    model.graph.initializer.extend(
        numpy_helper.from_array(np.array([number], np.int64), name) for name, number in (("axis", 0), ("end", 2**62))
    )
    head.input[0] = "last"
    model.graph.node.remove(head)
    model.graph.node.extend([*nodes, head])
    made = plain(model)
    assert [value.name for value in made.graph.inputs] == ["input_ids"]
    (found,) = onnxruntime.InferenceSession(ir.to_proto(made).SerializeToString()).run(None, {"input_ids": IDS})
    assert np.asarray(found).shape == (BATCH, TOKENS, 40)


def change(**attributes: object) -> Callable[[onnx.ModelProto, onnx.NodeProto], None]:
    def changed(_: onnx.ModelProto, node: onnx.NodeProto) -> None:
        kept = [attribute for attribute in node.attribute if attribute.name not in attributes]
        del node.attribute[:]
        node.attribute.extend([*kept, *(helper.make_attribute(name, value) for name, value in attributes.items())])

    return changed


def give(index: int) -> Callable[[onnx.ModelProto, onnx.NodeProto], None]:
    def given(_: onnx.ModelProto, node: onnx.NodeProto) -> None:
        node.input.extend([""] * (index + 1 - len(node.input)))
        node.input[index] = "sin_cache"

    return given


def half_cache(model: onnx.ModelProto, _: onnx.NodeProto) -> None:
    for value in model.graph.input:
        if value.name.startswith("past"):
            value.type.tensor_type.elem_type = TensorProto.FLOAT16


def another_reader(model: onnx.ModelProto, _: onnx.NodeProto) -> None:
    model.graph.node.append(helper.make_node("Neg", ["past_key_values.0.key"], ["n"], "negated"))
    model.graph.output.append(helper.make_tensor_value_info("n", TensorProto.FLOAT, None))


def computed_positions(_: onnx.ModelProto, node: onnx.NodeProto) -> None:
    node.input.extend(["/model/attn_mask_reformat/attn_mask_subgraph/ReduceSum/output_0"])


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        (give(11), r"GroupQueryAttention'.* its Softmax has sinks"),
        (change(smooth_softmax=1), r"GroupQueryAttention'.* its Softmax has sinks"),
        (give(12), r"GroupQueryAttention'.* its cache is quantized"),
        (give(10), r"GroupQueryAttention'.* a bias of its scores is given"),
        (change(kv_num_heads=3), r"256 packed numbers are not those of 4 \+ 2 x 3 heads"),
        (change(num_heads=0), r"256 packed numbers are not those of 0 \+ 2 x 2 heads"),
        (half_cache, r"cache 'past_key_values.0.key' is of float16.*-p int4 -e cpu"),
        (another_reader, r"'negated' \(Neg\) reads the cache"),
        (computed_positions, r"its positions are computed by '.*ReduceSum' \(ReduceSum\)"),
    ],
)
def test_what_cannot_be_trained_is_said(changed: Callable[[onnx.ModelProto, onnx.NodeProto], None], words: str) -> None:
    model = decoder()
    (node,) = (node for node in model.graph.node if node.op_type == "GroupQueryAttention")
    changed(model, node)
    with pytest.raises(InputError, match=words):
        plain(model)


def test_sequences_have_a_length_that_fits_the_tables() -> None:
    model = ir.from_proto(decoder())
    with pytest.raises(
        InputError, match=r"'input_ids' is not fixed: give the size of 'sequence_length', such as --dim"
    ):
        Normalization(FixDims({"batch_size": 2}), ForwardOnly())(model.clone())
    with pytest.raises(InputError, match=r"its tables have 24 positions, but a sequence has 25 tokens"):
        Normalization(FixDims({**DIMS, "sequence_length": 25}), ForwardOnly())(model)
