"""External data: what a model may refer to, wherever in it and by whatever way it gets in."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import AttributeProto, TensorProto, helper, numpy_helper
from training_batches import session_of

from poet_onnx.errors import InputError
from poet_onnx.files.external_data import FileTensor, embed
from poet_onnx.files.model_file import check_external_data
from poet_onnx.files.saving import save_model
from poet_onnx.graph.extract import load_model
from poet_onnx.graph.loading import as_model
from poet_onnx.rewriting.rewrite import rewrite
from poet_onnx.training.parameters import read_parameters
from poet_onnx.training.prepare import _payload
from poet_onnx.training.session import TrainingSession
from poet_onnx.verification import verify

SECRET = np.arange(100, 116, dtype=np.float32)
SIZE = SECRET.nbytes


def external(location: str, *, length: object = SIZE, offset: object = None, name: str = "w") -> TensorProto:
    """Return a tensor whose elements are said to be in a file."""
    tensor = TensorProto(name=name, data_type=TensorProto.FLOAT, dims=[16], data_location=TensorProto.EXTERNAL)
    tensor.external_data.add(key="location", value=location)
    for key, value in (("length", length), ("offset", offset)):
        if value is not None:
            tensor.external_data.add(key=key, value=str(value))
    return tensor


def as_initializer(tensor: TensorProto) -> onnx.ModelProto:
    return make([helper.make_node("Add", ["x", "w"], ["y"])], [tensor])


def as_constant(tensor: TensorProto) -> onnx.ModelProto:
    return make([constant(tensor), helper.make_node("Add", ["x", "w"], ["y"])])


def in_function(tensor: TensorProto) -> onnx.ModelProto:
    nodes = [constant(tensor), helper.make_node("Add", ["a", "w"], ["b"])]
    function = helper.make_function("own", "plus", ["a"], ["b"], nodes, [helper.make_opsetid("", 15)])
    return make([helper.make_node("plus", ["x"], ["y"], domain="own")], functions=[function])


def in_function_default(tensor: TensorProto) -> onnx.ModelProto:
    node = helper.make_node("Constant", [], ["w"])
    node.attribute.append(AttributeProto(name="value", type=AttributeProto.TENSOR, ref_attr_name="given"))
    function = helper.make_function(
        *("own", "plus", ["a"], ["b"], [node, helper.make_node("Add", ["a", "w"], ["b"])]),
        [helper.make_opsetid("", 15)],
        attribute_protos=[helper.make_attribute("given", tensor)],
    )
    return make([helper.make_node("plus", ["x"], ["y"], domain="own")], functions=[function])


def in_subgraph(tensor: TensorProto) -> onnx.ModelProto:
    info = helper.make_tensor_value_info("z", TensorProto.FLOAT, [16])
    branch = helper.make_graph([helper.make_node("Identity", ["w"], ["z"])], "branch", [], [info], [tensor])
    true = constant(numpy_helper.from_array(np.array(True)), "true")
    return make([true, helper.make_node("If", ["true"], ["y"], then_branch=branch, else_branch=branch)])


def in_tensors(tensor: TensorProto) -> onnx.ModelProto:
    node = helper.make_node("Many", ["x"], ["y"], domain="own")
    node.attribute.append(helper.make_attribute("values", [tensor]))
    return make([node])


def constant(tensor: TensorProto, output: str = "w") -> onnx.NodeProto:
    node = helper.make_node("Constant", [], [output])
    node.attribute.append(AttributeProto(name="value", type=AttributeProto.TENSOR, t=tensor))
    return node


def make(
    nodes: list[onnx.NodeProto],
    initializers: list[TensorProto] | None = None,
    functions: list[onnx.FunctionProto] | None = None,
) -> onnx.ModelProto:
    info = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [16]) for name in "xy"]
    graph = helper.make_graph(nodes, "g", info[:1], info[1:], initializers or [])
    opsets = [helper.make_opsetid("", 15), helper.make_opsetid("own", 1)]
    return helper.make_model(graph, opset_imports=opsets, functions=functions or [], ir_version=8)


PLACES = [as_initializer, as_constant, in_function, in_function_default, in_subgraph, in_tensors]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Return the folder of a model, beside which there is a secret."""
    (tmp_path / "secret.bin").write_bytes(SECRET.tobytes())
    folder = tmp_path / "given"
    (folder / "inner").mkdir(parents=True)
    (folder / "own.bin").write_bytes(bytes(4096) + SECRET.tobytes() + b"more that nobody declared")
    return folder


