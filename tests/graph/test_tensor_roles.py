"""What the tensors of a training graph are for: said where they are made, whatever their names and their order."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import helper
from small_models import export_small
from training_batches import session_of

from poet_onnx import rewrite
from poet_onnx.costing.process import LINES
from poet_onnx.description.metadata import Updates
from poet_onnx.description.names import handle_name
from poet_onnx.errors import InputError
from poet_onnx.gradients.train_graph import train_graph
from poet_onnx.graph import Role, TrainingGraph
from poet_onnx.graph.extract import extract, load_model
from poet_onnx.graph.extract.roles import input_roles, say_role
from poet_onnx.passes.roles import find_roles
from poet_onnx.passes.updates import WriteUpdates

LAYERS = [
    helper.make_node("MatMul", ["x", "stem"], ["hidden"], "n1"),
    helper.make_node("Relu", ["hidden"], ["active"], "n2"),
    helper.make_node("MatMul", ["active", "head"], ["scores"], "n3"),
]
SHAPES = {"stem": (6, 64), "head": (64, 4)}


def forward() -> onnx.ModelProto:
    weights = [onnx.numpy_helper.from_array(np.ones(shape, np.float32), name) for name, shape in SHAPES.items()]
    ends = [helper.make_tensor_value_info(*end) for end in (("x", 1, (2, 6)), ("scores", 1, (2, 4)))]
    graph = helper.make_graph(LAYERS, "forward", ends[:1], ends[1:], weights)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 15)], ir_version=8)


@pytest.fixture
def ours(tmp_path: Path) -> ir.Model:
    """Return a training graph of ours, as it is read from its file."""
    train_graph(forward()).save(tmp_path)
    return load_model(tmp_path / "training_model.onnx")


def by_role(graph: TrainingGraph) -> dict[Role, set[str]]:
    found: dict[Role, set[str]] = {}
    for tensor in graph.tensors.values():
        if tensor.resident:
            found.setdefault(tensor.role, set()).add(tensor.name)
        assert tensor.resident == (tensor.role is not Role.INTERMEDIATE)
    return found


def renamed(values: Iterable[ir.Value]) -> None:
    for number, value in enumerate(values):
        value.name = f"input{number}"


def test_a_frozen_parameter_before_the_trained_ones_is_no_batch(tmp_path: Path) -> None:
    path = export_small(tmp_path, LAYERS, SHAPES, x=(2, 6), classes=4, frozen=["stem"])
    names = [value.name for value in load_model(path).graph.inputs]
    assert names.index("stem") < names.index("head")  # onnxruntime-training keeps the order of the initializers
    graph = rewrite(path, device="host", optimizer="sgd").graph
    found = by_role(graph)
    assert (found[Role.BATCH], found[Role.LABEL]) == ({"x"}, {"labels"})
    assert (found[Role.FROZEN], found[Role.PARAMETER]) == ({"stem"}, {"head"})
    kept = session_of(path).resident_bytes
    lines = {
        line: sum(t.size_bytes for t in graph.tensors.values() if LINES.get(t.role) == line) for line in LINES.values()
    }
    assert (lines["batch"], lines["parameters"]) == (kept["batch"], kept["parameters"])


@pytest.mark.parametrize("target", ["training", "stock"])
def test_roles_of_our_training_graph_are_said_in_its_file_and_come_through_every_pass(
    ours: ir.Model, tmp_path: Path, target: str
) -> None:
    result = rewrite(ours, device="host", target=target, optimizer="adamw", accumulation_steps=2)
    found = by_role(result.graph)
    found.pop(Role.CONSTANT, None)
    moments = {f"poet/{slot}/{name}" for slot in ("first_moment", "second_moment") for name in SHAPES}
    assert found == {
        Role.BATCH: {"x"},
        Role.LABEL: {"labels"},
        Role.PARAMETER: {"stem", "head"},
        Role.GRADIENT_BUFFER: {f"{name}_grad.accumulation.buffer" for name in SHAPES},
        Role.FLAG: {"lazy_reset_grad"},
        Role.MOMENT: moments,
        Role.RATES: {"poet/rates"},
    }
    result.save(tmp_path / "rewritten.onnx")
    written = onnx.load(tmp_path / "rewritten.onnx").graph
    assert not [value.name for value in written.input if value.metadata_props]  # the description has them


def test_neither_names_nor_order_matter_where_roles_are_said(ours: ir.Model) -> None:
    before = [role for role, _ in input_roles(ours.graph).values()]
    names = {value.name: value for value in ours.graph.inputs}
    inputs = list(ours.graph.inputs)
    ours.graph.inputs.clear()
    ours.graph.inputs.extend(reversed(inputs))
    for name in SHAPES:
        say_role(names[f"{name}_grad.accumulation.buffer"], Role.GRADIENT_BUFFER, f"input{inputs.index(names[name])}")
    renamed(inputs)
    assert [role for role, _ in input_roles(ours.graph).values()] == before[::-1]
    stem, head = (f"input{inputs.index(names[name])}" for name in SHAPES)
    roles = find_roles(ours)
    assert set(roles.parameters) == {stem, head}
    assert roles.buffers[stem] == names["stem_grad.accumulation.buffer"].name
    assert set(roles.data) == {names["x"].name, names["labels"].name}
    WriteUpdates(Updates("adamw"))(ours)
    assert by_role(extract(ours))[Role.PARAMETER] == {stem, head}


def test_statistics_and_the_number_of_runs_say_what_they_are(model_path: Callable[..., Path]) -> None:
    found = by_role(extract(load_model(model_path("densenet"))))
    statistics = found[Role.STATISTIC]
    assert statistics
    assert all("running" in name for name in statistics)
    with_updates = by_role(rewrite(model_path("densenet"), device="host", target="stock").graph)
    assert with_updates[Role.STATISTIC] == statistics
    assert by_role(rewrite(model_path("transformer"), device="host", target="stock").graph)[Role.RUNS] == {"poet/runs"}


@pytest.mark.parametrize(
    ("name", "said", "message"),
    [
        ("x", "batsh", r"'x' has the poet.role 'batsh', which is none"),
        ("lazy_reset_grad", "batch", "'lazy_reset_grad' says that it is a batch, but the graph does not use it as one"),
        ("x", "flag", "'x' says that it is a flag"),
        ("stem", "frozen parameter", "'stem' says that it is a frozen parameter"),
        ("labels", "moment", "'labels' says that it is a moment"),
        ("stem_grad.accumulation.buffer", "label", "'stem_grad.accumulation.buffer' says that it is a label"),
    ],
)
def test_what_an_input_says_of_itself_must_be_true(ours: ir.Model, name: str, said: str, message: str) -> None:
    next(value for value in ours.graph.inputs if value.name == name).metadata_props["poet.role"] = said
    with pytest.raises(InputError, match=message):
        find_roles(ours)


def test_a_buffer_must_say_a_parameter_that_is_there(ours: ir.Model) -> None:
    buffer = next(value for value in ours.graph.inputs if value.name == "stem_grad.accumulation.buffer")
    for said, message in (
        ("tail", "'tail' is accumulated, but there is no input"),
        ("", "'stem_grad.*', which says no parameter"),
    ):
        buffer.metadata_props["poet.parameter"] = said
        with pytest.raises(InputError, match=message):
            find_roles(ours)


def test_a_frozen_parameter_with_the_name_of_a_label_is_no_label(tmp_path: Path) -> None:
    layers = [
        helper.make_node("MatMul", ["x", "stem"], ["hidden"], "n1"),
        helper.make_node("MatMul", ["hidden", "target"], ["scores"], "n2"),
    ]
    path = export_small(tmp_path, layers, {"stem": (6, 64), "target": (64, 4)}, x=(2, 6), classes=4, frozen=["target"])
    found = {name: role for name, (role, _) in input_roles(load_model(path).graph).items()}
    assert (found["target"], found["labels"]) == (Role.FROZEN, Role.LABEL)


def test_a_parameter_in_a_store_leaves_a_handle_that_is_no_batch(tmp_path: Path) -> None:
    path = export_small(tmp_path, LAYERS, {"stem": (6, 4096), "head": (4096, 4)}, x=(2, 6), classes=4)
    found = by_role(rewrite(path, device="a72", target="stock", optimizer="adamw", store="always").graph)
    assert found[Role.HANDLE] == {handle_name("stem"), handle_name("head")}
    assert (found[Role.BATCH], found[Role.LABEL]) == ({"x"}, {"labels"})
    assert {Role.PARAMETER, Role.MOMENT} & found.keys() == set()
