"""A new operator is one declaration: with it a model that has the operator is sized, costed, ordered and checked."""

from __future__ import annotations

from collections.abc import Iterator

import onnx
import onnx_ir as ir
import pytest

from poet_onnx.costing.costs import cost_table, estimated_workspace_nodes
from poet_onnx.costing.device import load_device
from poet_onnx.description.names import POET_DOMAIN, POET_VERSION
from poet_onnx.errors import InputError
from poet_onnx.graph import TrainingGraph
from poet_onnx.graph.extract import extract
from poet_onnx.graph.operators import SPECS, Call, OpSpec, Schema
from poet_onnx.graph.operators.rules import per_input
from poet_onnx.graph.operators.shape_context import ShapeContext, TensorType
from poet_onnx.ops.schemas import register_schemas


def _rows_and_norms(context: ShapeContext) -> list[TensorType]:
    rows = context.type(0)
    return [rows, TensorType(rows.dtype, rows.shape[:-1])]


def _one_row_of_doubles(call: Call) -> int:
    return 8 * call.input(0).shape[-1]


NORMALIZE_ROWS = OpSpec(
    "NormalizeRows",
    POET_DOMAIN,
    inplace=((0, 0),),
    writes=(1,),
    always_writes=True,
    unread=(1,),
    shape=_rows_and_norms,
    work=per_input(4),
    workspace=_one_row_of_doubles,
    schema=Schema(
        "NormalizeRows(X, largest) -> (Y, norms): divides every row by its norm, and keeps the largest in place.",
        (("Y", "T"), ("norms", "tensor(float)")),
    ),
)

MODEL = """
    <ir_version: 8, opset_import: ["" : 15, "com.microsoft" : 1, "poet" : 1]>
    g (float[4, 6] x, float[1] largest, float buffer, bool[1] reset) => (float loss, bool[1] done) {
        [exp] a = Exp(x)
        [rows] y, norms = poet.NormalizeRows(a, largest)
        [loss] loss = ReduceMean<keepdims = 0>(y)
        [late] seen = Exp(largest)
        [grad] d = Neg(loss)
        [add] done = com.microsoft.InPlaceAccumulatorV2(buffer, d, reset)
    }"""


def graph() -> TrainingGraph:
    return extract(ir.from_proto(onnx.parser.parse_model(MODEL)))


@pytest.fixture
def _declared(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Declare the operator for the time of a test, as an entry of a family's list does for good."""
    monkeypatch.setitem(SPECS, (NORMALIZE_ROWS.domain, NORMALIZE_ROWS.name), NORMALIZE_ROWS)
    yield
    if onnx.defs.has(NORMALIZE_ROWS.name, POET_DOMAIN):
        onnx.defs.deregister_schema(NORMALIZE_ROWS.name, POET_VERSION, POET_DOMAIN)


def test_an_operator_of_our_domain_without_a_declaration_is_refused() -> None:
    with pytest.raises(InputError, match=r"NormalizeRows"):
        graph()


@pytest.mark.usefixtures("_declared")
def test_extraction_knows_its_shapes_buffers_and_state() -> None:
    found = graph()
    node = next(node for node in found.nodes if node.name == "rows")
    assert (found.tensors["y"].shape, found.tensors["norms"].shape) == ((4, 6), (4,))
    assert node.inplace == ((0, 0),)
    assert node.updates == ("largest",)
    assert node.recomputable  # nothing that it makes depends on the state that it keeps
    assert next(node for node in found.nodes if node.name == "late").after == ("rows",)


@pytest.mark.usefixtures("_declared")
def test_costs_know_its_work_and_workspace() -> None:
    found, device = graph(), load_device("a72")
    costs = cost_table(found, device)
    flops = 4 * 24
    moved_bytes = 4 * (24 + 1 + 24 + 4)
    compute = device.compute
    assert compute.memory_bytes_per_second is not None
    busy = max(flops / compute.elementwise_flops_per_second, moved_bytes / compute.memory_bytes_per_second)
    assert costs.nodes["rows"].seconds == pytest.approx(busy + (compute.node_overhead_seconds or 0.0))
    assert costs.nodes["rows"].workspace_bytes == 8 * 6
    assert "rows" not in estimated_workspace_nodes(found, costs)


ALONE = """
    <ir_version: 8, opset_import: ["poet" : 1]>
    g (float[4, 6] x, float[1] largest) => (float[4, 6] y, float[{rows}] norms) {{
        y, norms = poet.NormalizeRows(x, largest)
    }}"""


@pytest.mark.usefixtures("_declared")
def test_onnx_checks_it_and_infers_its_shapes() -> None:
    register_schemas()
    onnx.checker.check_model(onnx.parser.parse_model(ALONE.format(rows=4)), full_check=True)
    with pytest.raises(onnx.shape_inference.InferenceError, match="NormalizeRows"):
        onnx.checker.check_model(onnx.parser.parse_model(ALONE.format(rows=5)), full_check=True)
