"""Normalization changes no bit, is the same every time, and leaves nothing to do when run again."""

from __future__ import annotations

import gc
import re
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import onnx_ir as ir
import onnxruntime
import pytest
from deep import sampled
from onnx_ir.passes import PassBase, Sequential

from poet_onnx.errors import InputError
from poet_onnx.graph.extract import extract, load_model
from poet_onnx.graph.shapes import infer
from poet_onnx.passes.expand import WITHOUT_KERNEL, ExpandDivGrad, ExpandFunctions
from poet_onnx.passes.normalize import (
    FixDims,
    FoldConstants,
    FoldShapes,
    InlineFunctions,
    NameNodes,
    PinSeeds,
    WriteShapes,
    normalize,
)
from poet_onnx.runtime import session_options

MODELS = ["resnet18", "bert-2", "transformer", "mobilenet", "unet", "densenet", "mlp-mse", "mlp-bce", "mlp-l1"]
HEAD = '<ir_version: 8, opset_import: ["" : 15, "com.microsoft" : 1]>'
Arrays = dict[str, npt.NDArray[Any]]


def parse(text: str) -> ir.Model:
    """Return a model written in ONNX's text form."""
    return ir.from_proto(onnx.parser.parse_model(HEAD + text))


def feeds(model: ir.Model) -> Arrays:
    """Return random inputs; integers are 0 or 1, which every index and label may be."""
    generator = np.random.default_rng(0)
    arrays: Arrays = {}
    for value in model.graph.inputs:
        kind = infer(model).types[value.name or ""]
        if kind.dtype == ir.DataType.FLOAT:
            arrays[value.name or ""] = generator.standard_normal(kind.shape).astype(np.float32)
        else:
            arrays[value.name or ""] = generator.integers(0, 2, kind.shape).astype(kind.dtype.numpy())
    return arrays


def step(model: ir.Model, arrays: Arrays) -> dict[str, bytes]:
    """Run one step on copies of the inputs; return every output and what every input holds afterwards, as bytes."""
    session = onnxruntime.InferenceSession(
        ir.to_proto(model).SerializeToString(), session_options(), providers=["CPUExecutionProvider"]
    )
    binding = session.io_binding()
    copies = {name: array.copy() for name, array in arrays.items()}
    for name, array in copies.items():
        binding.bind_ortvalue_input(name, onnxruntime.OrtValue.ortvalue_from_numpy(array))
    for output in session.get_outputs():
        binding.bind_output(output.name)
    session.run_with_iobinding(binding)
    results = zip(session.get_outputs(), binding.get_outputs(), strict=True)
    found = {f"output {output.name}": value.numpy().tobytes() for output, value in results}
    return found | {f"input {name}": array.tobytes() for name, array in copies.items()}


@pytest.mark.parametrize("name", sampled(MODELS, "mobilenet", "mlp-mse"))
def test_results_and_buffers_keep_their_bits(name: str, model_path: Callable[..., Path]) -> None:
    path = model_path(name, batch=2)
    original, normalized = load_model(path), load_model(path)
    PinSeeds()(original)  # the seeds are what normalization adds
    assert normalize()(normalized).modified
    arrays = feeds(original)
    before, after = step(original, arrays), step(normalized, arrays)
    assert before == after
    assert sum(before[f"input {key}"] != array.tobytes() for key, array in arrays.items()) > 0


@pytest.mark.parametrize("name", sampled(MODELS, "mobilenet", "densenet", "transformer", "mlp-mse"))
def test_it_is_deterministic_idempotent_and_valid(name: str, model_path: Callable[..., Path], tmp_path: Path) -> None:
    first, second = load_model(model_path(name)), load_model(model_path(name))
    normalize()(first)
    normalize()(second)
    content = ir.to_proto(first).SerializeToString(deterministic=True)
    assert content == ir.to_proto(second).SerializeToString(deterministic=True)
    assert not normalize()(first).modified
    assert content == ir.to_proto(first).SerializeToString(deterministic=True)
    ir.save(first, tmp_path / "model.onnx")
    assert extract(load_model(tmp_path / "model.onnx")) == extract(second)


@pytest.mark.parametrize("name", MODELS)
def test_nodes_keep_their_order_and_every_tensor_tells_its_type(name: str, model_path: Callable[..., Path]) -> None:
    model = load_model(model_path(name))
    names = [node.name for node in model.graph]
    normalize()(model)
    # The additions of a sum of many gradients stand where it stood.
    kept = list(dict.fromkeys(re.sub(r"(?<=_grad)/Add_\d+$", "", node.name or "") for node in model.graph))
    assert kept == [name for name in names if name in set(kept)]
    assert not {node.op_type for node in model.graph} & {"Shape", "Size", "Constant"}
    described = {value.name for value in ir.to_proto(model).graph.value_info}
    outputs = {value.name for value in model.graph.outputs}
    assert {value.name for node in model.graph for value in node.outputs if value.name} - outputs <= described


