"""Values that a file holds: read one by one, so that a process never holds them twice."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

from poet_onnx.errors import InputError
from poet_onnx.files.values import Kind, Values, copy_value
from poet_onnx.training.parameters import read_parameters

MIB = 2**20
BESIDES_BYTES = 5 * MIB
"""What a process may take besides the arrays."""

PROGRAM = """
import json, sys
import numpy as np
from poet_onnx.files.checkpoint import open_checkpoint, write_checkpoint
from poet_onnx.training.parameters import read_parameters
from poet_onnx.files.values import copy_value

def peak():
    with open("/proc/self/status") as status:
        return next(1024 * int(line.split()[1]) for line in status if line.startswith("VmHWM"))

open_checkpoint(sys.argv[2]), read_parameters(sys.argv[2])  # code that is there anyway
start = peak()
values = read_parameters(sys.argv[1])
arrays = {name: np.empty(*reversed(values.kind(name))) for name in values}
for name, array in arrays.items():
    copy_value(values, name, array)
loaded = peak() - start
write_checkpoint(sys.argv[3], arrays, {})
saved = peak() - start
file = open_checkpoint(sys.argv[3])
for name, array in arrays.items():
    file.check(name, array)
file.load(arrays)
size = sum(array.nbytes for array in arrays.values())
print(json.dumps({"arrays": size, "loaded": loaded, "saved": saved, "resumed": peak() - start}))
"""


@pytest.mark.parametrize("kind", ["safetensors", "ort"])
def test_a_process_takes_the_arrays_and_no_copy_of_them(
    model_path: Callable[..., Path], tmp_path: Path, kind: str
) -> None:
    from safetensors.numpy import save_file

    random, small = np.random.default_rng(0), tmp_path / "small.safetensors"
    save_file({"a": np.ones(3, np.float32)}, small)
    path = tmp_path / "given.safetensors"
    if kind == "ort":
        path = model_path("vgg16").with_name("checkpoint")
    else:
        save_file({f"{number}": random.standard_normal((4, MIB), np.float32) for number in range(8)}, path)
    command = [sys.executable, "-c", PROGRAM, path, small, tmp_path / "saved.safetensors"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    found = json.loads(done.stdout)
    assert found["arrays"] > 50 * MIB
    for what in ("loaded", "saved", "resumed"):
        assert found["arrays"] - BESIDES_BYTES < found[what] < found["arrays"] + BESIDES_BYTES, what


def test_values_are_read_when_they_are_asked_for() -> None:
    asked: list[str] = []

    def read_into(name: str, array: np.ndarray) -> None:
        asked.append(name)
        array[...] = 7

    values = Values("a file", {"a": Kind("int32", (2,)), "b": Kind("BF16", (3,))}, read_into)
    assert (list(values), len(values), values.kind("b")) == (["a", "b"], 2, ("BF16", (3,)))
    assert not asked
    assert values["a"].tolist() == [7, 7]
    into = np.zeros(2, np.int32)
    copy_value(values, "a", into)
    assert into.tolist() == [7, 7]
    assert asked == ["a", "a"]
    with pytest.raises(InputError, match=r"'b' in a file is BF16 \[3\], which cannot be read"):
        values["b"]
    with pytest.raises(InputError, match=r"'a' is int32 \[2\], but the model takes float32 \[2\]"):
        copy_value(values, "a", np.zeros(2, np.float32))
    assert asked == ["a", "a"]
    with pytest.raises(InputError, match=r"'c' is float32 \[1\], but the model takes float32 \[2\]"):
        copy_value({"c": np.zeros(1, np.float32)}, "c", np.zeros(2, np.float32))


def test_an_onnx_model_gives_its_initializers(tmp_path: Path) -> None:
    arrays = {"a": np.arange(6, dtype=np.float32).reshape(2, 3), "b": np.array([1, -2], np.int64)}
    node = helper.make_node("Identity", ["a"], ["y"])
    weights = [numpy_helper.from_array(array, name) for name, array in arrays.items()]
    graph = helper.make_graph([node], "g", [], [helper.make_tensor_value_info("y", 1, [2, 3])], weights)
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 15)], ir_version=8), tmp_path / "a.onnx")
    values = read_parameters(tmp_path / "a.onnx")
    assert isinstance(values, Values)
    assert values.keys() == arrays.keys()
    for name, array in arrays.items():
        assert values.kind(name) == (array.dtype.name, array.shape)
        assert np.array_equal(values[name], array)