def put(folder: Path, proto: onnx.ModelProto) -> Path:
    path = folder / "model.onnx"
    path.write_bytes(proto.SerializeToString())
    return path


def refusal(call: Callable[..., object], *arguments: object) -> str:
    with pytest.raises(InputError) as refused:
        call(*arguments)
    sentence = str(refused.value)
    assert sentence.endswith(".")
    assert "\n" not in sentence
    return sentence


ATTACKS: dict[str, Callable[[Path], TensorProto]] = {
    "parent": lambda folder: external("../secret.bin"),
    "parent of inner": lambda folder: external("inner/../../secret.bin"),
    "parent and back": lambda folder: external("../given/own.bin"),
    "absolute": lambda folder: external(str(folder.parent / "secret.bin")),
    "absolute inside": lambda folder: external(str(folder / "own.bin"), offset=4096),
    "link": lambda folder: external(linked(folder / "link", folder.parent / "secret.bin")),
    "link inside": lambda folder: external(linked(folder / "link", folder / "own.bin")),
    "link to a folder": lambda folder: external(linked(folder / "up", folder.parent) + "/secret.bin"),
    "hard link": lambda folder: external(hard_linked(folder / "hard", folder.parent / "secret.bin")),
    "pipe": lambda folder: external(pipe(folder / "pipe")),
    "folder": lambda folder: external("inner"),
    "nothing": lambda folder: external(""),
    "itself": lambda folder: external("."),
    "device": lambda folder: external("/dev/zero"),
    "process": lambda folder: external("/proc/self/environ"),
    "behind a file": lambda folder: external("own.bin/x"),
    "beyond the end": lambda folder: external("own.bin", offset=4140),
    "far beyond": lambda folder: external("own.bin", offset=10**400),
    "negative": lambda folder: external("own.bin", offset=-4),
    "longer": lambda folder: external("own.bin", length=SIZE + 8),
    "shorter": lambda folder: external("own.bin", length=4),
    "no bytes": lambda folder: external("own.bin", length=0),
    "a null": lambda folder: external("own.bin\0"),
    "no number": lambda folder: external("own.bin", offset="one"),
    "no type": lambda folder: typed(external("own.bin"), TensorProto.UNDEFINED),
    "text": lambda folder: typed(external("own.bin"), TensorProto.STRING),
}


def linked(path: Path, target: Path) -> str:
    path.symlink_to(target)
    return path.name


def hard_linked(path: Path, target: Path) -> str:
    path.hardlink_to(target)
    return path.name


def typed(tensor: TensorProto, kind: int) -> TensorProto:
    tensor.data_type = kind
    return tensor


def pipe(path: Path) -> str:
    os.mkfifo(path)
    return path.name


@pytest.mark.parametrize("attack", ATTACKS)
def test_what_a_model_may_not_refer_to_is_refused_wherever_it_stands(folder: Path, attack: str) -> None:
    tensor = ATTACKS[attack](folder)
    for place in PLACES:
        path = put(folder, place(tensor))
        sentence = refusal(load_model, path)
        assert "external data" in sentence or "not a valid ONNX model" in sentence or "truncated" in sentence
        refusal(read_parameters, path)
        refusal(lambda path=path: rewrite(path, device="a72"))
        refusal(as_model, onnx.load(path, load_external_data=False))
        try:
            model = ir.load(path)
        except Exception:  # noqa: BLE001 - onnx_ir itself refuses it
            continue
        refusal(as_model, model)
        refusal(save_model, model, folder / "out.onnx")
        assert not (folder / "out.onnx").exists()


@pytest.mark.parametrize("place", PLACES)
def test_data_in_the_folder_are_taken_wherever_they_stand(folder: Path, place: Callable[..., onnx.ModelProto]) -> None:
    for tensor in (external("own.bin", offset=4096), external("./own.bin", offset=4096, length=None)):
        path = put(folder, place(tensor))
        model = load_model(path)
        embed(model)
        assert SECRET.tobytes() in ir.to_proto(model).SerializeToString()
        refused = refusal(as_model, onnx.load(path, load_external_data=False))
        assert "'w' is external data, and a ModelProto does not say in which folder it is" in refused


def test_a_message_whose_data_were_loaded_is_taken(folder: Path) -> None:
    path = put(folder, as_initializer(external("own.bin", offset=4096)))
    model = as_model(onnx.load(path))
    assert np.array_equal(model.graph.initializers["w"].const_value.numpy(), SECRET)  # type: ignore[union-attr]


