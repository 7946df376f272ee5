"""Models as sessions load them: the same graph and the same bits, and errors with the names of the user's file."""

from __future__ import annotations

import errno
import os
import struct
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import IO, Any

import numpy as np
import onnx
import onnxruntime
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import NodeProto, TensorProto, helper, numpy_helper
from ops_models import FLOAT, poet_node

import poet_onnx
from poet_onnx import TrainingSession
from poet_onnx.description.names import POET_DOMAIN
from poet_onnx.errors import InputError
from poet_onnx.graph.operators import SPECS
from poet_onnx.runtime import session_options
from poet_onnx.runtime.installed import InstalledRuntime
from poet_onnx.training.session_model import LongNames, loaded_from, write_session_model

ROWS, TAKEN, RANK, MADE = 5, 7, 2, 3
NARROW = {"narrow": (ROWS, RANK), "released": (ROWS, RANK), "z": (ROWS, RANK), "inverse": (ROWS, 1)}


def read(file: IO[bytes] | None) -> onnx.ModelProto:
    assert file is not None
    with file:
        file.seek(0)
        return onnx.ModelProto.FromString(file.read())


def session_model(path: Path, **options: Any) -> onnx.ModelProto:
    return read(write_session_model(str(path), {}, **options))


def info(name: str, shape: Sequence[int] = (ROWS, MADE)) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, FLOAT, shape)


def saved(
    path: Path, nodes: Sequence[NodeProto], inputs: Sequence[onnx.ValueInfoProto], outputs: Sequence[str]
) -> Path:
    names = [name for node in nodes for name in node.output if name and name not in outputs]
    values = [info(name, NARROW.get(name, (ROWS, MADE))) for name in names]
    ends = [info(name, NARROW.get(name, (ROWS, MADE))) for name in outputs]
    graph = helper.make_graph(nodes, "net", inputs, ends, [], "said", values)
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid(POET_DOMAIN, 1)]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=9, doc_string="said")
    helper.set_model_props(model, {"a": "b"})
    onnx.save(model, path)
    return path


def adapted(path: Path, *, with_mark: bool = True, reader: bool = False) -> Path:
    """Write a product with an adapter of which nobody but a Gate reads the narrow product, if nobody else does."""
    inputs = [
        info("base"),
        info("x", (ROWS, TAKEN)),
        info("A", (TAKEN, RANK)),
        info("B", (RANK, MADE)),
        info("scale", ()),
    ]
    names = [put.name for put in inputs]
    nodes = [
        poet_node("AddLowRank", names, ["first", "narrow"], biased=0, rank=RANK, transposed=0),
        poet_node("Gate", ["narrow"], ["released"]),
        *([helper.make_node("Mark", ["x"], [], domain=POET_DOMAIN, step=4)] if with_mark else []),
        helper.make_node("Neg", ["first"], ["y"]),
        *([helper.make_node("Neg", ["narrow"], ["z"])] if reader else []),
    ]
    for place, node in enumerate(nodes):
        node.name = f"some long name of a node {place}"
        node.doc_string = "said"
    return saved(path, nodes, inputs, ["y", *(["z"] if reader else [])])


def test_what_a_plan_needs_of_a_released_output_is_not_asked_for(tmp_path: Path) -> None:
    path = adapted(tmp_path / "net.onnx")
    short = session_model(path)
    assert [node.op_type for node in short.graph.node] == ["AddLowRank", "Neg"]
    first, last = short.graph.node
    assert (first.name, last.name, list(first.output)) == ("#0", "#3", ["%0"])
    (attribute,) = first.attribute
    assert attribute.name == "packed"
    assert attribute.s == b"next_step=4;biased=0;rank=2;transposed=0"
    assert not short.metadata_props
    assert not any(each.doc_string for each in (short, short.graph, *short.graph.node))
    random = np.random.default_rng(0)
    feeds = {
        put.name: random.standard_normal([size.dim_value for size in put.type.tensor_type.shape.dim]).astype(np.float32)
        for put in short.graph.input
    }
    found = [
        onnxruntime.InferenceSession(each.SerializeToString(), session_options()).run(None, feeds)[0]
        for each in (onnx.load(path), short)
    ]
    np.testing.assert_array_equal(*found)


