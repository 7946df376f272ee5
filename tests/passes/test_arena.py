"""The node with a plan's addresses: where it stands, what it says, and that what it says is read back."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import onnx
import onnx_ir as ir
import pytest

import poet_onnx
from poet_onnx.addresses.region import Address, Region, StepAddresses
from poet_onnx.errors import CheckFailedError, InputError
from poet_onnx.ops.schemas import register_schemas
from poet_onnx.passes.arena import InsertArena, layout_numbers, read_region

REGION = Region(192, (StepAddresses(64, 128, (Address(0, 40, 1), Address(-1, 4, 1))), StepAddresses(0, 0, ())))


def model(*names: str) -> ir.Model:
    x = ir.Value(name="x", type=ir.TensorType(ir.DataType.FLOAT), shape=ir.Shape((10,)))
    nodes, value = [], x
    for name in names:
        node = ir.Node("", "Neg", [value], name=name)
        value = node.outputs[0]
        value.name = f"{name}/y"
        nodes.append(node)
    graph = ir.Graph([x], [value], nodes=nodes, opset_imports={"": 17}, name="g")
    return ir.Model(graph, ir_version=8)


def test_the_node_is_the_first_and_reads_back() -> None:
    made = model("a", "b")
    assert InsertArena(REGION)(made).modified
    first = made.graph[0]
    assert (first.domain, first.op_type, first.name) == ("poet", "Arena", "arena")
    assert [value.name for value in first.inputs if value] == ["x"]
    assert [node.name for node in made.graph] == ["arena", "a", "b"]
    assert made.opset_imports["poet"] == 1
    assert layout_numbers(REGION) == (64, 128, 2, 0, 40, 1, -1, 4, 1, 0, 0, 0)
    assert read_region(made) == REGION


def test_names_that_are_taken_are_left_alone() -> None:
    made = model("arena", "arena_")
    InsertArena(REGION)(made)
    assert made.graph[0].name == "arena__"


def test_without_bytes_there_is_no_node() -> None:
    made = model("a")
    assert not InsertArena(Region(0, (StepAddresses(0, 0, ()),)))(made).modified
    assert read_region(made) is None


@pytest.mark.parametrize("layout", [(0, 0, 5), (0, 0, -1), (0, 0)])
def test_a_layout_that_ends_too_early_is_refused(layout: tuple[int, ...]) -> None:
    made = model("a")
    InsertArena(REGION)(made)
    made.graph[0].attributes["layout"] = ir.AttrInt64s("layout", layout)
    with pytest.raises(CheckFailedError, match="end within step 0"):
        read_region(made)


def test_a_node_without_addresses_is_refused() -> None:
    made = model("a")
    InsertArena(REGION)(made)
    del made.graph[0].attributes["layout"]
    with pytest.raises(CheckFailedError, match="has no addresses"):
        read_region(made)


@pytest.mark.deep
@pytest.mark.parametrize("target", ["training", "stock"])
def test_a_rewritten_model_begins_with_it_and_passes_the_checker(
    model_path: Callable[..., Path], tmp_path: Path, target: str
) -> None:
    result = poet_onnx.rewrite(model_path("transformer"), device="a72", activation_budget="60%", target=target)
    path = tmp_path / "rewritten.onnx"
    result.save(path)
    register_schemas()
    onnx.checker.check_model(path, full_check=True)
    region = read_region(result.model)
    assert region is not None
    assert region.region_bytes == result.region_bytes
    assert len(region.steps) == len(result.plan.steps)
    again = poet_onnx.rewrite(model_path("transformer"), device="a72", plan=result.plan, target=target)
    assert read_region(again.model) == region
    with pytest.raises(InputError, match="rewritten by poet-onnx already"):
        poet_onnx.rewrite(path, device="a72")


def test_verify_names_addresses_that_are_not_the_plans(model_path: Callable[..., Path]) -> None:
    path = model_path("mlp-mse")
    result = poet_onnx.rewrite(path, device="a72")
    assert poet_onnx.verify(path, result.model, feeds=1).problems == ()
    node = result.model.graph[0]
    node.attributes["region_bytes"] = ir.AttrInt64("region_bytes", result.region_bytes + 64)
    assert poet_onnx.verify(path, result.model, feeds=1).problems == ()
    layout = list(node.attributes["layout"].as_ints())
    node.attributes["layout"] = ir.AttrInt64s("layout", [*layout, 0, 0, 0])
    assert "but its plan has" in " ".join(poet_onnx.verify(path, result.model, feeds=1).problems)