def test_shapes_fold_and_what_only_they_used_goes() -> None:
    model = parse(
        """g (float[4, 6] x) => (float[] y) <int64[1] two = {2}, float half = {0.5}, int64[1] zero = {0}> {
            s = Shape(x)  n = Slice(s, zero, two)  f = Cast<to = 1>(n)  h = Mul(f, half)  k = Cast<to = 7>(h)
            t = Abs(k)  g = Expand(x, s)  y = Reshape(g, s) }"""
    )
    FoldShapes()(model)
    assert [node.op_type for node in model.graph] == ["Expand", "Reshape"]
    assert set(model.graph.initializers) == {"s"}
    assert model.graph.initializers["s"].const_value.numpy().tolist() == [4, 6]


def test_values_that_leave_the_graph_or_are_large_are_not_folded() -> None:
    model = parse(
        """g (float[4, 6] x) => (int64[2] s, float[] y) <int64[1] n = {2000}, int64[1] m = {2000}> {
            s = Shape(x)  big = ConstantOfShape(n)  y = Add(big, big) }"""
    )
    FoldConstants()(model)
    with pytest.raises(InputError):
        normalize()(parse("g (float[n] x) => (float[] y) { y = Neg(x) }"))
    FoldShapes().call(model)
    assert [node.op_type for node in model.graph] == ["Shape", "ConstantOfShape", "Add"]


def test_initializers_that_are_inputs_can_change_and_are_not_constants() -> None:
    proto = onnx.parser.parse_model(
        HEAD + "g (float[6] x, int64[1] n) => (float[] y) <int64[1] n = {6}> { m = Neg(n)  k = Neg(m)  y = Add(x, x) }"
    )
    model = ir.from_proto(proto)
    FoldShapes()(model)
    assert [node.op_type for node in model.graph] == ["Neg", "Neg", "Add"]


def test_what_is_written_in_place_is_no_constant() -> None:
    """The running mean is read before and, through a view, by the normalization that updates it."""
    model = parse(
        """g (float[4, 2] x, float[2] s) => (float[] y, float[] z)
        <float[2] mean = {0.0, 0.0}, float[2] variance = {1.0, 1.0}> {
            m = Identity(mean)  y, n, v, a, b = com.microsoft.BatchNormInternal<training_mode = 1>(x, s, s, m, variance)
            w = Identity(variance)  z = Neg(w) }"""
    )
    assert not FoldShapes()(model).modified
    assert [node.op_type for node in model.graph] == ["Identity", "BatchNormInternal", "Identity", "Neg"]


def test_float_arithmetic_is_left_to_the_runtime() -> None:
    model = parse(
        "g (float[2] x) => (float[] y) <float[2] a = {1.0, 3.0}> {"
        " b = Exp(a)  c = Mul(a, a)  d = Add(b, c)  y = Add(x, d) }"
    )
    FoldShapes()(model)
    assert [node.op_type for node in model.graph] == ["Exp", "Mul", "Add", "Add"]


def test_constants_become_initializers() -> None:
    model = parse(
        "g (float[2] x) => (float[] y, int64[] k) {"
        " c = Constant<value_float = 2.0>()  k = Constant<value_int = 1>()  y = Mul(x, c) }"
    )
    assert FoldConstants()(model).modified
    assert [node.op_type for node in model.graph] == ["Constant", "Mul"]
    assert set(model.graph.initializers) == {"c"}


def test_seeds_are_pinned_apart_and_kept() -> None:
    text = """g (float[8] x) => (float[] y) <float r = {0.5}, bool t = {1}> {
        a, m = Dropout(x, r, t)  b, n = Dropout(a, r, t)  c, o = Dropout<seed = 7>(b, r, t)
        d = RandomNormalLike(c)  e = RandomUniformLike(d)  y = Bernoulli(e) }"""
    first, second = parse(text), parse(text)
    assert PinSeeds()(first).modified
    PinSeeds()(second)
    seeds = [node.attributes["seed"].value for node in first.graph]
    assert seeds == [node.attributes["seed"].value for node in second.graph]
    assert len(set(seeds)) == len(seeds)
    assert seeds[2] == 7
    kinds = [node.attributes["seed"].type for node in first.graph]
    assert kinds == [ir.AttributeType.INT] * 3 + [ir.AttributeType.FLOAT] * 3
    assert all(seed == np.float32(seed) for seed in seeds[3:])
    assert not PinSeeds()(first).modified


