"""Exporting tensor by tensor: little memory, the same numbers, whole files or none, and no way out of a folder."""

from __future__ import annotations

import errno
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime
import pytest
from forward_models import parse, random, weights
from hypothesis import given
from hypothesis import strategies as st

from poet_onnx.adapters.lora import Adapter, Adapters, Lora
from poet_onnx.errors import InputError
from poet_onnx.files import data_files
from poet_onnx.files.protobuf import FileBytes
from poet_onnx.files.saving import save_model
from poet_onnx.files.values import Kind, Values
from poet_onnx.gradients.inference import infer_only
from poet_onnx.graph.extract import infer_types
from poet_onnx.training.adapter_merging import merge_adapters
from poet_onnx.training.forward import open_forward
from poet_onnx.training.forward_graph import ForwardGraph
from poet_onnx.training.inference_model import write_inference_model


def forward(folder: Path, text: str, arrays: Mapping[str, Any], **options: Any) -> ForwardGraph:
    """Return a model as it is read back from a file that says of itself what `rewrite` says."""
    model = parse(text, arrays)
    infer_types(model)
    model.metadata_props["poet.outputs"] = "[]"
    save_model(model, folder / "forward.onnx", **options)
    return open_forward(folder / "forward.onnx", {}, outputs=None, cut_loss=False)[0]


@pytest.mark.parametrize("rows", [1, 2, 3, 77, 1030])
@pytest.mark.parametrize("transposed", [False, True])
def test_weights_merged_in_blocks_have_the_bits_of_weights_merged_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, rows: int, transposed: bool
) -> None:
    monkeypatch.setattr("poet_onnx.training.adapter_merging._BLOCK_BYTES", 3000)
    shape = (rows, 129)
    first, second = random(shape[transposed], 3), random(3, shape[not transposed])
    adapter = Adapter("", "w", "linear", transposed, (), 1, ())
    base = random(*shape)
    wide = f"g (float[{rows}, 2] x) => (float[129, 2] y) {{ t = Transpose(w) y = MatMul(t, x) }}"
    write_inference_model(
        tmp_path / "out.onnx",
        forward(tmp_path, wide, {"w": base}),
        {adapter.first: first, adapter.second: second},
        outputs=None,
        merged=Adapters(Lora("w", rank=3, alpha=6), (adapter,)),
    )
    product = (first @ second).T if transposed else first @ second
    assert weights(tmp_path / "out.onnx")["w"].tobytes() == (base + product * np.float32(2)).tobytes()


def test_adapters_are_read_one_by_one_as_their_weights_are_written(tmp_path: Path) -> None:
    """All of them together may be more than what a store leaves in RAM."""
    chain = "g (float[5, 2] x) => (float[5, 2] y) { a = MatMul(v, x) y = MatMul(w, a) }"
    graph = forward(tmp_path, chain, {"v": random(5, 5), "w": random(5, 5)})
    each = tuple(Adapter("", name, "linear", False, (), 1, ()) for name in ("v", "w"))
    read = list[str]()
    kinds = {
        name: Kind("float32", (5, 3) if name == one.first else (3, 5))
        for one in each
        for name in (one.first, one.second)
    }
    values = Values("a store", kinds, lambda name, array: (read.append(name), array.fill(1))[1])
    merged = merge_adapters(graph, Adapters(Lora("v,w", rank=3, alpha=6), each), values)
    assert read == []
    for one in each:
        assert b"".join(merged[one.weight].chunks())
        assert read == [one.first, one.second]
        read.clear()


NORMS = """g (float[2, 3] x, float[3] s) => (float[2, 3] y, float[2, 3] other) {
    a = Add(x, s)
    b = Add(a, zeros)
    spare = Mul(b, unread)
    y = MatMul(b, w)
    other = Sub(y, b)
}"""
ARRAYS = {"zeros": random(3), "w": random(3, 3), "unread": random(3)}


