"""Files of models: those that cannot be used are refused, and external weights are not read."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from graph_texts import HEAD, TINY

from poet_onnx.errors import InputError
from poet_onnx.graph.extract import extract, load_model


def test_files_that_cannot_be_used(tmp_path: Path) -> None:
    def sentence(path: Path) -> str:
        with pytest.raises(InputError) as refused:
            load_model(path)
        assert str(path) in str(refused.value)
        assert str(refused.value).endswith(".")
        return str(refused.value)

    assert "No such file" in sentence(tmp_path / "missing.onnx")
    assert "is a directory" in sentence(tmp_path)
    (tmp_path / "empty.onnx").touch()
    assert "is empty" in sentence(tmp_path / "empty.onnx")
    twice = onnx.parser.parse_model(HEAD + TINY.replace("xt = ", "dz = "))
    onnx.save(twice, tmp_path / "twice.onnx")
    assert "Output 'dz' is redeclared" in sentence(tmp_path / "twice.onnx")
    for name, content in (
        ("text", b"not a model, just text\n" * 9),
        ("zeros", bytes(99)),
        ("image", b"\x89PNG\r\n\x1a\n"),
    ):
        (tmp_path / name).write_bytes(content)
        assert "not an ONNX model" in sentence(tmp_path / name)


def test_sparse_initializers_are_refused_by_name(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    model = onnx.parser.parse_model(HEAD + TINY)
    values = onnx.numpy_helper.from_array(np.ones(2, np.float32), "pruned")
    places = onnx.numpy_helper.from_array(np.array([0, 3]), "places")
    model.graph.sparse_initializer.append(onnx.helper.make_sparse_tensor(values, places, [2, 2]))
    onnx.save(model, tmp_path / "sparse.onnx")
    with pytest.raises(InputError, match=r"sparse initializers \('pruned'\), .*: write them as dense ones"):
        load_model(tmp_path / "sparse.onnx")
    assert capfd.readouterr().err == ""


def test_a_file_truncated_anywhere_is_refused(tmp_path: Path, model_path: Callable[..., Path]) -> None:
    content = model_path("mlp-mse", batch=4).read_bytes()
    cut = tmp_path / "cut.onnx"
    whole = extract(load_model(model_path("mlp-mse", batch=4))).fingerprint
    lengths = {1, 2, 10, len(content) - 1, *np.random.default_rng(0).integers(1, len(content), 200).tolist()}
    for length in lengths:
        cut.write_bytes(content[:length])
        try:
            found = extract(load_model(cut)).fingerprint
        except InputError:
            continue
        assert found == whole  # only versions of domains that it does not use are missing


def save_externally(tmp_path: Path) -> Path:
    """Return a model whose weights are in a file beside it."""
    text = TINY.replace("float[3, 8] w, ", "").replace("float seed = {1.0}", "float seed = {1.0}, float[3, 8] w = {%s}")
    model = onnx.parser.parse_model(HEAD + text % ", ".join(["0.5"] * 24))
    weight = next(tensor for tensor in model.graph.initializer if tensor.name == "w")
    weight.CopyFrom(onnx.numpy_helper.from_array(onnx.numpy_helper.to_array(weight), "w"))
    path = tmp_path / "model.onnx"
    onnx.save(model, path, save_as_external_data=True, location="weights.bin", size_threshold=64)
    return path


def test_external_weights_stay_external_and_are_not_read(tmp_path: Path) -> None:
    path = save_externally(tmp_path)
    model = load_model(path)
    assert extract(model).tensors["w"].size_bytes == 96
    assert isinstance(model.graph.initializers["w"].const_value, ir.ExternalTensor)


def test_missing_and_short_external_data_are_refused(tmp_path: Path) -> None:
    path = save_externally(tmp_path)
    data = tmp_path / "weights.bin"
    data.write_bytes(data.read_bytes()[:50])
    with pytest.raises(InputError, match=r"weights\.bin is truncated: it has 50 bytes, and tensor 'w' needs 96"):
        load_model(path)
    data.unlink()
    with pytest.raises(InputError, match=r"external data of tensor 'w' cannot be read: .*weights\.bin: No such file"):
        load_model(path)
