"""What is read in a model's bytes is what onnx reads there."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from onnx import helper, numpy_helper

from poet_onnx.errors import InputError
from poet_onnx.files.model_file import constant_bytes, read_metadata

NAMES = st.text(max_size=6)
SEEDS = st.integers(-(2**63), 2**63 - 1)
ARRAYS = st.builds(
    lambda dtype, shape: np.zeros(shape, dtype),
    st.sampled_from((np.float32, np.float64, np.int64, np.uint8, np.bool_, np.float16)),
    st.lists(st.integers(0, 300), max_size=2),
)


@st.composite
def models(draw: st.DrawFn) -> onnx.ModelProto:
    """Draw a model that need not make sense: some nodes draw numbers, some do not."""
    nodes = []
    for index in range(draw(st.integers(0, 4))):
        node = helper.make_node(
            "Dropout", ["x"], [f"y{index}", f"mask{index}"], name=draw(NAMES), doc_string=draw(NAMES)
        )
        for name in draw(st.permutations(["seed", "other", "scale"]))[: draw(st.integers(0, 3))]:
            node.attribute.append(helper.make_attribute(name, 0.5 if name == "scale" else draw(SEEDS)))
        nodes.append(node)
    constants = [numpy_helper.from_array(draw(ARRAYS), name=f"c{index}") for index in range(draw(st.integers(0, 3)))]
    model: onnx.ModelProto = helper.make_model(helper.make_graph(nodes, draw(NAMES), [], [], initializer=constants))
    helper.set_model_props(model, draw(st.dictionaries(NAMES, st.text(max_size=200), max_size=3)))
    return model


@given(models())
def test_constants_are_counted(model: onnx.ModelProto) -> None:
    payload = model.SerializeToString()
    assert constant_bytes(payload) == sum(numpy_helper.to_array(each).nbytes for each in model.graph.initializer)


@given(models(), st.data())
def test_damaged_bytes_are_read_or_refused(model: onnx.ModelProto, data: st.DataObject) -> None:
    payload = bytearray(model.SerializeToString())
    for _ in range(data.draw(st.integers(1, 4))):
        payload[data.draw(st.integers(0, len(payload) - 1))] = data.draw(st.integers(0, 255))
    cut = bytes(payload[: data.draw(st.integers(0, len(payload)))])
    try:
        constant_bytes(cut)
    except InputError as error:
        assert "damaged" in str(error)


@pytest.mark.parametrize("name", ["transformer", "mobilenet"])
def test_real_models_are_read_as_onnx_reads_them(model_path: Callable[..., Path], tmp_path: Path, name: str) -> None:
    model = onnx.load(model_path(name))
    helper.set_model_props(model, {"poet.training": "a" * 1000, "ü": "é"})
    path = tmp_path / "model.onnx"
    onnx.save(model, path)
    assert read_metadata(path) == {"poet.training": "a" * 1000, "ü": "é"}
    payload = path.read_bytes()
    assert constant_bytes(payload) == sum(numpy_helper.to_array(each).nbytes for each in model.graph.initializer)
