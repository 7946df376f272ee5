"""What RAM `rewrite` itself takes for a model whose weights are most of it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

WIDE, LAYERS = 1536, 4
WEIGHT_BYTES = 4 * WIDE * WIDE
REWRITE = """
import json, sys
from pathlib import Path
sys.modules["torch"] = None  # which onnxruntime-training loads for tools of its own
import poet_onnx
from poet_onnx.runtime.installed import import_onnxruntime
from poet_onnx.training.trial import status_bytes

import_onnxruntime()
folder, grown = Path(sys.argv[1]), {}
options = {"device": "a72", "target": "stock", "loss": "mse", "python": "3.11", "lora": "rank=2,targets=layer*"}

def measured(name, model, **more):
    Path("/proc/self/clear_refs").write_text("5")  # the peak begins anew: proc(5)
    before = status_bytes("VmRSS")
    poet_onnx.rewrite(folder / model, **options, **more).save(folder / f"{name}.onnx")
    grown[name] = status_bytes("VmHWM") - before

measured("first", "small/forward.onnx", store="never")  # loads what is loaded once
measured("quantized", "forward.onnx", store="frozen", quantize="4bit")
measured("floats", "forward.onnx", store="frozen")
measured("embedded", "inside.onnx", store="frozen")
measured("resident", "inside.onnx", store="never")
print(json.dumps(grown))
"""


def write_forward(folder: Path, wide: int) -> None:
    """Write products with transposed weights, as torch's exporter writes them, whose numbers are in a file beside."""
    folder.mkdir(exist_ok=True)
    nodes, tensors, x = [], [], "x"
    for number in range(LAYERS):
        weight = TensorProto(name=f"layer{number}.weight", data_type=TensorProto.FLOAT, dims=[wide, wide])
        weight.data_location = TensorProto.EXTERNAL
        size_bytes = 4 * wide * wide
        for key, value in (("location", "weights"), ("offset", number * size_bytes), ("length", size_bytes)):
            weight.external_data.add(key=key, value=str(value))
        tensors.append(weight)
        nodes.append(helper.make_node("Transpose", [weight.name], [f"t{number}"], perm=[1, 0], name=f"turn{number}"))
        nodes.append(helper.make_node("MatMul", [x, f"t{number}"], [f"y{number}"], name=f"/layer{number}/MatMul"))
        x = f"y{number}"
    given = [helper.make_tensor_value_info("x", TensorProto.FLOAT, [4, wide])]
    made = [helper.make_tensor_value_info(x, TensorProto.FLOAT, [4, wide])]
    graph = helper.make_graph(nodes, "wide", given, made, tensors)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    (folder / "forward.onnx").write_bytes(model.SerializeToString())
    with (folder / "weights").open("wb") as file:
        for number in range(LAYERS):
            np.random.default_rng(number).random((wide, wide), np.float32).tofile(file)


@pytest.fixture(scope="module")
def grown(tmp_path_factory: pytest.TempPathFactory) -> dict[str, int]:
    folder = tmp_path_factory.mktemp("memory")
    write_forward(folder, WIDE)
    onnx.save(onnx.load(folder / "forward.onnx"), folder / "inside.onnx")
    write_forward(folder / "small", 64)
    done = subprocess.run([sys.executable, "-c", REWRITE, folder], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    found: dict[str, int] = json.loads(done.stdout)
    return found


def test_floats_are_quantized_some_rows_at_a_time(grown: dict[str, int]) -> None:
    """Codes and scales stay, 5 bits of 32; of floats one weight is mapped at most."""
    assert grown["quantized"] < (LAYERS * 5 / 32 + 1.5) * WEIGHT_BYTES + (10 << 20)


@pytest.mark.parametrize("where", ["floats", "embedded", "resident"])
def test_frozen_floats_stay_in_their_file(grown: dict[str, int], where: str) -> None:
    """They are turned one at a time, and written piece by piece; the file may be the model's."""
    assert grown[where] < 1.5 * WEIGHT_BYTES + (8 << 20)
