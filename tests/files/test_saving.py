"""Saving a model: whole or not at all, external weights stay external, nothing is left behind."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import TensorProto, helper, numpy_helper

from poet_onnx.errors import InputError
from poet_onnx.files import saving
from poet_onnx.files.saving import save_model
from poet_onnx.graph.extract import load_model

WEIGHT = np.arange(4096, dtype=np.float32).reshape(64, 64)


def write_model(folder: Path, *, external: bool) -> Path:
    """Write x @ w, with the weight in a file beside the model or inside it."""
    folder.mkdir(exist_ok=True)
    graph = helper.make_graph(
        [helper.make_node("MatMul", ["x", "w"], ["y"], name="product")],
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 64])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, 64])],
        [numpy_helper.from_array(WEIGHT, "w")],
    )
    path = folder / "model.onnx"
    onnx.save(helper.make_model(graph), path, save_as_external_data=external, location="weights.bin")
    return path


def weight(path: Path) -> onnx.TensorProto:
    (tensor,) = onnx.load(path, load_external_data=False).graph.initializer
    return tensor


def location(path: Path) -> str:
    return {entry.key: entry.value for entry in weight(path).external_data}["location"]


def read_weight(path: Path) -> np.ndarray:
    (tensor,) = onnx.load(path).graph.initializer
    return numpy_helper.to_array(tensor)


def listing(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_an_embedded_weight_stays_embedded(tmp_path: Path) -> None:
    source = write_model(tmp_path, external=False)
    save_model(load_model(source), tmp_path / "out.onnx")
    assert listing(tmp_path) == ["model.onnx", "out.onnx"]
    assert np.array_equal(read_weight(tmp_path / "out.onnx"), WEIGHT)


def test_external_data_in_the_same_folder_is_shared(tmp_path: Path) -> None:
    source = write_model(tmp_path, external=True)
    save_model(load_model(source), tmp_path / "out.onnx")
    assert listing(tmp_path) == ["model.onnx", "out.onnx", "weights.bin"]
    assert location(tmp_path / "out.onnx") == "weights.bin"


def test_external_data_below_the_folder_is_shared(tmp_path: Path) -> None:
    source = write_model(tmp_path / "deep", external=True)
    save_model(load_model(source), tmp_path / "out.onnx")
    assert listing(tmp_path) == ["deep", "out.onnx"]
    assert location(tmp_path / "out.onnx") == "deep/weights.bin"
    assert np.array_equal(read_weight(tmp_path / "out.onnx"), WEIGHT)


def test_external_data_elsewhere_is_copied_once(tmp_path: Path) -> None:
    source = write_model(tmp_path / "one", external=True)
    target = tmp_path / "two" / "out.onnx"
    target.parent.mkdir()
    for _ in range(2):
        save_model(load_model(source), target)
        assert listing(target.parent) == ["out.onnx", "out.onnx.data"]
    assert np.array_equal(read_weight(target), WEIGHT)
    onnx.checker.check_model(target)


def test_other_data_under_the_copys_name_are_left_alone(tmp_path: Path) -> None:
    source = write_model(tmp_path / "one", external=True)
    target = tmp_path / "two" / "out.onnx"
    target.parent.mkdir()
    (target.parent / "out.onnx.data").write_bytes(b"somebody else's")
    save_model(load_model(source), target)
    assert location(target) == "out.onnx.data1"
    assert (target.parent / "out.onnx.data").read_bytes() == b"somebody else's"


def test_a_path_relative_to_the_working_directory_works(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_model(tmp_path / "one", external=True)
    monkeypatch.chdir(tmp_path)
    save_model(load_model("one/model.onnx"), "out.onnx")
    assert location(tmp_path / "out.onnx") == "one/weights.bin"
    monkeypatch.chdir(tmp_path / "one")
    save_model(load_model("model.onnx"), "again.onnx")
    assert location(tmp_path / "one" / "again.onnx") == "weights.bin"


def test_more_than_2_gib_of_external_weights_are_not_touched(tmp_path: Path) -> None:
    size = 5 * 2**29  # 2.5 GiB
    with (tmp_path / "huge.bin").open("wb") as file:
        file.truncate(size)
    value = ir.Value(name="w", shape=ir.Shape([size]), type=ir.TensorType(ir.DataType.UINT8))
    value.const_value = ir.ExternalTensor(
        *("huge.bin", 0, size, ir.DataType.UINT8), shape=ir.Shape([size]), name="w", base_dir=str(tmp_path)
    )
    node = ir.Node("", "Identity", [value], name="n", outputs=[ir.Value(name="y")])
    graph = ir.Graph([], node.outputs, nodes=[node], initializers=[value], opset_imports={"": 15}, name="g")
    save_model(ir.Model(graph, ir_version=8), tmp_path / "out.onnx")
    assert (tmp_path / "out.onnx").stat().st_size < 1000
    assert ir.load(tmp_path / "out.onnx").graph.initializers["w"].const_value.nbytes == size  # type: ignore[union-attr]


def test_embedded_weights_too_large_for_a_protobuf_file_move_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(saving, "LARGEST_FILE_BYTES", 10_000)
    model = load_model(write_model(tmp_path, external=False))
    save_model(model, tmp_path / "out.onnx")
    assert location(tmp_path / "out.onnx") == "out.onnx.weights"
    assert np.array_equal(read_weight(tmp_path / "out.onnx"), WEIGHT)
    assert not isinstance(model.graph.initializers["w"].const_value, ir.ExternalTensor)


def test_missing_external_data_are_named_and_nothing_is_left(tmp_path: Path) -> None:
    model = load_model(write_model(tmp_path / "one", external=True))
    (tmp_path / "one" / "weights.bin").unlink()
    (tmp_path / "two").mkdir()
    with pytest.raises(InputError, match=r"tensor 'w' cannot be read: .*weights\.bin: No such file"):
        save_model(model, tmp_path / "two" / "out.onnx")
    assert listing(tmp_path / "two") == []


def test_a_folder_that_is_not_there_is_named(tmp_path: Path) -> None:
    model = load_model(write_model(tmp_path, external=False))
    with pytest.raises(InputError, match=r"nowhere/out\.onnx cannot be written: No such file"):
        save_model(model, tmp_path / "nowhere" / "out.onnx")


def test_a_failure_keeps_the_old_file_and_removes_the_copied_data(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = load_model(write_model(tmp_path / "one", external=True))
    target = tmp_path / "two" / "out.onnx"
    target.parent.mkdir()
    target.write_bytes(b"old")

    def full_disk(*_: object, **__: object) -> None:
        raise OSError(28, os.strerror(28))

    monkeypatch.setattr(os, "replace", full_disk)
    with pytest.raises(InputError, match="No space left on device"):
        save_model(model, target)
    assert listing(target.parent) == ["out.onnx"]
    assert target.read_bytes() == b"old"


def test_the_file_has_the_permissions_that_the_user_gives_new_files(tmp_path: Path) -> None:
    model = load_model(write_model(tmp_path, external=False))
    save_model(model, tmp_path / "out.onnx")
    (tmp_path / "plain").touch()
    assert (tmp_path / "out.onnx").stat().st_mode == (tmp_path / "plain").stat().st_mode