def test_an_output_that_somebody_reads_is_asked_for(tmp_path: Path) -> None:
    short = session_model(adapted(tmp_path / "net.onnx", reader=True))
    assert [node.op_type for node in short.graph.node] == ["AddLowRank", "Gate", "Mark", "Neg", "Neg"]
    assert len(short.graph.node[0].output) == 2
    assert (
        session_model(adapted(tmp_path / "plain.onnx", with_mark=False)).graph.node[0].attribute[0].s
        == b"biased=0;rank=2;transposed=0"
    )


def test_numbers_of_every_kind_arrive_at_kernels(tmp_path: Path) -> None:
    scale = float(np.float32(1e-5))
    node = poet_node("RmsNormalize", ["x", "scale"], ["y", "inverse"])
    node.attribute.append(helper.make_attribute("epsilon", scale))
    path = saved(tmp_path / "net.onnx", [node], [info("x"), info("scale", (MADE,))], ["y", "inverse"])
    short = session_model(path)
    assert short.graph.node[0].attribute[0].s == b"epsilon=%d" % struct.unpack("<I", struct.pack("<f", scale))
    feeds = {"x": np.full((ROWS, MADE), 1e-3, np.float32), "scale": np.ones(MADE, np.float32)}
    found = [
        onnxruntime.InferenceSession(each.SerializeToString(), session_options()).run(None, feeds)
        for each in (onnx.load(path), short)
    ]
    np.testing.assert_array_equal(found[0][0], found[1][0])
    odd = helper.make_node(
        "Odd", ["x"], ["y"], domain=POET_DOMAIN, many=list(range(100)), few=[-1, 2], text="t", one=-7
    )
    short = session_model(saved(tmp_path / "odd.onnx", [odd], [info("x")], ["y"]))
    said = {each.name: helper.get_attribute_value(each) for each in short.graph.node[0].attribute}
    assert said == {"many": list(range(100)), "text": b"t", "packed": b"few=-1,2;one=-7"}


@pytest.mark.parametrize("text", [b"rank=x", b"rank=2,", b"rank", b"rank=2,3", b"rank=", b"rank=9999999999999999999"])
def test_packed_numbers_that_are_none_are_refused(tmp_path: Path, text: bytes) -> None:
    short = session_model(adapted(tmp_path / "net.onnx"))
    short.graph.node[0].attribute[0].s = b"biased=0;transposed=0;" + text
    with pytest.raises(Exception, match="rank"):
        onnxruntime.InferenceSession(short.SerializeToString(), session_options())


def test_that_an_update_was_done_is_not_asked_for(tmp_path: Path, model_path: Callable[..., Path]) -> None:
    original = model_path("mlp-mse")
    path = tmp_path / "net.onnx"
    poet_onnx.rewrite(original, device="host", target="stock", optimizer="sgd").save(path)
    whole, short = onnx.load(path), session_model(path)
    updates = [node for node in short.graph.node if node.op_type == "UpdateSgd"]
    assert len(updates) == sum(node.op_type == "UpdateSgd" for node in whole.graph.node) > 0
    assert not any(node.output for node in updates)
    assert len(short.graph.output) == len(whole.graph.output) - len(updates) == 1
    session = TrainingSession(str(path), str(original.parent / "checkpoint"))
    before = {name: array.copy() for name, array in session.parameters.items()}
    batch = {name: np.ones(shape, dtype) for name, dtype, shape in session.data_inputs}
    session.step(batch)
    assert any((before[name] != array).any() for name, array in session.parameters.items())
    node = next(each for each in whole.graph.node if each.op_type == "UpdateSgd")  # one that a node reads stays
    whole.graph.node.append(poet_node("Gate", [node.output[0]], ["reader"]))
    onnx.save(whole, path)
    assert [list(each.output) for each in session_model(path).graph.node if each.op_type == "UpdateSgd"].count([]) == (
        len(updates) - 1
    )


def test_shapes_stay_where_buffers_are_shared(tmp_path: Path) -> None:
    for spec in SPECS.values():
        if spec.domain != POET_DOMAIN or not spec.inplace:
            continue
        made, put = [f"made{place}" for place in range(3)], [f"put{place}" for place in range(3)]
        feeding = [poet_node("Gate", ["x"], [name]) for name in put]
        reading = [poet_node("Gate", [name], [f"{name}/end"]) for name in made]
        node = helper.make_node(spec.name, put, made, domain=POET_DOMAIN)
        path = saved(tmp_path / "net.onnx", [*feeding, node, *reading], [info("x")], [f"{made[0]}/end"])
        short = session_model(path)
        known = {value.name for value in short.graph.value_info}
        placed = next(each for each in short.graph.node if each.op_type == spec.name)
        for taken, given_out in spec.inplace:
            assert {placed.input[taken], placed.output[given_out]} <= known, spec.name


