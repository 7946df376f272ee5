"""Split weight gradients: the rules of poet_onnx.passes.split, each against ONNX Runtime's own result, bit for bit."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx_ir as ir
import onnxruntime
import pytest
from deep import sampled
from forward_models import parse, random
from onnx import helper
from run_in_place import run_in_place
from small_models import export_small

import poet_onnx
from poet_onnx.costing.costs import cost_table
from poet_onnx.costing.device import load_device
from poet_onnx.graph.extract import extract, load_model
from poet_onnx.passes.lowering import lower, prepare
from poet_onnx.passes.normalize import normalize
from poet_onnx.passes.split import SplitWeightGradients
from poet_onnx.plan.problem import ScheduleProblem
from poet_onnx.runtime import session_options
from poet_onnx.runtime.feeds import random_feeds
from poet_onnx.scheduling import memory_aware_order, ordered_steps
from poet_onnx.simulate import simulate

KIB = 1024


def _normal(path: Path) -> ir.Model:
    model = load_model(path)
    normalize()(model)
    return model


def _state(model: ir.Model, steps: tuple[bool, ...], threads: int = 1) -> dict[str, bytes]:
    """Return every output and every gradient buffer after training steps with the given reset flags."""
    graph = extract(model)
    session = onnxruntime.InferenceSession(
        ir.to_proto(model).SerializeToString(), session_options(threads=threads), providers=["CPUExecutionProvider"]
    )
    held = dict(random_feeds(graph, 0))
    found: dict[str, bytes] = {}
    for number, reset in enumerate(steps):
        held["lazy_reset_grad"] = np.array([reset])
        for name, value in run_in_place(session, held).items():
            found[f"{number}:{name}"] = value.numpy().tobytes() + str(value.shape()).encode()
        buffers = (name for name in held if name.endswith("accumulation.buffer"))
        found.update((f"{number}:{name}", held[name].tobytes()) for name in buffers)
    return found


SPLIT: list[tuple[str, int, set[str]]] = [
    ("resnet18", 512 * KIB, {"ConvGrad"}),
    ("vgg16", 1024 * KIB, {"ConvGrad"}),
    ("bert-2", 64 * KIB, {"Gemm", "Transpose", "AccumulateRows"}),
    ("transformer", 16 * KIB, {"Gemm", "AccumulateRows"}),
    ("mlp-mse", 4 * KIB, {"Gemm"}),
    ("unet", 16 * KIB, {"ConvGrad"}),
]


@pytest.mark.parametrize(
    ("name", "part_bytes", "operators"),
    sampled(SPLIT, *SPLIT[2:]),
)
def test_split_models_compute_the_same_bits(
    model_path: Callable[..., Path], name: str, part_bytes: int, operators: set[str]
) -> None:
    whole, split = _normal(model_path(name)), _normal(model_path(name))
    assert SplitWeightGradients(part_bytes, threads=1)(split).modified
    steps = (False, True, False)
    expected, found = _state(whole, steps), _state(split, steps)
    assert expected.keys() == found.keys()
    assert [name for name in expected if expected[name] != found[name]] == []
    parts = {node.op_type for node in split.graph if "/part_" in (node.name or "") or node.domain == "poet"}
    assert operators <= parts


@pytest.mark.parametrize("threads", [1, 2, 4])
def test_parts_add_up_as_the_whole_does_with_several_threads(tmp_path: Path, threads: int) -> None:
    """Of several threads one has 64 columns of a part or less, and adds up 256 terms at once; of the whole 128."""
    node = helper.make_node("Conv", ["x", "weight"], ["features"], name="conv", pads=[1, 1, 1, 1])
    nodes = [node, helper.make_node("GlobalAveragePool", ["features"], ["means"], name="pool")]
    nodes.append(helper.make_node("Flatten", ["means"], ["scores"], name="flatten"))
    path = export_small(tmp_path, nodes, {"weight": (256, 16, 3, 3)}, x=(4, 16, 8, 8), classes=256)
    whole = _normal(path)
    lower(whole, "stock")
    split, alone, steps = whole.clone(), whole.clone(), (False, True)
    part_bytes = 4 * 64 * 16 * 9
    assert SplitWeightGradients(part_bytes, threads=1)(alone).modified
    SplitWeightGradients(part_bytes, threads=threads)(split)
    expected = _state(whole, steps, threads)
    assert _state(split, steps, threads) == expected
    assert (_state(alone, steps, threads) == expected) == (threads == 1)


TIED = """g (int64[2, ROWS] x) => (float[2, ROWS, 300] y) {
    h = Gather (table, x)
    t = Tanh (h)
    w = Transpose <perm = [1, 0]> (table)
    y = MatMul (t, w)
}"""


def _tied(rows: int) -> ir.Model:
    """Return the step of a model whose table is its output layer, too."""
    model = parse(TIED.replace("ROWS", str(rows)), {"table": random(300, 40)})
    training = poet_onnx.train_graph(model, loss="cross-entropy-last").training
    prepare(target="stock")(training)
    return training


def test_rows_are_added_to_each_part_of_a_tied_table() -> None:
    whole, split = _tied(6), _tied(6)
    assert [node.op_type for node in whole.graph].count("AddRows") == 1
    assert SplitWeightGradients(8 * KIB, threads=1)(split).modified
    adding = [node for node in split.graph if node.op_type == "AddRows"]
    firsts = [node.attributes.get_int("first") for node in adding]
    assert len(firsts) > 4
    assert firsts == sorted(set(firsts))
    steps = (False, True, False)
    assert _state(split, steps) == _state(whole, steps)
    assert _peak(split) < _peak(whole)


def test_a_tied_table_is_whole_where_the_operands_of_its_gradient_are_larger() -> None:
    """They would have to wait for the rows, which come last."""
    assert not SplitWeightGradients(8 * KIB, threads=1)(_tied(20)).modified


def _peak(model: ir.Model) -> int:
    graph = extract(model)
    problem = ScheduleProblem(graph, cost_table(graph, load_device("a72")))
    return simulate(problem, ordered_steps(memory_aware_order(problem))).transient_peak_bytes


def test_parts_lower_the_peak(model_path: Callable[..., Path]) -> None:
    whole = _peak(_normal(model_path("resnet18")))
    for part_bytes in (2048 * KIB, 256 * KIB):
        model = _normal(model_path("resnet18"))
        SplitWeightGradients(part_bytes, threads=1)(model)
        assert _peak(model) < whole / 2


def test_parts_are_even_and_never_a_single_row(model_path: Callable[..., Path]) -> None:
    model = _normal(model_path("mlp-mse"))
    SplitWeightGradients(1, threads=1)(model)
    rows: dict[str, list[int]] = {}
    for node in model.graph:
        if node.op_type == "Accumulate":
            shape = node.inputs[1].shape
            rows.setdefault(node.inputs[0].name, []).append(shape[0])
    assert rows
    for counts in rows.values():
        assert min(counts) >= 2
        assert max(counts) - min(counts) <= 1


def test_a_large_gradient_has_few_parts(tmp_path: Path) -> None:
    """Each has nodes, which a session holds and a scheduler looks at."""
    node = helper.make_node("MatMul", ["x", "weight"], ["scores"], name="product")
    path = export_small(tmp_path, [node], {"weight": (1200, 8)}, x=(4, 1200), classes=8)
    whole, split = _normal(path), _normal(path)
    SplitWeightGradients(2 * 8 * 4, threads=1)(split)  # two rows
    assert sum(node.op_type == "Accumulate" for node in split.graph) == 512
    assert _state(split, (False, True)) == _state(whole, (False, True))


def test_what_fits_stays_whole(model_path: Callable[..., Path]) -> None:
    model = _normal(model_path("resnet18"))
    before = ir.to_proto(model).SerializeToString()
    assert not SplitWeightGradients(2**40, threads=1)(model).modified
    assert ir.to_proto(model).SerializeToString() == before


def test_graph_keeps_its_inputs_and_outputs(model_path: Callable[..., Path]) -> None:
    whole, split = _normal(model_path("bert-2")), _normal(model_path("bert-2"))
    SplitWeightGradients(64 * KIB, threads=1)(split)
    for side in ("inputs", "outputs"):
        kept = [(value.name, value.dtype, value.shape) for value in getattr(split.graph, side)]
        assert kept == [(value.name, value.dtype, value.shape) for value in getattr(whole.graph, side)]


@pytest.mark.parametrize("frozen", [(), ("weight",)])
def test_bias_gradients_of_convolutions_stay_whole(tmp_path: Path, frozen: tuple[str, ...]) -> None:
    nodes = [
        helper.make_node("Conv", ["x", "weight", "bias"], ["features"], name="conv"),
        helper.make_node("Flatten", ["features"], ["scores"], name="flatten"),
    ]
    parameters = {"weight": (64, 1, 4), "bias": (64,)}
    path = export_small(tmp_path, nodes, parameters, x=(2, 1, 4), classes=64, frozen=frozen)
    whole, split = _normal(path), _normal(path)
    assert SplitWeightGradients(128, threads=1)(split).modified == (not frozen)
    steps = (False, True, False)
    assert _state(whole, steps) == _state(split, steps)
    buffers = {node.inputs[0].name for node in split.graph if node.op_type == "Accumulate"}
    assert all(name.startswith("weight") for name in buffers)
