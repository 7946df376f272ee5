"""The pieces of a model's file are the bytes of its message."""

from __future__ import annotations

from pathlib import Path, PurePosixPath

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import TensorProto, helper, numpy_helper

from poet_onnx.errors import InputError
from poet_onnx.files import embedded, model_writing
from poet_onnx.files.external_data import FileTensor
from poet_onnx.files.model_writing import bytes_of_model
from poet_onnx.files.saving import save_model
from poet_onnx.files.turned_tensor import TurnedTensor
from poet_onnx.graph.extract import load, load_model

NUMBERS = np.random.default_rng(0).standard_normal((30, 20)).astype(np.float32)


def model_with(folder: Path) -> ir.Model:
    """Return a model that has tensors of all kinds."""
    path = folder / "embedded.onnx"
    node, made = helper.make_node("Identity", ["inside"], ["y"]), helper.make_tensor_value_info("y", 1, [30, 20])
    graph = helper.make_graph([node], "g", [], [made], [numpy_helper.from_array(NUMBERS, "inside")])
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10), path)
    model = load_model(path)
    (folder / "data").write_bytes(NUMBERS.tobytes())
    place = ir.ExternalTensor("data", 0, NUMBERS.nbytes, ir.DataType.FLOAT, shape=ir.Shape((30, 20)), name="outside")
    tensors = [
        ir.tensor(NUMBERS, name="array", doc_string="of numbers"),
        ir.tensor(NUMBERS[:, ::2], name="strided"),
        ir.tensor(np.float32(1), name="few"),
        ir.PackedTensor(np.arange(200, dtype=np.uint8), ir.DataType.INT4, shape=ir.Shape((20, 20)), name="codes"),
        TurnedTensor(ir.tensor(NUMBERS), None, "turned"),
        ir.serde.TensorProtoTensor(TensorProto(name="listed", data_type=1, dims=[200], float_data=[1.0] * 200)),
        FileTensor(place, folder, PurePosixPath("data"), 0),
    ]
    tensors[1].metadata_props["key"] = "value"
    for tensor in tensors:
        kind, shape = ir.TensorType(tensor.dtype), ir.Shape(tensor.shape.numpy())
        model.graph.register_initializer(ir.Value(name=tensor.name, type=kind, shape=shape, const_value=tensor))
    model.metadata_props["about"] = "a model"
    return model


def test_they_are_the_bytes_of_the_message(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(load, "LEAST_FILE_BYTES", 0)
    monkeypatch.setattr(embedded, "LEAST_BYTES", 256)
    monkeypatch.setattr(model_writing, "LEAST_BYTES", 16)
    expected = ir.to_proto(model_with(tmp_path)).SerializeToString(deterministic=True)
    pieces = bytes_of_model(model_with(tmp_path))
    assert b"".join(bytes(chunk) for piece in pieces for chunk in piece.chunks()) == expected
    sizes = [piece.size_bytes for piece in pieces]
    assert [sizes.count(size_bytes) for size_bytes in (200, NUMBERS.nbytes // 2, NUMBERS.nbytes)] == [1, 1, 3]


def test_what_no_parser_could_read_is_not_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(model_writing, "MOST_BYTES", 1000)
    model = model_with(tmp_path)
    with pytest.raises(InputError, match=r"out\.onnx cannot be written: it has \d+ bytes, and a .* at most 1000"):
        save_model(model, tmp_path / "out.onnx")
    assert not (tmp_path / "out.onnx").exists()