def test_shapes_stay_around_other_nodes_and_go_between_ours(tmp_path: Path) -> None:
    nodes = [
        poet_node("Gate", ["x"], ["a"]),
        poet_node("Gate", ["a"], ["b"]),  # its output's shape is inferred from a's
        helper.make_node("Neg", ["b"], ["c"]),
        poet_node("GatedActivate", ["c", "c"], ["d"], activation=0),
        poet_node("GatedActivate", ["d", "d"], ["y"], activation=0),
    ]
    short = session_model(saved(tmp_path / "net.onnx", nodes, [info("x")], ["y"]))
    assert [value.name for value in short.graph.value_info] == ["%0", "%1", "%2"]
    assert all(value.type.tensor_type.shape.dim[0].dim_value == ROWS for value in short.graph.value_info)


def test_short_names_are_not_those_of_inputs_and_outputs(tmp_path: Path) -> None:
    nodes = [helper.make_node("Neg", ["%0"], ["a"]), helper.make_node("Abs", ["a"], ["b"])]
    nodes.append(helper.make_node("Neg", ["b"], ["%1"]))
    path = saved(tmp_path / "net.onnx", nodes, [info("%0")], ["%1"])
    short = session_model(path)
    assert [list(node.output) for node in short.graph.node] == [["%2"], ["%3"], ["%1"]]
    feeds = {"%0": np.full((ROWS, MADE), -2, np.float32)}
    session = onnxruntime.InferenceSession(short.SerializeToString(), session_options())
    np.testing.assert_array_equal(session.run(None, feeds)[0], feeds["%0"])
    assert LongNames(str(path))("%0 %2") == "%0 a"


def test_all_names_stay_where_a_graph_is_within_a_node(tmp_path: Path) -> None:
    inner = helper.make_graph([helper.make_node("Neg", ["outer"], ["made"])], "inner", [], [info("made")])
    choice = helper.make_node("If", ["on"], ["y"], then_branch=inner, else_branch=inner)
    nodes = [helper.make_node("Neg", ["x"], ["outer"], name="first"), choice]
    on = helper.make_tensor_value_info("on", TensorProto.BOOL, [])
    path = saved(tmp_path / "net.onnx", nodes, [info("x"), on], ["y"])
    assert list(session_model(path).graph.node) == nodes
    feeds = {"x": np.ones((ROWS, MADE), np.float32), "on": np.array(True)}
    session = onnxruntime.InferenceSession(session_model(path).SerializeToString(), session_options())
    np.testing.assert_array_equal(session.run(None, feeds)[0], feeds["x"])


def test_names_stay_for_a_reader(tmp_path: Path) -> None:
    path = adapted(tmp_path / "net.onnx")
    assert session_model(path, readable=True).graph.node == onnx.load(path).graph.node


def test_what_the_runtime_says_has_the_names_of_the_file(tmp_path: Path) -> None:
    path = adapted(tmp_path / "net.onnx")
    names = LongNames(str(path))
    said = names("Node #0 and '#3' make %0; #77, %99 and #x are nothing.")
    assert said == (
        "Node some long name of a node 0 and 'some long name of a node 3' make first; #77, %99 and #x are nothing."
    )
    other = onnx.load(path)
    other.graph.node[0].name = "another"
    path.unlink()
    assert names("Node #0") == "Node #0"
    onnx.save(other, path)
    assert names("Node #0") == "Node #0"


def test_a_step_that_fails_names_the_node(tmp_path: Path, model_path: Callable[..., Path]) -> None:
    original = model_path("mlp-mse")
    poet_onnx.rewrite(original, device="host", target="stock", optimizer="sgd").save(tmp_path / "net.onnx")
    model = onnx.load(tmp_path / "net.onnx")
    node = next(each for each in model.graph.node if each.op_type == "UpdateSgd")
    node.input[1] = model.graph.input[0].name
    onnx.save(model, tmp_path / "net.onnx")
    session = TrainingSession(str(tmp_path / "net.onnx"), str(original.parent / "checkpoint"))
    batch = {name: np.zeros(shape, dtype) for name, dtype, shape in session.data_inputs}
    with pytest.raises(poet_onnx.errors.PoetError, match=node.name):
        session.step(batch)


