"""What the operator table says of views, in-place pairs, randomness and state is what allocator and kernels do."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import onnx_ir as ir
import onnxruntime
import pytest
from operator_cases import CASES, Case, build, constant, feeds, floats, microsoft

from poet_onnx.description.names import POET_DOMAIN
from poet_onnx.graph.extract import load_model, plain_attributes
from poet_onnx.graph.operators import BUFFER, SPECS, OpSpec, spec_of
from poet_onnx.graph.shapes import infer
from poet_onnx.graph.shapes.inference import has_rule
from poet_onnx.passes.normalize import WriteShapes, normalize
from poet_onnx.runtime import count_allocations, session_options

EXPORTED = [
    *("resnet18", "vgg16", "bert-2", "transformer", "mobilenet", "unet", "densenet"),
    *("mlp-mse", "mlp-bce", "mlp-l1"),
]
LARGE_BYTES = 4096
"""Buffers from this size on are told apart from the small ones of a step."""


def session(model: ir.Model) -> onnxruntime.InferenceSession:
    """Return a session in which the allocator shows what the planner decided."""
    return onnxruntime.InferenceSession(
        ir.to_proto(model).SerializeToString(), session_options(), providers=["CPUExecutionProvider"]
    )


def allocated_bytes(model: ir.Model, arrays: dict[str, npt.NDArray[Any]]) -> int:
    """Return the sum of all allocations of a step, the session being warm."""
    WriteShapes()(model)
    running = session(model)
    running.run(None, arrays)
    with count_allocations() as counter:
        running.run(None, arrays)
        return counter.allocated_bytes


def measured(case: Case, index: int, output: int) -> str:
    """Return how an output gets its buffer: "view" of an input that is made in the graph, "in place" of it, or "own".

    The steps compared run the same kernels. An output in place costs its bytes where the input is still read later,
    a view costs them where it is a graph output.
    """
    copy = onnx.helper.make_node("Concat", [f"x{index}"], ["t"], "copy", axis=0)
    copy.output[0] = f"t{index}"
    row = onnx.helper.make_node("Slice", [f"t{index}", "from", "to"], ["row"], "row")
    mark = onnx.helper.make_node("Slice", [f"y{output}", "from", "to"], ["mark"], "mark")
    bounds = [onnx.helper.make_node("Constant", [], [name], value_ints=[n]) for n, name in enumerate(("from", "to"))]

    def total(*, dying: bool, ends: tuple[str, ...] = ()) -> int:
        before, after = ([copy, row], [mark]) if dying else ([copy], [mark, row])
        return allocated_bytes(
            build(case, [*bounds, *before], after, graph_outputs=["mark", "row", *ends]), feeds(case)
        )

    kept = total(dying=False)
    size_bytes = infer(build(case)).types[f"y{output}"].size_bytes
    if total(dying=False, ends=(f"y{output}",)) == kept + size_bytes:
        return "view"
    return "in place" if kept == total(dying=True) + size_bytes else "own"


def large_pairs(case: Case) -> list[tuple[int, int]]:
    """Return the pairs of an input that can be made in the graph and an output, both large enough to be seen."""
    types = infer(build(case)).types
    inputs = [i for i, operand in enumerate(case.operands) if operand is not None and operand.value is None]
    return [
        (i, j)
        for i in inputs
        for j in range(case.outputs)
        if types[f"x{i}"].size_bytes >= LARGE_BYTES and types[f"y{j}"].size_bytes >= LARGE_BYTES
    ]


PAIRS = [
    pytest.param(case, index, output, id=f"{case}-{index}-{output}")
    for case in CASES
    for index, output in large_pairs(case)
]


@pytest.mark.parametrize(("case", "index", "output"), PAIRS)
def test_buffers_are_shared_as_the_table_says(case: Case, index: int, output: int) -> None:
    model = build(case)
    node = model.graph.node("node")
    types = infer(model).types
    source, target = types[f"x{index}"], types[f"y{output}"]
    entry = spec_of(node.domain, node.op_type, plain_attributes(node))
    expected = "own"
    if (index, output) in entry.aliases:
        expected = "view"
    elif any(output == target for _, target in entry.aliases):
        pytest.skip("the output shares the buffer of another input")
    elif (index, output) in entry.inplace:
        fits = source.shape == target.shape and source.dtype.itemsize == target.dtype.itemsize
        expected = "in place" if fits else "own"
    assert measured(case, index, output) == expected


def test_every_operator_of_the_exported_models_is_measured(model_path: Callable[..., Path]) -> None:
    covered = {case.op_type for case in CASES}
    for name in EXPORTED:
        model = load_model(model_path(name))
        normalize()(model)
        assert {node.op_type for node in model.graph} <= covered


def test_every_view_and_in_place_entry_is_measured() -> None:
    covered = {(case.domain, case.op_type) for case in CASES}
    sharing = {key for key, spec in SPECS.items() if (spec.aliases or spec.inplace) and spec.domain != POET_DOMAIN}
    assert sharing <= covered


STATISTICS = [floats(2, 16, 4, 4), floats(16), floats(16), floats(16), floats(16)]
WRITERS = [
    microsoft("InPlaceAccumulatorV2", floats(64), floats(64), constant([False], ir.DataType.BOOL)),
    microsoft("BatchNormInternal", *STATISTICS, training_mode=1, outputs=5),
    Case("BatchNormalization", "BatchNormalization", "", tuple(STATISTICS), {"training_mode": 1}, outputs=3),
    microsoft("SGDOptimizer", constant([0.1], ir.DataType.FLOAT), floats(64), floats(64)),
]


@pytest.mark.parametrize("case", WRITERS, ids=str)
def test_kernels_write_the_inputs_that_the_table_names(case: Case) -> None:
    """Inputs are bound without a copy, so that a write in place is seen in the array."""
    model = build(case, graph_outputs=["y0"])
    node = model.graph.node("node")
    entry = spec_of(node.domain, node.op_type, plain_attributes(node))
    aliased = {source for source, output in entry.aliases if 0 < output < case.outputs}
    writes = set(entry.writes) & (aliased | {0})
    running = session(model)
    binding = running.io_binding()
    arrays = feeds(case)
    before = {name: array.copy() for name, array in arrays.items()}
    for name, array in arrays.items():
        binding.bind_ortvalue_input(name, onnxruntime.OrtValue.ortvalue_from_numpy(array))
    binding.bind_output("y0")
    running.run_with_iobinding(binding)
    changed = {int(name[1:]) for name in arrays if not np.array_equal(arrays[name], before[name])}
    assert changed == writes


def test_statistics_that_leave_the_graph_are_not_written_in_place() -> None:
    case = Case("BatchNormalization", "BatchNormalization", "", tuple(STATISTICS), {"training_mode": 1}, outputs=3)
    arrays = feeds(case)
    mean = arrays["x3"].copy()
    session(build(case)).run(None, arrays)
    assert np.array_equal(arrays["x3"], mean)


def test_batch_normalization_outside_training_keeps_its_hands_off() -> None:
    assert spec_of("", "BatchNormalization", {"training_mode": 0}).writes == ()
    assert spec_of("", "BatchNormalization", {"training_mode": 1}).writes == (3, 4)


def test_running_statistics_do_not_influence_the_normalized_batch() -> None:
    case = microsoft("BatchNormInternal", *STATISTICS, training_mode=1, outputs=5)
    model = build(case, graph_outputs=["y0", "y3", "y4"])
    first = session(model).run(None, feeds(case))
    second = session(model).run(None, feeds(case) | {"x3": np.full(16, 7.0, np.float32), "x4": np.ones(16, np.float32)})
    assert all(np.array_equal(a, b) for a, b in zip(first, second, strict=True))


@pytest.mark.parametrize("case", CASES, ids=str)
def test_only_operators_marked_random_differ_between_runs(case: Case) -> None:
    model = build(case)
    node = model.graph.node("node")
    entry = spec_of(node.domain, node.op_type, plain_attributes(node))
    if case.op_type == "Dropout":
        assert entry.random
        return
    assert not entry.random
    if entry.writes:
        return
    WriteShapes()(model)
    running = session(model)
    first, second = running.run(None, feeds(case)), running.run(None, feeds(case))
    assert all(a.tobytes() == b.tobytes() for a, b in zip(first, second, strict=True))


def test_operators_that_only_the_file_describes_are_promised_nothing() -> None:
    assert not has_rule(ir.Node("com.microsoft", "Frobnicate", [], name="unheard"))
    assert not has_rule(ir.Node("poet", "PageIn", [], name="of a plan"))
    assert has_rule(ir.Node("com.microsoft", "ReluGrad", [], name="gradient"))


@pytest.mark.parametrize("spec", SPECS.values(), ids=lambda spec: f"{spec.domain}:{spec.name}")
def test_a_declaration_agrees_with_itself(spec: OpSpec) -> None:
    assert spec_of(spec.domain, spec.name) is spec
    assert (spec.schema is not None) == (spec.domain == POET_DOMAIN)
    assert spec.schema is None or spec.shape is not None
    assert bool(spec.buffers) == (BUFFER in spec.allocation_order)
    assert set(spec.unread) <= {source for source, _ in spec.aliases} | set(spec.writes)
    assert not (spec.always_writes or spec.unread) or spec.writes
    assert spec.reset_input is None or spec.update