def test_names_become_unique_and_good_ones_stay() -> None:
    model = parse("g (float[8] x) => (float[] y) { [a] b = Neg(x)  [a] c = Neg(b)  [a_2] d = Neg(c)  y = Neg(d) }")
    assert NameNodes()(model).modified
    assert [node.name for node in model.graph] == ["a", "a_3", "a_2", "Neg:y"]
    assert not NameNodes()(model).modified


def test_named_dimensions_are_fixed_everywhere() -> None:
    model = parse("g (float[n, 4] x) => (float[n, 4] y) <float[n, 4] z> { z = Neg(x)  y = Neg(z) }")
    FixDims({"n": 3})(model)
    assert [list(node.outputs[0].shape or []) for node in model.graph] == [[3, 4], [3, 4]]
    assert list(model.graph.inputs[0].shape or []) == [3, 4]


def test_a_dynamic_model_runs_at_the_size_it_was_given(model_path: Callable[..., Path]) -> None:
    """Average pooling's gradient reads its output's shape from the file: the dynamic file does not run as it is."""
    model = load_model(model_path("densenet", batch=2, dynamic=True))
    normalize(dims={"batch": 3})(model)
    graph = extract(model)
    assert graph.tensors["input"].shape == (3, 3, 32, 32)
    assert step(model, feeds(model))


def test_functions_are_inlined() -> None:
    head = HEAD.replace('"" : 15', '"" : 15, "own" : 1')
    text = """g (float[8] x) => (float[8] y) { y = own.Twice(x) }
        <domain: "own", opset_import: ["" : 15]> Twice (a) => (b) { b = Add(a, a) }"""
    model = ir.from_proto(onnx.parser.parse_model(head + text))
    InlineFunctions()(model)
    assert [node.op_type for node in model.graph] == ["Add"]
    assert not InlineFunctions()(model).modified


def test_the_constant_of_a_function_that_is_called_twice_is_one_tensor() -> None:
    """It may be a weight: as two it would be trained apart."""
    head = HEAD.replace('"" : 15', '"" : 15, "own" : 1')
    text = """g (float[2] x) => (float[2] y) { a = own.Scaled(x) b = own.Scaled(a)
          c = Constant<value = float[2] {3.0, 5.0}>() y = Mul(b, c) }
        <domain: "own", opset_import: ["" : 15]> Scaled (a) => (b) {
          c = Constant<value = float[2] {3.0, 5.0}>() b = Mul(a, c) }"""
    model = ir.from_proto(onnx.parser.parse_model(head + text))
    InlineFunctions()(model)
    FoldConstants()(model)
    first, second, third = (node.inputs[1] for node in model.graph)
    assert first is second
    assert third is not first
    assert len(model.graph.initializers) == 2


def test_a_call_may_leave_out_what_nobody_reads_of_a_function() -> None:
    head = HEAD.replace('"" : 15', '"" : 15, "own" : 1')
    text = """g (float[8] x) => (float[8] y) { y = own.Both(x) }
        <domain: "own", opset_import: ["" : 15]> Both (a) => (b, c) { b = Add(a, a) c = Neg(b) }"""
    model = ir.from_proto(onnx.parser.parse_model(head + text))
    InlineFunctions()(model)
    assert [node.op_type for node in model.graph] == ["Add", "Neg"]
    assert model.graph.outputs[0].producer() is model.graph[0]


def test_a_function_of_another_opset_is_named() -> None:
    head = HEAD.replace('"" : 15', '"" : 15, "own" : 1')
    text = """g (float[8] x) => (float[8] y) { y = own.Twice(x) }
        <domain: "own", opset_import: ["" : 13]> Twice (a) => (b) { b = Add(a, a) }"""
    model = ir.from_proto(onnx.parser.parse_model(head + text))
    with pytest.raises(InputError, match="Function 'Twice' is of ONNX opset 13, and the model of 15: give both one"):
        InlineFunctions()(model)


@pytest.mark.parametrize(("domain", "name"), [("", "Relu"), ("com.microsoft", "Gelu")])
def test_a_function_with_the_name_of_an_operator_is_refused(domain: str, name: str) -> None:
    """ONNX Runtime runs its own operator in its place."""
    call = f"{domain}.{name}" if domain else name
    head = HEAD.replace('"" : 15', '"" : 15, "com.microsoft" : 1')
    text = f"""g (float[8] x) => (float[8] y) {{ y = {call}(x) }}
        <domain: "{domain}", opset_import: ["" : 15]> {name} (a) => (b) {{ b = Sin(a) }}"""
    model = ir.from_proto(onnx.parser.parse_model(head + text))
    with pytest.raises(InputError, match=f"the name of an operator, '{name}'"):
        InlineFunctions()(model)


DIV_GRAD = """g (float[4, 6] d, {a} a, {b} b) => ({outputs}) {{ ga, gb = com.microsoft.DivGrad(d, a, b) {uses} }}"""