def test_what_is_exported_is_what_the_graph_computes_with_these_values(tmp_path: Path) -> None:
    values = {"s": np.float32([1, 2, 3]), "w": random(3, 3) + 1, "of others": np.zeros(7)}
    x = random(2, 3)
    for outputs in (None, ["y"], ["other", "b"]):
        graph = forward(tmp_path, NORMS, ARRAYS)
        write_inference_model(tmp_path / "out.onnx", graph, values, outputs=outputs, merged=None)
        model = onnx.load(tmp_path / "out.onnx")
        onnx.checker.check_model(model, full_check=True)
        assert [value.name for value in model.graph.input] == ["x"]
        assert [value.name for value in model.graph.output] == (outputs or ["y", "other"])
        assert {each.name for each in model.graph.initializer} <= {"s", "w", "zeros"}
        assert not model.metadata_props
        found = onnxruntime.InferenceSession(tmp_path / "out.onnx").run(None, {"x": x})
        given = parse(NORMS, {**ARRAYS, "w": values["w"]})
        names = outputs or ["y", "other"]
        given.graph.outputs[:] = [value for name in names for value in _made(given) if value.name == name]
        session = onnxruntime.InferenceSession(ir.to_proto(given).SerializeToString())
        expected = session.run(None, {"x": x, "s": values["s"]})
        assert [each.tobytes() for each in found] == [each.tobytes() for each in expected]


def _made(model: ir.Model) -> list[ir.Value]:
    return [value for node in model.graph for value in node.outputs]


def test_what_a_branch_reads_is_kept_and_other_operators_are_known(tmp_path: Path) -> None:
    text = """g (float[2, 3] x, bool c) => (float[2, 3] y) {
        hidden = Neg(x)
        y = If (c) <then_branch = t () => (float[2, 3] u) { u = Add(hidden, w) },
                    else_branch = e () => (float[2, 3] v) { v = com.microsoft.Gelu(hidden) }>
    }"""
    graph = forward(tmp_path, text, {"w": random(3)})
    write_inference_model(tmp_path / "out.onnx", graph, {"w": random(3) * 2}, outputs=None, merged=None)
    feeds = {"x": random(2, 3), "c": np.array(True)}
    (found,) = onnxruntime.InferenceSession(tmp_path / "out.onnx").run(None, feeds)
    np.testing.assert_array_equal(found, -feeds["x"] + random(3) * 2)


PLANNED = """g (float[2, 3] x, float[3] s) => (float[2, 3] other, float[2, 3] y) {
    armed = poet.Arena <region_bytes = 64> (x)
    [add] a = Add(x, s)
    b = Add(a, zeros)
    y = MatMul(b, w)
    g = poet.Gate(x, y)
    ["add/recompute_1"] "a/recompute_1" = Add(g, s)
    b1 = poet.Gate("a/recompute_1", y)
    c = Add(b1, zeros)
    other = Sub(y, c)
}"""


def test_an_exported_model_has_nothing_of_a_plan(tmp_path: Path) -> None:
    graph = forward(tmp_path, PLANNED, {name: ARRAYS[name] for name in ("zeros", "w")})
    values = {"s": np.float32([1, 2, 3])}
    write_inference_model(tmp_path / "out.onnx", graph, values, outputs=["y", "other"], merged=None)
    model = onnx.load(tmp_path / "out.onnx")
    onnx.checker.check_model(model, full_check=True)
    assert [node.op_type for node in model.graph.node] == ["Add", "Add", "MatMul", "Add", "Sub"]
    assert [each.domain for each in model.opset_import] == [""]
    x = random(2, 3)
    y, other = onnxruntime.InferenceSession(tmp_path / "out.onnx").run(None, {"x": x})
    summed = x + values["s"] + ARRAYS["zeros"]
    np.testing.assert_allclose(y, summed @ ARRAYS["w"], rtol=1e-6)
    np.testing.assert_array_equal(other, y - summed)