def test_constants_in_files_are_refused_where_they_may_not_be(tmp_path: Path) -> None:
    path = saved(tmp_path / "net.onnx", [helper.make_node("Add", ["x", "w"], ["y"])], [info("x")], ["y"])
    model = onnx.load(path)
    model.graph.initializer.append(numpy_helper.from_array(np.ones((ROWS, MADE), np.float32), "w"))
    onnx.save(model, path, save_as_external_data=True, location="data", size_threshold=0)
    assert write_session_model(str(path), {}, with_files=False) is None
    (tensor,) = session_model(path).graph.initializer
    assert tensor.external_data[0].value == "data"


@settings(max_examples=200)
@given(data=st.data())
def test_a_damaged_model_is_written_or_refused(tmp_path_factory: pytest.TempPathFactory, data: st.DataObject) -> None:
    path = tmp_path_factory.getbasetemp() / "damaged.onnx"
    whole = adapted(path).read_bytes()
    flips = data.draw(st.lists(st.tuples(st.integers(0, len(whole) - 1), st.integers(1, 255)), max_size=4))
    damaged = bytearray(whole)
    for place, bits in flips:
        damaged[place] ^= bits
    path.write_bytes(damaged[: data.draw(st.integers(0, len(damaged)))])
    try:
        file = write_session_model(str(path), {})
    except InputError:
        return
    assert file is not None or b"location" in damaged
    if file is not None:
        file.close()
    LongNames(str(path))("#0 %0 #1")


def test_a_copy_goes_among_temporary_files_where_the_folder_takes_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = adapted(tmp_path / "net.onnx")
    expected, opened = session_model(path), os.open

    def refusing(name: Any, flags: int, *rest: Any, **options: Any) -> int:
        if flags & os.O_TMPFILE == os.O_TMPFILE and Path(name) == tmp_path:
            raise OSError(errno.EROFS, os.strerror(errno.EROFS))
        return opened(name, flags, *rest, **options)

    monkeypatch.setattr(os, "open", refusing)
    assert session_model(path) == expected
    assert list(tmp_path.iterdir()) == [path]


def test_a_runtime_that_looks_for_the_model_finds_it(tmp_path: Path) -> None:
    """Sessions of onnxruntime 1.25 to 1.27 refuse constants in a file where the model's has no name."""
    versions = ("1.24.4", "1.25.1", "1.27.0", "1.28.0")
    looking = [InstalledRuntime("onnxruntime", version).looks_for_model for version in versions]
    assert looking == [False, True, True, False]
    path = adapted(tmp_path / "net.onnx")
    file = write_session_model(str(path), {}, named=True)
    assert file is not None
    with loaded_from(file) as name:
        assert Path(name).parent == tmp_path
        assert onnx.load(name) == session_model(path)
    assert list(tmp_path.iterdir()) == [path]


def test_a_session_leaves_no_file_beside_its_model(
    tmp_path: Path, model_path: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    original, model = model_path("mlp-mse"), tmp_path / "net.onnx"
    files = {*poet_onnx.rewrite(original, device="host", target="stock", optimizer="sgd").save(model)}
    opened, losses = Path.open, []

    def refusing(path: Path, mode: str = "r", *_: Any, **__: Any) -> IO[Any]:
        if "x" in mode:
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
        return opened(path, mode)

    for looks, is_writable in ((False, True), (True, True), (True, False)):
        monkeypatch.setattr(InstalledRuntime, "looks_for_model", looks)
        monkeypatch.setattr(Path, "open", opened if is_writable else refusing)
        session = TrainingSession(str(model), str(original.parent / "checkpoint"))
        assert {*tmp_path.iterdir()} == files
        batch = {name: np.ones(shape, dtype) for name, dtype, shape in session.data_inputs}
        losses.append(session.step(batch))
    assert losses[0] == losses[1] == losses[2]


def test_a_file_that_is_no_model_is_refused(tmp_path: Path) -> None:
    (tmp_path / "net.onnx").write_bytes(b"\xff" * 64)
    with pytest.raises(InputError, match="no protobuf message"):
        write_session_model(str(tmp_path / "net.onnx"), {})
    with pytest.raises(InputError, match="cannot be read"):
        write_session_model(str(tmp_path / "none.onnx"), {})
