"""The order in which kernels ask for memory: every operator gets its blocks where a layout has them, at once."""

from __future__ import annotations

import estimated_operators
import onnx
import onnxruntime
import pytest
from deep import sampled
from onnx import TensorProto, helper
from ops_models import poet_node
from workspace_case import Case, single_operator
from workspace_cases import GROUPS

from poet_onnx.addresses import plan_blocks
from poet_onnx.costing.costs import cost_table
from poet_onnx.costing.device import load_device
from poet_onnx.graph import TrainingGraph
from poet_onnx.graph.operators import BUFFER, SPECS
from poet_onnx.plan import Action, Step
from poet_onnx.plan.problem import ScheduleProblem
from poet_onnx.runtime import count_arena, session_options
from poet_onnx.simulate.blocks import Block, BlockKind

ANCHOR_BYTES = 64


def slot_bytes(size_bytes: int) -> int:
    return -(-size_bytes // 64) * 64 + 64


def blocks_of(graph: TrainingGraph, threads: int) -> list[Block]:
    """Return what the graph's one node asks for."""
    problem = ScheduleProblem(graph, cost_table(graph, load_device("a72"), threads=threads))
    return plan_blocks(problem, [Step(Action.COMPUTE, "node")])


def with_arena(model: onnx.ModelProto, first_input: str, blocks: list[Block]) -> dict[str, int]:
    """Put a layout and a small node before a model's one node; return the addresses of what they make in the region."""
    layout, room, offsets, end = [], [0, 0], {"anchor": 0}, ANCHOR_BYTES
    for block in blocks:
        if block.kind is BlockKind.WORKSPACE:
            room = [end, slot_bytes(block.size_bytes) + 256]
            end += room[1]
        else:
            layout += [end, block.size_bytes, 1]
            if block.kind is BlockKind.VALUE:
                offsets[block.name] = end
            end += slot_bytes(block.size_bytes)
    numbers = [0, 0, 1, 0, ANCHOR_BYTES, 1, *room, len(layout) // 3, *layout]
    nodes = [
        poet_node("Arena", [first_input], ["armed"], region_bytes=end, layout=numbers),
        helper.make_node("Neg", ["sixteen"], ["anchor"]),
    ]
    for index, node in enumerate(nodes):
        model.graph.node.insert(index, node)
    model.graph.initializer.append(helper.make_tensor("sixteen", TensorProto.FLOAT, [16], [0.0] * 16))
    model.graph.output.append(helper.make_tensor_value_info("anchor", TensorProto.FLOAT, [16]))
    model.opset_import.append(helper.make_opsetid("poet", 1))
    return offsets


PAIRS = [case for case in estimated_operators.CASES if case.op == "Einsum" and len(case.inputs) == 2]
ORDERED = {**GROUPS, "einsum": PAIRS}


@pytest.mark.parametrize("group", sampled(ORDERED, *(group for group in ORDERED if group != "convolutions")))
def test_kernels_ask_for_outputs_and_buffers_in_the_declared_order(group: str) -> None:
    wrong = []
    for case in ORDERED[group]:
        model, feeds, graph = single_operator(case)
        blocks = blocks_of(graph, case.threads)
        if len(blocks) < 2 or has_many_operands(case):
            continue
        offsets = with_arena(model, next(iter(feeds)), blocks)
        session = onnxruntime.InferenceSession(model.SerializeToString(), session_options(threads=case.threads))
        values = {name: onnxruntime.OrtValue.ortvalue_from_numpy(array, "cpu") for name, array in feeds.items()}
        with count_arena() as counter:
            made = session.run_with_ort_values(list(offsets), values)
            unplanned = counter.statistics.unplanned
        places = {name: value.data_ptr() - made[0].data_ptr() for name, value in zip(offsets, made, strict=True)}
        if unplanned or places != offsets:
            wrong.append(f"{case.op} {case.attributes}: at {places}, planned {offsets}, {unplanned} blocks from malloc")
    assert not wrong, "\n".join(wrong)


def has_many_operands(case: Case) -> bool:
    """Return whether an operator keeps its results in turns in two buffers, of which the output is one."""
    return case.op in ("Sum", "Max", "Min", "Mean") and len(case.inputs) > 3


def test_declared_orders_are_exercised() -> None:
    declared = {spec.name for spec in SPECS.values() if BUFFER in spec.allocation_order}
    assert declared <= {case.op for cases in ORDERED.values() for case in cases}
