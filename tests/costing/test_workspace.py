"""The workspace rules against real kernels: every allocation of single operators, counted."""

from __future__ import annotations

import subprocess
from pathlib import Path

import estimated_operators
import numpy as np
import onnx
import pytest
from stock_environment import stock_python
from workspace_case import Case, single_operator
from workspace_cases import GROUPS

from poet_onnx.costing.flops import count_work
from poet_onnx.costing.workspace import has_workspace_rule, workspace_bytes
from poet_onnx.graph import Node, Phase, Tensor, TrainingGraph


def measured_workspace(model: onnx.ModelProto, feeds: dict[str, np.ndarray], threads: int) -> int:
    import onnxruntime

    from poet_onnx.runtime import count_allocations, session_options

    options = session_options(threads=threads)
    session = onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    session.run(None, feeds)
    with count_allocations() as counter:
        results = session.run(None, feeds)
        return counter.transient_peak_bytes - sum(np.asarray(result).nbytes for result in results)


@pytest.mark.parametrize("group", GROUPS)
def test_rule_equals_counted_allocations(group: str) -> None:
    wrong = []
    for case in GROUPS[group]:
        model, feeds, graph = single_operator(case)
        predicted = workspace_bytes(graph, graph.nodes[0], threads=case.threads)
        measured = measured_workspace(model, feeds, case.threads)
        shares_products = case.op == "Conv" and case.threads > 1  # in another way than the stock runtime
        if predicted != measured and not (shares_products and predicted > measured):
            wrong.append(f"{case.op} {model.graph.node[0].attribute}: rule {predicted}, measured {measured}")
    assert not wrong, "\n".join(wrong)


IN_THE_STOCK_RUNTIME = """
import sys
import numpy as np, onnxruntime
from poet_onnx.runtime import count_allocations, session_options
for path, threads in zip(sys.argv[1::2], sys.argv[2::2]):
    session = onnxruntime.InferenceSession(path, session_options(threads=int(threads)))
    feeds = {wanted.name: np.ones(wanted.shape, np.float32) for wanted in session.get_inputs()}
    session.run(None, feeds)
    with count_allocations() as counter:
        results = session.run(None, feeds)
        print(counter.transient_peak_bytes - sum(result.nbytes for result in results))
"""


@pytest.mark.deep
def test_convolutions_of_the_stock_runtime_take_what_the_rule_says(tmp_path: Path) -> None:
    arguments, predicted = [], []
    for index, case in enumerate(case for case in GROUPS["convolutions"] if case.op == "Conv"):
        model, _, graph = single_operator(case)
        onnx.save(model, tmp_path / f"{index}.onnx")
        for threads in (1, 2, 3):
            arguments += [str(tmp_path / f"{index}.onnx"), str(threads)]
            predicted.append(workspace_bytes(graph, graph.nodes[0], threads=threads))
    command = [stock_python(), "-c", IN_THE_STOCK_RUNTIME, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=True)
    measured = [int(line) for line in done.stdout.split()]
    assert [rule - taken for rule, taken in zip(predicted, measured, strict=True) if rule < taken] == []
    single = [rule for rule, threads in zip(predicted, arguments[1::2], strict=True) if threads == "1"]
    assert single == [taken for taken, threads in zip(measured, arguments[1::2], strict=True) if threads == "1"]


@pytest.mark.parametrize("case", estimated_operators.CASES, ids=lambda case: f"{case.op}-{len(case.inputs)}")
def test_an_operator_without_a_rule_is_estimated_with_care(case: Case) -> None:
    model, feeds, graph = single_operator(case)
    assert not has_workspace_rule(graph.nodes[0])
    measured = measured_workspace(model, feeds, case.threads)
    assert 0 < measured <= workspace_bytes(graph, graph.nodes[0])


def test_what_an_unknown_operator_reads_and_writes_is_its_estimate() -> None:
    node = Node("n", "Add", "elsewhere", ("a", ""), ("b",), {"kernel_shape": ("x",)}, Phase.FORWARD, recomputable=False)
    sizes = {"a": 40, "b": 60}
    tensors = {name: Tensor(name, "FLOAT", (size // 4,), size, name) for name, size in sizes.items()}
    graph = TrainingGraph("g", (node,), tensors, (), (), "")
    assert not has_workspace_rule(node)
    assert workspace_bytes(graph, node) == 100
    assert count_work(graph, node).moved_bytes == 100
