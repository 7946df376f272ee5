"""Training graphs that onnxruntime-training cannot run on the CPU are refused at once, and only those."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import onnx
import onnx_ir as ir
import onnxruntime
import pytest
from cli_runs import Cli
from onnx import TensorProto, helper
from small_models import export_small

import poet_onnx
from poet_onnx.errors import InputError
from poet_onnx.graph.extract import load_model
from poet_onnx.graph.operators import MICROSOFT_DOMAIN, SPECS
from poet_onnx.passes.lowering import prepare

FLOAT, INT64, BITS = TensorProto.FLOAT, TensorProto.INT64, TensorProto.UINT32
IMAGE = (FLOAT, (2, 4, 6, 6))
SCALAR = (FLOAT, ())

NODES: dict[str, tuple[tuple[tuple[int, tuple[int, ...]] | None, ...], int, dict[str, Any]]] = {
    "ConvTransposeGrad": (((FLOAT, (1, 2, 4, 4)), (FLOAT, (1, 3, 2, 2)), (FLOAT, (3, 2, 2, 2))), 3, {}),
    "ResizeGrad": ((IMAGE, (FLOAT, (2, 4, 3, 3)), None, (FLOAT, (4,))), 1, {}),
    "PadAndUnflatten": (((FLOAT, (3, 4)), (INT64, (3,)), (INT64, (2,))), 1, {}),
    "FlattenAndUnpad": (((FLOAT, (3, 4, 2)), (INT64, (3,))), 2, {}),
    "ScaledSum": ((IMAGE, IMAGE), 1, {"scale_0": 1.0, "scale_1": 1.0}),
    "BiasSoftmax": ((IMAGE, IMAGE), 1, {"axis": 3, "is_inner_broadcast": 0}),
    "BiasSoftmaxDropout": ((IMAGE, IMAGE, SCALAR), 3, {"axis": 3, "is_inner_broadcast": 0}),
    "BiasDropout": ((IMAGE, (FLOAT, (6,)), IMAGE, SCALAR), 2, {}),
    "BitmaskDropout": ((IMAGE, SCALAR), 2, {}),
    "BitmaskDropoutGrad": ((IMAGE, (BITS, (9,)), SCALAR), 1, {}),
    "BitmaskBiasDropout": ((IMAGE, (FLOAT, (6,))), 2, {}),
}
"""For each operator without a kernel the inputs, the number of outputs and the attributes of a valid node."""


@pytest.mark.parametrize("op_type", sorted(spec.name for spec in SPECS.values() if not spec.cpu_kernel))
def test_the_runtime_has_no_kernel_for_what_is_refused(op_type: str) -> None:
    operands, outputs, attributes = NODES[op_type]
    names = ["" if operand is None else f"x{index}" for index, operand in enumerate(operands)]
    results = [f"y{index}" for index in range(outputs)]
    graph = helper.make_graph(
        [helper.make_node(op_type, names, results, domain=MICROSOFT_DOMAIN, **attributes)],
        "one",
        [helper.make_tensor_value_info(f"x{i}", *operand) for i, operand in enumerate(operands) if operand is not None],
        [onnx.ValueInfoProto(name=name) for name in results],
    )
    imports = [helper.make_opsetid("", 17), helper.make_opsetid(MICROSOFT_DOMAIN, 1)]
    model = helper.make_model(graph, opset_imports=imports, ir_version=8)
    with pytest.raises(Exception, match=rf"NOT_IMPLEMENTED.*{op_type}\("):
        onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])


def _resizing(folder: Path) -> Path:
    """Make the training graph of a convolution and a resize."""
    nodes = [
        helper.make_node("Conv", ["x", "weight"], ["features"], name="conv"),
        helper.make_node("Constant", [], ["factors"], name="factors", value_floats=[1.0, 1.0, 2.0, 2.0]),
        helper.make_node("Resize", ["features", "", "factors"], ["large"], name="resize"),
        helper.make_node("GlobalAveragePool", ["large"], ["pooled"], name="pool"),
        helper.make_node("Flatten", ["pooled"], ["scores"], name="flatten"),
    ]
    return export_small(folder, nodes, {"weight": (4, 3, 3, 3)}, x=(1, 3, 6, 6), classes=4)


@pytest.mark.parametrize("command", ["rewrite", "inspect", "profile"])
def test_a_resize_is_sent_to_the_stock_runtime(cli: Cli, tmp_path: Path, command: str) -> None:
    output = ["-o", tmp_path / "costs.json"] if command == "profile" else []
    refused = cli(command, _resizing(tmp_path), "--device", "a72", *output)
    assert refused.code == 2
    assert "ResizeGrad (it has no CPU kernel) in 'resize_Grad/ResizeGrad_0'" in refused.err
    assert "--target stock" in refused.err
    assert len(refused.err.splitlines()) == 1


def test_the_stock_runtime_takes_a_resize(tmp_path: Path) -> None:
    result = poet_onnx.rewrite(_resizing(tmp_path), device="a72", target="stock")
    assert "ResizeGrad" not in {node.op_type for node in result.model.graph}


def _grouped(folder: Path, *, rank: int, group: int, first_group: int = 1) -> Path:
    """Make the training graph of two convolutions of images of some rank; the first one's input has no gradient."""
    nodes = [
        helper.make_node("Conv", ["x", "first"], ["a"], name="first_conv", group=first_group),
        helper.make_node("Conv", ["a", "second"], ["b"], name="second_conv", group=group),
        helper.make_node("GlobalAveragePool", ["b"], ["pooled"], name="pool"),
        helper.make_node("Flatten", ["pooled"], ["scores"], name="flatten"),
    ]
    kernel = (3,) * rank
    parameters = {"first": (8, 4 // first_group, *kernel), "second": (8, 8 // group, *kernel)}
    return export_small(folder, nodes, parameters, x=(2, 4, *(7,) * rank), classes=8)


@pytest.mark.parametrize("rank", [1, 3])
def test_grouped_convolutions_that_corrupt_memory_are_refused(tmp_path: Path, rank: int) -> None:
    path = _grouped(tmp_path, rank=rank, group=4)
    with pytest.raises(InputError, match=r"ConvGrad \(with groups.*2-D\) in 'second_conv_Grad/.*--target stock"):
        poet_onnx.rewrite(path, device="a72")
    poet_onnx.rewrite(path, device="a72", target="stock")


@pytest.mark.parametrize(("rank", "group", "first_group"), [(1, 1, 1), (1, 1, 2), (2, 4, 2), (3, 1, 2)])
def test_other_convolutions_are_accepted(tmp_path: Path, rank: int, group: int, first_group: int) -> None:
    model = load_model(_grouped(tmp_path, rank=rank, group=group, first_group=first_group))
    prepare(target="training")(model)
    assert [node.op_type for node in model.graph].count("ConvGrad") == 2


def test_what_no_target_runs_is_to_be_replaced() -> None:
    proto = onnx.parser.parse_model(
        """<ir_version: 8, opset_import: ["" : 15, "com.microsoft" : 1]>
        g (float[4] a, float[4] b) => (float[4] y) <float[4] z>
        { [joined] z = com.microsoft.ScaledSum<scale_0 = 1.0, scale_1 = 1.0>(a, b)  [negated] y = Neg(z) }"""
    )
    with pytest.raises(InputError, match=r"ScaledSum \(it has no CPU kernel\) in 'joined'.*replace these operators"):
        prepare(target="training")(ir.from_proto(proto))


@pytest.mark.parametrize(
    ("op_type", "attributes", "message"),
    [
        ("Conv", {"auto_pad": "SAME_UPPER"}, r"ConvGrad \(its kernel takes auto_pad for no padding"),
        ("AveragePool", {"auto_pad": "SAME_LOWER"}, r"AveragePoolGrad \(its kernel takes auto_pad for no padding"),
    ],
)
def test_windows_whose_kernels_give_other_numbers_are_refused(
    op_type: str, attributes: dict[str, Any], message: str, tmp_path: Path
) -> None:
    """In graphs of the artifact generator; those of `train-graph` hold other nodes in their place."""
    window = {"kernel_shape": [3, 3], "strides": [2, 2], **attributes}
    nodes = [
        helper.make_node("Conv", ["x", "weight"], ["y"], name="conv", **(window if op_type == "Conv" else {})),
        *([helper.make_node(op_type, ["y"], ["z"], name="pool", **window)] if op_type != "Conv" else []),
        helper.make_node("GlobalAveragePool", ["y" if op_type == "Conv" else "z"], ["pooled"], name="means"),
        helper.make_node("Flatten", ["pooled"], ["scores"], name="flatten"),
    ]
    path = export_small(tmp_path, nodes, {"weight": (4, 3, 3, 3)}, x=(1, 3, 8, 8), classes=4)
    with pytest.raises(InputError, match=message):
        poet_onnx.rewrite(path, device="a72", target="training")
    poet_onnx.rewrite(path, device="a72", target="stock")
