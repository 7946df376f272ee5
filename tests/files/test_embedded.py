"""Large tensors stay in the file of their model, and are what a parser makes of them."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import TensorProto, helper, numpy_helper

from poet_onnx.errors import InputError
from poet_onnx.files import embedded
from poet_onnx.files.embedded import EmbeddedTensor
from poet_onnx.files.saving import save_model
from poet_onnx.graph.extract import load, load_model

NUMBERS = np.random.default_rng(0).standard_normal((30, 20))
TENSORS = {
    "w": numpy_helper.from_array(NUMBERS.astype(np.float32), "w"),
    "half": numpy_helper.from_array(NUMBERS.astype(np.float16), "half"),
    "bytes": numpy_helper.from_array(NUMBERS.astype(np.uint8), "bytes"),
    "codes": TensorProto(
        name="codes", data_type=TensorProto.INT4, dims=[30, 21], raw_data=bytes(range(256)) + bytes(59)
    ),
}
OTHERS = {
    "few": numpy_helper.from_array(np.ones(2, np.float32), "few"),
    "apart": TensorProto(name="apart", data_type=TensorProto.FLOAT, dims=[300], float_data=[1.0] * 300),
}


@pytest.fixture
def path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(load, "LEAST_FILE_BYTES", 0)
    monkeypatch.setattr(embedded, "LEAST_BYTES", 256)
    path = tmp_path / "model.onnx"
    onnx.save(model_of(*TENSORS.values(), *OTHERS.values()), path)
    return path


def model_of(*tensors: TensorProto) -> onnx.ModelProto:
    nodes = [helper.make_node("Identity", [each.name], [f"{each.name}/y"]) for each in tensors]
    made = [helper.make_tensor_value_info(f"{each.name}/y", each.data_type, list(each.dims)) for each in tensors]
    graph = helper.make_graph(nodes, "graph", [], made, tensors, doc_string="a graph")
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
    model.graph.initializer[0].doc_string = "a weight"
    helper.set_model_props(model, {"key": "value"})
    return model


def held(model: ir.Model) -> dict[str, EmbeddedTensor]:
    values = model.graph.initializers.items()
    return {name: value.const_value for name, value in values if isinstance(value.const_value, EmbeddedTensor)}


def test_a_model_is_what_it_was(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sparse = load_model(path)
    assert set(held(sparse)) == set(TENSORS)
    monkeypatch.setattr(load, "LEAST_FILE_BYTES", 1 << 40)
    whole = load_model(path)
    assert not held(whole)
    assert ir.to_proto(sparse) == ir.to_proto(whole)
    for name, tensor in held(sparse).items():
        expected = whole.graph.initializers[name].const_value
        assert expected is not None
        assert (tensor.dtype, tensor.shape, tensor.nbytes) == (expected.dtype, expected.shape, expected.nbytes)
        assert np.array_equal(tensor.numpy(), expected.numpy())
        assert np.array_equal(tensor.looked_at(), expected.numpy())
        assert tensor.tobytes() == b"".join(map(bytes, tensor.chunks())) == expected.tobytes()
    part = held(sparse)["w"].part(40, (3, 20), "part")
    assert np.array_equal(part.numpy(), NUMBERS.astype(np.float32)[2:5])


def test_a_model_may_replace_itself(path: Path) -> None:
    """Who replaces a file leaves the old one to those that have it open."""
    model, expected = load_model(path), TENSORS["w"].raw_data
    save_model(model, path)
    path.with_name("other").write_bytes(b"nothing")
    path.with_name("other").replace(path)
    assert held(model)["w"].tobytes() == expected


def test_a_file_that_is_written_to_is_not_used_any_more(path: Path) -> None:
    model = load_model(path)
    content = bytearray(path.read_bytes())
    os.utime(path, ns=(0, 0))
    with path.open("r+b") as file:
        file.write(content)
    for read in (EmbeddedTensor.numpy, EmbeddedTensor.looked_at, lambda tensor: list(tensor.chunks())):
        with pytest.raises(InputError, match=r"model\.onnx was changed while its weights were in use: load the model"):
            read(held(model)["w"])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"dims": [31, 20]}, "does not have the 620 elements that it needs"),
        ({"name": "half"}, "two initializers 'half'"),
        ({"data_location": TensorProto.EXTERNAL}, "initializer|external|location"),
    ],
)
def test_a_parser_judges_what_is_wrong(path: Path, change: dict[str, object], message: str) -> None:
    model = model_of(*TENSORS.values())
    weight = TensorProto(raw_data=TENSORS["w"].raw_data, **{"name": "w", "data_type": 1, "dims": [30, 20], **change})  # type: ignore[arg-type]
    model.graph.initializer[0].CopyFrom(weight)
    path.write_bytes(model.SerializeToString())
    with pytest.raises(InputError, match=message):
        load_model(path)


def test_half_a_file_is_no_model(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-3000])
    with pytest.raises(InputError, match=r"model\.onnx is"):
        load_model(path)