def test_links_to_the_model_and_to_its_folder_are_the_users_own(folder: Path) -> None:
    put(folder, as_initializer(external("own.bin", offset=4096)))
    away = folder.parent / "away"
    away.mkdir()
    (away / "folder").symlink_to(folder)
    (away / "model.onnx").symlink_to(folder / "model.onnx")
    for path in (away / "folder" / "model.onnx", away / "model.onnx", away / "folder" / "inner" / ".." / "model.onnx"):
        assert np.array_equal(read_parameters(path)["w"], SECRET)


def test_a_cache_of_links_is_refused_with_the_way_out(tmp_path: Path) -> None:
    (tmp_path / "blobs").mkdir()
    (tmp_path / "snapshot").mkdir()
    (tmp_path / "blobs" / "1").write_bytes(as_initializer(external("model.onnx_data")).SerializeToString())
    (tmp_path / "blobs" / "2").write_bytes(SECRET.tobytes())
    for number, name in ((1, "model.onnx"), (2, "model.onnx_data")):
        (tmp_path / "snapshot" / name).symlink_to(f"../blobs/{number}")
    assert "is a symbolic link or behind one; copy the model and its data" in refusal(
        load_model, tmp_path / "snapshot" / "model.onnx"
    )


def test_the_file_is_checked_again_whenever_it_is_opened(folder: Path) -> None:
    model = load_model(put(folder, as_initializer(external("own.bin", offset=4096))))
    tensor = model.graph.initializers["w"].const_value
    assert isinstance(tensor, FileTensor)
    (folder / "own.bin").rename(folder.parent / "moved.bin")
    (folder / "own.bin").symlink_to(folder.parent / "moved.bin")
    for call in (tensor.numpy, tensor.tobytes, lambda: save_model(model, folder.parent / "out.onnx")):
        assert "is a symbolic link" in refusal(call)
    assert not (folder.parent / "out.onnx").exists()


def test_a_file_that_is_written_to_is_not_used_any_more(folder: Path) -> None:
    """Another export to the same name has other numbers at the same place."""
    os.utime(folder / "own.bin", ns=(0, 0))  # the clock of files may stand still for the length of a test
    model = load_model(put(folder, as_initializer(external("own.bin", offset=4096))))
    tensor = model.graph.initializers["w"].const_value
    assert isinstance(tensor, FileTensor)
    views = [tensor, tensor.part(4, (2, 3), "part"), tensor.seen_as(ir.DataType.INT32, (16,), "codes")]
    (folder / "own.bin").write_bytes(bytes(4096) + SECRET[::-1].tobytes() + b"more that nobody declared")
    reads = [call for view in views for call in (view.numpy, view.tobytes, lambda view=view: list(view.chunks()))]
    for read in (*reads, lambda: save_model(model, folder.parent / "out.onnx")):
        assert "own.bin was changed while its weights were in use: load the model again" in refusal(read)


def test_types_smaller_than_a_byte_and_empty_tensors_are_read(folder: Path) -> None:
    (folder / "own.bin").write_bytes(b"\x21\x43")
    packed = external("own.bin", length=2)
    packed.data_type, packed.dims[:] = TensorProto.UINT4, [4]
    model = load_model(put(folder, as_initializer(packed)))
    tensor = model.graph.initializers["w"].const_value
    assert tensor is not None
    assert np.asarray(tensor).astype(np.int64).tolist() == [1, 2, 3, 4]
    assert tensor.tobytes() == b"\x21\x43"
    empty = external("absent.bin", length=0)
    empty.dims[:] = [0, 3]
    model = load_model(put(folder, as_initializer(empty)))
    assert model.graph.initializers["w"].const_value.numpy().shape == (0, 3)  # type: ignore[union-attr]


def test_a_part_of_a_tensor_is_a_part_of_its_file(folder: Path) -> None:
    tensor = (
        load_model(put(folder, as_initializer(external("own.bin", offset=4096)))).graph.initializers["w"].const_value
    )
    assert isinstance(tensor, FileTensor)
    part = tensor.part(4, (2, 3), "part")
    assert part.name == "part"
    assert np.array_equal(part.numpy(), SECRET[4:10].reshape(2, 3))
    assert np.array_equal(part.part(3, (3,), "end").numpy(), SECRET[7:10])
    for start in (-1, 11):
        with pytest.raises(InputError, match=rf"'w' of 16 elements has no part of 6 from {start} on"):
            tensor.part(start, (2, 3), "part")


