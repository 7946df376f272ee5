"""Measured costs as a file: saved, loaded, refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from poet_onnx.costing.measured import MeasuredCosts, NodeMeasurement, StorageMeasurement, load_measured
from poet_onnx.errors import InputError
from poet_onnx.graph import Node, Phase, Residency, Tensor, TrainingGraph

FINGERPRINT = "0123456789abcdef" * 4


def measured(**changes: Any) -> MeasuredCosts:
    values: dict[str, Any] = {
        "fingerprint": FINGERPRINT,
        "device": "host",
        "target": "training",
        "machine": "x86_64",
        "runtime": "onnxruntime-training 1.19.2",
        "threads": 1,
        "repetitions": 20,
        "step_seconds": 1.001e-3,
        "node_overhead_seconds": 1e-6,
        "nodes": {"relu": NodeMeasurement(seconds=1e-3, workspace_bytes=16, output_bytes=64)},
        "storage": StorageMeasurement(
            page_out_bytes_per_second=1e8,
            page_in_bytes_per_second=2e8,
            page_out_latency_seconds=1e-4,
            page_in_latency_seconds=0.0,
            method="device",
        ),
    }
    return MeasuredCosts(**(values | changes))


def one_node_graph(fingerprint: str = FINGERPRINT, name: str = "relu") -> TrainingGraph:
    tensors = {
        "x": Tensor("x", "FLOAT", (16,), 64, "x", Residency.RESIDENT),
        "y": Tensor("y", "FLOAT", (16,), 64, "y", Residency.OUTPUT),
    }
    node = Node(name, "Relu", "", ("x",), ("y",), {}, Phase.FORWARD, True)
    return TrainingGraph("one", (node,), tensors, ("x",), ("y",), fingerprint)


def test_a_file_holds_all_of_it(tmp_path: Path) -> None:
    path = tmp_path / "costs.json"
    measured().save(path)
    assert load_measured(path) == measured()
    assert [entry.name for entry in tmp_path.iterdir()] == ["costs.json"]
    document = json.loads(path.read_text())
    assert document["schema_version"] == 2
    counted = {"seconds": 1e-3, "workspace_bytes": 16, "output_bytes": 64, "workspace_estimated": False}
    assert document["nodes"]["relu"] == {**counted, "active_watts": None, "fitted": False}


def test_a_form_is_covered_whole_or_not_at_all() -> None:
    graph = one_node_graph("1" * 64, name="relu/part_0")
    found = {"relu/part_0": NodeMeasurement(seconds=1e-3, workspace_bytes=0, output_bytes=64)}
    costs = measured(variants={graph.fingerprint: found})
    other = one_node_graph("2" * 64, name="relu/part_0")
    assert costs.nodes_of_form(graph, graph.nodes) == found
    assert costs.nodes_of_form(other, other.nodes) is None
    assert costs.nodes_of_form(other, ()) == {}
    with pytest.raises(InputError, match=r"lack 1 nodes.*'relu'"):
        costs.nodes_of_form(one_node_graph("1" * 64), one_node_graph().nodes)


def test_costs_are_for_one_device_target_and_number_of_threads() -> None:
    measured().check_use(device="host", target="training", threads=1)
    for asked, words in (
        ({"device": "a72"}, "not for device 'a72', target 'training' and 1 thread; .*--device a72 "),
        ({"target": "stock"}, "not for device 'host', target 'stock' and 1 thread; .*--target stock "),
        ({"threads": 4}, "not for device 'host', target 'training' and 4 threads; .*--threads 4"),
    ):
        use: dict[str, Any] = {"device": "host", "target": "training", "threads": 1, **asked}
        with pytest.raises(InputError, match=f"for device 'host', target 'training' and 1 thread .*{words}"):
            measured().check_use(**use)


@pytest.mark.parametrize(
    ("nodes", "message"),
    [
        ({"relu": 65}, r"'relu' makes 65 bytes, and in the model it makes 64"),
        ({"relu": 64, "extra": 64}, r"have 1 nodes that the model does not have.*'extra'"),
        ({}, r"lack 1 nodes.*'relu'"),
    ],
)
def test_nodes_that_contradict_the_graph_are_refused(nodes: dict[str, int], message: str) -> None:
    found = {
        name: NodeMeasurement(seconds=1e-3, workspace_bytes=0, output_bytes=size_bytes)
        for name, size_bytes in nodes.items()
    }
    costs = measured().model_copy(update={"nodes": found})
    with pytest.raises(InputError, match=message):
        costs.check_graph(one_node_graph())
    if nodes:
        form = measured(variants={"1" * 64: found})
        with pytest.raises(InputError, match=message):
            form.nodes_of_form(one_node_graph("1" * 64), one_node_graph().nodes)


def test_costs_of_another_graph_are_refused() -> None:
    measured().check_graph(one_node_graph())
    with pytest.raises(InputError, match=r"another graph.*0123456789ab.*ffffffffffff.*poet-onnx profile"):
        measured().check_graph(one_node_graph("f" * 64))
    with pytest.raises(InputError, match=r"lack 1 nodes.*'tanh'"):
        measured().check_graph(one_node_graph(name="tanh"))


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("schema_version", 1, r"schema_version: .*2.*\(found 1\)"),
        ("target", "gpu", r"target: .*\(found 'gpu'\)"),
        ("step_seconds", 0.25, r"its 1 nodes take 0\.001001 s, but step_seconds is 0\.25 s"),
        ("step_seconds", "0.001001", r"step_seconds: .*\(found '0\.001001'\)"),
        ("step_seconds", float("nan"), r"step_seconds: "),
        ("threads", True, r"threads: .*\(found True\)"),
        ("node_overhead_seconds", 1.0, r"its 1 nodes take 1\.001 s, but step_seconds is 0\.001001 s"),
        ("nodes", {}, r"its 0 nodes take 0 s, but step_seconds is 0\.001001 s"),
        (
            "nodes",
            {"relu": {"seconds": 1e6, "workspace_bytes": 0, "output_bytes": 64}},
            r"its 1 nodes take 1e\+06 s, but step_seconds is 0\.001001 s",
        ),
        (
            "variants",
            {"1" * 64: {"relu": {"seconds": 1.0, "workspace_bytes": 0, "output_bytes": 64}}},
            r"the nodes of graph variant 111111111111 take 1 s, more than 100 times its step_seconds of 0\.001001 s",
        ),
        ("device", "a\x1b[31m", r"device: "),
        ("step_seconds", -1.0, r"step_seconds: .*greater than 0.*\(found -1.0\)"),
        ("threads", 0, r"threads: .*\(found 0\)"),
        ("fingerprint", "abc", r"fingerprint: .*\(found 'abc'\)"),
        (
            "nodes",
            {"relu": {"seconds": 1.0, "workspace_bytes": -4, "output_bytes": 4}},
            r"nodes\.relu\.workspace_bytes: ",
        ),
        ("host_name", "secret", r"host_name: "),
    ],
)
def test_what_cannot_be_right_is_named(tmp_path: Path, key: str, value: object, message: str) -> None:
    path = tmp_path / "costs.json"
    document = json.loads(measured().model_dump_json())
    document[key] = value
    path.write_text(json.dumps(document))
    with pytest.raises(InputError, match=rf"costs\.json: {message}"):
        load_measured(path)


def test_files_that_are_no_costs(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"absent\.json: No such file"):
        load_measured(tmp_path / "absent.json")
    for text in (b"", b"{", b"[]", b"\xff\x00"):
        (tmp_path / "costs.json").write_bytes(text)
        with pytest.raises(InputError, match=r"costs\.json: "):
            load_measured(tmp_path / "costs.json")


def test_a_file_that_cannot_be_written(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="No such file"):
        measured().save(tmp_path / "absent" / "costs.json")
    (tmp_path / "taken").mkdir()
    with pytest.raises(InputError, match="taken cannot be written: it is a folder; name a file"):
        measured().save(tmp_path / "taken")
    assert [entry.name for entry in tmp_path.iterdir()] == ["taken"]
