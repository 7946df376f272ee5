"""Forward models whose weights are external data: small ones every time, and one of more than 2 GiB."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest
import safetensors.numpy
from onnx import TensorProto, helper
from stock_environment import stock_python

import poet_onnx

MEASURE = """
import json, sys, threading
peak = 0
def watch():
    global peak
    while not done.wait(0.05):
        text = open("/proc/self/status", encoding="utf-8").read()
        peak = max(peak, int(text.split("RssAnon:")[1].split()[0]) * 1024)
done = threading.Event()
watching = threading.Thread(target=watch)
watching.start()
from poet_onnx.cli import main
try:
    main(sys.argv[1:])
except SystemExit as end:
    code = end.code
done.set()
watching.join()
print()
print(json.dumps({"code": code, "peak_bytes": peak}))
"""
"""Runs the command line and tells its code, and how much memory it had at most that is no page of a file."""

TRAIN = """
import sys
import numpy as np
import poet_onnx
session = poet_onnx.TrainingSession(sys.argv[1], sys.argv[2], optimizer=poet_onnx.SGD(0.1))
x, labels = np.ones((1, int(sys.argv[3])), np.float32), np.array([3])
print(session.step(x, labels), session.step(x, labels))
"""


def write_forward(path: Path, layers: int, width: int) -> Path:
    """Write a chain of square layers, whose weights are in a file beside the model; returns the model's path."""
    random = np.random.default_rng(0)
    block = (random.standard_normal((width // 16, width)) / np.sqrt(width)).astype(np.float32)
    weights, nodes, value = [], [], "x"
    with Path(f"{path}.data").open("wb") as file:
        for layer in range(layers):
            place = {"location": f"{path.name}.data", "offset": str(file.tell()), "length": str(4 * width * width)}
            for part in range(16):
                file.write((block * (1 + layer / 8 + part / 128)).tobytes())
            weight = TensorProto(name=f"layers.{layer}.weight", data_type=TensorProto.FLOAT, dims=[width, width])
            weight.data_location = TensorProto.EXTERNAL
            for key, text in place.items():
                weight.external_data.add(key=key, value=text)
            weights.append(weight)
            nodes += [
                helper.make_node("MatMul", [value, weight.name], [f"h{layer}"], name=f"layers.{layer}"),
                helper.make_node("Tanh", [f"h{layer}"], [f"a{layer}"], name=f"tanh.{layer}"),
            ]
            value = f"a{layer}"
    head = random.standard_normal((width, 8)).astype(np.float32) / np.float32(np.sqrt(width))
    weights.append(onnx.numpy_helper.from_array(head, "head.weight"))
    nodes.append(helper.make_node("MatMul", [value, "head.weight"], ["scores"], name="head"))
    graph = helper.make_graph(
        nodes,
        "chain",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, width])],
        [helper.make_tensor_value_info("scores", TensorProto.FLOAT, [1, 8])],
        weights,
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    path.write_bytes(model.SerializeToString())
    return path


def measured(*arguments: object) -> int:
    """Run the command line in a process of its own and return the bytes that it held at most."""
    command = [sys.executable, "-c", MEASURE, *map(str, arguments)]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    found = json.loads(done.stdout.splitlines()[-1])
    assert found["code"] == 0, done.stderr
    return int(found["peak_bytes"])


@pytest.mark.parametrize("train", ["*", "head.*"])
def test_external_weights_make_the_same_training_graph(tmp_path: Path, train: str) -> None:
    forward = write_forward(tmp_path / "forward.onnx", layers=3, width=64)
    (tmp_path / "inside").mkdir()
    onnx.save(onnx.load(forward), tmp_path / "inside" / "forward.onnx")
    for folder in (tmp_path, tmp_path / "inside"):
        poet_onnx.train_graph(folder / "forward.onnx", train=train).save(folder / "made")
    values = [
        safetensors.numpy.load_file(folder / "made" / "parameters.safetensors")
        for folder in (tmp_path, tmp_path / "inside")
    ]
    assert {name: array.tobytes() for name, array in values[0].items()} == {
        name: array.tobytes() for name, array in values[1].items()
    }
    models = [onnx.load(folder / "made" / "training_model.onnx") for folder in (tmp_path, tmp_path / "inside")]
    for model in models:  # which weights are embedded makes the only difference
        for tensor in model.graph.initializer:
            array = onnx.numpy_helper.to_array(tensor)
            tensor.CopyFrom(onnx.numpy_helper.from_array(array, tensor.name))
    assert models[0] == models[1]


@pytest.mark.deep
def test_external_weights_are_not_copied_into_memory(tmp_path: Path) -> None:
    small = write_forward(tmp_path / "small.onnx", layers=1, width=64)
    large = write_forward(tmp_path / "large.onnx", layers=12, width=2048)
    least, more = (measured("train-graph", path, "-o", tmp_path / path.stem) for path in (small, large))
    assert Path(f"{large}.data").stat().st_size == 192 * 2**20
    assert more - least < 64 * 2**20


@pytest.mark.deep
def test_more_than_2_gib_are_differentiated_rewritten_and_trained(tmp_path: Path) -> None:
    """On the stock runtime; needs 3 GiB of RAM and 8 GiB of storage."""
    forward = write_forward(tmp_path / "forward.onnx", layers=9, width=8192)
    size_bytes = Path(f"{forward}.data").stat().st_size
    assert size_bytes > 2**31
    planned = ("--device", "a72", "--target", "stock", "--ram-budget", "12GiB", "--loss", "cross-entropy")
    options = (*planned, "--optimizer", "sgd", "--gap", "0.5", "--no-paging")
    assert measured("train-graph", forward, "-o", tmp_path / "made") < 2**29
    assert measured("rewrite", forward, tmp_path / "all.onnx", *options) < 2**29
    assert measured("rewrite", forward, tmp_path / "head.onnx", *options, "--train", "head.*") < 2**29
    for name in ("head", "all"):
        command = [stock_python(), "-c", TRAIN, f"{name}.onnx", f"{name}.safetensors", "8192"]
        done = subprocess.run(command, cwd=tmp_path, check=True, capture_output=True, text=True)
        first, second = map(float, done.stdout.split())
        assert second < first