@pytest.mark.parametrize(("returned", "made"), [("", 1), (", bool[2, 3] mask", 2)])
def test_a_mask_that_nobody_reads_is_not_computed_in_inference(returned: str, made: int) -> None:
    text = f"g (float[2, 3] x, float r, bool t) => (float[2, 3] y{returned}) {{ y, mask = Dropout(x, r, t) }}"
    model = parse(text, {})
    infer_only(model)
    (node,) = model.graph
    assert [value.name for value in node.outputs] == ["y", "mask"][:made]
    assert [value.name for value in node.inputs if value is not None] == ["x", "r"]


def saved_outside(folder: Path) -> ForwardGraph:
    """Return a model whose weights lie in a file beside it."""
    folder.mkdir(exist_ok=True)
    ir.save(parse(NORMS, ARRAYS), folder / "forward.onnx", external_data="weights.bin")
    model = onnx.load(folder / "forward.onnx", load_external_data=False)
    for tensor in model.graph.initializer:
        array = ARRAYS[tensor.name]
        start = 4096 * (1 + list(ARRAYS).index(tensor.name))
        with (folder / "weights.bin").open("r+b" if (folder / "weights.bin").exists() else "w+b") as file:
            file.seek(start)
            file.write(array.tobytes())
        tensor.ClearField("raw_data")
        tensor.data_location = onnx.TensorProto.EXTERNAL
        for key, value in (("location", "weights.bin"), ("offset", start), ("length", array.nbytes)):
            tensor.external_data.add(key=key, value=str(value))
    (folder / "forward.onnx").write_bytes(model.SerializeToString())
    return ForwardGraph(FileBytes(folder / "forward.onnx"), folder)


def test_external_data_stay_where_they_are_or_are_brought(tmp_path: Path) -> None:
    values = {"w": random(3, 3) + 1}
    graph = saved_outside(tmp_path / "here")
    away = tmp_path / "away"
    away.mkdir()
    for folder, data in ((tmp_path / "here", "weights.bin"), (away, "out.onnx.data")):
        write_inference_model(folder / "out.onnx", graph, values, outputs=["y"], merged=None)
        places = {
            entry.value
            for tensor in onnx.load(folder / "out.onnx", load_external_data=False).graph.initializer
            for entry in tensor.external_data
            if entry.key == "location"
        }
        assert places == {data}
        assert {name: array.tobytes() for name, array in weights(folder / "out.onnx").items()} == {
            "zeros": ARRAYS["zeros"].tobytes(),
            "w": values["w"].tobytes(),
        }
    adapter = Adapter("", "w", "linear", False, (), 1, ())
    numbers = {adapter.first: random(3, 1), adapter.second: random(1, 3)}
    merged = Adapters(Lora("w", rank=1, alpha=1), (adapter,))
    write_inference_model(away / "merged.onnx", graph, numbers, outputs=["y"], merged=merged)
    expected = ARRAYS["w"] + numbers[adapter.first] @ numbers[adapter.second]
    assert weights(away / "merged.onnx")["w"].tobytes() == expected.tobytes()


def test_weights_too_large_for_a_protobuf_file_lie_beside_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    arrays = {"w": random(40, 40), "s": random(40)}
    graph = forward(tmp_path, "g (float[2, 40] x) => (float[2, 40] y) { a = MatMul(x, w) y = Add(a, s) }", arrays)
    monkeypatch.setattr(data_files, "LARGEST_FILE_BYTES", 5000)
    for values in ({"s": arrays["s"] * 2}, {"w": arrays["w"] * 2}):
        write_inference_model(tmp_path / "out.onnx", graph, values, outputs=None, merged=None)
        assert (tmp_path / "out.onnx").stat().st_size < 1000
        expected = {name: array.tobytes() for name, array in {**arrays, **values}.items()}
        assert {name: array.tobytes() for name, array in weights(tmp_path / "out.onnx").items()} == expected


