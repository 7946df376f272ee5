"""What is read and changed in a model's bytes is what onnx reads there."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper

from poet_onnx.errors import InputError
from poet_onnx.training.model_file import advance_seeds, constant_bytes, has_external_data, read_metadata

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


@given(models(), st.sets(st.sampled_from(["y0", "y1", "y2", "y3", "mask0"])), st.integers(0, 2**40))
def test_seeds_grow_and_nothing_else_changes(model: onnx.ModelProto, outputs: set[str], runs: int) -> None:
    changed = onnx.ModelProto.FromString(advance_seeds(model.SerializeToString(), outputs, runs))
    for node in model.graph.node:
        for attribute in node.attribute:
            if attribute.name == "seed" and node.output[0] in outputs:
                attribute.i = (attribute.i + runs + 2**63) % 2**64 - 2**63
    assert changed == model


@given(models())
def test_constants_are_counted(model: onnx.ModelProto) -> None:
    payload = model.SerializeToString()
    assert constant_bytes(payload) == sum(numpy_helper.to_array(each).nbytes for each in model.graph.initializer)
    assert not has_external_data(payload)


@given(models(), st.data())
def test_damaged_bytes_are_read_or_refused(model: onnx.ModelProto, data: st.DataObject) -> None:
    payload = bytearray(model.SerializeToString())
    for _ in range(data.draw(st.integers(1, 4))):
        payload[data.draw(st.integers(0, len(payload) - 1))] = data.draw(st.integers(0, 255))
    cut = bytes(payload[: data.draw(st.integers(0, len(payload)))])
    for ask in (constant_bytes, has_external_data, lambda model: advance_seeds(model, {"y0"}, 1)):
        try:
            ask(cut)
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
    assert onnx.ModelProto.FromString(advance_seeds(payload, set(), 3)) == model
    drawing = {node.output[0] for node in model.graph.node if any(a.name == "seed" for a in node.attribute)}
    later = onnx.ModelProto.FromString(advance_seeds(payload, drawing, 3))
    moved = [
        after.output[0] for before, after in zip(model.graph.node, later.graph.node, strict=True) if before != after
    ]
    assert set(moved) == drawing


def test_external_data_is_seen(tmp_path: Path) -> None:
    tensor = numpy_helper.from_array(np.zeros((64, 64), np.float32), name="w")
    model = helper.make_model(helper.make_graph([], "g", [], [], initializer=[tensor]))
    onnx.save(model, tmp_path / "m.onnx", save_as_external_data=True, size_threshold=0)
    payload = (tmp_path / "m.onnx").read_bytes()
    assert has_external_data(payload)
    assert constant_bytes(payload) == 64 * 64 * 4


def test_what_is_no_model_has_no_metadata(tmp_path: Path) -> None:
    for name, content in (("empty", b""), ("text", b"metadata = 14\n"), ("random", bytes(range(256)))):
        (tmp_path / name).write_bytes(content)
        assert read_metadata(tmp_path / name) == {}
    assert read_metadata(tmp_path / "nowhere") == {}
    assert read_metadata(tmp_path) == {}
    assert TensorProto.EXTERNAL == 1