@pytest.mark.parametrize(
    ("a", "b"),
    [
        ("float[4, 6]", "float[4, 6]"),
        ("float[4, 6]", "float[4, 1]"),
        ("float[6]", "float[4, 6]"),
        ("float[4, 6]", "float[1]"),
        ("float[1, 6]", "float[4, 1]"),
    ],
)
@pytest.mark.parametrize("read", ["ga", "gb", "both"])
def test_the_gradient_of_a_division_is_expanded_to_the_same_bits(a: str, b: str, read: str) -> None:
    names = ("ga", "gb") if read == "both" else (read,)
    text = DIV_GRAD.format(
        a=a,
        b=b,
        outputs=", ".join(f"float[] out_{name}" for name in names),
        uses=" ".join(f"out_{name} = Exp({name})" for name in names),
    )
    original, expanded = parse(text), parse(text)
    ExpandDivGrad()(expanded)
    assert "DivGrad" not in {node.op_type for node in expanded.graph}
    WriteShapes()(expanded)
    assert step(original, feeds(expanded)) == step(expanded, feeds(expanded))


def test_operators_without_a_kernel_are_expanded_to_the_same_bits() -> None:
    text = "g (float[64] x) => (float[] y) { a = HardSwish(x)  b = Neg(a)  c = HardSwish(b)  y = Exp(c) }"
    original, expanded = parse(text), parse(text)
    assert ExpandFunctions()(expanded).modified
    NameNodes()(expanded)
    assert [node.op_type for node in expanded.graph] == ["HardSigmoid", "Mul", "Neg", "HardSigmoid", "Mul", "Exp"]
    assert step(original, feeds(expanded)) == step(expanded, feeds(expanded))


@pytest.mark.parametrize(
    "text",
    [
        "g (float[4, 5] x) => (float[4, 5] y) { y = Bernoulli <seed = 3.0> (x) }",
        "g (float[4, 5] x) => (bool[4, 5] y) { y = Bernoulli <dtype = 9> (x) }",
        "g (float[4, 5] x, int64[1] k) => (int64[4, 5] y) { y = CastLike(x, k) }",
        "g (float[4, 9] x) => (float[4, 4] y) <int64[2] s = {4, 4}> { y = CenterCropPad(x, s) }",
        "g (float[4, 6, 3] x, float[6] a, float[6] b) => (float[4, 6, 3] y) {"
        " y = GroupNormalization <num_groups = 3> (x, a, b) }",
        "g (float[4, 6, 3] x, int64[4, 3] a) => (float y) { y = NegativeLogLikelihoodLoss <ignore_index = 1> (x, a) }",
        "g (float[4, 6] x, int64[4] a, float[6] w) => (float[4] y) {"
        ' y = NegativeLogLikelihoodLoss <reduction = "none"> (x, a, w) }',
    ],
)
def test_functions_that_depend_on_types_and_attributes_are_expanded_to_the_same_bits(text: str) -> None:
    head = '<ir_version: 8, opset_import: ["" : 21]>'
    original, expanded = (ir.from_proto(onnx.parser.parse_model(head + text)) for _ in range(2))
    PinSeeds()(original)
    normalize()(expanded)
    assert not {node.op_type for node in expanded.graph} & WITHOUT_KERNEL
    assert len({node.name for node in expanded.graph}) == len(expanded.graph)
    assert step(original, feeds(original)) == step(expanded, feeds(original))


def test_errors_come_through_sequences_as_they_are() -> None:
    model = parse("g (float[4] x) => (float[] y) { y = Frobnicate(x) }")
    with pytest.raises(InputError, match="Frobnicate") as caught:
        normalize()(model)
    cause: BaseException | None = caught.value
    for _ in range(20):  # what looks behind an error comes to an end
        cause = cause and cause.__cause__
    assert cause is None


@pytest.mark.parametrize("made", [FoldConstants, FoldShapes, PinSeeds, NameNodes, WriteShapes, InlineFunctions])
def test_each_pass_stands_alone(made: Callable[[], PassBase], model_path: Callable[..., Path]) -> None:
    model = load_model(model_path("mlp-mse", batch=2))
    result = Sequential(made())(model)
    assert result.model is model
    assert not made()(model).modified


def test_a_model_that_is_refused_is_let_go_at_once() -> None:
    text = """<ir_version: 8, opset_import: ["" : 17]> g (float[4] x) => (float[4] y) { y = Frobnicate(x) }"""
    model = ir.from_proto(onnx.parser.parse_model(text))
    kept = weakref.ref(model)
    gc.disable()
    try:
        with pytest.raises(InputError):
            normalize(dims={"nowhere": 2})(model)
        del model
        assert kept() is None
    finally:
        gc.enable()