def test_a_disk_that_is_full_leaves_the_old_file_and_no_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    graph = saved_outside(tmp_path / "here")
    away = tmp_path / "away"
    away.mkdir()
    (away / "out.onnx").write_bytes(b"old")
    real, calls = os.fsync, []

    def full(descriptor: int) -> None:
        calls.append(descriptor)
        if len(calls) > 3:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        real(descriptor)

    monkeypatch.setattr(os, "fsync", full)
    for allowed in range(3):  # while the data are copied, when their folder is told, and at the model itself
        calls[:] = [0] * (3 - allowed)
        with pytest.raises(InputError, match=r"out\.onnx cannot be written: No space left"):
            write_inference_model(away / "out.onnx", graph, {"w": random(3, 3)}, outputs=["y"], merged=None)
        assert [path.name for path in away.iterdir()] == ["out.onnx"]
        assert (away / "out.onnx").read_bytes() == b"old"


def export(folder: Path) -> None:
    graph = ForwardGraph(FileBytes(folder / "forward.onnx"), folder)
    write_inference_model(folder / "out.onnx", graph, {"w": random(3, 3)}, outputs=None, merged=None)


@pytest.mark.parametrize(
    ("entries", "message"),
    [
        ({"location": "../secret.bin"}, "only refer to files below its own folder"),
        ({"location": "/etc/passwd"}, "only refer to files below its own folder"),
        ({"location": "weights.bin", "length": "8"}, "said to have 8 bytes from byte None on"),
        ({"location": "weights.bin", "offset": "-4"}, "said to have None bytes from byte -4 on"),
        ({"location": "weights.bin", "offset": "x"}, "said to have None bytes from byte x on"),
        ({"location": "weights.bin", "offset": "99999"}, "is truncated"),
        ({"location": "none.bin"}, "cannot be read"),
    ],
)
def test_external_data_that_may_not_be_read_are_refused(
    tmp_path: Path, entries: Mapping[str, str], message: str
) -> None:
    saved_outside(tmp_path)
    model = onnx.load(tmp_path / "forward.onnx", load_external_data=False)
    del model.graph.initializer[0].external_data[:]
    for key, value in entries.items():
        model.graph.initializer[0].external_data.add(key=key, value=value)
    (tmp_path / "forward.onnx").write_bytes(model.SerializeToString())
    with pytest.raises(InputError, match=message):
        export(tmp_path)
    assert not (tmp_path / "out.onnx").exists()


@given(st.data())
def test_a_damaged_model_is_exported_or_refused(tmp_path_factory: pytest.TempPathFactory, data: st.DataObject) -> None:
    folder = tmp_path_factory.getbasetemp()
    payload = bytearray(ir.to_proto(parse(NORMS, ARRAYS)).SerializeToString())
    for _ in range(data.draw(st.integers(1, 4))):
        payload[data.draw(st.integers(0, len(payload) - 1))] = data.draw(st.integers(0, 255))
    cut = bytes(payload[: data.draw(st.sampled_from((len(payload), data.draw(st.integers(0, len(payload))))))])
    try:
        graph = ForwardGraph(cut, folder)
        write_inference_model(folder / "damaged.onnx", graph, {"w": random(3, 3)}, outputs=None, merged=None)
    except InputError as error:
        assert "\n" not in str(error)


@given(st.binary(max_size=300), st.lists(st.tuples(st.integers(0, 300), st.integers(0, 300)), max_size=8))
def test_bytes_of_a_file_are_those_of_the_file(
    tmp_path_factory: pytest.TempPathFactory, payload: bytes, places: list[tuple[int, int]]
) -> None:
    path = tmp_path_factory.getbasetemp() / "bytes"
    path.write_bytes(payload)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("poet_onnx.files.protobuf._WINDOW_BYTES", 16)
        found = FileBytes(path)
        for first, last in places:
            assert found[first:last] == payload[first:last]
            if first < len(payload):
                assert found[first] == payload[first]
                assert b"".join(map(bytes, found.chunks(first, len(payload)))) == payload[first:]


def test_a_file_that_became_shorter_is_refused(tmp_path: Path) -> None:
    graph = forward(tmp_path, NORMS, ARRAYS)
    (tmp_path / "forward.onnx").write_bytes(b"")
    with pytest.raises(InputError, match="became shorter while it was read"):
        write_inference_model(tmp_path / "out.onnx", graph, {"s": random(3)}, outputs=None, merged=None)
    assert not (tmp_path / "out.onnx").exists()