def test_only_what_is_declared_is_copied_and_no_more_users_may_read_it(folder: Path) -> None:
    secret = folder / "own.bin"
    secret.write_bytes(b"unsaid" * 4096 + SECRET.tobytes() + b"unsaid" * 4096 + SECRET.tobytes()[::-1] + b"unsaid")
    secret.chmod(0o600)
    proto = as_initializer(external(secret.name, offset=6 * 4096))
    second = 12 * 4096 + SIZE
    proto.graph.initializer.append(external(secret.name, offset=second, name="again"))
    proto.graph.initializer.append(external(secret.name, offset=second + 4, length=SIZE - 4, name="within"))
    proto.graph.initializer[-1].dims[:] = [15]
    model = load_model(put(folder, proto))
    away = folder.parent / "away"
    away.mkdir()
    for _ in range(2):
        save_model(model, away / "out.onnx")
        copy = away / "out.onnx.data"
        assert sorted(away.iterdir()) == [away / "out.onnx", copy]
        content = copy.read_bytes()
        assert b"unsaid" not in content
        assert len(content) < 4096 + 3 * SIZE
        assert stat.S_IMODE(copy.stat().st_mode) == 0o600
    found = onnx.load(away / "out.onnx")
    arrays = {tensor.name: numpy_helper.to_array(tensor) for tensor in found.graph.initializer}
    assert np.array_equal(arrays["w"], SECRET)
    assert arrays["again"].tobytes() == SECRET.tobytes()[::-1]
    assert np.array_equal(arrays["within"], arrays["again"][1:])


def test_constants_are_brought_too(folder: Path) -> None:
    path = put(folder, as_constant(external("own.bin", offset=4096)))
    away = folder.parent / "away"
    away.mkdir()
    save_model(load_model(path), away / "out.onnx")
    (folder / "own.bin").unlink()
    model = load_model(away / "out.onnx")
    assert np.array_equal(next(iter(model.graph)).attributes["value"].as_tensor().numpy(), SECRET)


def test_a_file_that_shrinks_while_it_is_copied_is_refused(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = load_model(put(folder, as_initializer(external("own.bin", offset=4096))))
    (folder.parent / "away").mkdir()
    monkeypatch.setattr(os, "pread", lambda *_: b"")
    assert "became shorter" in refusal(save_model, model, folder.parent / "away" / "out.onnx")
    assert list((folder.parent / "away").iterdir()) == []


@pytest.mark.parametrize("place", [as_initializer, as_constant])
def test_sessions_and_exports_refuse_and_take_the_same(
    folder: Path, model_path: Callable[..., Path], place: Callable[..., onnx.ModelProto]
) -> None:
    training = model_path("mlp-mse", batch=4)
    session = session_of(training)
    out = folder.parent / "out.onnx"
    path = put(folder, place(external("../secret.bin")))
    for call in (
        lambda: TrainingSession(path, {}),
        lambda: TrainingSession(training, path),
        lambda: session_of(training, eval_model=path),
        lambda: session.export_inference_model(out, model=path),
        lambda: verify(path, training),
    ):
        assert "only refer to files below its own folder" in refusal(call)
    assert not out.exists()
    payload = _payload(load_model(put(folder, place(external("own.bin", offset=4096)))))
    assert SECRET.tobytes() in payload
    assert b"own.bin" not in payload


@pytest.mark.parametrize("attack", [name for name in ATTACKS if name not in ("beyond the end", "far beyond")][:14])
def test_a_file_that_a_runtime_opens_by_itself_is_checked_before(folder: Path, attack: str) -> None:
    tensor = ATTACKS[attack](folder)
    for place in PLACES:
        assert "external data" in refusal(check_external_data, put(folder, place(tensor)))
        check_external_data(put(folder, place(external("own.bin", offset=4096))))


def test_a_session_of_a_rewritten_file_opens_no_secret(folder: Path, model_path: Callable[..., Path]) -> None:
    """The session runs such a file as it is: ONNX Runtime itself would read what it refers to."""
    result = rewrite(model_path("mlp-mse", batch=4), device="a72")
    net, *_ = result.save(folder / "net.onnx")
    proto = onnx.load(net)
    proto.graph.initializer.append(external("../secret.bin", name="stolen"))
    net.write_bytes(proto.SerializeToString())
    values = model_path("mlp-mse", batch=4).with_name("checkpoint")
    assert "'stolen' is said to be in '../secret.bin'" in refusal(TrainingSession, net, values)
